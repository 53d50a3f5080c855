"""A float model becomes one of integers by samples: its accuracy stays, and what stands in the way
is said.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
from host_profile import HOST
from onnx_models import graph, node, save
from qdq_models import residual_network

from farm import importers, quantize, zoo
from farm.checked_model_import import import_and_quantize
from farm.compiler import host_run
from farm.errors import ModelError
from farm.quantize import calibration, recipe
from farm.quantize.ranges import scale_and_zero_point
from farm.quantize.report import compare_with_float
from farm.types import Model, QuantizeSettings

MOBILE = Path(__file__).parent.parent / "data" / "mobile-digits.onnx"  # tools/train-digits --mobile
CALIBRATIONS = ("kl_divergence", "minmax", "percentile", "global_scale")
POINTS = 0.5  # of a per cent, that int8 may be off by
numbers = np.random.default_rng(12)


def silent(_text, _fraction):
    pass


@pytest.fixture(scope="module")
def samples():
    with np.load(zoo.digits().dataset) as kept:
        return kept["inputs"].reshape(-1, 1, 1, 8, 8), kept["labels"]


@pytest.fixture(scope="module")
def training_images(samples):
    """Of the images that the networks were trained by: none of the test set."""
    from sklearn.datasets import load_digits  # which takes a second

    tested = {image.tobytes() for image in samples[0]}
    images = (load_digits().data / 16).astype(np.float32).reshape(-1, 1, 1, 8, 8)
    return [{"image": image} for image in images if image.tobytes() not in tested][:128]


def correct(run, samples) -> int:
    return sum(
        int(run([image])[0].argmax() == label) for image, label in zip(*samples, strict=True)
    )


WEIGHT_SCALES = ("max", "power2")


@pytest.mark.parametrize(
    ("source", "ways"),
    [
        (zoo.digits().source, list(product(CALIBRATIONS, WEIGHT_SCALES))),
        # of the larger one, each of both is there, not all pairs
        (str(MOBILE), list(zip(CALIBRATIONS, cycle(WEIGHT_SCALES), strict=False))),
    ],
    ids=["digits", "mobile"],
)
def test_int8_is_as_accurate_as_float_by_every_calibration_and_weight_scale(
    source, ways, samples, training_images, tmp_path
):
    imported = importers.import_model(Model("net", source), tmp_path)
    floating = calibration.fold_for_int8(imported, "net")
    before = correct(host_run.compile_host_runner(floating.module, [], HOST), samples)
    seen = calibration.observe_ranges(
        floating, lambda: training_images, len(training_images), HOST, silent, spread=True
    )
    assert {way[0] for way in ways} == set(CALIBRATIONS)
    assert {way[1] for way in ways} == set(WEIGHT_SCALES)
    for way in ways:
        settings = QuantizeSettings(*way)
        scales = [scale_and_zero_point(one, settings) for one in seen]
        module, weights = calibration.quantize_with_given_scales(floating, scales, settings)
        after = correct(host_run.compile_host_runner(module, weights, HOST), samples)
        assert 100 * (before - after) / len(samples[1]) <= POINTS, (way, before, after)


@pytest.fixture
def asked() -> Model:
    """The shipped model, to be quantized by its test set."""
    model = zoo.digits()
    return replace(model, quantize=QuantizeSettings(samples=40), calibration_data=model.dataset)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The shipped model as it is quantized, and a recipe for it."""
    cache = tmp_path_factory.mktemp("cache")
    model = replace(
        zoo.digits(), quantize=QuantizeSettings(samples=40), calibration_data=zoo.digits().dataset
    )
    floating = calibration.fold_for_int8(importers.import_model(model, cache), "digits")
    return model, floating, quantize.make_recipe(model, floating, HOST, silent)


def test_a_recipe_on_disk_is_the_same_model(made, tmp_path):
    _, floating, found = made
    file = tmp_path / "digits.int8"
    recipe.write_recipe(file, found)
    read = recipe.read_recipe(file)
    assert (read.names, read.scales, read.settings, read.source) == (
        found.names,
        found.scales,
        found.settings,
        found.source,
    )
    loaded = import_and_quantize(Model("digits", str(file)), tmp_path, HOST, silent)
    direct = quantize.apply_recipe(floating, found, "digits")
    [one], [other] = (
        host_run.compile_host_runner(each.module, each.weights, HOST)([each.example["image"]])
        for each in (loaded, direct)
    )
    assert one.tobytes() == other.tobytes()
    np.testing.assert_allclose(
        one, loaded.reference(loaded.example)[0], atol=0.2 * np.abs(one).max()
    )


