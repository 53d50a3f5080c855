"""A model is imported and checked once, found again as long as nothing of it changes, and never
kept when it is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from host_profile import HOST
from onnx_models import graph, node, save
from tvm import topi

from farm import checked_model_import, importers, stats
from farm.checked_model_import import KIND, read_reference_inputs_and_outputs
from farm.compiler.cpu import conv_dense_compute
from farm.compiler.host_run import flatten_outputs
from farm.errors import BuildError, ModelError, WrongAnswer
from farm.importers.onnx import converters
from farm.importers.torch import convert
from farm.processes.workers import TaskContext
from farm.types import LIMITS, Model, PreparedModel, PreprocessSettings, Profile

CLASSES = 8
# The file that holds the factor is named by a variable.
CHOOSING_NET = """
import os
from pathlib import Path
import torch

class Net(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([factor]))
    def forward(self, x):
        return x * self.factor

def net():
    return Net(float(Path(os.environ["CHOSEN"]).read_text())), (torch.ones(2),)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path: Path, cache: Path):
    context = TaskContext(tmp_path / "scratch")

    def once(model: Model, host: Profile = HOST) -> PreparedModel:
        return checked_model_import.prepare_model(context, model, host, cache)

    return once


@pytest.fixture
def wrong_products(monkeypatch):
    """Products that are wrong by a hundredth."""
    for name in ("dense_compute", "matmul_compute"):
        right = getattr(conv_dense_compute, name)
        monkeypatch.setattr(
            conv_dense_compute,
            name,
            lambda *given, right=right: topi.add(right(*given), 1e-2),
        )


def classifier(path: Path, factor: float = 1.0, dtype: str = "float32") -> Path:
    """y = x @ w, with the identity times a factor for w: the largest input is the class."""
    specs = {"inputs": {"x": (dtype, [1, CLASSES])}, "outputs": {"y": (dtype, [1, CLASSES])}}
    return save(
        path,
        graph(
            [node("MatMul", ["x", "w"], ["y"])],
            **specs,
            weights={"w": (factor * np.eye(CLASSES)).astype(dtype)},
        ),
    )


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model("model", str(classifier(tmp_path / "model.onnx")))


@pytest.fixture
def no_import(monkeypatch):
    def refuse(*_):
        raise AssertionError("imported again")

    monkeypatch.setattr(importers, "import_model", refuse)


def kept(cache: Path) -> list[Path]:
    return list((cache / KIND).iterdir()) if (cache / KIND).exists() else []


def test_a_prepared_model_says_what_it_takes_gives_and_how_well_it_agrees(run, model):
    prepared = run(model)
    assert [
        (spec.name, spec.shape, spec.dtype) for spec in (*prepared.inputs, *prepared.outputs)
    ] == [
        ("x", (1, CLASSES), "float32"),
        ("y", (1, CLASSES), "float32"),
    ]
    assert prepared.engine.startswith("onnxruntime ")
    assert (
        prepared.check.right and prepared.check.max_abs <= 1e-4 and prepared.precision == "float32"
    )
    assert (prepared.reference_correct, prepared.reference_total, prepared.cached) == (
        None,
        None,
        False,
    )
    assert set(prepared.seconds) == {"import", "reference", "check"}


def test_the_reference_is_an_example_and_what_the_engine_makes_of_it(run, model):
    inputs, outputs = read_reference_inputs_and_outputs(run(model))
    np.testing.assert_allclose(outputs[0], inputs["x"], rtol=1e-6)


def test_a_kept_model_is_found_again_without_an_import(run, model, request):
    first = run(model)
    request.getfixturevalue("no_import")
    assert run(model) == replace(first, cached=True)


def test_the_same_file_under_another_name_is_the_same_model(run, model, request):
    first = run(model)
    request.getfixturevalue("no_import")
    assert run(replace(model, name="other")) == replace(first, model="other", cached=True)


def test_a_changed_file_is_prepared_anew(run, model, cache):
    first = run(model)
    classifier(Path(model.source), 3.0)
    second = run(model)
    assert (second.cached, len(kept(cache))) == (False, 2)
    assert second.digest != first.digest
    np.testing.assert_allclose(
        read_reference_inputs_and_outputs(second)[1][0],
        3 * read_reference_inputs_and_outputs(first)[1][0],
        rtol=1e-5,
    )


