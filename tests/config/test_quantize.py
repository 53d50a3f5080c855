"""`quantize` of a model or a profile: its forms, its mistakes, and which model a board then
gets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from farm.errors import UsageError
from farm.pipeline import expand_jobs
from farm.types import Device, MeasurementSettings, Model, QuantizeSettings

MODEL = "[models.m]\nsource = 'python:a:b'\ncalibration_data = 'images'\n"


@pytest.fixture(autouse=True)
def images(folder: Path) -> Path:
    (folder / "images").mkdir()
    return folder / "images"


def test_a_word_is_short_for_a_table(load, images):
    model = load(MODEL + "quantize = 'int8'\n").models["m"]
    assert model.quantize == QuantizeSettings() and model.calibration_data == images
    assert load(MODEL).models["m"].quantize is None


def test_a_table_says_how(load):
    table = (
        "quantize = { calibration = 'percentile', percentile = 99.9, weight_scale = 'power2', "
        "per_channel = false, samples = 9 }\n"
    )
    assert load(MODEL + table).models["m"].quantize == QuantizeSettings(
        "percentile", "power2", False, 9, 99.9
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("quantize = 'int4'", "expected 'int8' or 'float16'"),
        ("quantize = { dtype = 'float16', samples = 9 }", "leave out samples"),
        (
            "quantize = { calibration = 'entropy' }",
            "expected 'kl_divergence', 'minmax', 'percentile' or 'global_scale'",
        ),
        ("quantize = { percentile = 101.0 }", "at most 100"),
        ("quantize = { samples = 0 }", "more than 0"),
        ("quantize = { sample = 10 }", "did you mean"),
        ("quantize = 8", "expected a table"),
    ],
)
def test_a_mistake_is_said_in_words(line, words, mistakes):
    [found] = mistakes(MODEL + line + "\n")
    assert words in found


def test_without_data_the_mistake_says_what_to_add(mistakes):
    [found] = mistakes("[models.m]\nsource = 'python:a:b'\nquantize = 'int8'\n")
    assert 'calibration_data = "images"' in found


def test_a_profile_has_models_quantized_under_names_of_their_own(load):
    fleet = load(MODEL + "[profiles.small]\ninherits = 'rasp3b'\nquantize = 'int8'\n")
    boards = [
        Device("small", fleet.profile("small"), "qemu:"),
        Device("pi3", fleet.profile("rasp3b"), "qemu:"),
    ]
    jobs = expand_jobs(boards, [fleet.models["m"]], MeasurementSettings())
    assert [(job.device.name, job.model.name, job.model.quantize) for job in jobs] == [
        ("small", "m.int8", QuantizeSettings()),
        ("pi3", "m", None),
    ]


def test_what_is_int8_already_stays_as_it_is_and_what_has_no_data_is_refused(load):
    fleet = load(MODEL + "[profiles.small]\ninherits = 'rasp3b'\nquantize = 'int8'\n")
    board = Device("small", fleet.profile("small"), "qemu:")
    own = replace(fleet.models["m"], quantize=QuantizeSettings("minmax"))
    assert [
        job.model
        for job in expand_jobs([board], [own, Model("r", "/x/r.int8")], MeasurementSettings())
    ] == [
        own,
        Model("r", "/x/r.int8"),
    ]
    with pytest.raises(UsageError, match="two models go by the name r on small") as caught:
        expand_jobs(
            [board], [Model("r", "/x/r.int8"), Model("r", "/y/r.int8")], MeasurementSettings()
        )
    assert caught.value.why == "/x/r.int8 and /y/r.int8"
    with pytest.raises(UsageError, match="no data to calibrate it by") as error:
        expand_jobs([board], [Model("bare", "/x/bare.onnx")], MeasurementSettings())
    assert "[models.bare]" in error.value.fix


def test_float16_takes_no_data_in_a_model_or_for_a_profile(load):
    plain = "[models.m]\nsource = 'python:a:b'\n"
    assert load(plain + "quantize = 'float16'\n").models["m"].quantize == QuantizeSettings(
        dtype="float16"
    )
    fleet = load(plain + "[profiles.small]\ninherits = 'rasp3b'\nquantize = 'float16'\n")
    [job] = expand_jobs(
        [Device("small", fleet.profile("small"), "qemu:")],
        [fleet.models["m"]],
        MeasurementSettings(),
    )
    assert (job.model.name, job.model.quantize) == ("m.float16", QuantizeSettings(dtype="float16"))
