"""The error of a message that the tracker refuses."""


class ProtocolError(Exception):
    """A peer has sent what no peer of a tracker sends."""
