"""Refuse programs whose answer depends on random numbers that they draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from farm.errors import ModelError

_SHOWN = 3


def check_answers_agree(
    program: torch.export.ExportedProgram, first: Any, again: Callable[[], Any], what: str
) -> None:
    """Raise ModelError if a program draws random numbers, and two answers differ.

    `first` is an answer to the example, `again` computes another. A network may draw noise that
    its weights multiply by zero. The example decides: noise that only other inputs let through is
    not found.
    """
    drawn = [node for node in program.graph.nodes if node.users and _is_random(node)]
    if not drawn:
        return
    pairs = zip(tree_flatten(first)[0], tree_flatten(again())[0], strict=True)
    if all(_agree(one, other) for one, other in pairs):
        return
    names = sorted({node.target.__name__.partition(".")[0] for node in drawn})
    listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    raise ModelError(
        f"{what} draws random numbers: {listed}",
        "two runs of it have different answers, so that none on a board can be called right",
        "give the module its noise as an input; call eval() before the export if the numbers are "
        "those of a dropout",
    )


def _agree(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    same: bool = one.shape == other.shape and torch.allclose(
        one, other, rtol=0, atol=0, equal_nan=True
    )
    return same


def _is_random(node: torch.fx.Node) -> bool:
    """Return whether a node draws random numbers; a dropout may be switched off."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    is_off = [given.get(name) is False for name in ("train", "training") if name in names]
    is_off += [given.get(name, 0.0) == 0 for name in ("dropout", "dropout_p") if name in names]
    return not any(is_off)
