"""Other engines that run a model on this machine, to be compared with: ONNX Runtime and PyTorch, with a number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm import importers
from farm.errors import ModelError
from farm.importers.relax_module import hushed, one_line
from farm.types import Model

if TYPE_CHECKING:
    from farm.importers import Imported

Array = np.ndarray[Any, Any]
Run = Callable[[], list[Array]]

TORCH = "torch"
_OPSET = 17


def load(model: Model, names: tuple[str, ...], cache: Path) -> Imported | None:
    """What the engines need to know of a model beyond its file: nothing of an ONNX file; else it is imported, which takes seconds."""
    return None if Path(model.source).suffix.lower() == ".onnx" or not names else importers.load(model, cache)


def engine(name: str, model: Model, imported: Imported | None, inputs: Mapping[str, Array], threads: int, folder: Path) -> tuple[str, Run]:
    """An engine's version, and what runs the model there once on these inputs. Raises ModelError where the engine cannot."""
    if name == TORCH:
        return _torch(model, imported, inputs, threads)
    return _onnx_runtime(Path(model.source) if imported is None else _as_onnx(imported, model, folder), inputs, threads)


def _onnx_runtime(path: Path, inputs: Mapping[str, Array], threads: int) -> tuple[str, Run]:
    import onnxruntime

    from farm.importers.onnx_session import session

    try:
        running = session(path, threads)
    except Exception as exc:
        raise ModelError(f"ONNX Runtime refuses {path.name}", one_line(exc)) from exc
    fed = {given.name: value for given, value in zip(running.get_inputs(), inputs.values(), strict=True)}
    return onnxruntime.__version__, lambda: running.run(None, fed)


def _torch(model: Model, imported: Imported | None, inputs: Mapping[str, Array], threads: int) -> tuple[str, Run]:
    if imported is None or imported.network is None:
        raise ModelError(f"torch cannot run {Path(model.source).name}", "it holds no torch module")
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    torch.set_num_threads(threads)
    network, arguments = imported.network
    tensors = [torch.from_numpy(np.ascontiguousarray(inputs[spec.name])) for spec in imported.inputs]
    positional, named = tree_unflatten(tensors, tree_flatten(arguments)[1])

    def run() -> list[Array]:
        with torch.inference_mode():
            return [output.numpy() for output in tree_flatten(network(*positional, **named))[0]]

    return torch.__version__, run


def _as_onnx(imported: Imported, model: Model, folder: Path) -> Path:
    """A torch module as an ONNX file, by torch's own exporter."""
    if imported.network is None:
        raise ModelError(f"ONNX Runtime cannot run {model.source}", "it is no ONNX file, and no torch module")
    import torch

    network, (positional, named) = imported.network
    path = folder / "rival.onnx"
    names = [spec.name for spec in imported.inputs]
    try:
        with hushed(), torch.no_grad():
            torch.onnx.export(network, positional, str(path), kwargs=named, input_names=names, opset_version=_OPSET, dynamo=False)
    except Exception as exc:
        raise ModelError(f"{model.name} cannot be exported to ONNX", one_line(exc)) from exc
    return path