def test_a_recipe_is_found_through_links_and_where_both_were_moved(made, tmp_path):
    _, _, found = made
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    source = tmp_path / "a" / "digits.onnx"
    source.write_bytes(Path(found.source).read_bytes())
    (tmp_path / "link").symlink_to(deep)
    recipe.write_recipe(tmp_path / "link" / "d.int8", replace(found, source=str(source)))
    (tmp_path / "alias.int8").symlink_to(deep / "d.int8")
    for path in (deep / "d.int8", tmp_path / "link" / "d.int8", tmp_path / "alias.int8"):
        assert recipe.read_recipe(path).source == str(source.resolve())
    (tmp_path / "a").rename(tmp_path / "moved")
    assert recipe.read_recipe(tmp_path / "moved" / "b" / "c" / "d.int8").source == str(
        (tmp_path / "moved" / "digits.onnx").resolve()
    )


def test_a_recipe_of_an_open_batch_takes_any(tmp_path):
    body = graph(
        [node("Gemm", ["x", "w"], ["y"])],
        {"x": ["n", 8]},
        {"y": ["n", 4]},
        {"w": numbers.standard_normal((8, 4)).astype(np.float32)},
    )
    np.savez(tmp_path / "data.npz", inputs=numbers.uniform(-1, 1, (40, 8)).astype(np.float32))
    model = Model(
        "open",
        str(save(tmp_path / "open.onnx", body)),
        quantize=QuantizeSettings("minmax"),
        calibration_data=tmp_path / "data.npz",
    )
    floating = calibration.fold_for_int8(importers.import_model(model, tmp_path), "open")
    recipe.write_recipe(tmp_path / "open.int8", quantize.make_recipe(model, floating, HOST, silent))
    loaded = import_and_quantize(Model("open", str(tmp_path / "open.int8")), tmp_path, HOST, silent)
    assert [(spec.shape, spec.open) for spec in loaded.inputs] == [((1, 8), True)]
    run = host_run.compile_host_runner(loaded.module, loaded.weights, HOST)
    rows = numbers.uniform(-0.9, 0.9, (5, 8)).astype(np.float32)
    [together] = run([rows])
    np.testing.assert_array_equal(together, np.concatenate([run([row[None]])[0] for row in rows]))
    [expected] = loaded.reference({"x": rows})
    assert np.abs(together - expected).max() < 0.05 * np.abs(expected).max()
    fixed = import_and_quantize(
        Model("three", str(tmp_path / "open.int8"), shapes={"x": (3, 8)}), tmp_path, HOST, silent
    )
    assert fixed.example["x"].shape == (3, 8) and not fixed.open


def test_a_few_samples_are_of_the_whole_set(tmp_path):
    body = graph(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": [1, 4]},
        {"y": [1, 4]},
        {"w": np.eye(4, dtype=np.float32)},
    )
    rows = np.array([[1], [2], [8], [3]], np.float32) * np.ones(4, np.float32)
    np.savez(tmp_path / "data.npz", inputs=rows)
    model = Model(
        "net",
        str(save(tmp_path / "net.onnx", body)),
        quantize=QuantizeSettings("minmax", samples=2),
        calibration_data=tmp_path / "data.npz",
    )
    floating = calibration.fold_for_int8(importers.import_model(model, tmp_path), "net")
    found = quantize.make_recipe(model, floating, HOST, silent)
    assert found.scales == ((pytest.approx(8 / 255), 0),)
    assert found.data == "data.npz, 2 samples"


def test_the_model_is_built_once_for_calibration_and_report(asked, tmp_path, monkeypatch):
    built = []
    right = host_run.compile_host_runner
    monkeypatch.setattr(
        host_run,
        "compile_host_runner",
        lambda module, *more: (
            built.append(
                len(module["main"].ret_ty.fields) if hasattr(module["main"].ret_ty, "fields") else 1
            )
            or right(module, *more)
        ),
    )
    floating = calibration.fold_for_int8(importers.import_model(asked, tmp_path), "digits")
    found = quantize.make_recipe(asked, floating, HOST, silent)
    assert len(compare_with_float(asked, floating, found, HOST, silent).layers) == len(
        floating.points
    )
    observing = len(floating.points) + 1
    assert sorted(built) == [
        1,
        1,
        observing,
        observing,
    ]  # float and int8, each with its layers and without


def test_the_report_names_the_worst_layers_first_and_counts_right_answers(made):
    model, floating, found = made
    said = compare_with_float(model, floating, found, HOST, silent)
    ratios = [layer.snr_db for layer in said.layers]
    assert len(ratios) == len(found.names) and ratios == sorted(ratios) and 10 < ratios[0] < 60
    assert {layer.index for layer in said.layers} == set(range(len(ratios)))
    assert (said.float_correct, said.total) == (357, 360) and abs(said.correct - 357) <= 2
    assert said.float_ms > 0 and said.ms > 0 and 20 < said.output_snr_db < 60


def test_the_report_tells_the_quantized_models_accuracy_from_the_floats(asked, tmp_path):
    coarse = replace(asked, quantize=QuantizeSettings("global_scale", global_scale=600.0))
    floating = calibration.fold_for_int8(importers.import_model(coarse, tmp_path), "digits")
    recipe = quantize.make_recipe(coarse, floating, HOST, silent)
    said = compare_with_float(coarse, floating, recipe, HOST, silent)
    assert (said.float_correct, said.total) == (357, 360) and said.correct < 300


