"""Recognise the errors of agents that were built before errors had codes, by their English.

Each row gives a regular expression for a text of such an agent and the code that today's agents
send instead. No row is added for a new error: it gets a code (see `agent_errors`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

_CODES = (
    ("out of memory", "E_NO_MEMORY"),
    ("the GPU failed", "E_GPU"),
    ("no GPU: ", "E_NO_GPU"),
    ("cannot load library|soft-float|library is for", "E_LIBRARY"),
    ("digest mismatch", "E_DIGEST"),
    ("too many for a profile", "E_PROFILE"),
    ("hold the samples|the samples have|answers to the samples", "E_SAMPLES"),
    ("the store's budget", "E_STORE_FULL"),
    ("may hold .* bytes", "E_WORK_FULL"),
    ("nothing named .* is deployed", "E_NOT_DEPLOYED"),
    ("has no (earlier )?release", "E_NO_RELEASE"),
    ("the store has no file|is damaged", "E_STORE_LOST"),
    ("not a manifest", "E_MANIFEST"),
    ("plain file name|session's work directory", "E_NAME"),
    (
        "nothing was begun|leads past|leaves a gap|incomplete: of|a file cannot have|not a SHA-256",
        "E_UPLOAD",
    ),
    ("a packet of the client has no sense", "E_PACKET"),
    ("another session has held", "E_STORE_BUSY"),
    (
        r"cannot (read|write|make|remove|sync|keep|switch|lock) "
        r"|(?<!\w)(read|write|close|fsync|fork|/dev/urandom|chdir.*): \w",
        "E_FILE",
    ),
    (
        "a core takes one|cores are big, little|has no little cores"
        "|is not there, or not for this process|this session has begun with|: no range"
        "|threads: a number above 0|cannot bind a thread",
        "E_THREADS",
    ),
    ("the client said nothing", "E_SILENT"),
)
_END = re.compile(
    r"is over after [^\n]*?: (?:died of (?P<signal>[^\n]+)|(?P<told>its client was told why)"
    r"|exit code (?P<status>\d+)|[^\n]+)"
)
_SIGNALS: Mapping[str, int] = {  # as strsignal(3) names them
    "Illegal instruction": signal.SIGILL,
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
}


def find_error_code_by_text(message: str) -> str | None:
    """Return the code of the error that such an agent describes; None for any other text."""
    return next((code for text, code in _CODES if re.search(text, message)), None)


def parse_last_session_end_by_text(log: str) -> tuple[bool, int | None] | None:
    """Return how the last session in such an agent's log ended; None if no session has ended.

    The result is whether it ended properly (see `agent_errors.SessionEnd`), and its signal.
    """
    *_, last = (None, *_END.finditer(log))
    if last is None:
        return None
    return last["told"] is not None or last["status"] == "0", _SIGNALS.get(last["signal"] or "")
