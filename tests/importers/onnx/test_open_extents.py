"""Axes that a file leaves open: what follows from what is stated, and what is asked for."""

from __future__ import annotations

import re

import pytest
from onnx import helper

from farm.errors import ModelError
from farm.importers.onnx.extent_expressions import extent_of_expression

LAYERS = 12
IDS = ["batch_size", "sequence_length"]
MASK = ["batch_size", "past_sequence_length + sequence_length"]
CACHE = ["batch_size", 2, "past_sequence_length", 4]


@pytest.fixture
def decoder(onnx_file):
    """A function that writes a graph with the inputs of a decoder, in this order.

    Each has an output of its own.
    """

    def write(*names):
        shapes = {"input_ids": IDS, "attention_mask": MASK}
        inputs = {name: shapes.get(name, CACHE) for name in names}
        nodes = [helper.make_node("Neg", [name], [f"{name}.out"]) for name in names]
        return onnx_file(nodes, inputs, {f"{name}.out": inputs[name] for name in names})

    return write


def proposed(error):
    """Return the shapes of `--shape` in what an error proposes."""
    return {
        name: tuple(int(extent) for extent in extents.split(","))
        for name, extents in re.findall(r"--shape ([^ :]+):([0-9,]+)", error.fix)
    }


CACHES = [f"past.{layer}" for layer in range(LAYERS)]


@pytest.mark.parametrize(
    "names",
    [["input_ids", *CACHES, "attention_mask"], ["attention_mask", "input_ids", *CACHES]],
    ids=["mask last", "mask first"],
)
def test_few_shapes_are_asked_for_and_they_are_enough(decoder, load, names):
    path = decoder(*names)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert list(proposed(caught.value)) == ["input_ids", "past.0"]
    assert f"the shape of input_ids, past.0 and {LAYERS} more inputs open" in caught.value.what
    assert "past.1" not in str(caught.value)
    shapes = {spec.name: spec.shape for spec in load(path, **proposed(caught.value)).inputs}
    assert shapes["attention_mask"] == (1, shapes["past.0"][2] + shapes["input_ids"][1])
    assert {shapes[name] for name in CACHES} == {shapes["past.0"]}


def test_an_extent_follows_from_those_it_is_computed_from(decoder, load):
    imported = load(
        decoder("attention_mask", "input_ids", "past.0"),
        input_ids=(3, 1),
        **{"past.0": (3, 2, 9, 4)},
    )
    assert imported.inputs[0].shape == (3, 10)


def test_a_stated_extent_counts_more_than_one_that_is_computed(decoder, load):
    imported = load(
        decoder("attention_mask", "input_ids", "past.0"),
        attention_mask=(1, 7),
        input_ids=(1, 1),
        **{"past.0": (1, 2, 9, 4)},
    )
    assert imported.inputs[0].shape == (1, 7)


def test_an_expression_over_an_axis_that_nobody_states_is_asked_for(onnx_file, load):
    path = onnx_file(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": ["n", "2*m + 1"]}, {"y": ["n", "2*m + 1"]}
    )
    with pytest.raises(ModelError) as caught:
        load(path)
    assert proposed(caught.value) == {"x": (1, 224)}


@pytest.mark.parametrize(
    ("symbol", "extent"),
    [
        ("n + m", 17),
        ("n+m", 17),
        ("2*n - 1", 19),
        ("m // 2", 3),
        ("n / 2", 5),
        ("(n + m) * 3 + 1", 52),
        ("m / 2", None),  # no integer
        ("m - n", None),  # negative
        ("n // 0", None),
        ("n + k", None),
        ("n", None),  # a name alone is no expression
        ("12", None),
        ("n ** 9", None),
        ("n + len(m)", None),
        ("n + 1.5", None),
        ("n + True", None),
        ("n +", None),
        ("n + m" * 1000, None),
        ("(" * 150 + "n" + ")" * 40, None),
        ("n\0 + m", None),
    ],
)
def test_the_value_of_an_expression(symbol, extent):
    assert extent_of_expression(symbol, {"n": 10, "m": 7}) == extent
