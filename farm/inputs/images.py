"""Convert images to inputs: rotate upright, convert channels, resize or crop, normalise."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.errors import ModelError
from farm.inputs.quantize import quantize_input
from farm.regular_files import check_not_special_file
from farm.types import PreprocessSettings, TensorSpec, describe_shape

if TYPE_CHECKING:
    import PIL.Image

    Array = np.ndarray[Any, Any]

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
# Pillow goes by the content. Of the others, EPS starts Ghostscript, and few are ever read.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
Tell = Callable[[str], None]  # called with a description of a conversion of the image's channels
_PILLOW_MODES = {"RGB": "RGB", "BGR": "RGB", "L": "L"}
_NAMES = {
    "L": "grey",
    "LA": "grey with transparency",
    "P": "palette",
    "1": "black and white",
    "RGB": "colour",
}
_TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
_BROKEN = "feed an image that other programs open, or an .npz or .npy file"


def read_image(
    path: Path, spec: TensorSpec, preprocess: PreprocessSettings, tell: Tell | None = None
) -> Array:
    """Return an image as a batch of one that fits the input `spec`.

    The image is resized (bilinear) to the input's height and width, scaled to [0, 1] and normalised
    as `preprocess` specifies. If the input's shape can only be NHWC, the layout of `preprocess` is
    ignored. With a `crop`, the image keeps its aspect ratio and its centre is taken. An integer
    input without a scale receives the pixels from 0 to 255 unchanged. A quantized input receives
    the normalised numbers quantized by its scale if `preprocess` states them; otherwise an input of
    one byte per element receives the pixels over the whole range of its type. `tell` is called with
    a description if the image's channels are converted.

    Raises ModelError if the file is not an image, or if the input does not take an image.
    """
    channels = len(preprocess.channels)
    layout, height, width = _image_size(spec, preprocess.layout, channels)
    image = _open_image(
        path, _PILLOW_MODES[preprocess.channels], (width, height), preprocess.crop, tell
    )
    pixels = np.asarray(image).reshape(height, width, channels)
    if preprocess.channels == "BGR":
        pixels = pixels[..., ::-1]
    if layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    floating, quantizes = np.dtype(spec.dtype).kind == "f", bool(spec.scale)
    if quantizes and not preprocess.stated and np.dtype(spec.dtype).itemsize == 1:
        return _from_end_to_end(pixels[None], spec)
    if not floating and not quantizes:
        return _whole_numbers(pixels[None], spec, path)
    numbers = _normalise(pixels, preprocess, layout)[None]
    return np.ascontiguousarray(numbers, spec.dtype) if floating else quantize_input(numbers, spec)


def _from_end_to_end(pixels: Array, spec: TensorSpec) -> Array:
    """Map black (0) to the lowest and white (255) to the highest value of a one-byte dtype."""
    return np.ascontiguousarray(pixels.astype(np.int16) + np.iinfo(spec.dtype).min, spec.dtype)


def _whole_numbers(pixels: Array, spec: TensorSpec, path: Path) -> Array:
    """Return the pixels in the input's integer dtype.

    Raises ModelError if the cast could change values.
    """
    if not np.can_cast(pixels.dtype, spec.dtype, casting="safe"):
        why = (
            f"the model takes {spec.dtype}, pixels are {pixels.dtype}, and the cast could change "
            "values"
        )
        raise ModelError(
            f"{path}: the image for {spec.name!r} has the wrong dtype",
            why,
            "feed an .npy file of that dtype",
        )
    return np.ascontiguousarray(pixels, spec.dtype)


def _normalise(pixels: Array, preprocess: PreprocessSettings, layout: str) -> Array:
    """Return (pixel / 255 - mean) / std in float32, per channel.

    A mean or std of one number applies to all channels. Raises ModelError if their number does not
    fit the channels, or if a std is 0.
    """
    channels = len(preprocess.channels)
    axes = (-1, 1, 1) if layout == "NCHW" else (-1,)
    values = {"mean": preprocess.mean, "std": preprocess.std}
    for name, given in values.items():
        if len(given) not in (1, channels) or (name == "std" and 0 in given):
            fix = f"give 1 or {channels} numbers, and no std of 0, in devices.toml"
            raise ModelError(
                f"{name} of the preprocessing does not fit {channels} channels",
                f"it is {list(given)}",
                fix,
            )
    mean, std = (np.asarray(given, np.float32).reshape(axes) for given in values.values())
    scaled: Array = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    return scaled


def _image_size(spec: TensorSpec, layout: str, channels: int) -> tuple[str, int, int]:
    """Return the layout ("NCHW" or "NHWC"), height and width that the input requires.

    Raises ModelError if the input does not take one image of `channels` channels.
    """
    batch, *axes = spec.shape or (0,)
    if len(axes) == 3 and (batch == 1 or spec.open):
        for fitting in dict.fromkeys((layout, "NHWC")):
            count, height, width = axes if fitting == "NCHW" else (axes[2], axes[0], axes[1])
            if count == channels:
                return fitting, height, width
    wanted = f"[1, {channels}, H, W]" if layout == "NCHW" else f"[1, H, W, {channels}]"
    raise ModelError(
        (
            f"input {spec.name} {describe_shape(spec)} {spec.dtype} does not take an image of "
            f"{channels} channel{'s' if channels > 1 else ''}"
        ),
        f"the preprocessing of the model makes {layout} images: {wanted}",
        "set layout and channels of the model's preprocess in devices.toml, or feed an .npz file",
    )


def _open_image(
    path: Path, mode: str, size: tuple[int, int], crop: float | None, tell: Tell | None
) -> PIL.Image.Image:
    """Return the image upright, in the channels of `mode`, with the size (width, height)."""
    from PIL import Image, ImageOps

    try:
        check_not_special_file(path, or_pipe=True)  # from a camera, say
        with Image.open(path, formats=_FORMATS) as image:
            if 0 in image.size:
                raise ValueError("it has no pixels")
            upright = _converted(ImageOps.exif_transpose(image), mode, path, tell)
        if crop is None:
            return upright.resize(size, Image.Resampling.BILINEAR)
        return _middle(upright, size, crop)
    except FileNotFoundError as exc:
        raise ModelError(f"no file {path}", "", f"check the path: ls {path.parent}") from exc
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        zlib.error,
        Image.DecompressionBombError,
    ) as exc:
        said = (
            "it is empty"
            if path.is_file() and not path.stat().st_size
            else f"{type(exc).__name__}: {exc}"
        )
        raise ModelError(f"{path} cannot be read as an image", said, _BROKEN) from exc


def _converted(image: PIL.Image.Image, mode: str, path: Path, tell: Tell | None) -> PIL.Image.Image:
    """Return the image in the channels of `mode`.

    Images with 16 bits per channel are reduced to 8 bits here, because Pillow would clip their
    values at 255. Raises ModelError for 32-bit and floating-point pixels, whose white level is
    unknown.
    """
    from PIL import Image

    if image.mode == mode:
        return image.copy()
    name = _NAMES.get(image.mode, image.mode)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        deep = np.asarray(image)
        if tell:
            tell(f"16 bits to 8, {name} to {_NAMES[mode]}")
        return Image.fromarray((deep.astype(np.uint32) >> 8).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        why = (
            "its pixels are "
            f"{'numbers of 32 bits' if image.mode == 'I' else 'floating-point numbers'}, of which "
            "nobody says where white is"
        )
        raise ModelError(
            f"{path} is an image of another kind than a photograph",
            why,
            "save it with 8 bits a channel, or feed an .npy file",
        )
    if tell:
        lost = (
            ", transparency left out"
            if image.mode in _TRANSPARENT or "transparency" in image.info
            else ""
        )
        tell(f"{name} to {_NAMES[mode]}{lost}")
    return image.convert(mode)


def _middle(image: PIL.Image.Image, size: tuple[int, int], crop: float) -> PIL.Image.Image:
    """Resize an image and crop its centre to `size` (width, height).

    `crop` is the ratio of the cropped side to the resized image's side, for the side that limits
    the scale. With 0.875 and 224 x 224 the result is that of torchvision's Resize(256) and
    CenterCrop(224).
    """
    from PIL import Image

    wanted = [int(side / crop) for side in size]
    across = wanted[0] * image.height >= wanted[1] * image.width  # the width limits the scale
    if across:
        resized = (wanted[0], max(size[1], int(wanted[0] * image.height / image.width)))
    else:
        resized = (max(size[0], int(wanted[1] * image.width / image.height)), wanted[1])
    left, top = (round((length - side) / 2) for length, side in zip(resized, size, strict=True))
    return image.resize(resized, Image.Resampling.BILINEAR).crop(
        (left, top, left + size[0], top + size[1])
    )
