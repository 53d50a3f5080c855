"""Boards that a lab leases.

transport    lease a board, open a session with it, give it back
ways         the ways to a lab: its Unix socket, or the door, by SSH
checks       the checks of a connection through them, for `farm doctor`
"""
