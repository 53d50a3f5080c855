"""Time ledgers: dicts of seconds by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def add_block_duration(ledger: dict[str, float], part: str) -> Iterator[None]:
    """Add the block's duration to a ledger."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        ledger[part] = ledger.get(part, 0.0) + time.perf_counter() - begin