def test_other_settings_or_data_are_another_model(asked, tmp_path):
    key = quantize.quantized_import_fingerprint(asked, tmp_path)
    other = tmp_path / "other.npz"
    np.savez(other, inputs=np.zeros((3, 1, 8, 8), np.float32))
    changed = [
        replace(asked, quantize=QuantizeSettings("minmax", samples=40)),
        replace(asked, calibration_data=other),
        replace(asked, preprocess=replace(asked.preprocess, mean=(0.5,))),
        replace(asked, quantize=None),
    ]
    keys = {quantize.quantized_import_fingerprint(model, tmp_path) for model in changed}
    assert (
        len(keys) == 4
        and key not in keys
        and key == quantize.quantized_import_fingerprint(asked, tmp_path)
    )


def test_a_recipe_no_longer_fits_another_float_model(made, tmp_path):
    _, _, found = made
    body = graph(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": [1, 4]},
        {"y": [1, 4]},
        {"w": np.eye(4, dtype=np.float32)},
    )
    source = str(save(tmp_path / "other.onnx", body))
    recipe.write_recipe(tmp_path / "digits.int8", replace(found, source=source))
    with pytest.raises(ModelError, match="no longer fits its float model"):
        import_and_quantize(Model("digits", str(tmp_path / "digits.int8")), tmp_path, HOST, silent)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"schema": "farm/int8/99"}', '{"schema": "farm/int8/1"}', "\x00\x01"],
)
def test_a_file_that_is_no_recipe_is_refused(content, tmp_path):
    (tmp_path / "x.int8").write_text(content)
    with pytest.raises(ModelError, match=r"no quantized model|another version"):
        import_and_quantize(Model("x", str(tmp_path / "x.int8")), tmp_path, HOST, silent)


def test_an_example_that_is_damaged_is_refused(made, tmp_path):
    recipe.write_recipe(tmp_path / "x.int8", made[2])
    content = json.loads((tmp_path / "x.int8").read_text())
    for damaged in ("!", "AAAA", content["example"][:100]):
        (tmp_path / "x.int8").write_text(json.dumps({**content, "example": damaged}))
        with pytest.raises(ModelError, match="no quantized model"):
            recipe.read_recipe(tmp_path / "x.int8")


def test_a_quantized_model_is_not_quantized_again(asked, tmp_path):
    source = str(save(tmp_path / "integers.onnx", residual_network()))
    with pytest.raises(ModelError, match="quantized already"):
        import_and_quantize(replace(asked, source=source), tmp_path, HOST, silent)


def test_a_model_without_weights_has_nothing_to_quantize(asked, tmp_path):
    source = str(
        save(
            tmp_path / "relu.onnx",
            graph([node("Relu", ["image"], ["y"])], {"image": [1, 1, 8, 8]}, {"y": [1, 1, 8, 8]}),
        )
    )
    with pytest.raises(ModelError, match="nothing to quantize"):
        import_and_quantize(replace(asked, source=source), tmp_path, HOST, silent)


def test_without_data_the_error_says_what_to_name(asked, tmp_path):
    with pytest.raises(ModelError, match="no data to quantize it by") as error:
        import_and_quantize(replace(asked, calibration_data=None), tmp_path, HOST, silent)
    assert "--data DIR" in error.value.fix


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((4, 3, 8, 8), np.float32), "do not fit|shape"),
        (np.full((4, 1, 8, 8), np.nan, np.float32), "NaN|infinity"),
    ],
    ids=["another shape", "NaN"],
)
def test_data_that_cannot_be_fed_are_refused(inputs, words, asked, tmp_path):
    np.savez(tmp_path / "bad.npz", inputs=inputs)
    with pytest.raises(ModelError, match=words):
        import_and_quantize(
            replace(asked, calibration_data=tmp_path / "bad.npz"), tmp_path, HOST, silent
        )


def test_unlabelled_data_calibrate_and_the_report_says_why_there_is_no_accuracy(
    asked, made, tmp_path
):
    _, floating, found = made
    np.savez(
        tmp_path / "plain.npz", inputs=np.random.default_rng(1).random((8, 1, 8, 8), np.float32)
    )
    said = compare_with_float(
        replace(asked, dataset=None, calibration_data=tmp_path / "plain.npz"),
        floating,
        found,
        HOST,
        silent,
    )
    assert said.total == 0 and "label" in said.unlabelled


def test_every_choice_of_settings_is_a_model_of_its_own(asked, tmp_path):
    choices = [
        QuantizeSettings(*choice)
        for choice in product(CALIBRATIONS, ("max", "power2"), (True, False))
    ]
    assert (
        len(
            {
                quantize.quantized_import_fingerprint(replace(asked, quantize=choice), tmp_path)
                for choice in choices
            }
        )
        == 16
    )
