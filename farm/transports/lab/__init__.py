"""Boards that a lab leases.

transport            lease a board, open a session with it, give it back
reach_lab            the ways to a lab: its Unix socket, or the door
door                 the door: channels of SSH
board_handover       what a lab says of a board that it hands over
connectivity_checks  the checks of a connection through them, for `farm doctor`
"""
