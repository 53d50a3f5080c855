"""What a user feeds to a model: arrays, images, labels and labelled data sets, checked against the model's inputs."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.errors import ModelError, did_you_mean
from farm.types import Preprocess, TensorSpec, shape_in_words

if TYPE_CHECKING:
    import PIL.Image

    Array = np.ndarray[Any, Any]

_ARRAY_ERRORS = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_PILLOW_MODES = {"RGB": "RGB", "BGR": "RGB", "L": "L"}


def read_inputs(path: Path, inputs: Sequence[TensorSpec], preprocess: Preprocess) -> dict[str, Array]:
    """The inputs of one inference by name, of exactly the model's shapes and dtypes; where its batch is open, of any one batch.

    `.npz` holds an array per input, by name, or a single array of any name for a model of one input; `.npy` is one array; any other
    file is an image. Raises ModelError for wrong names, shapes or dtypes (only casts that lose nothing are made), for NaN, and for files
    that cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".npy"):
        spec = _only(inputs, path, "an image")
        return {spec.name: read_image(path, spec, preprocess)}
    arrays = _named(_load_all(path), inputs, path) if suffix == ".npz" else {_only(inputs, path, "a .npy file").name: _load(path)}
    fitted = {spec.name: _fit(arrays[spec.name], spec, path) for spec in inputs}
    if len(batches := {spec.name: len(fitted[spec.name]) for spec in inputs if spec.open}) > 1 and len(set(batches.values())) > 1:
        said = ", ".join(f"{name} {batch}" for name, batch in batches.items())
        raise ModelError(f"{path}: the inputs are not of one batch", f"they are: {said}", "give all of them the same first axis")
    return fitted


def read_image(path: Path, spec: TensorSpec, preprocess: Preprocess) -> Array:
    """An image as a batch of one: resized (bilinear) to the input's height and width, scaled to [0, 1], normalised as `preprocess` says.

    An integer input gets the pixels from 0 to 255 as they are. Raises ModelError for a file that is no image and for an input that is none.
    """
    channels = len(preprocess.channels)
    height, width = _image_size(spec, preprocess.layout, channels)
    pixels = np.asarray(_open_image(path, _PILLOW_MODES[preprocess.channels], (width, height))).reshape(height, width, channels)
    if preprocess.channels == "BGR":
        pixels = pixels[..., ::-1]
    if preprocess.layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    if np.dtype(spec.dtype).kind != "f":
        return _cast(pixels[None], spec, path)
    return np.ascontiguousarray(_normalise(pixels, preprocess)[None], spec.dtype)


def _normalise(pixels: Array, preprocess: Preprocess) -> Array:
    """(pixel / 255 - mean) / std in float32, per channel; a single value counts for all channels."""
    channels = len(preprocess.channels)
    axes = (-1, 1, 1) if preprocess.layout == "NCHW" else (-1,)
    values = {"mean": preprocess.mean, "std": preprocess.std}
    for name, given in values.items():
        if len(given) not in (1, channels) or (name == "std" and 0 in given):
            fix = f"give 1 or {channels} numbers, and no std of 0, in devices.toml"
            raise ModelError(f"{name} of the preprocessing does not fit {channels} channels", f"it is {list(given)}", fix)
    mean, std = (np.asarray(given, np.float32).reshape(axes) for given in values.values())
    scaled: Array = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    return scaled


