"""`farm doctor`: find the first layer that fails between this machine and a device.

board   the layers of a device, from its name to a model's answer
checks  ask all devices at once, layer by layer
host    what farm needs of this machine
"""
