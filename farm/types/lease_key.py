"""Keys of leases, under which the tracker of a lab lends their boards.

A lab lists no such key, because whoever knows one may use the boards of its lease.
"""

from __future__ import annotations

import re

_LEASE_KEY = re.compile(r"lease-[0-9a-f]{16}")


def new_lease_key() -> str:
    """Return a key that nobody can guess: 64 random bits."""
    import secrets  # with a dozen modules; only the server of a lab makes keys

    return f"lease-{secrets.token_hex(8)}"


def is_lease_key(key: str) -> bool:
    """Return whether the key of a tracker is that of a lease."""
    return bool(_LEASE_KEY.fullmatch(key))
