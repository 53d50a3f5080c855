"""What users feed: arrays, images, labels and data sets, and what is said when they do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from farm.errors import ModelError
from farm.importers.feed import read_dataset, read_image, read_inputs, read_labels
from farm.types import Preprocess, TensorSpec

IMAGE = TensorSpec("image", (1, 3, 4, 6), "float32")
TOKENS = TensorSpec("tokens", (1, 5), "int64")
PLAIN = Preprocess()


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
    image, tokens = np.random.default_rng(0).standard_normal((1, 3, 4, 6)).astype(np.float32), np.arange(5).reshape(1, 5)
    np.savez(path, tokens=tokens, image=image)
    fed = read_inputs(path, (IMAGE, TOKENS), PLAIN)
    assert list(fed) == ["image", "tokens"]
    np.testing.assert_array_equal(fed["image"], image)
    np.testing.assert_array_equal(fed["tokens"], tokens)


def test_one_array_of_any_name_feeds_a_model_of_one_input(tmp_path):
    np.savez(tmp_path / "x.npz", np.ones((1, 5), np.int64))
    np.save(tmp_path / "x.npy", np.ones((1, 5), np.int64))
    for name in ("x.npz", "x.npy"):
        assert read_inputs(tmp_path / name, (TOKENS,), PLAIN)["tokens"].tolist() == [[1] * 5]


def test_a_cast_that_loses_nothing_is_made(tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 3, 4, 6), 7, np.uint8))
    fed = read_inputs(tmp_path / "x.npy", (IMAGE,), PLAIN)["image"]
    assert fed.dtype == np.float32 and (fed == 7).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 4, 6), np.float32), "takes [1, 3, 4, 6], the array is [3, 4, 6]"),
        (np.zeros((1, 3, 4, 6)), 'array.astype("float32")'),
        (np.full((1, 3, 4, 6), np.nan, np.float32), "holds NaN"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array, words, tmp_path):
    np.save(tmp_path / "x.npy", array)
    assert words in failure(read_inputs, tmp_path / "x.npy", (IMAGE,), PLAIN)


def test_wrong_names_are_listed_with_what_the_model_takes(tmp_path):
    np.savez(tmp_path / "x.npz", imag=np.zeros((1, 3, 4, 6), np.float32), tokens=np.zeros((1, 5), np.int64))
    said = failure(read_inputs, tmp_path / "x.npz", (IMAGE, TOKENS), PLAIN)
    assert "no array for image" in said and "did you mean 'image'?" in said and "tokens [1, 5] int64" in said


def test_one_array_cannot_feed_two_inputs(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1))
    assert "the model has 2" in failure(read_inputs, tmp_path / "x.npy", (IMAGE, TOKENS), PLAIN)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.png"])
def test_a_damaged_file_is_refused(name, tmp_path, picture):
    path = tmp_path / name
    np.savez_compressed(tmp_path / "whole.npz", image=np.zeros((1, 3, 4, 6), np.float32))
    whole = {"x.npz": tmp_path / "whole.npz", "x.npy": tmp_path / "whole.npz", "x.png": picture[0]}[name].read_bytes()
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
    fed = read_inputs(path, (IMAGE,), Preprocess(mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0)))["image"]
    expected = (pixels / 255 - [0.1, 0.2, 0.3]) / [0.5, 1.0, 2.0]
    assert fed.dtype == np.float32 and fed.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(fed, expected.transpose(2, 0, 1)[None], atol=1e-6)


def test_channels_and_layout_are_those_asked_for(picture):
    path, pixels = picture
    fed = read_image(path, TensorSpec("x", (1, 4, 6, 3), "float32"), Preprocess(layout="NHWC", channels="BGR"))
    np.testing.assert_allclose(fed[0], pixels[..., ::-1] / 255, atol=1e-6)
    grey = read_image(path, TensorSpec("x", (1, 1, 4, 6), "float32"), Preprocess(channels="L"))
    assert grey.shape == (1, 1, 4, 6) and 0 < grey.mean() < 0.3


def test_an_integer_input_gets_the_pixels_as_they_are(picture):
    path, pixels = picture
    fed = read_image(path, TensorSpec("x", (1, 4, 6, 3), "uint8"), Preprocess(layout="NHWC"))
    assert fed.dtype == np.uint8
    np.testing.assert_array_equal(fed[0], pixels)
    assert "cast" in failure(read_image, path, TensorSpec("x", (1, 4, 6, 3), "int8"), Preprocess(layout="NHWC"))


def test_an_image_is_resized_to_height_and_width(tmp_path):
    left_to_right = np.tile(np.linspace(0, 255, 60, dtype=np.uint8), (40, 1))
    Image.fromarray(left_to_right).save(tmp_path / "wide.png")
    fed = read_image(tmp_path / "wide.png", IMAGE, PLAIN)
    assert fed.shape == IMAGE.shape
    np.testing.assert_allclose(fed[0, 0], fed[0, 2])  # grey: all channels alike
    assert (np.diff(fed[0, 0], axis=1) > 0.1).all() and np.allclose(np.diff(fed[0, 0], axis=0), 0)


def test_an_image_for_an_input_that_is_none_is_refused(picture):
    assert "does not take an image" in failure(read_inputs, picture[0], (TOKENS,), PLAIN)
    assert "[1, H, W, 3]" in failure(read_image, picture[0], IMAGE, Preprocess(layout="NHWC"))
    assert "mean" in failure(read_image, picture[0], IMAGE, Preprocess(mean=(0.1, 0.2)))


def test_labels_are_a_line_each(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\n a dog \n\nbird\n\n")
    assert read_labels(tmp_path / "labels.txt") == ["cat", "a dog", "", "bird"]
    (tmp_path / "labels.txt").write_bytes(b"\n")
    assert "no labels" in failure(read_labels, tmp_path / "labels.txt")
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "cannot be read" in failure(read_labels, tmp_path / "labels.txt")
    assert "cannot be read" in failure(read_labels, tmp_path / "nothing.txt")


def test_samples_come_without_their_batch_axis(tmp_path):
    samples = np.arange(2 * 72, dtype=np.float32).reshape(2, 3, 4, 6)
    for shape in ((2, 3, 4, 6), (2, 1, 3, 4, 6)):
        np.savez(tmp_path / "d.npz", inputs=samples.reshape(shape), labels=np.array([1, 0], np.uint8))
        read, labels = read_dataset(tmp_path / "d.npz", (IMAGE,))
        np.testing.assert_array_equal(read, samples)
        assert labels.tolist() == [1, 0] and labels.dtype == np.int64


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"inputs": np.zeros((2, 3, 4, 6), np.float32)}, "no array 'labels'"),
        ({"inputs": np.zeros((2, 3, 4, 6), np.float32), "labels": np.zeros(3, int)}, "2 samples and 3 labels"),
        ({"inputs": np.zeros((0, 3, 4, 6), np.float32), "labels": np.zeros(0, int)}, "0 samples"),
        ({"inputs": np.zeros((2, 4, 6, 3), np.float32), "labels": np.zeros(2, int)}, "the samples are [4, 6, 3]"),
        ({"inputs": np.zeros((2, 3, 4, 6), np.float32), "labels": np.zeros(2)}, "class numbers"),
        ({"inputs": np.zeros((2, 3, 4, 6), np.float32), "labels": np.array([0, -1])}, "class numbers"),
        ({"inputs": np.zeros((2, 3, 4, 6)), "labels": np.zeros(2, int)}, "float64"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(arrays, words, tmp_path):
    np.savez(tmp_path / "d.npz", **arrays)
    assert words in failure(read_dataset, tmp_path / "d.npz", (IMAGE,))


def test_a_data_set_needs_a_model_of_one_input_and_a_batch_of_one(tmp_path):
    np.savez(tmp_path / "d.npz", inputs=np.zeros((2, 4), np.float32), labels=np.zeros(2, int))
    assert "the model has 2" in failure(read_dataset, tmp_path / "d.npz", (IMAGE, TOKENS))
    assert "one sample at a time" in failure(read_dataset, tmp_path / "d.npz", (TensorSpec("x", (2, 4), "float32"),))
