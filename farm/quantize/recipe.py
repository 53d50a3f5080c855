"""Read and write recipes: JSON files that name a float model and hold the scales from calibration.

    {"schema": "farm/int8/1", "source": "net.onnx", "shapes": {}, "dtypes": {}, "module": null,
     "weights": digest, "quantize": {...}, "data": "test.npz, 128 samples",
     "example": the inputs of a sample, an .npz in base64,
     "tensors": [{"name": "conv2d 16x8x8", "scale": 0.0127, "zero": 0}, ...]}

The recipe of a float16 model has the schema "farm/float16/1" and neither tensors nor an example.

The weights are not in the recipe: it is read together with the float model. The path of that
model's file is relative to the recipe's folder after links are resolved.
"""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import ModelError
from farm.regular_files import check_not_special_file
from farm.sandbox.array_files import parse_npy
from farm.types import RECIPES, Model, QuantizeSettings, TensorSpec, Value
from farm.types.python_function_reference import is_python_function_reference

Array = np.ndarray[Any, Any]
_MOST_BYTES, _MOST_EXAMPLE_BYTES = 256 << 20, 1 << 30  # of a recipe, and of the inputs in it
_OF_DAMAGED = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    RuntimeError,  # an encrypted entry, or a method of compression that is not known
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class QuantizedModelRecipe:
    """A float model (source, shapes, digest of its weights), and its quantization.

    `names` and `scales` hold the description, scale and zero point of each tensor. `example` is a
    sample of the data, by input: numbers of another kind would leave the calibrated ranges.
    """

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    values: Mapping[str, Value]
    module: str | None
    weights: str
    settings: QuantizeSettings
    data: str
    names: tuple[str, ...]
    scales: tuple[tuple[float, int], ...]
    example: Mapping[str, Array]


def is_recipe(model: Model) -> bool:
    """Return True if a model's source is a recipe file."""
    return (
        not is_python_function_reference(model.source)
        and Path(model.source).suffix.lower() in RECIPES
    )


def write_recipe(path: Path, recipe: QuantizedModelRecipe) -> None:
    """Write a recipe to a file, either completely or not at all.

    Raises ModelError if the file cannot be written.
    """
    source = (
        recipe.source
        if is_python_function_reference(recipe.source)
        else os.path.relpath(Path(recipe.source).resolve(), path.parent.resolve())
    )
    tensors = [
        {"name": name, "scale": scale, "zero": zero}
        for name, (scale, zero) in zip(recipe.names, recipe.scales, strict=True)
    ]
    content = {
        "schema": _schema(recipe.settings.dtype),
        "source": source,
        "shapes": {name: list(shape) for name, shape in recipe.shapes.items()},
        "dtypes": dict(recipe.dtypes),
        "values": dict(recipe.values),
        "module": recipe.module,
        "weights": recipe.weights,
        "quantize": asdict(recipe.settings),
        "data": recipe.data,
        "example": _packed(recipe.example),
        "tensors": tensors,
    }
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(path)
    except OSError as exc:
        part.unlink(missing_ok=True)
        raise ModelError(
            f"{path} cannot be written",
            str(exc.strerror),
            "name a file in a folder of yours: -o FILE",
        ) from exc


def read_recipe(path: Path) -> QuantizedModelRecipe:
    """Read a recipe. Raises ModelError if the file is not a recipe of this version."""
    dtype = path.suffix.lower().removeprefix(".")
    again, expected = f"make it again: {_command(dtype)}", _schema(dtype)
    try:
        check_not_special_file(path)
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes")
        content = json.loads(path.read_text())
        if content["schema"] != expected:
            raise ModelError(
                f"{path} is of another version of farm",
                f"it is a {content['schema']}, this farm reads {expected}",
                again,
            )
        return _recipe(content, path.resolve().parent)
    except OSError as exc:
        raise ModelError(f"{path} cannot be read", str(exc.strerror), "check the path") from exc
    except _OF_DAMAGED as exc:
        why = f"it has no {exc}" if isinstance(exc, KeyError) else f"{type(exc).__name__}: {exc}"
        raise ModelError(f"{path} is no quantized model", why, again) from exc


def _schema(dtype: str) -> str:
    return f"farm/{dtype}/1"


def _command(dtype: str) -> str:
    """Return the command that makes a recipe."""
    return (
        "farm quantize MODEL "
        f"{'--data DIR' if QuantizeSettings(dtype=dtype).calibrates else f'--to {dtype}'} -o FILE"
    )


def _recipe(content: Mapping[str, Any], folder: Path) -> QuantizedModelRecipe:
    source, tensors = str(content["source"]), content["tensors"]
    return QuantizedModelRecipe(
        source=source if is_python_function_reference(source) else str((folder / source).resolve()),
        shapes={name: tuple(map(int, shape)) for name, shape in content["shapes"].items()},
        dtypes={str(name): str(dtype) for name, dtype in content["dtypes"].items()},
        values=dict(content.get("values", {})),
        module=None if content["module"] is None else str(content["module"]),
        weights=str(content["weights"]),
        settings=QuantizeSettings(**content["quantize"]),
        data=str(content["data"]),
        names=tuple(str(tensor["name"]) for tensor in tensors),
        scales=tuple((float(tensor["scale"]), int(tensor["zero"])) for tensor in tensors),
        example=_unpacked(content["example"]),
    )


def _packed(arrays: Mapping[str, Array]) -> str:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return base64.b64encode(file.getvalue()).decode()


def _unpacked(text: str) -> dict[str, Array]:
    """Return the arrays of an .npz. Anyone may have written it: it unpacks to a bounded size."""
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(text, validate=True))) as archive:
        entries = archive.infolist()
        if (size := sum(entry.file_size for entry in entries)) > _MOST_EXAMPLE_BYTES:
            raise ValueError(f"its example unpacks to {size:,} bytes")
        return {
            entry.filename.removesuffix(".npy"): parse_npy(archive.read(entry)) for entry in entries
        }


def float_model(model: Model, recipe: QuantizedModelRecipe) -> Model:
    """Return the float model of a recipe's model.

    Raises ModelError for a recipe that names code if the model is not trusted: whoever wrote the
    file would choose what runs, where a user who names `python:` chooses it.
    """
    code = recipe.source if is_python_function_reference(recipe.source) else recipe.module
    if code and not model.trust:
        raise ModelError(
            f"{Path(model.source).name} names code that makes its float model",
            f"{code}, which would run with all of your rights",
            "where you trust whoever made the file: --trust, or `trust = true` in devices.toml",
        )
    shapes = {**recipe.shapes, **model.shapes}
    plain = replace(
        model, quantize=None, calibration_data=None, values={**recipe.values, **model.values}
    )
    return replace(
        plain,
        source=recipe.source,
        shapes=shapes,
        dtypes={**recipe.dtypes, **model.dtypes},
        module=recipe.module,
    )


def check_recipe_fits(
    recipe: QuantizedModelRecipe,
    names: Sequence[str],
    weights: str,
    inputs: Sequence[TensorSpec],
    what: str,
) -> None:
    """Raise ModelError if a float model is not the one of the recipe."""
    taken = {spec.name: (spec.shape[1:], spec.dtype) for spec in inputs}
    given = {name: (value.shape[1:], value.dtype.name) for name, value in recipe.example.items()}
    if (tuple(names), weights, taken) != (recipe.names, recipe.weights, given):
        why = (
            f"{Path(recipe.source).name} has other layers, weights or inputs than when it was "
            "quantized"
        )
        raise ModelError(
            f"{what} no longer fits its float model",
            why,
            f"quantize it again: {_command(recipe.settings.dtype)}",
        )