def test_other_shapes_are_another_model(run, tmp_path):
    path = save(
        tmp_path / "open.onnx",
        graph([node("Relu", ["x"], ["y"])], {"x": ["n", 5]}, {"y": ["n", 5]}),
    )
    shapes = [
        run(Model("model", str(path), shapes=shapes)).inputs[0].shape
        for shapes in ({}, {"x": (4, 5)})
    ]
    assert shapes == [(1, 5), (4, 5)]


def test_what_is_judged_and_fed_is_part_of_what_is_kept(run, model, tmp_path):
    np.savez(
        tmp_path / "set.npz", inputs=np.eye(CLASSES, dtype=np.float32), labels=np.arange(CLASSES)
    )
    (tmp_path / "labels.txt").write_text("\n".join("abcdefgh"))
    (tmp_path / "other.txt").write_text("\n".join("hgfedcba"))
    asked = replace(model, dataset=tmp_path / "set.npz", labels=tmp_path / "labels.txt")
    first = run(asked)
    changed = [
        replace(asked, preprocess=PreprocessSettings(mean=(0.5,))),
        replace(asked, labels=tmp_path / "other.txt"),
        replace(
            asked, limits={name: replace(limits, max_abs=0.5) for name, limits in LIMITS.items()}
        ),
        replace(asked, dataset=None),
    ]
    prepared = [run(one) for one in changed]
    assert (
        not any(one.cached for one in prepared)
        and len({one.digest for one in [first, *prepared]}) == 5
    )
    assert run(asked) == replace(first, cached=True)
    (tmp_path / "labels.txt").write_text("\n".join("abcdefgi"))
    assert not run(asked).cached


def test_a_python_source_is_found_again_too_and_anew_when_its_file_changes(
    run, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    source = "import torch\n\n\ndef build():\n    return torch.nn.ReLU(), (torch.ones(2, 5),)\n"
    (tmp_path / "prepared_source.py").write_text(source)
    model = Model("model", "python:prepared_source:build")
    assert [run(model).cached for _ in range(2)] == [False, True]
    (tmp_path / "prepared_source.py").write_text(source + "# changed\n")
    assert not run(model).cached


def test_an_import_that_another_compiler_passed_is_checked_again(run, model, monkeypatch):
    first = run(model)
    monkeypatch.setattr(checked_model_import, "compiler_sources_digest", lambda: "other sources")
    again = run(model)
    assert not again.cached and again.digest != first.digest
    monkeypatch.undo()
    assert run(model) == replace(first, cached=True)


def test_an_import_that_computes_something_else_is_a_wrong_answer_and_is_not_kept(
    run, model, cache, monkeypatch
):
    right = conv_dense_compute.dense_compute
    monkeypatch.setattr(
        conv_dense_compute, "dense_compute", lambda *given: topi.add(right(*given), 1e-3)
    )
    with pytest.raises(WrongAnswer) as caught:
        run(model)
    assert "model: what TVM makes of it is not what onnxruntime" in caught.value.what
    assert "largest difference 0.001" in caught.value.why
    assert kept(cache) == [] and not list((cache / "tmp").iterdir())


def test_a_model_that_magnifies_rounding_is_refused_and_not_called_wrong(run, cache, tmp_path):
    """The sine of 10^5 times a long sum differs between any two orders of the sum."""
    count = 4096
    nodes = [
        node("MatMul", ["x", "w"], ["sum"]),
        node("Mul", ["sum", "much"], ["large"]),
        node("Sin", ["large"], ["y"]),
    ]
    weights = np.random.default_rng(3).standard_normal((count, CLASSES)).astype("float32")
    body = graph(
        nodes, {"x": [1, count]}, {"y": [1, CLASSES]}, {"w": weights, "much": np.float32(1e5)}
    )
    with pytest.raises(ModelError) as caught:
        run(Model("model", str(save(tmp_path / "model.onnx", body))))
    assert "model is ill-conditioned: it magnifies rounding" in caught.value.what
    assert "onnxruntime" in caught.value.why and "limits" in caught.value.fix
    assert kept(cache) == []


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        ([1.0, 1.0, 1.0, 1.0], ModelError, "rounding decides what it selects"),
        ([4.0, 3.0, 2.0, 1.0], WrongAnswer, "what TVM makes of it is not what onnxruntime"),
    ],
    ids=["equal scores", "different scores"],
)
def test_a_wrong_selection_is_called_wrong_unless_scores_are_equal(
    weights, error, words, run, tmp_path, wrong_products
):
    body = graph(
        [
            node("Abs", ["x"], ["positive"]),
            node("MatMul", ["positive", "w"], ["products"]),
            node("Reshape", ["products", "four"], ["scores"]),
            node("Greater", ["scores", "zero"], ["more"]),
            node("NonZero", ["more"], ["places"]),
            node("Transpose", ["places"], ["points"]),
            node("GatherND", ["scores", "points"], ["y"]),
        ],
        {"x": [1, 8]},
        {"y": [None]},
        {
            "w": np.full((8, 4), weights, "float32"),
            "four": np.array([4]),
            "zero": np.float32(0),
        },
    )
    with pytest.raises(error) as caught:
        run(Model("model", str(save(tmp_path / "model.onnx", body))))
    assert words in caught.value.what


