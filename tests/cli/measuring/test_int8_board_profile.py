"""A profile that wants int8: every command that makes a model for its boards makes the same one."""

from __future__ import annotations

import pytest
from farm_processes import Farm

CONFIG = """
[profiles.whole]
inherits = "x86"
quantize = "int8"

[devices.board]
profile = "whole"
url = "local:"

[models.digits]
source = "package:zoo/digits/digits.onnx"
preprocess = "grey"
labels = "package:zoo/digits/digits-labels.txt"
dataset = "package:zoo/digits/digits-test.npz"
calibration_data = "package:zoo/digits/digits-test.npz"
"""


@pytest.fixture
def board(farm: Farm) -> Farm:
    farm.configure(CONFIG)
    return farm


def test_a_profile_is_of_the_model_of_integers(board: Farm) -> None:
    found = board.run("profile", "--device", "board", "digits", "--seconds", "0.2", "--json").json
    assert found["agreement"]["right"]
    assert any("int8" in step["kernel"] for step in found["steps"])


def test_layers_are_those_of_the_model_of_integers(board: Farm) -> None:
    found = board.run("bisect", "--device", "board", "digits", "--json").json
    assert found["first_bad"] is None
    assert any("int8" in layer["kernel"] for layer in found["layers"])


def test_answers_are_counted_of_the_model_of_integers(board: Farm) -> None:
    deployed = board.run("deploy", "--device", "board", "digits", "--json")
    assert deployed.code == 0, deployed.err
    counted = board.run("accuracy", "--device", "board", "digits", "--samples", "36", "--json")
    assert counted.code == 0, counted.err
    assert counted.json["devices"][0]["answered"] == 36
    assert (
        "compiling"
        not in board.run("accuracy", "--device", "board", "digits", "--samples", "36").err
    )


def test_a_recipe_is_taken_apart_and_compared_with_other_engines(board: Farm) -> None:
    made = board.run("quantize", "digits", "--samples", "30", "-o", "d.int8")
    assert made.code == 0, made.err
    board.configure('[devices.host]\nprofile = "x86"\nurl = "local:"\n')
    assert board.run("bisect", "--device", "host", "d.int8", "--json").json["first_bad"] is None
    found = board.run(
        "bench", "--device", "host", "d.int8", "--quick", "--against", "onnxruntime", "--json"
    ).json
    [contest] = found["against"]
    assert [rival["engine"] for rival in contest["rivals"]] == ["onnxruntime"] and not contest[
        "missing"
    ]
