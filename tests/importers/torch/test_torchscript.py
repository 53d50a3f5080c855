"""TorchScript: traced and scripted modules compute what torch does; what cannot be followed is
refused in words.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.errors import ModelError
from farm.importers.torch import torchscript
from farm.types import Model, TensorSpec

sys.path.append(str(Path(__file__).parent.parent))
from torch_regression_models import INDEXING, Each, Of, in_groups, with_named_outputs

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout()
        )

    def forward(self, image):
        return self.layers(image)


class Looping(torch.nn.Module):
    """Control flow that depends on shapes and constants only, and an argument with a default."""

    def forward(self, x, offset: torch.Tensor | None = None):
        if x.dim() == 3:
            x = x.squeeze(0)
        for index in range(3):
            x = x * 2 + index
        return x if offset is None else x + offset


class Shifting(torch.nn.Module):
    """A list of extents that is copied and written to, as in torchvision's Swin Transformer."""

    def __init__(self):
        super().__init__()
        self.shift = [1, 2]

    def forward(self, x):
        shift = self.shift.copy()
        if x.size(1) <= 4:
            shift[0] = 0
        if sum(shift) > 0:
            x = torch.roll(x, shifts=(-shift[0], -shift[1]), dims=(1, 2))
        return x * self.shift[0]


class Naming(torch.nn.Module):
    """Results in a dict, and a part of a shape, as in torchvision's models of segmentation."""

    def forward(self, x):
        found: dict[str, torch.Tensor] = OrderedDict()
        for name in ("low", "high"):
            found[name] = x * len(found) + 1
        size = x.shape[-2:]
        warnings.warn("a script may warn", stacklevel=2)
        if "low" in found and len(size) == 2 and len(found.keys()) == 2:
            x = torch.nn.functional.interpolate(x, [2 * size[0], size[1]])
        return x, found["high"], found.items()[0][1] + found.values()[1]


class Branching(torch.nn.Module):
    def forward(self, x):
        for _ in range(int(x.sum())):
            x = x + 1
        return x


class Choosing(torch.nn.Module):
    """Which weights count depends on the input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.warm, self.cold = torch.nn.Linear(4, 20), torch.nn.Linear(4, 20)

    def forward(self, x):
        if x.sum() > 0:
            return self.warm(x)
        return self.cold(x)


class Recurrent(torch.nn.Module):
    def __init__(self, cell, **how):
        super().__init__()
        torch.manual_seed(4)
        self.layers = getattr(torch.nn, cell)(7, 10, batch_first=True, **how)

    def forward(self, x):
        return self.layers(x)[0]


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4)

    def forward(self, ids):
        return self.embedding(ids)


@pytest.fixture
def imported(tmp_path):
    def run(script, **more):
        script.save(tmp_path / "m.pt")
        return importers.import_model(Model("m", str(tmp_path / "m.pt"), **more), tmp_path)

    return run


def agree(made):
    assert made.engine == f"torch {torch.__version__}"
    assert_agrees(made)


def failure(imported, script, **more):
    with pytest.raises(ModelError) as caught:
        imported(script, **more)
    assert "\n" not in caught.value.what
    return caught.value


def test_a_traced_script_keeps_its_shapes_and_types(imported):
    made = imported(torch.jit.trace(Small().eval(), torch.randn(1, 3, 8, 8)))
    assert made.inputs == (TensorSpec("image", (1, 3, 8, 8), "float32"),)
    agree(made)
    made = imported(torch.jit.trace(Words(), torch.ones(2, 3, dtype=torch.int64)))
    assert made.inputs == (TensorSpec("ids", (2, 3), "int64"),)


class Scaled(torch.nn.Module):
    """Numbers in a script are tensors of float64 or int64 without axes."""

    def forward(self, x, ids):
        scale = torch.tensor(0.3, dtype=torch.float64)
        y = torch.where(x > 0.1, x * 0.25 + 1.5, x.new_tensor(2.0).double() - x / scale)
        return y ** torch.tensor(2.0, dtype=torch.float64), ids * 3 + torch.tensor(7)


def test_numbers_of_a_script_do_not_make_other_numbers_longer(imported):
    inputs = (torch.randn(2, 5), torch.arange(6, dtype=torch.int32).reshape(2, 3))
    made = imported(torch.jit.trace(Scaled(), inputs))
    assert [spec.dtype for spec in made.outputs] == ["float32", "int32"]
    types = {
        str(binding.var.ty.dtype)
        for block in made.module["main"].body.blocks
        for binding in block.bindings
        if getattr(binding.var.ty, "shape", None) is not None and int(binding.var.ty.ndim)
    }
    assert types == {"float32", "int32", "bool"}
    agree(made)


def test_a_number_that_torch_computes_longer_with_stays_long(imported):
    """A number of another kind than the tensor's gives the type."""

    class Mixed(torch.nn.Module):
        def forward(self, ids):
            return ids * torch.tensor(0.5, dtype=torch.float64)

    made = imported(torch.jit.trace(Mixed(), torch.arange(6)))
    assert made.outputs[0].dtype == "float64"
    agree(made)


