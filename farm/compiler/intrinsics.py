"""TVM's descriptions of what processors do to whole tiles, which schedules name: those of tensor cores among them."""

from __future__ import annotations

import inspect
import sys
from types import FrameType, SimpleNamespace


def load() -> None:
    """Have TVM register them.

    They are 248 functions in its script, each of which asks for the whole stack, with the lines of source of all its frames: that takes
    over a minute. Meanwhile it gets the frames without the lines, which only functions in classes need; then it takes 5 s, once a process.
    """
    from tvm.tirx.script.parser import entry

    if "tvm.s_tir.tensor_intrin" in sys.modules:
        return
    before = entry.inspect
    entry.inspect = SimpleNamespace(**{**vars(inspect), "stack": _frames})
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        entry.inspect = before


def _frames() -> list[inspect.FrameInfo]:
    """The stack of the caller, as inspect.stack() gives it, less the source."""
    found = list[inspect.FrameInfo]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found
