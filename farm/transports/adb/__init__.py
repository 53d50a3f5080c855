"""Android boards that are reached by adb, the Android Debug Bridge.

transport            open a session with the agent on a board
board                run scripts on a board, which install and start the agent
upload               send large files to a board
devices              find the one device that a url means, and say why it cannot be used
server               what the adb server answers: its version, its list of devices, their changes
adb_program          the adb program
android_facts        facts of the Android system: SoC, battery, battery saver, screen, thermal
                     status
connectivity_checks  check a connection layer by layer, for `farm doctor`
"""