def test_another_shape_than_the_traced_one_can_be_asked_for(imported):
    made = imported(
        torch.jit.trace(Small().eval(), torch.randn(1, 3, 8, 8)), shapes={"image": (2, 3, 12, 8)}
    )
    assert made.outputs[0].shape == (2, 4, 10, 6)
    agree(made)


def test_a_scripted_module_asks_for_its_shapes(imported):
    error = failure(imported, torch.jit.script(Small()))
    assert "--shape image:1,3,224,224" in error.fix
    agree(imported(torch.jit.script(Small()), shapes={"image": (1, 3, 8, 8)}))


def test_control_flow_over_shapes_is_followed_and_defaults_hold(imported):
    made = imported(torch.jit.script(Looping()), shapes={"x": (1, 2, 3)})
    assert [spec.name for spec in made.inputs] == ["x"]
    agree(made)


@pytest.mark.parametrize("rows", [4, 5])
def test_a_list_that_a_script_copies_is_written_to(rows, imported):
    agree(imported(torch.jit.script(Shifting()), shapes={"x": (1, rows, 6)}))


def test_dicts_and_parts_of_shapes_in_a_script_are_pythons(imported):
    agree(imported(torch.jit.script(Naming()), shapes={"x": (1, 2, 4, 6)}))


def test_a_script_is_exported_for_its_shapes_alone(imported, monkeypatch):
    """For all shapes, an export of attention within windows takes minutes."""
    extents = []

    def recorded(program, arguments, what):
        extents.extend(
            extent
            for node in program.graph.nodes
            if isinstance(value := node.meta.get("val"), torch.Tensor)
            for extent in value.shape
        )
        return export_module(program, arguments, what)

    export_module = torchscript.export_module
    monkeypatch.setattr(torchscript, "export_module", recorded)
    made = imported(torch.jit.script(Small().eval()), shapes={"image": (1, 3, 8, 8)})
    assert_agrees(made)
    assert {8, 6} <= set(extents)
    assert all(isinstance(extent, int) for extent in extents)


def test_an_argument_with_a_default_is_fed_where_its_shape_is_given(imported):
    made = imported(torch.jit.script(Looping()), shapes={"x": (2, 3), "offset": (3,)})
    assert [spec.name for spec in made.inputs] == ["x", "offset"]
    agree(made)


def test_a_branch_over_values_is_right_both_ways(imported):
    made = imported(torch.jit.script(Choosing()), shapes={"x": (2, 4)})
    for sign in (1, -1):
        made.example["x"][:] = sign
        agree(made)


def test_a_loop_over_values_is_refused(imported):
    error = failure(imported, torch.jit.script(Branching()), shapes={"x": (2,)})
    assert error.why and "by way of ONNX" in error.why


@in_groups(INDEXING, 4)
def test_indexing_is_torchs(group, imported):
    x = torch.randn(2, 5, 4)
    made = imported(torch.jit.trace(Each(group.values()), x))
    agree(with_named_outputs(made, group, x))


