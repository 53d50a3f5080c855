"""Determine whether the address that a board offers is its own.

The server connects to it from the lab's machine, for whoever has a lease: so a board must not name
another's, such as a keyless server on the lab's loopback. Its own is where it connects from. A
board on the lab's machine, and one behind a tunnel, connect from there: theirs is a port that
listens for the process that offers it. sshd is that process for both ends of a tunnel.
"""

from __future__ import annotations

import ipaddress

from farm import ownership

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def foreign_address_reason(host: str, port: int, connection: ownership.SocketLike) -> str:
    """Return why an address is not that of the board behind a connection; "" if it is.

    It looks at all processes where the board is on this machine, which takes some 30 ms.
    """
    try:
        offered = _address(host)
        origin = _address(connection.getpeername()[0])
        here = _address(connection.getsockname()[0])
    except OSError:
        return "its connection to the lab is lost"
    except ValueError:
        return "the address has a name, and a board has to offer one of numbers"
    is_here = origin.is_loopback or origin == here
    if offered != origin and not (is_here and (offered.is_loopback or offered == here)):
        return f"it connects from {origin}, and offers {offered}"
    if is_here and not ownership.is_peer_listening_at(str(offered), port, connection):
        return f"what listens at port {port} there is not what offers it"
    return ""


def _address(text: str) -> Address:
    """Return an address of numbers; IPv4 in IPv6 as IPv4. Raises ValueError."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
