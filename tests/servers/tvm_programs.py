"""Start TVM's own programs without torch.

TVM's FFI imports torch where it is installed, which takes twice as long as TVM itself and changes
nothing for servers, trackers and their clients. TVM's parts for GPUs change nothing either and are
left out, and its look-ups of names are shortened (`without_torch/sitecustomize`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

WITHOUT_TORCH = Path(__file__).parents[1] / "without_torch"


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables, or this process's, with which Python finds no torch."""
    given = dict(variables or os.environ)
    paths = (str(WITHOUT_TORCH), given.get("PYTHONPATH"))
    return {**given, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def hide_torch() -> None:
    """From this process, which has not imported TVM yet."""
    sys.path.insert(0, str(WITHOUT_TORCH))
    runpy.run_path(str(WITHOUT_TORCH / "sitecustomize.py"))
