"""Compute the numbers that a script derives from the shapes of its inputs.

A trace divides an extent as a tensor, and makes a number of the result: to torch's exporter, a
number that depends on data. For the shapes of the example it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._export import converter

_EXTENTS = ("sym_size", "sym_numel")
_NUMBERS = (bool, int, float)


class ConverterForKnownShapes(converter.TS2EPConverter):  # type: ignore[misc]
    """Torch's converter of scripts, which knows the shapes of its example."""

    def retrace_as_exported_program(
        self, gm: torch.fx.GraphModule, name_to_constant: dict[str, Any]
    ) -> torch.export.ExportedProgram:
        """Return the exported program of a converted graph."""
        constants = {name for name, value in name_to_constant.items() if _is_number(value)}
        write_numbers_out(gm, constants, self.sample_args)
        return super().retrace_as_exported_program(gm, name_to_constant)


def write_numbers_out(
    module: torch.fx.GraphModule, constants: set[str], example: Sequence[torch.Tensor]
) -> None:
    """Replace numbers that a graph computes of shapes and constants by their values.

    `constants` are the names of attributes that are numbers. The graph is run once on the example.
    """
    known = _known(module.graph, constants)
    if not any(node.target is torch.ops.aten._local_scalar_dense.default for node in known):
        return
    recorder = _Recorder(module, known)
    recorder.run(*example)
    for node in module.graph.nodes:
        if node not in recorder.values:
            node.args, node.kwargs = torch.fx.map_arg(
                (node.args, node.kwargs), lambda one: recorder.values.get(one, one)
            )
    module.graph.eliminate_dead_code()
    module.recompile()


def _known(graph: torch.fx.Graph, constants: set[str]) -> set[torch.fx.Node]:
    """Return the nodes that depend on shapes and constants alone."""
    known: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            found = node.target in constants
        elif node.op == "call_function":
            depends = node.all_input_nodes
            found = _name(node.target) in _EXTENTS or (
                bool(depends) and all(one in known for one in depends) and _computes(node.target)
            )
        else:
            found = False
        if found:
            known.add(node)
    return known


def _name(target: Any) -> str:
    """Return the name of an operator, without its overload."""
    return str(getattr(target, "__name__", "")).partition(".")[0]


def _computes(target: Any) -> bool:
    """Return whether a function has no other effect than its result."""
    if isinstance(target, torch._ops.OpOverload):
        return not (target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags)
    return _name(target) == "scalar_tensor" or target.__module__ in ("_operator", "math")


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) or (isinstance(value, torch.Tensor) and value.ndim == 0)


class _Recorder(torch.fx.Interpreter):  # type: ignore[misc]
    """Interpreter that records the numbers of some nodes."""

    def __init__(self, module: torch.fx.GraphModule, known: set[torch.fx.Node]) -> None:
        super().__init__(module)
        self.known = known
        self.values: dict[torch.fx.Node, Any] = {}

    def run_node(self, node: torch.fx.Node) -> Any:
        """Run a node and record its result, if it is a number."""
        made = super().run_node(node)
        if node in self.known and isinstance(made, _NUMBERS):
            self.values[node] = made
        return made