def read_labels(path: Path) -> list[str]:
    """The names of the classes, a line each."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(f"{path} cannot be read as labels", str(exc), "name a text file with a label a line") from exc
    labels = [line.strip() for line in lines]
    while labels and not labels[-1]:
        labels.pop()
    if not labels:
        raise ModelError(f"{path} holds no labels", "it is empty", "write a label a line, in the order of the model's scores")
    return labels


def read_dataset(path: Path, inputs: Sequence[TensorSpec]) -> tuple[Array, Array]:
    """A labelled data set for a model of one input: samples, N x the input's shape without its batch axis of 1, and labels, N int64.

    The file is an .npz with `inputs`, with or without the axis of 1 per sample, and `labels`. Raises ModelError if it is anything else.
    """
    spec = _only(inputs, path, "a labelled data set")
    arrays = _load_all(path)
    if missing := sorted({"inputs", "labels"} - set(arrays)):
        raise ModelError(
            f"{path} has no array {missing[0]!r}", f"it has {_listed(arrays)}", "save it with numpy.savez(path, inputs=..., labels=...)"
        )
    samples, labels = arrays["inputs"], arrays["labels"]
    if spec.shape[:1] != (1,):
        fix = "import the model with a batch of 1, for example with --shape"
        raise ModelError(f"{path}: input {spec.name!r} does not take one sample at a time", f"its shape is {list(spec.shape)}", fix)
    if samples.shape[1:] not in (spec.shape, spec.shape[1:]):
        why = f"the model takes {list(spec.shape[1:])}, the samples are {list(samples.shape[1:])}"
        raise ModelError(f"{path}: the samples do not fit input {spec.name!r}", why, f"reshape them to {['N', *spec.shape[1:]]}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        why = f"they are {labels.dtype} of shape {list(labels.shape)}"
        raise ModelError(f"{path}: the labels are not a list of class numbers", why, "save N integers from 0 on")
    if len(samples) != len(labels) or not len(labels):
        raise ModelError(f"{path} has {len(samples)} samples and {len(labels)} labels", "each sample needs a label", "save as many of each")
    samples = _cast(samples, spec, path).reshape(len(samples), *spec.shape[1:])
    return samples, labels.astype(np.int64)


def _only(inputs: Sequence[TensorSpec], path: Path, kind: str) -> TensorSpec:
    if len(inputs) != 1:
        raise ModelError(
            f"{path}: {kind} feeds one input, and the model has {len(inputs)}",
            f"they are {', '.join(map(_describe, inputs))}",
            "save an array for each in an .npz file: numpy.savez(path, " + ", ".join(f"{spec.name}=..." for spec in inputs) + ")",
        )
    return inputs[0]


def _named(arrays: dict[str, Array], inputs: Sequence[TensorSpec], path: Path) -> dict[str, Array]:
    """The arrays by the names of the inputs. numpy.savez(path, array) calls its array arr_0: with one input, any name will do."""
    if len(arrays) == len(inputs) == 1:
        return {inputs[0].name: next(iter(arrays.values()))}
    wanted = {spec.name for spec in inputs}
    if arrays.keys() == wanted:
        return arrays
    missing, extra = sorted(wanted - arrays.keys()), sorted(arrays.keys() - wanted)
    said = [f"no array for {', '.join(missing)}"] if missing else []
    said += [f"nothing takes {', '.join(extra)} ({did_you_mean(extra[0], wanted)})"] if extra else []
    why = f"the model takes {', '.join(map(_describe, inputs))}; the file has {_listed(arrays)}"
    raise ModelError(
        f"{path}: {' and '.join(said)}", why, "save each array under the name of its input: numpy.savez(path, name=array, ...)"
    )


def _fit(array: Array, spec: TensorSpec, path: Path) -> Array:
    fits = array.shape[1:] == spec.shape[1:] and array.ndim and len(array) if spec.open else array.shape == spec.shape
    if not fits:
        raise ModelError(
            f"{path}: the array for {spec.name!r} has the wrong shape",
            f"the model takes {shape_in_words(spec)}, the array is {list(array.shape)}",
            f"reshape it: array.reshape({list(spec.shape)})"
            if array.size == np.prod(spec.shape)
            else "feed what the model takes, or override the shape with --shape",
        )
    return _cast(array, spec, path)


def _cast(array: Array, spec: TensorSpec, path: Path) -> Array:
    """The array in the input's dtype, if no value can change by it."""
    if not np.can_cast(array.dtype, spec.dtype, casting="safe"):
        why = f"the model takes {spec.dtype}, the array is {array.dtype}, and the cast could change values"
        raise ModelError(f"{path}: the array for {spec.name!r} has the wrong dtype", why, f'cast it: array.astype("{spec.dtype}")')
    if array.dtype.kind == "f" and np.isnan(array).any():
        why = f"{int(np.isnan(array).sum())} of its {array.size} values"
        raise ModelError(f"{path}: the array for {spec.name!r} holds NaN", why, "look for it with numpy.isnan(array).nonzero()")
    return np.ascontiguousarray(array, spec.dtype)


def _load(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except _ARRAY_ERRORS as exc:
        raise _unreadable(path, exc) from exc
    if not isinstance(array, np.ndarray):
        array.close()
        raise ModelError(f"{path} is not a single array", "it is an .npz archive under another name", "rename it to .npz")
    return array


def _load_all(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (*_ARRAY_ERRORS, AttributeError, TypeError) as exc:  # the last two: a single array is no archive
        raise _unreadable(path, exc) from exc


def _unreadable(path: Path, error: Exception) -> ModelError:
    if isinstance(error, FileNotFoundError):
        return ModelError(f"no file {path}", "", f"check the path: ls {path.parent}")
    what = f"{path} cannot be read as numpy data"
    return ModelError(what, f"{type(error).__name__}: {error}", "save it again with numpy.savez (numbers only, no objects)")


def _image_size(spec: TensorSpec, layout: str, channels: int) -> tuple[int, int]:
    """Height and width that the input asks for."""
    batch, *axes = spec.shape or (0,)
    if len(axes) == 3:
        count, height, width = axes if layout == "NCHW" else (axes[2], axes[0], axes[1])
        if (batch == 1 or spec.open) and count == channels:
            return height, width
    wanted = f"[1, {channels}, H, W]" if layout == "NCHW" else f"[1, H, W, {channels}]"
    raise ModelError(
        f"input {_describe(spec)} does not take an image of {channels} channel{'s' if channels > 1 else ''}",
        f"the preprocessing of the model makes {layout} images: {wanted}",
        "set layout and channels of the model's preprocess in devices.toml, or feed an .npz file",
    )


def _open_image(path: Path, mode: str, size: tuple[int, int]) -> PIL.Image.Image:
    """The image upright, in the mode's channels and of the size (width, height)."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            return upright.convert(mode).resize(size, Image.Resampling.BILINEAR)
    except FileNotFoundError as exc:
        raise ModelError(f"no file {path}", "", f"check the path: ls {path.parent}") from exc
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, Image.DecompressionBombError) as exc:
        fix = "feed an image that other programs open, or an .npz or .npy file"
        raise ModelError(f"{path} cannot be read as an image", f"{type(exc).__name__}: {exc}", fix) from exc


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name} {shape_in_words(spec)} {spec.dtype}"


def _listed(arrays: dict[str, Array]) -> str:
    return ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in arrays.items()) or "no arrays"
