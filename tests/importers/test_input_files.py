"""What users feed: arrays, images, labels and data sets, and what is said when they do not fit."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from farm.errors import ModelError
from farm.inputs.images import read_image
from farm.inputs.read import read_class_names, read_inputs
from farm.types import PreprocessSettings, TensorSpec

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
IMAGE = TensorSpec("image", (1, 3, 4, 6), "float32")
TOKENS = TensorSpec("tokens", (1, 5), "int64")
PLAIN = PreprocessSettings()
ONE_NAN = np.where(np.arange(72) == 50, np.nan, 1).reshape(1, 3, 4, 6).astype(np.float32)


def failure(call, *arguments):
    with pytest.raises(ModelError) as caught:
        call(*arguments)
    assert caught.value.fix
    return str(caught.value)


@pytest.fixture
def picture(tmp_path):
    """6 x 4 pixels, each of another colour."""
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    return path, pixels


def test_an_npz_feeds_each_input_by_name(tmp_path):
    path = tmp_path / "x.npz"
    image, tokens = (
        np.random.default_rng(0).standard_normal((1, 3, 4, 6)).astype(np.float32),
        np.arange(5).reshape(1, 5),
    )
    np.savez(path, tokens=tokens, image=image)
    fed = read_inputs(path, (IMAGE, TOKENS), PLAIN)
    assert list(fed) == ["image", "tokens"]
    np.testing.assert_array_equal(fed["image"], image)
    np.testing.assert_array_equal(fed["tokens"], tokens)


def test_a_number_without_axes_stays_one(tmp_path):
    specs = (TensorSpec("step", (), "int64"), TensorSpec("level", (), "int8", scale=0.5))
    np.savez(tmp_path / "x.npz", step=np.int64(7), level=np.float32(2))
    fed = read_inputs(tmp_path / "x.npz", specs, PLAIN)
    assert {name: (value.shape, int(value)) for name, value in fed.items()} == {
        "step": ((), 7),
        "level": ((), 4),
    }


def test_one_array_of_any_name_feeds_a_model_of_one_input(tmp_path):
    tokens = np.arange(7, 12).reshape(1, 5)
    np.savez(tmp_path / "x.npz", tokens)
    np.save(tmp_path / "x.npy", tokens)
    for name in ("x.npz", "x.npy"):
        assert read_inputs(tmp_path / name, (TOKENS,), PLAIN)["tokens"].tolist() == tokens.tolist()


def test_an_array_is_known_by_its_suffix_and_an_archive_under_another_name_is_told(tmp_path):
    tokens = np.arange(7, 12).reshape(1, 5)
    for name, save in (("X.NPY", np.save), ("X.NPZ", np.savez)):
        with (tmp_path / name).open("wb") as file:
            save(file, tokens)
        assert read_inputs(tmp_path / name, (TOKENS,), PLAIN)["tokens"].tolist() == tokens.tolist()
    (tmp_path / "X.NPZ").rename(tmp_path / "x.npy")
    said = failure(read_inputs, tmp_path / "x.npy", (TOKENS,), PLAIN)
    assert "is not a single array" in said and "rename it to .npz" in said


def test_a_cast_that_loses_nothing_is_made(tmp_path):
    array = np.arange(72, dtype=np.uint8).reshape(1, 3, 4, 6)
    np.save(tmp_path / "x.npy", array)
    fed = read_inputs(tmp_path / "x.npy", (IMAGE,), PLAIN)["image"]
    assert fed.dtype == np.float32
    np.testing.assert_array_equal(fed, array)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 4, 6), np.float32), "takes [1, 3, 4, 6], the array is [3, 4, 6]"),
        (np.zeros((3, 4, 6), np.float32), "array.reshape([1, 3, 4, 6])"),
        (np.zeros((2, 3, 4, 6), np.float32), "feed what the model takes"),
        (np.zeros((1, 3, 4, 6)), 'array.astype("float32")'),
        (ONE_NAN, "holds NaN\nwhy: 1 of its 72 values"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array, words, tmp_path):
    np.save(tmp_path / "x.npy", array)
    assert words in failure(read_inputs, tmp_path / "x.npy", (IMAGE,), PLAIN)


def test_wrong_names_are_listed_with_what_the_model_takes(tmp_path):
    np.savez(
        tmp_path / "x.npz",
        imag=np.zeros((1, 3, 4, 6), np.float32),
        tokens=np.zeros((1, 5), np.int64),
    )
    said = failure(read_inputs, tmp_path / "x.npz", (IMAGE, TOKENS), PLAIN)
    assert (
        "no array for image" in said
        and "did you mean 'image'?" in said
        and "tokens [1, 5] int64" in said
    )


def test_one_array_cannot_feed_two_inputs(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1))
    assert "the model has 2" in failure(read_inputs, tmp_path / "x.npy", (IMAGE, TOKENS), PLAIN)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.png"])
def test_a_damaged_file_is_refused(name, tmp_path, picture):
    path = tmp_path / name
    np.savez_compressed(tmp_path / "whole.npz", image=np.zeros((1, 3, 4, 6), np.float32))
    whole = {"x.npz": tmp_path / "whole.npz", "x.npy": tmp_path / "whole.npz", "x.png": picture[0]}[
        name
    ].read_bytes()
    for content in (b"", b"garbage" * 100, whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert "cannot be read" in failure(read_inputs, path, (IMAGE,), PLAIN)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.jpg"])
def test_a_missing_file_is_said_to_be_missing(name, tmp_path):
    assert "no file" in failure(read_inputs, tmp_path / name, (IMAGE,), PLAIN)


def test_pickled_objects_are_not_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "cannot be read" in failure(read_inputs, tmp_path / "x.npy", (IMAGE,), PLAIN)


def test_an_image_is_scaled_and_normalised_per_channel(picture):
    path, pixels = picture
    asked = PreprocessSettings(mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    fed = read_inputs(path, (IMAGE,), asked)["image"]
    expected = (pixels / 255 - [0.1, 0.2, 0.3]) / [0.5, 1.0, 2.0]
    assert fed.dtype == np.float32 and fed.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(fed, expected.transpose(2, 0, 1)[None], atol=1e-6)
    last = TensorSpec("image", (1, 4, 6, 3), "float32")
    for layout in ("NHWC", "NCHW"):  # the shape has its channels last, whatever is stated
        fed = read_inputs(path, (last,), replace(asked, layout=layout))["image"]
        np.testing.assert_allclose(fed, expected[None], atol=1e-6)


def test_an_image_that_a_camera_took_sideways_is_upright(tmp_path):
    pixels = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)
    told = Image.Exif()
    told[0x0112] = 6  # its orientation: a quarter turn clockwise
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=told)
    fed = read_image(tmp_path / "x.png", IMAGE, PLAIN)[0]
    upright = np.rot90(pixels, -1) / 255
    np.testing.assert_allclose(fed, upright.transpose(2, 0, 1), atol=1e-6)


def test_channels_and_layout_are_those_asked_for(picture):
    path, pixels = picture
    fed = read_image(
        path,
        TensorSpec("x", (1, 4, 6, 3), "float32"),
        PreprocessSettings(layout="NHWC", channels="BGR"),
    )
    np.testing.assert_allclose(fed[0], pixels[..., ::-1] / 255, atol=1e-6)
    grey = read_image(
        path, TensorSpec("x", (1, 1, 4, 6), "float32"), PreprocessSettings(channels="L")
    )
    assert grey.shape == (1, 1, 4, 6) and 0 < grey.mean() < 0.3


def test_an_integer_input_gets_the_pixels_as_they_are(picture):
    path, pixels = picture
    fed = read_image(
        path, TensorSpec("x", (1, 4, 6, 3), "uint8"), PreprocessSettings(layout="NHWC")
    )
    assert fed.dtype == np.uint8
    np.testing.assert_array_equal(fed[0], pixels)
    assert "cast" in failure(
        read_image, path, TensorSpec("x", (1, 4, 6, 3), "int8"), PreprocessSettings(layout="NHWC")
    )


def test_a_quantized_input_gets_the_stated_numbers_by_its_scale(picture):
    path, pixels = picture
    spec = TensorSpec("x", (1, 4, 6, 3), "int8", scale=1 / 100, zero=-20)
    fed = read_image(path, spec, PreprocessSettings((0.1,), (0.5,), "NHWC", stated=True))
    assert fed.dtype == np.int8
    numbers = (pixels / 255 - 0.1) / 0.5
    np.testing.assert_allclose((fed[0] + 20.0) / 100, numbers, atol=0.0051)
    far = read_image(path, spec, PreprocessSettings((-9.0,), (0.5,), "NHWC", stated=True))
    assert (far == 127).all()  # cut off
    wide = TensorSpec("x", (1, 4, 6, 3), "int16", scale=1 / 10_000, zero=5)
    fed = read_image(path, wide, PreprocessSettings(layout="NHWC"))
    assert fed.dtype == np.int16, "its range is not that of the pixels, so its scale is taken"
    np.testing.assert_allclose((fed[0] - 5.0) / 10_000, pixels / 255, atol=0.000051)


@pytest.mark.parametrize(("dtype", "lowest"), [("uint8", 0), ("int8", -128)])
def test_where_no_numbers_are_stated_a_quantized_input_gets_pixels_over_its_range(
    dtype, lowest, picture
):
    path, pixels = picture
    spec = TensorSpec("x", (1, 4, 6, 3), dtype, scale=2 / 255, zero=lowest + 127)
    fed = read_image(path, spec, PreprocessSettings(layout="NHWC"))
    assert fed.dtype == dtype
    np.testing.assert_array_equal(fed[0], pixels.astype(int) + lowest)


def test_numbers_for_a_quantized_input_become_its_bytes(tmp_path):
    spec = TensorSpec("x", (1, 5), "uint8", scale=0.5, zero=10)
    np.save(tmp_path / "x.npy", np.array([[-1, 0, 0.3, 7, 1e9]], np.float32))
    assert read_inputs(tmp_path / "x.npy", (spec,), PLAIN)["x"].tolist() == [[8, 10, 11, 24, 255]]
    np.save(tmp_path / "low.npy", np.array([[-5, -5.5, -6, -1e9, 122.5]], np.float32))
    assert read_inputs(tmp_path / "low.npy", (spec,), PLAIN)["x"].tolist() == [[0, 0, 0, 0, 255]]
    np.save(tmp_path / "x.npy", np.array([[8, 10, 11, 24, 255]], np.uint8))
    assert read_inputs(tmp_path / "x.npy", (spec,), PLAIN)["x"].tolist() == [[8, 10, 11, 24, 255]]
    np.save(tmp_path / "x.npy", np.array([[np.nan] * 5], np.float32))
    assert "holds NaN" in failure(read_inputs, tmp_path / "x.npy", (spec,), PLAIN)


def test_an_image_is_resized_to_height_and_width(tmp_path):
    left_to_right = np.tile(np.linspace(0, 255, 60, dtype=np.uint8), (40, 1))
    Image.fromarray(left_to_right).save(tmp_path / "wide.png")
    fed = read_image(tmp_path / "wide.png", IMAGE, PLAIN)
    assert fed.shape == IMAGE.shape
    np.testing.assert_allclose(fed[0, 0], fed[0, 2])  # grey: all channels alike
    assert (np.diff(fed[0, 0], axis=1) > 0.1).all() and np.allclose(np.diff(fed[0, 0], axis=0), 0)


def test_an_image_for_an_input_that_is_none_is_refused(picture):
    assert "does not take an image" in failure(read_inputs, picture[0], (TOKENS,), PLAIN)
    four = TensorSpec("x", (4, 3, 4, 6), "float32")
    assert "does not take an image" in failure(read_inputs, picture[0], (four,), PLAIN)
    assert read_image(picture[0], replace(IMAGE, open=True), PLAIN).shape == (1, 3, 4, 6)
    fed = read_image(picture[0], TensorSpec("x", (1, 4, 6, 3), "float32"), PreprocessSettings())
    np.testing.assert_array_equal(
        fed, read_image(picture[0], IMAGE, PreprocessSettings()).transpose(0, 2, 3, 1)
    )
    assert "[1, H, W, 3]" in failure(
        read_image, picture[0], IMAGE, PreprocessSettings(layout="NHWC")
    )
    assert "mean" in failure(read_image, picture[0], IMAGE, PreprocessSettings(mean=(0.1, 0.2)))


def test_labels_are_a_line_each(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\n a dog \n\nbird\n\n")
    assert read_class_names(tmp_path / "labels.txt") == ["cat", "a dog", "", "bird"]
    (tmp_path / "labels.txt").write_bytes(b"\n")
    assert "no labels" in failure(read_class_names, tmp_path / "labels.txt")
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "cannot be read" in failure(read_class_names, tmp_path / "labels.txt")
    assert "cannot be read" in failure(read_class_names, tmp_path / "nothing.txt")


def test_a_crop_keeps_the_proportions_and_takes_the_middle(tmp_path):
    """As torchvision's Resize(16), CenterCrop(14) of a 42 x 20 image: 33 x 16, from 9.5, which is
    rounded to 10, to 24 across and 1 to 15 down. As timm's crop of 0.9: Resize(15), as 15.6 is cut.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (20, 42, 3), np.uint8)
    for crop, size, left, top in ((0.875, (33, 16), 10, 1), (0.9, (31, 15), 8, 0)):
        for turned in (pixels, pixels.transpose(1, 0, 2)):
            Image.fromarray(turned).save(tmp_path / "x.png")
            fed = read_image(
                tmp_path / "x.png",
                TensorSpec("x", (1, 14, 14, 3), "uint8"),
                PreprocessSettings(layout="NHWC", crop=crop),
            )[0]
            is_wide = turned.shape[1] == 42
            small = np.asarray(
                Image.fromarray(turned).resize(
                    size if is_wide else size[::-1], Image.Resampling.BILINEAR
                )
            )
            across, down = (left, top) if is_wide else (top, left)
            expected = small[down : down + 14, across : across + 14]
            np.testing.assert_array_equal(fed, expected)
    wide = read_image(
        tmp_path / "x.png",
        TensorSpec("x", (1, 4, 30, 3), "uint8"),
        PreprocessSettings(layout="NHWC", crop=1.0),
    )
    assert wide.shape == (1, 4, 30, 3)


