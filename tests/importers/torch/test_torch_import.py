""".pt2 files: what comes out computes what torch does; files that are no exported programs are told
what they are.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from farm.errors import ModelError
from farm.types import TensorSpec

sys.path.append(str(Path(__file__).parent.parent))
from torch_regression_models import INDEXING, Each, Of, in_groups, with_named_outputs

GENERATOR = torch.Generator().manual_seed(3)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.register_buffer("offset", torch.arange(4.0).reshape(1, 4, 1, 1))

    def forward(self, image, scale):
        y = torch.relu(self.norm(self.convolution(image)))
        return {"features": y * scale + self.offset, "mean": y.mean((2, 3))}


def noise(*shape):
    return torch.randn(shape, generator=GENERATOR)


def save(path, module, arguments, **more):
    torch.export.save(torch.export.export(module.eval(), arguments, **more), path)
    return path


@pytest.fixture
def small(tmp_path):
    return save(tmp_path / "small.pt2", Small(), (noise(1, 3, 8, 8), noise(1)))


def failure(load, source, **shapes):
    with pytest.raises(ModelError) as caught:
        load(source, **shapes)
    assert caught.value.what and "\n" not in caught.value.what
    return caught.value


def test_an_exported_program_agrees_with_torch(small, load, agree):
    imported = load(small)
    assert imported.inputs == (
        TensorSpec("image", (1, 3, 8, 8), "float32"),
        TensorSpec("scale", (1,), "float32"),
    )
    assert imported.outputs == (
        TensorSpec("features", (1, 4, 6, 6), "float32"),
        TensorSpec("mean", (1, 4), "float32"),
    )
    assert imported.engine == f"torch {torch.__version__}"
    agree(imported)


def test_parameters_and_buffers_alike_are_weights(small, load):
    shapes = sorted(weight.shape for weight in load(small).weights)
    assert shapes == [(1, 4, 1, 1), (4,), (4,), (4,), (4,), (4,), (4, 3, 3, 3)]


def test_the_example_is_the_one_in_the_file(tmp_path, load):
    x = noise(2, 3)
    imported = load(save(tmp_path / "m.pt2", Of(torch.relu), (x,)))
    np.testing.assert_array_equal(imported.example["x"], x.numpy())
    assert [spec.name for spec in imported.outputs] == ["output0"]


@in_groups(INDEXING, 4)
def test_indexing_is_torchs(group, tmp_path, load, agree):
    x = noise(2, 5, 4)
    imported = load(save(tmp_path / "m.pt2", Each(group.values()), (x,)))
    agree(with_named_outputs(imported, group, x))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_embedding_of_rows_of_any_shape_is_torchs(shape, dtype, tmp_path, load, agree):
    table = torch.nn.Embedding(6, 4)
    agree(load(save(tmp_path / "m.pt2", Of(table), (torch.randint(0, 6, shape, dtype=dtype),))))


def test_an_input_may_be_a_number_without_axes(tmp_path, load, agree):
    class Scaled(torch.nn.Module):
        def forward(self, x, scale, shift):
            return x * scale + shift

    example = (noise(2, 3), torch.tensor(0.5), torch.tensor(3))
    imported = load(save(tmp_path / "m.pt2", Scaled(), example))
    assert [spec.shape for spec in imported.inputs] == [(2, 3), (), ()]
    agree(imported)


def test_an_embedding_of_no_rows_has_none(tmp_path, load, agree):
    """As of the letters before the first one of a text."""
    table = torch.nn.Embedding(6, 4)
    module = Of(lambda ids: torch.cat([table(ids[:, :0]), table(ids)], 1))
    module.table = table
    agree(load(save(tmp_path / "m.pt2", module, (torch.tensor([[1, 5, 0]]),))))


@pytest.mark.parametrize(
    "sort",
    [
        lambda x: tuple(torch.topk(x, 3, dim=1, largest=False)),
        lambda x: tuple(torch.sort(x, dim=1, descending=True)),
        lambda x: torch.argsort(x, dim=-1),
    ],
    ids=["topk", "sort", "argsort"],
)
def test_sorting_is_compiled_code(sort, tmp_path, load, agree):
    imported = load(save(tmp_path / "m.pt2", Of(sort), (noise(2, 5, 4),)))
    assert (
        "call_dps_packed" not in imported.module.script()
        and "relax.topk" not in imported.module.script()
    )
    agree(imported)


def test_an_input_of_a_type_that_numpy_lacks_is_refused(tmp_path, load):
    path = save(tmp_path / "m.pt2", Of(lambda x: x + 1), (noise(2, 4).to(torch.bfloat16),))
    with pytest.raises(ModelError, match="bfloat16"):
        load(path)


def test_an_output_of_a_type_that_numpy_lacks_is_refused(tmp_path, load):
    path = save(tmp_path / "m.pt2", Of(lambda x: x.to(torch.bfloat16) + 1), (noise(2, 4),))
    assert "output 'output0' is a bfloat16 tensor" in failure(load, path).what


def test_a_shape_for_an_input_of_a_type_that_numpy_lacks_is_refused(tmp_path, load):
    axis = torch.export.Dim("n", min=2, max=64)
    path = save(
        tmp_path / "m.pt2",
        Of(lambda x: x.float()),
        (noise(4, 3).to(torch.bfloat16),),
        dynamic_shapes=({0: axis},),
    )
    assert "input 'x' is a bfloat16 tensor" in failure(load, path, x=(7, 3)).what


def test_layers_of_a_type_that_numpy_lacks_are_told_in_another(tmp_path, load):
    imported = load(
        save(tmp_path / "m.pt2", Of(lambda x: (x.to(torch.bfloat16) * 2).float()), (noise(2, 4),))
    )
    values = [
        value
        for _, operator, value in imported.layers(imported.example)
        if operator.startswith("mul")
    ]
    assert values and values[0].dtype == np.float32


def test_an_axis_exported_as_dynamic_takes_an_override(tmp_path, load, agree):
    axis = torch.export.Dim("n", min=2, max=64)
    path = save(
        tmp_path / "m.pt2",
        Of(lambda x: torch.relu(x).sum(1)),
        (noise(4, 3),),
        dynamic_shapes=({0: axis},),
    )
    assert load(path).inputs == (TensorSpec("x", (1, 3), "float32", True),)
    imported = load(path, x=(7, 3))
    assert imported.outputs == (TensorSpec("output0", (7,), "float32"),)
    agree(imported)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"imag": (1, 3, 8, 8)}, "did you mean 'image'?"),
        ({"image": (2, 3, 8, 8)}, "has [1, 3, 8, 8]"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(shapes, words, small, load):
    assert words in str(failure(load, small, **shapes))


def test_operators_without_a_converter_are_named_with_their_counts(tmp_path, load):
    j0 = torch.special.bessel_j0
    module = Of(lambda x: torch.special.airy_ai(j0(x) + j0(x + 1)))
    error = failure(load, save(tmp_path / "m.pt2", module, (noise(3, 3),)))
    assert "operators that TVM cannot import" in error.what
    assert "special_bessel_j0.default" in error.what
    assert "special_bessel_j0.default x2 (special_bessel_j0, special_bessel_j0_1)" in error.why


def test_an_operator_without_a_converter_is_found_in_its_submodule(tmp_path, load):
    module = torch.nn.Sequential(torch.nn.ReLU(), Of(torch.special.bessel_j0))
    error = failure(load, save(tmp_path / "m.pt2", module, (noise(3, 3),)))
    assert "special_bessel_j0 in 1" in error.why


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_file_cut_off_is_refused(length, small, load):
    small.write_bytes(small.read_bytes()[:length])
    assert failure(load, small).fix


class Bomb:
    """Unpickling one creates the file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_is_never_unpickled(tmp_path, load):
    torch.save(Bomb(tmp_path / "exploded"), tmp_path / "m.pt")
    assert "pickle" in failure(load, tmp_path / "m.pt").why
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_within_a_program_is_never_unpickled(tmp_path, small, load):
    buffer = io.BytesIO()
    torch.save((Bomb(tmp_path / "exploded"),), buffer)
    poisoned, replaced = tmp_path / "poisoned.pt2", 0
    with zipfile.ZipFile(small) as old, zipfile.ZipFile(poisoned, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            sample = "sample_inputs" in name
            replaced += sample
            new.writestr(name, buffer.getvalue() if sample else old.read(name))
    assert replaced == 1
    failure(load, poisoned)
    assert not (tmp_path / "exploded").exists()
    buffer.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(buffer, weights_only=True)


def test_a_zip_of_something_else_is_no_program(tmp_path, load):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "without a program" in failure(load, tmp_path / "m.pt2").why


def test_a_reference_fed_wrongly_says_so(small, load):
    with pytest.raises(ModelError, match="torch cannot run"):
        load(small).reference(
            {"image": np.zeros((1, 3, 9, 9), np.float32), "scale": np.zeros(1, np.float32)}
        )


RETURNING = """
import sys, torch
from torch.utils import _pytree

class Output(dict):
    pass

_pytree.register_pytree_node(
    Output,
    lambda one: (list(one.values()), list(one)),
    lambda values, keys: Output(zip(keys, values)),
    serialized_type_name="theirs.Output",
)

class Network(torch.nn.Module):
    def forward(self, x):
        return Output(hidden=x * 2, pooled=x.mean(1))

torch.export.save(torch.export.export(Network(), (torch.randn(2, 5),)), sys.argv[1])
"""


def test_what_a_class_of_another_package_holds_is_named_by_its_keys(tmp_path, load, agree):
    subprocess.run(
        [sys.executable, "-c", RETURNING, str(tmp_path / "m.pt2")], check=True, capture_output=True
    )
    imported = load(tmp_path / "m.pt2")
    assert [spec.name for spec in imported.outputs] == ["hidden", "pooled"]
    agree(imported)


def while_large(x):
    def large(value):
        return value.sum() > 1

    def halved(value):
        return (value / 2,)

    return torch._higher_order_ops.while_loop(large, halved, (x,))[0]


def either(x):
    return torch.cond(x.sum() > 0, lambda value: value + 1, lambda value: value - 1, (x,))


@pytest.mark.parametrize(("function", "name"), [(while_large, "while_loop"), (either, "cond")])
def test_control_flow_that_depends_on_values_is_refused_in_words(function, name, tmp_path, load):
    error = failure(load, save(tmp_path / "m.pt2", Of(function), (noise(3),)))
    assert "branches or loops that depend on the values" in error.what
    assert name in error.why


def test_parts_whose_sizes_depend_on_values_are_refused_in_words(tmp_path, load):
    def split(x):
        size = (x > 0).sum().item()
        torch._check(size >= 0)
        torch._check(size <= 8)
        return torch.split(x, [size, 8 - size])[0].sum()

    error = failure(load, save(tmp_path / "m.pt2", Of(split), (noise(8),)))
    assert "parts whose sizes depend on the values" in error.why


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x + torch.randn_like(x), "randn_like"),
        (lambda x: torch.nn.functional.dropout(x, 0.5, training=True), "dropout"),
        (lambda x: x[torch.randperm(9)], "randperm"),
    ],
)
def test_an_answer_that_is_random_is_refused_in_words(function, name, tmp_path, load):
    error = failure(load, save(tmp_path / "m.pt2", Of(function), (noise(9),)))
    assert "draws random numbers" in error.what
    assert name in error.what


def test_random_numbers_that_change_nothing_are_taken(tmp_path, load, agree):
    """A generator of images adds noise times a weight, which begins at zero."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.strength = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            dropped = torch.nn.functional.dropout(x, 0.5, training=False)
            return dropped * 2 + torch.randn_like(x) * self.strength

    agree(load(save(tmp_path / "m.pt2", Layer(), (noise(9),))))
