"""Kernels in TVMScript, parsed without a search of the callers' sources.

TVM looks at the source of every caller, twice for each kernel. In pytest, which has many callers
and thousands of modules, that takes a third of a second. A thread of its own has hardly any.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tvm.script import tirx


def prim_func(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Parse the decorated function, as `tirx.prim_func` does.

    TVM reads the decorator's options from the source, where it has to be an attribute:
    `tvm_script.prim_func`.
    """

    def parse(function: Callable[..., Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: tirx.prim_func(**options)(function)).result()

    parse.dispatch_token = tirx.prim_func.dispatch_token  # type: ignore[attr-defined]
    return parse
