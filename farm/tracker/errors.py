"""What a tracker refuses in the messages of its peers."""


class ProtocolError(Exception):
    """A peer has sent what no peer of a tracker sends."""
