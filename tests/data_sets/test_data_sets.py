"""Sets of samples: folders by class, arrays in files, what they are refused for, and that they
never have to fit into memory.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest
from PIL import Image

from farm import data
from farm.data import ModelClasses
from farm.errors import ModelError
from farm.types import Model, PreprocessSettings, TensorSpec

IMAGE = TensorSpec("image", (1, 3, 4, 6), "float32")
TOKENS = TensorSpec("tokens", (1, 5), "int64")
SCORES = TensorSpec("scores", (1, 3), "float32")
PLAIN = PreprocessSettings()
PETS = ModelClasses(3, ("cat", "Dog", "horse"))


def opened(path, classes=PETS, inputs=(IMAGE,)):
    return data.open_data_set(path, inputs, PLAIN, classes)


def failure(call, *arguments, **named):
    with pytest.raises(ModelError) as caught:
        found = call(*arguments, **named)
        list(found.read())
    return str(caught.value)


def images(folder, **counts):
    """Grey images in folders, each pixel the image's number."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (6, 4), (number, number, number)).save(folder / name / f"{number}.png")
    return folder


def test_folders_are_classes_by_label_whatever_their_order(tmp_path):
    samples = opened(images(tmp_path, horse=1, dog=2, cat=1))
    assert samples.labels.tolist() == [0, 1, 1, 2] and samples.note == ""
    read = list(samples.read())
    assert [sample.name for sample in read] == [
        "cat/0.png",
        "dog/0.png",
        "dog/1.png",
        "horse/0.png",
    ]
    assert [sample.label for sample in read] == [0, 1, 1, 2] and read[2].inputs[
        "image"
    ].shape == IMAGE.shape
    np.testing.assert_allclose(read[2].inputs["image"], 1 / 255)


def test_folders_are_classes_by_number_without_labels(tmp_path):
    folder = images(tmp_path, **{"2": 1, "0": 1})
    assert opened(folder, ModelClasses(3)).labels.tolist() == [0, 2]
    labels = ModelClasses(3, ("2", "0", "1"))  # a name comes before a number
    assert opened(folder, labels).labels.tolist() == [0, 1]
    assert [sample.name for sample in opened(folder, labels).read()] == ["2/0.png", "0/0.png"]


def test_samples_may_lie_deeper_and_have_large_letters_and_hidden_folders_have_none(tmp_path):
    for folder in ("cat/2026", "horse/.thumbnails", ".cat"):
        images(tmp_path / folder, july=1)
    (tmp_path / "horse" / "top").mkdir()
    Image.new("RGB", (6, 4)).save(tmp_path / "horse" / "top" / "CAMERA.PNG")
    found = [(sample.name, sample.label) for sample in opened(tmp_path).read()]
    assert found == [("cat/2026/july/0.png", 0), ("horse/top/CAMERA.PNG", 2)]
    np.save(tmp_path / "x.npy", FITTING)
    (tmp_path / "x.npy").rename(tmp_path / "X.NPY")
    assert len(opened(tmp_path / "X.NPY")) == len(FITTING)


def test_as_many_folders_as_classes_are_classes_in_order_and_it_is_said(tmp_path):
    samples = opened(images(tmp_path, n03=1, n01=1, n02=1))
    assert [sample.name[:3] for sample in samples.read()] == ["n01", "n02", "n03"]
    assert samples.labels.tolist() == [0, 1, 2] and "in order of name" in samples.note


@pytest.mark.parametrize(
    ("folders", "classes", "words"),
    [
        (("cat", "dgo"), PETS, "'dgo'"),
        (("a", "b"), ModelClasses(3), "2 of its 2 folders are no class of the model: 'a', 'b'"),
        (("0", "3"), ModelClasses(3), "the model's classes are 0 to 2"),
        (
            ("crane", "0"),
            ModelClasses(3, ("crane", "crane", "ship")),
            "several classes are called so",
        ),
    ],
)
def test_folders_that_are_no_classes_are_refused(folders, classes, words, tmp_path):
    assert words in failure(opened, images(tmp_path, **dict.fromkeys(folders, 1)), classes)


def test_a_misspelt_folder_is_answered_with_the_label_it_is_near_to(tmp_path):
    assert "did you mean 'horse'?" in failure(opened, images(tmp_path, cat=1, hrose=1))


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "readme.md").touch()
    (tmp_path / "cat" / ".hidden.png").touch()
    assert "holds no samples" in failure(opened, tmp_path)
    assert "no file or folder" in failure(opened, tmp_path / "nothing")


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    images(tmp_path, cat=1)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # the tests may run as root, who may read everything
    assert "Permission denied" in failure(opened, tmp_path)


