"""farm: a device farm for neural networks, over Apache TVM's RPC.

From Python, `from farm import Farm`: see `farm.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.api import Answer as Answer
    from farm.api import Farm as Farm
    from farm.api import Result as Result

__version__ = "0.1.0"

_API = ("Answer", "Farm", "Result")


def __getattr__(name: str) -> Any:
    """The interface for Python programs is loaded when it is first asked for: `import farm` alone costs nothing."""
    if name not in _API:
        raise AttributeError(f"module 'farm' has no attribute {name!r}")
    from farm import api

    return getattr(api, name)
