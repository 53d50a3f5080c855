"""How often a process looks for garbage."""

from __future__ import annotations

import gc

_NEW_OBJECTS = 10_000  # between two collections; Python's default is 700


def collect_garbage_less_often() -> None:
    """Let the collector of this process begin less often.

    Loading modules and importing models make many objects, nearly all of which stay, and Python
    would search among them again and again. What a server makes later is collected all the same.
    """
    gc.set_threshold(_NEW_OBJECTS)
