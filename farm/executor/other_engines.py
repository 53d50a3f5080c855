"""Run a model with ONNX Runtime, PyTorch or LiteRT on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm import importers
from farm.errors import ModelError
from farm.importers.relax_postprocessing import one_line_error, suppress_output_warnings_and_logs
from farm.types import Model

if TYPE_CHECKING:
    from farm.importers import ImportedModel

Array = np.ndarray[Any, Any]
Run = Callable[[], list[Array]]

TORCH, LITERT = "torch", "litert"
_OPSET = 17


def import_for_engines(model: Model, names: tuple[str, ...], cache: Path) -> ImportedModel | None:
    """Import a model for the engines, which takes seconds; return None for an ONNX file.

    ONNX Runtime reads an ONNX file itself, so nothing is imported for it.
    """
    return (
        None
        if Path(model.source).suffix.lower() == ".onnx" or not names
        else importers.import_model(model, cache)
    )


def load_model_in_engine(
    name: str,
    model: Model,
    imported: ImportedModel | None,
    inputs: Mapping[str, Array],
    threads: int,
    folder: Path,
) -> tuple[str, Run]:
    """Return an engine's version and a function that runs the model once on these inputs.

    Raises ModelError if the engine cannot run the model. `folder` takes temporary files.
    """
    if name == TORCH:
        return _torch(model, imported, inputs, threads)
    if name == LITERT:
        return _litert(model, inputs, threads)
    if imported is None:
        return _onnx_runtime(Path(model.source), inputs, threads, _constants(model))
    return _onnx_runtime(_as_onnx(imported, model, folder), inputs, threads, {})


def _constants(model: Model) -> Mapping[str, Array]:
    """Return the inputs of an ONNX file that are constants."""
    if not (model.values or model.shapes):
        return {}
    import onnx

    from farm.importers.onnx.inputs import divide_inputs

    graph = onnx.load(model.source, load_external_data=False).graph
    return divide_inputs(graph, model).constants


def _onnx_runtime(
    path: Path, inputs: Mapping[str, Array], threads: int, known: Mapping[str, Array]
) -> tuple[str, Run]:
    """Return ONNX Runtime's version, and a function that runs the file on these inputs.

    The `known` inputs are constants, by name.
    """
    import onnxruntime

    from farm.importers.onnx.reference.runtime import create_session

    try:
        running = create_session(path, threads, exact=False)
    except Exception as exc:
        raise ModelError(f"ONNX Runtime refuses {path.name}", one_line_error(exc)) from exc
    names = [given.name for given in running.get_inputs() if given.name not in known]
    fed = {**dict(zip(names, inputs.values(), strict=True)), **known}
    return onnxruntime.__version__, lambda: running.run(None, fed)


def _torch(
    model: Model, imported: ImportedModel | None, inputs: Mapping[str, Array], threads: int
) -> tuple[str, Run]:
    """Return PyTorch's version, and a function that runs the imported module on these inputs."""
    if imported is None or imported.network is None:
        raise ModelError(
            f"torch cannot run {Path(model.source).name}",
            f"{_kind(model)}, {_elsewhere(model) or 'not a torch module'}",
        )
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    torch.set_num_threads(threads)
    network, arguments = imported.network
    tensors = [
        torch.from_numpy(np.asarray(inputs[spec.name], order="C")) for spec in imported.inputs
    ]
    positional, named = tree_unflatten(tensors, tree_flatten(arguments)[1])

    def run() -> list[Array]:
        with torch.inference_mode():
            return [output.numpy() for output in tree_flatten(network(*positional, **named))[0]]

    return torch.__version__, run


def _litert(model: Model, inputs: Mapping[str, Array], threads: int) -> tuple[str, Run]:
    """Return LiteRT's version, and a function that runs the TFLite file on these inputs.

    LiteRT computes as it does by default, with XNNPACK, unlike the reference.
    """
    path = Path(model.source)
    if not _is_tflite(model):
        raise ModelError(f"LiteRT cannot run {path.name}", f"{_kind(model)}, not a TFLite file")
    from farm.importers.tflite.tflite_file import litert_version_and_runner

    return litert_version_and_runner(path, list(inputs.values()), threads)


def _kind(model: Model) -> str:
    suffix = Path(model.source).suffix.lower()
    return (
        "it is "
        f"{({'.tflite': 'a TFLite file', '.onnx': 'an ONNX file'}).get(suffix, 'a model without a torch module')}"  # noqa: E501
    )


def _is_tflite(model: Model) -> bool:
    return Path(model.source).suffix.lower() == ".tflite"


def _elsewhere(model: Model) -> str:
    """Return which engine runs a file that torch and ONNX Runtime do not read, in words."""
    return f"which LiteRT runs: --against {LITERT}" if _is_tflite(model) else ""


def _as_onnx(imported: ImportedModel, model: Model, folder: Path) -> Path:
    """Export a torch module to an ONNX file with torch's exporter."""
    if imported.network is None:
        why = (
            f"{_kind(model)}, "
            f"{_elsewhere(model) or 'and ONNX Runtime runs ONNX files and torch modules'}"
        )
        raise ModelError(f"ONNX Runtime cannot run {Path(model.source).name}", why)
    import torch

    network, (positional, named) = imported.network
    path = folder / "rival.onnx"
    names = [spec.name for spec in imported.inputs]
    try:
        with suppress_output_warnings_and_logs(), torch.no_grad():
            torch.onnx.export(
                network,
                positional,
                str(path),
                kwargs=named,
                input_names=names,
                opset_version=_OPSET,
                dynamo=False,
            )
    except Exception as exc:
        raise ModelError(f"{model.name} cannot be exported to ONNX", one_line_error(exc)) from exc
    return path