def test_images_beside_the_folders_of_classes_are_refused(tmp_path):
    Image.new("RGB", (6, 4)).save(images(tmp_path, cat=1) / "stray.png")
    assert "stray.png" in failure(opened, tmp_path)


def test_a_flat_folder_has_no_labels(tmp_path):
    folder = images(tmp_path, cat=2) / "cat"
    assert opened(folder).labels is None and len(opened(folder)) == 2
    model = Model("net", "net.onnx")
    assert "has no labels" in failure(
        data.open_labelled_data_set, folder, model, (IMAGE,), (SCORES,)
    )


def test_a_calibration_looks_at_no_labels(tmp_path):
    samples = data.open_data_set(images(tmp_path, x=1, y=1), (IMAGE,), PLAIN)
    assert samples.labels is None and len(list(samples.read())) == 2


def test_what_was_converted_is_counted(tmp_path):
    images(tmp_path, cat=1)
    Image.new("L", (6, 4)).save(tmp_path / "cat" / "grey.png")
    samples = opened(tmp_path)
    list(samples.read())
    assert dict(samples.converted) == {"grey to colour": 1}


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\nrubbish"])
def test_a_corrupt_image_is_named_with_its_number(content, tmp_path):
    (images(tmp_path, cat=3) / "cat" / "1.png").write_bytes(content)
    said = failure(opened, tmp_path)
    assert f"sample 1 of {tmp_path}" in said and "cat/1.png cannot be read as an image" in said
    assert [sample.index for sample in opened(tmp_path).read([0, 2])] == [0, 2]  # the others can


def test_arrays_are_samples_with_or_without_their_batch_axis(tmp_path):
    samples = np.arange(2 * 72, dtype=np.float32).reshape(2, 3, 4, 6)
    for save in (np.savez, np.savez_compressed):
        for shape in ((2, 3, 4, 6), (2, 1, 3, 4, 6)):
            save(
                tmp_path / "d.npz", inputs=samples.reshape(shape), labels=np.array([1, 0], np.uint8)
            )
            found = opened(tmp_path / "d.npz")
            assert found.labels.tolist() == [1, 0] and found.labels.dtype == np.int64
            np.testing.assert_array_equal(
                np.concatenate([sample.inputs["image"] for sample in found.read()]), samples
            )
            (last,) = found.read([1])
            np.testing.assert_array_equal(last.inputs["image"][0], samples[1])


@pytest.mark.parametrize("name", ["image", "inputs"])
def test_each_input_may_have_an_array_of_its_own(name, tmp_path):
    tokens, image = np.arange(10).reshape(2, 5), TensorSpec(name, IMAGE.shape, IMAGE.dtype)
    np.savez(tmp_path / "d.npz", **{name: FITTING}, tokens=tokens)
    found = opened(tmp_path / "d.npz", inputs=(image, TOKENS))
    assert found.labels is None
    np.testing.assert_array_equal(
        np.concatenate([sample.inputs["tokens"] for sample in found.read()]), tokens
    )


def test_an_npy_file_holds_samples_without_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3, 4, 6), np.float32))
    assert [sample.name for sample in opened(tmp_path / "x.npy").read()] == ["x.npy[0]", "x.npy[1]"]


