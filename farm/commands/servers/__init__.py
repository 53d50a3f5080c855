"""Commands of the group "Servers" of `farm --help`.

Modules:
    agent_and_tracker    agent and tracker
    lab                  lab serve, and what its people ask of it
    lab_lending          lab lease, run and proxy: boards for people, programs and TVM's tools
    lab_lease_lifecycle  lease boards for a command
    lab_reservations     lab reserve, reservations and cancel: boards for a time to come
    lab_options          options shared by the lab's commands
    lab_health           lab health: how fit a board is
    lab_users            lab user and lab door: who may come in by SSH
"""
