"""Results of tools/compare-import-routes: a model by a route, against PyTorch on this machine."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models

from farm import importers, stats
from farm.checked_model_import import _run_here
from farm.errors import FarmError
from farm.types import LIMITS, Model, Profile

HOST = Profile("this machine", {"kind": "llvm", "mcpu": "native"}, "")
ANY_BATCH, BATCH = "any_batch", 3
RIGHT, WRONG, REFUSED, BROKEN = "right", "wrong", "refused", "broken"


@dataclass(frozen=True)
class Cell:
    model: str
    route: str
    kind: str
    max_abs: float = 0.0
    why: str = ""


def made(name: str, route: str, folder: Path) -> Cell:
    """One cell: the model written by its route, imported, built and run."""
    import torch

    network, inputs = models.build(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = ROUTES[route](name, network, inputs, folder)
        if name == ANY_BATCH:
            inputs = tuple(torch.cat([value, value[:1]])[:BATCH] for value in inputs)
        model = Model(name, source)
        if name == ANY_BATCH:
            model = Model(name, source, shapes={NAMES[route]: tuple(inputs[0].shape)})
        imported = importers.import_model(model, folder)
        imported.example.update(
            {spec.name: value.numpy() for spec, value in zip(imported.inputs, inputs, strict=True)}
        )
        [answers] = _run_here(model, imported, HOST, [imported.example])
    except FarmError as error:
        return Cell(name, route, REFUSED, why=f"{error.what}: {error.why}")
    except torch.onnx.errors.OnnxExporterError as error:
        return Cell(
            name,
            route,
            REFUSED,
            why=f"torch cannot export {name} to ONNX: {str(error).splitlines()[0]}",
        )
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Cell(
            name, route, BROKEN, why=f"{type(error).__name__} in {where.name}: {str(error)[:300]}"
        )
    with torch.no_grad():
        expected = [
            value.numpy() for value in torch.utils._pytree.tree_flatten(network(*inputs))[0]
        ]
    agreement = stats.compare_outputs_with_reference(answers, expected, LIMITS["float32"])
    return Cell(name, route, RIGHT if agreement.right else WRONG, agreement.max_abs)


def _onnx(name: str, network: Any, inputs: tuple[Any, ...], folder: Path) -> str:
    open_axes = {"dynamic_axes": {"input0": {0: "batch"}}} if name == ANY_BATCH else {}
    models.export(network, inputs, folder / f"{name}.onnx", **open_axes)
    return str(folder / f"{name}.onnx")


def _pt2(name: str, network: Any, inputs: tuple[Any, ...], folder: Path) -> str:
    import torch

    open_axes = (
        {"dynamic_shapes": ({0: torch.export.Dim("batch", min=1, max=64)},)}
        if name == ANY_BATCH
        else {}
    )
    torch.export.save(torch.export.export(network, inputs, **open_axes), folder / f"{name}.pt2")
    return str(folder / f"{name}.pt2")


def _torchscript(name: str, network: Any, inputs: tuple[Any, ...], folder: Path) -> str:
    import torch

    with torch.no_grad():
        torch.jit.trace(network, inputs, strict=False, check_trace=False).save(
            folder / f"{name}.pt"
        )
    return str(folder / f"{name}.pt")


def _python(name: str, *_: Any) -> str:
    return f"python:{models.ROUTED[name]}"


ROUTES: dict[str, Callable[..., str]] = {
    "onnx": _onnx,
    "pt2": _pt2,
    "torchscript": _torchscript,
    "python": _python,
}
NAMES = {"onnx": "input0", "pt2": "x", "torchscript": "x", "python": "x"}  # of the first input


def table(cells: Sequence[Cell], routes: Sequence[str]) -> str:
    """The Markdown table; what is not right is numbered and said below."""
    notes: list[str] = []

    def shown(cell: Cell) -> str:
        if cell.kind == RIGHT:
            return f"{cell.max_abs:.1e}"
        if cell.kind == WRONG:
            return f"WRONG {cell.max_abs:.1e}"
        if cell.why not in notes:
            notes.append(cell.why)
        return f"{cell.kind} [{notes.index(cell.why) + 1}]"

    lines = [f"| model | {' | '.join(routes)} |", f"|---|{'---|' * len(routes)}"]
    for name in dict.fromkeys(cell.model for cell in cells):
        lines.append(
            f"| {name} | {' | '.join(shown(cell) for cell in cells if cell.model == name)} |"
        )
    return "\n".join([*lines, "", *(f"{index}. {note}" for index, note in enumerate(notes, 1))])
