"""Compute the result of every operation of an exported torch program with torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_unflatten

from farm.importers.imported_model import Layers
from farm.importers.torch.checks.checked_arguments import CheckedArguments
from farm.importers.torch.dtypes import is_numpy_dtype


def make_intermediate_results_function(
    program: torch.export.ExportedProgram, names: Sequence[str], structure: Any
) -> Layers:
    """Return a function that yields the module, operator and values of each operation, in order.

    The function takes the inputs by name.
    """

    def layers(inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
        tensors = [torch.from_numpy(np.asarray(inputs[name], order="C")) for name in names]
        positional, named = tree_unflatten(tensors, structure)
        recorder = _Recorder(program.module())
        with torch.no_grad(), CheckedArguments():
            recorder.run(*positional, *named.values())
        yield from recorder.found

    return layers


class _Recorder(torch.fx.Interpreter):  # type: ignore[misc]
    """Interpreter that records the tensor of each operation.

    Tensors of types that numpy lacks are converted to float32; complex ones are pairs of reals.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.found: list[tuple[str, str, np.ndarray]] = []

    def run_node(self, node: torch.fx.Node) -> Any:
        """Run a node and record its result, or the first of several."""
        result = super().run_node(node)
        first = result[0] if isinstance(result, tuple) and result else result
        if node.op == "call_function" and isinstance(first, torch.Tensor):
            operator = getattr(node.target, "__name__", str(node.target)).removesuffix(".default")
            known = first if is_numpy_dtype(first.dtype) else first.float()
            if known.is_complex():
                known = torch.view_as_real(known.resolve_conj())
            self.found.append((_module(node) or node.name, operator, known.numpy().copy()))
        return result


def _module(node: torch.fx.Node) -> str:
    """Return the path of the module that an operation belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).removeprefix("L['self'].") if stack else ""