@pytest.mark.parametrize("turned", [False, True])
def test_a_crop_for_an_input_that_is_not_square_keeps_the_proportions(turned, tmp_path):
    """An image of 12 x 16 is higher than wide, but for an input of 8 x 16 its height limits it."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 24, 3), np.uint8)
    size, expected = (12, 16), (slice(None), slice(2, 10))
    if turned:
        pixels, size, expected = pixels.transpose(1, 0, 2), size[::-1], expected[::-1]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(tmp_path / "x.png")
    small = np.asarray(image.resize(size, Image.Resampling.BILINEAR))[expected]
    spec = TensorSpec("x", (1, *small.shape), "uint8")
    fed = read_image(tmp_path / "x.png", spec, PreprocessSettings(layout="NHWC", crop=1.0))
    np.testing.assert_array_equal(fed[0], small)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("L", "grey to colour"),
        ("LA", "grey with transparency to colour, transparency left out"),
        ("RGBA", "RGBA to colour, transparency left out"),
        ("P", "palette to colour"),
        ("CMYK", "CMYK to colour"),
        ("1", "black and white to colour"),
    ],
)
def test_images_of_other_channels_are_converted_and_it_is_said(mode, said, tmp_path):
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.new("RGB", (6, 4), (200, 200, 200)).convert(mode).save(path)
    told = []
    fed = read_image(path, IMAGE, PLAIN, told.append)
    assert (
        told == [said]
        and fed.shape == IMAGE.shape
        and abs(float(fed.mean()) - 200 / 255) < (0.3 if mode == "1" else 0.02)
    )


@pytest.mark.parametrize("mode", ["P", "RGB"])
def test_a_colour_that_stands_for_transparency_is_said_to_be_left_out(mode, tmp_path):
    image = Image.new("RGB", (6, 4), (200, 100, 50)).convert(mode)
    image.save(tmp_path / "x.png", transparency=0 if mode == "P" else (1, 2, 3))
    told = []
    grey = PreprocessSettings(channels="L")
    read_image(tmp_path / "x.png", TensorSpec("x", (1, 1, 4, 6), "float32"), grey, told.append)
    name = "palette" if mode == "P" else "colour"
    assert told == [f"{name} to grey, transparency left out"]


def test_an_image_in_the_models_channels_is_not_said_to_be_converted(picture):
    told = []
    read_image(picture[0], IMAGE, PLAIN, told.append)
    assert told == []


def test_sixteen_bits_become_eight_and_are_not_cut_off(tmp_path):
    deep = np.full((4, 6), 0x8000, np.uint16)
    Image.fromarray(deep).save(tmp_path / "x.png")
    told = []
    fed = read_image(tmp_path / "x.png", IMAGE, PLAIN, told.append)
    np.testing.assert_allclose(fed, 0x80 / 255, atol=1e-6)
    assert "16 bits to 8" in told[0]


def test_pixels_without_a_white_are_refused(tmp_path):
    for dtype in (np.float32, np.int32):
        Image.fromarray(np.zeros((4, 6), dtype)).save(tmp_path / "x.tif")
        assert "nobody says where white is" in failure(read_image, tmp_path / "x.tif", IMAGE, PLAIN)


def test_an_empty_and_a_cut_image_are_refused_by_name(picture, tmp_path):
    (tmp_path / "empty.jpg").touch()
    assert "empty.jpg cannot be read as an image\nwhy: it is empty" in failure(
        read_image, tmp_path / "empty.jpg", IMAGE, PLAIN
    )
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(
        tmp_path / "cut.jpg"
    )
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    assert "cut.jpg cannot be read as an image" in failure(
        read_image, tmp_path / "cut.jpg", IMAGE, PLAIN
    )


def test_an_image_without_pixels_is_refused(tmp_path):
    (tmp_path / "none.pgm").write_bytes(b"P5\n0 4\n255\n")
    assert "none.pgm cannot be read as an image" in failure(
        read_image, tmp_path / "none.pgm", IMAGE, PLAIN
    )


def test_an_image_that_is_a_program_is_not_run(tmp_path, monkeypatch):
    """Pillow gives EPS to Ghostscript, whatever the file is called."""
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\n: > {tmp_path}/started\nexit 1\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:{os.environ['PATH']}")
    (tmp_path / "x.png").write_bytes(EPS)
    with pytest.raises(ModelError, match="cannot be read as an image"):
        read_image(tmp_path / "x.png", IMAGE, PLAIN)
    assert not (tmp_path / "started").exists()
