"""The line with which a lab hands over a board, before the board's own bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from farm.errors import DeviceError
from farm.lab_client.control_client import error_from_answer

MOST_LINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HandedBoard:
    """A board's name, and the key that it expects in its next session."""

    board: str
    match_key: str


def parse_board_head(line: bytes) -> HandedBoard:
    """Return what the lab says of a board. Raises the error that it has put there instead."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = {}
    if isinstance(body, dict) and "error" in body:
        raise error_from_answer(body["error"])
    match body:
        case {"ok": {"board": str(board), "match_key": str(key)}}:
            return HandedBoard(board, key)
    raise DeviceError("the lab's answer is not understood", "", "use the farm of its version")
