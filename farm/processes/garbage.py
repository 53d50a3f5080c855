"""How often a process looks for garbage."""

from __future__ import annotations

import gc

_NEW_OBJECTS = 10_000  # between two collections; Python's default is 700 or 2,000


def collect_garbage_less_often() -> None:
    """Let the collector of this process begin less often.

    Loading modules and importing models make many objects that stay, and each collection searches
    them. The garbage of a server is still collected, later.
    """
    gc.set_threshold(_NEW_OBJECTS)