FITTING = np.zeros((2, 3, 4, 6), np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": np.zeros(2, int)}, "no array 'inputs'"),
        ({"inputs": FITTING, "labels": np.zeros(3, int)}, "2 samples and 3 labels"),
        ({"inputs": FITTING[:0], "labels": np.zeros(0, int)}, "0 samples"),
        (
            {"inputs": FITTING.transpose(0, 2, 3, 1), "labels": np.zeros(2, int)},
            "the samples are [4, 6, 3]",
        ),
        ({"inputs": FITTING, "labels": np.zeros(2)}, "class numbers"),
        ({"inputs": FITTING, "labels": np.array([0, -1])}, "class numbers"),
        (
            {"inputs": FITTING, "labels": np.array([0, 3])},
            "sample 1 is of class 3, and 1 in all are above 2",
        ),
        ({"inputs": FITTING.astype(float), "labels": np.zeros(2, int)}, "float64"),
        ({"inputs": np.asfortranarray(FITTING), "labels": np.zeros(2, int)}, "cannot be streamed"),
        (
            {"inputs": np.array([{}, {}], dtype=object), "labels": np.zeros(2, int)},
            "samples do not fit",
        ),
        ({"inputs": FITTING, "labels": np.array([{}, {}], dtype=object)}, "cannot be read"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, words, tmp_path):
    np.savez(tmp_path / "d.npz", **arrays)
    assert words in failure(opened, tmp_path / "d.npz")


def test_labels_of_another_number_are_not_read(tmp_path):
    """A compressed file of 30 kB may hold 32 MB of them."""
    np.savez_compressed(tmp_path / "d.npz", inputs=FITTING, labels=np.zeros(32 << 20, np.int8))
    tracemalloc.start()
    try:
        assert "2 samples and 33554432 labels" in failure(opened, tmp_path / "d.npz")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_arrays_need_a_batch_of_one_and_one_input_for_inputs(tmp_path):
    np.savez(tmp_path / "d.npz", inputs=np.zeros((2, 4), np.float32), labels=np.zeros(2, int))
    assert "the model has 2" in failure(opened, tmp_path / "d.npz", inputs=(IMAGE, TOKENS))
    assert "one sample at a time" in failure(
        opened, tmp_path / "d.npz", inputs=(TensorSpec("x", (2, 4), "float32"),)
    )


def test_nan_is_refused_with_the_number_of_the_sample(tmp_path):
    samples = np.zeros((3, 3, 4, 6), np.float32)
    samples[2, 0, 0, 0] = np.nan
    np.savez(tmp_path / "d.npz", inputs=samples, labels=np.zeros(3, int))
    said = failure(opened, tmp_path / "d.npz")
    assert f"sample 2 of {tmp_path / 'd.npz'}" in said and "NaN" in said


def test_a_damaged_or_cut_file_is_refused(tmp_path):
    np.savez(
        tmp_path / "d.npz",
        inputs=np.random.default_rng(0).random((9, 3, 4, 6), np.float32),
        labels=np.zeros(9, int),
    )
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in failure(opened, tmp_path / "cut.npz")
    (tmp_path / "cut.npy").write_bytes(zipfile.ZipFile(tmp_path / "d.npz").read("inputs.npy")[:-9])
    assert "sample 8 of" in failure(opened, tmp_path / "cut.npy")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    assert "cannot be read" in failure(
        opened, tmp_path / "flipped.npz"
    )  # by the archive's checksum


def test_a_model_that_is_no_classifier_is_refused(tmp_path):
    for shape in ((1, 1), (1, 3, 8, 8), (4, 3)):
        with pytest.raises(ModelError, match="is no classifier"):
            data.classifier_classes("net", (TensorSpec("y", shape, "float32"),), None)


def test_labels_of_another_number_than_the_models_classes_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(ModelError) as caught:
        data.classifier_classes("net", (SCORES,), tmp_path / "labels.txt")
    assert "names 2 classes" in str(caught.value) and "has 3" in str(caught.value)


def test_samples_are_spread_over_the_whole_set(tmp_path):
    samples = opened(images(tmp_path, cat=10))
    assert samples.spread(6) == [0, 1, 3, 5, 6, 8]
    assert samples.spread(3) == [0, 3, 6] and samples.spread(None) == samples.spread(99) == list(
        range(10)
    )


def test_a_sample_that_changes_gets_another_key_and_the_others_keep_theirs(tmp_path):
    samples = opened(images(tmp_path, cat=2))
    before = [samples.key(0), samples.key(1)]
    Image.new("RGB", (60, 40)).save(tmp_path / "cat" / "1.png")
    assert samples.key(0) == before[0] and samples.key(1) != before[1]


def test_a_sample_that_is_replaced_by_one_of_the_same_size_gets_another_key(tmp_path):
    folder, array = images(tmp_path / "folder", cat=2), tmp_path / "d.npz"
    np.savez(array, inputs=FITTING, labels=np.array([0, 1]))
    first, second = (folder / "cat" / f"{number}.png" for number in (0, 1))
    for path, file, index in ((folder, first, 0), (folder, second, 1), (array, array, 1)):
        before, then = opened(path).key(index), file.stat().st_mtime_ns
        assert opened(path).key(index) == before
        digest = data.data_set_digest(folder)
        os.utime(file, ns=(then, then + 1_000_000))
        assert opened(path).key(index) != before
        assert (data.data_set_digest(folder) != digest) == (path is folder)


def test_a_set_larger_than_memory_is_read_with_a_few_samples_in_memory(tmp_path):
    """200 MB of samples, as numpy's own allocations are counted; loaded at once they would
    all be.
    """
    count, spec = 256, TensorSpec("x", (1, 3, 256, 256), "float32")
    with (
        zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("inputs.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (count, *spec.shape[1:])}
        )
        for _ in range(count):
            file.write(bytes(4 * 3 * 256 * 256))
    tracemalloc.start()
    samples = opened(tmp_path / "d.npz", inputs=(spec,))
    assert sum(sample.inputs["x"].nbytes for sample in samples.read()) > 200e6
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_samples_are_read_ahead_and_the_reader_ends_with_its_user(tmp_path):
    before = threading.active_count()
    samples = opened(images(tmp_path, cat=9)).read()
    next(samples)
    assert threading.active_count() == before + 1
    samples.close()
    assert threading.active_count() == before
