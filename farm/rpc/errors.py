"""The errors of a session: what the other side reported, and what it may not send."""

from __future__ import annotations

from farm.errors import DeviceError


class RemoteError(DeviceError):
    """The server carried out a request and reports that it failed; the session goes on.

    `message` is the server's text.
    """

    def __init__(self, server: str, message: str) -> None:
        super().__init__(f"{server} reports an error", message)
        self.message = message

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:  # type: ignore[override]
        return type(self), (self.what.removesuffix(" reports an error"), self.message)


class ProtocolError(DeviceError):
    """The server sent what no server of TVM's RPC sends; the session is over.

    `reason` describes it.
    """

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(
            f"{server} sent what no server of TVM's RPC sends: {reason}",
            "a server may only answer; the session is over",
            "see what runs there before you go on",
        )
        self.server, self.reason = server, reason

    def __reduce__(self) -> tuple[type[ProtocolError], tuple[str, str]]:  # type: ignore[override]
        return type(self), (self.server, self.reason)


class VersionError(DeviceError):
    """The server speaks another version of the protocol."""
