"""Boards that a lab leases.

transport    lease a board, open a session with it, give it back
reach_lab    the ways to a lab: its Unix socket, or the door
door         the door: channels of SSH
answers      what a lab says of a board that it hands over
checks       the checks of a connection through them, for `farm doctor`
"""