class Selector(torch.nn.Module):
    """Rows of the largest scores: a detector's two stages."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, chosen = torch.topk(self.scores + 0 * x.sum(-1), 2)
        return torch.cat([x[chosen] * 1.0, x[:1] @ x[:1].T.expand(-1, 4)])


@pytest.mark.parametrize(
    ("scores", "error", "words"),
    [
        ([1.0, 1.0, 1.0, 1.0], ModelError, "topk (network) takes the largest of scores that"),
        ([1.0, 2.0, 4.0, 3.0], WrongAnswer, "largest difference"),
    ],
    ids=["equal scores", "different scores"],
)
def test_a_program_that_selects_among_equal_scores_is_ill_conditioned(
    scores, error, words, run, tmp_path, wrong_products
):
    """A wrong product stands for the other order in which an engine takes equal scores."""
    network = torch.nn.Sequential()
    network.add_module("network", Selector(torch.tensor(scores)))
    program = torch.export.export(network.eval(), (torch.randn(4, 4),))
    torch.export.save(program, path := tmp_path / "model.pt2")
    with pytest.raises(error) as caught:
        run(Model("model", str(path)))
    assert words in caught.value.why


def test_an_output_of_another_type_is_named(run, tmp_path, monkeypatch):
    monkeypatch.delitem(converters._OURS, "OneHot")  # TVM's importer makes float64 of it
    nodes = [node("OneHot", ["x", "d", "v"], ["y"])]
    body = graph(
        nodes,
        {"x": ("int64", [4])},
        {"y": [4, 5]},
        {"d": np.int64(5), "v": np.array([0, 1], "float32")},
    )
    with pytest.raises(WrongAnswer) as caught:
        run(Model("model", str(save(tmp_path / "model.onnx", body))))
    assert "output 'y' is float64 [4, 5] instead of float32 [4, 5]" in caught.value.why


def test_what_does_not_compile_here_is_an_error_and_is_not_kept(run, tmp_path, cache, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    # TVM has no code for it on a CPU, and without this farm has none either
    monkeypatch.setattr(convert, "decompositions", dict)
    body = "class Cosh(torch.nn.Module):\n    def forward(self, x):\n        return torch.cosh(x)\n"
    source = f"import torch\n\n\n{body}\n\ndef build():\n    return Cosh(), (torch.ones(3),)\n"
    (tmp_path / "without_code.py").write_text(source)
    with pytest.raises(BuildError, match="does not compile"):
        run(Model("model", "python:without_code:build"))
    assert kept(cache) == []


def test_half_precision_is_judged_by_what_it_can_hold(run, tmp_path):
    assert (
        run(Model("half", str(classifier(tmp_path / "half.onnx", dtype="float16")))).precision
        == "float16"
    )
    assert (
        run(Model("double", str(classifier(tmp_path / "double.onnx", dtype="float64")))).precision
        == "float32"
    )
    within = [
        node("Cast", ["x"], ["h"], to=10),
        node("Exp", ["h"], ["e"]),
        node("Cast", ["e"], ["y"], to=1),
    ]
    mixed = run(
        Model("mixed", str(save(tmp_path / "mixed.onnx", graph(within, {"x": [64]}, {"y": [64]}))))
    )
    assert (mixed.precision, mixed.outputs[0].dtype) == ("float16", "float32")


def test_quantized_arithmetic_is_judged_by_other_limits_and_bytes_alone_are_not(run, tmp_path):
    scale = {"s": np.float32(0.1), "z": np.uint8(0)}
    rounds = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    assert (
        run(
            Model(
                "int8",
                str(save(tmp_path / "int8.onnx", graph(rounds, {"x": [64]}, {"y": [64]}, scale))),
            )
        ).precision
        == "int8"
    )
    whole = [node("Abs", ["x"], ["a"]), node("Cast", ["a"], ["y"], to=2)]
    cast = Model(
        "cast", str(save(tmp_path / "cast.onnx", graph(whole, {"x": [64]}, {"y": ("uint8", [64])})))
    )
    assert run(cast).precision == "float32"


def dataset(path: Path, wrong: int) -> Path:
    """20 samples, of which so many carry another label than the largest input says."""
    samples = np.random.default_rng(0).standard_normal((20, CLASSES)).astype("float32")
    labels = samples.argmax(1)
    labels[:wrong] = (labels[:wrong] + 1) % CLASSES
    np.savez(path, inputs=samples, labels=labels)
    return path


def test_the_accuracy_of_the_reference_is_recorded(run, model, tmp_path):
    prepared = run(replace(model, dataset=dataset(tmp_path / "data.npz", wrong=3)))
    assert (prepared.reference_correct, prepared.reference_total) == (17, 20)


def test_a_changed_data_set_is_counted_anew(run, model, tmp_path):
    labelled = replace(model, dataset=dataset(tmp_path / "data.npz", wrong=3))
    first = run(labelled)
    assert run(labelled).cached
    dataset(tmp_path / "data.npz", wrong=0)
    second = run(labelled)
    assert (first.reference_correct, second.reference_correct, second.cached) == (17, 20, False)


def test_a_data_set_that_is_not_there_is_an_error_of_the_model(run, model, tmp_path, cache):
    with pytest.raises(ModelError) as caught:
        run(replace(model, dataset=tmp_path / "nowhere.npz"))
    assert "nowhere.npz" in caught.value.why and "dataset" in caught.value.fix
    assert kept(cache) == []


def test_a_model_that_changes_while_it_is_read_is_an_error(run, model, cache, monkeypatch):
    monkeypatch.setattr(importers, "import_fingerprint", lambda *_: None)
    with pytest.raises(ModelError, match="changed while it was read"):
        run(model)
    assert kept(cache) == []


def test_a_source_that_reads_another_file_than_last_time_is_prepared(tmp_path, cache, monkeypatch):
    """Other limits have the source run again, and its record is of the run before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("choosing_net.py").write_text(CHOOSING_NET)
    context, model = TaskContext(tmp_path / "scratch"), Model("model", "python:choosing_net:net")
    for name, max_abs in (("first", 0.1), ("second", 0.5)):
        Path(name).write_text("2.0")
        monkeypatch.setenv("CHOSEN", name)
        limits = {
            precision: replace(limits, max_abs=max_abs) for precision, limits in LIMITS.items()
        }
        assert not checked_model_import.prepare_model(
            context, replace(model, limits=limits), HOST, cache
        ).cached
    assert len(kept(cache)) == 2


def test_results_are_flattened_in_order():
    class Tensor:
        def __init__(self, value):
            self.value = value

        def numpy(self):
            return self.value

    assert flatten_outputs(Tensor(1)) == [1]
    assert flatten_outputs([Tensor(1), (Tensor(2), [Tensor(3)]), ()]) == [1, 2, 3]


def test_the_tolerance_is_that_of_the_agreement(run, model):
    prepared = run(model)
    _, outputs = read_reference_inputs_and_outputs(prepared)
    assert stats.compare_outputs_with_reference(
        [outputs[0] + 0.9e-4], outputs, model.limits[prepared.precision]
    ).right
    assert not stats.compare_outputs_with_reference(
        [outputs[0] + 4e-4], outputs, model.limits[prepared.precision]
    ).right