@pytest.mark.parametrize(
    ("scripted", "cell", "how"),
    [
        (False, "LSTM", {"bidirectional": True}),
        (False, "GRU", {}),
        (True, "LSTM", {}),
        (True, "GRU", {"bidirectional": True}),
    ],
    ids=["traced-LSTM-both ways", "traced-GRU", "scripted-LSTM", "scripted-GRU-both ways"],
)
def test_recurrent_layers_are_a_kernel(scripted, cell, how, imported):
    module = Recurrent(cell, **how).eval()
    script = torch.jit.script(module) if scripted else torch.jit.trace(module, torch.randn(2, 5, 7))
    made = imported(script, shapes={"x": (2, 5, 7)})
    assert "recurrence" in made.module.script()
    agree(made)


def test_an_input_that_counts_gets_its_type(imported):
    assert "--dtype" in failure(imported, torch.jit.script(Words()), shapes={"ids": (1, 3)}).fix
    made = imported(torch.jit.script(Words()), shapes={"ids": (1, 3)}, dtypes={"ids": "int64"})
    assert made.inputs == (TensorSpec("ids", (1, 3), "int64"),)
    agree(made)


def test_what_one_converter_lacks_the_other_may_have(imported):
    """farm's converters take no quantized tensors; torch writes them to ONNX, whose layers are told
    after its file is gone.
    """

    def quantized(x):
        return torch.quantize_per_tensor(x + 1, 0.01, 3, torch.quint8).dequantize()

    script = torch.jit.trace(Of(quantized), torch.rand(2, 3, 4))
    made = imported(script)
    agree(made)
    [added] = [value for _, operator, value in made.layers(made.example) if operator == "Add"][:1]
    np.testing.assert_allclose(added, made.example["x"] + 1, rtol=1e-6)
    network, (positional, named) = made.network
    np.testing.assert_allclose(
        network(*positional, **named).numpy(), made.reference(made.example)[0]
    )


def test_types_that_numpy_or_the_script_lacks_are_refused_in_words(imported):
    script = torch.jit.trace(Of(torch.relu), torch.rand(2, 3))
    for dtypes in ({"": "int8"}, {"": "bfloat16"}, {"": "nonsense"}):
        assert "is asked for" in failure(imported, script, dtypes=dtypes).what
    assert (
        "bfloat16"
        in failure(
            imported, torch.jit.trace(Of(torch.relu), torch.rand(2, 3).to(torch.bfloat16))
        ).what
    )


def test_what_an_operator_of_a_script_says_is_told(imported):
    """An example of random numbers has indices that are out of range."""

    class Categories(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(3, 2)

        def forward(self, x: torch.Tensor):
            return self.table(x.long())

    for script in (
        torch.jit.trace(Categories().eval(), torch.zeros(2, 40)),
        torch.jit.script(Categories().eval()),
    ):
        error = failure(imported, script, shapes={"x": (2, 40)})
        assert "index out of range in self" in error.why


def test_checks_of_values_are_left_to_the_reference(imported):
    agree(
        imported(
            torch.jit.trace(
                Of(lambda x: torch.nn.functional.one_hot(x.long(), 4).float()), torch.zeros(2, 3)
            )
        )
    )


def test_an_input_that_is_no_tensor_is_refused_by_name(imported):
    class Pair(torch.nn.Module):
        def forward(self, both: tuple[torch.Tensor, torch.Tensor]):
            return both[0] + both[1]

    assert "both (Tuple[Tensor, Tensor])" in failure(imported, torch.jit.script(Pair())).why


def test_an_unknown_input_is_refused_with_the_nearest(imported):
    script = torch.jit.trace(Small().eval(), torch.randn(1, 3, 8, 8))
    assert "did you mean 'image'?" in failure(imported, script, shapes={"imag": (1, 3, 8, 8)}).fix


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_script_cut_off_is_refused(share, tmp_path):
    path = tmp_path / "m.pt"
    torch.jit.trace(Small().eval(), torch.randn(1, 3, 8, 8)).save(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ModelError, match="is not a file of torch"):
        importers.import_model(Model("m", str(path)), tmp_path)
