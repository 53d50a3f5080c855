"""Arguments of TorchScript that are no tensors: the user states them, and control flow on them is
resolved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.errors import ModelError
from farm.types import Model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Voice(torch.nn.Module):
    def forward(self, x: torch.Tensor, sr: int, gain: float, loud: bool, axes: list[int]):
        y = torch.relu(x) if sr == 16000 else -x
        if loud:
            y = y * 2
        return (y * gain).sum(axes)


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "voice.pt"
    torch.jit.save(torch.jit.script(Voice()), path)
    return path


def imported(path: Path, **values: Any) -> importers.ImportedModel:
    return importers.import_model(
        Model("voice", str(path), shapes={"x": (2, 3)}, values=values), path.parent
    )


@pytest.mark.parametrize(("rate", "loud"), [(16000, True), (8000, False)])
def test_stated_numbers_are_constants_of_the_script(rate, loud, voice):
    made = imported(voice, sr=rate, gain=3, loud=loud, axes=[1])
    assert [spec.name for spec in made.inputs] == ["x"]
    assert_agrees(made)
    x = made.example["x"]
    expected = (np.maximum(x, 0) if rate == 16000 else -x) * (2 if loud else 1) * 3
    np.testing.assert_allclose(made.reference(made.example)[0], expected.sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 1}, "no input 'rate'"),
        ({"sr": 1.5}, "does not fit: it is of type int"),
        ({"loud": 1}, "does not fit: it is of type bool"),
        ({"axes": [0.5]}, "does not fit: it is of type List[int]"),
        ({"gain": float("inf")}, "does not fit: it is of type float"),
        ({"x": 1}, "does not fit: it is of type Tensor"),
        ({"sr": 16000}, "these are not: gain (float), loud (bool), axes (List[int])"),
    ],
)
def test_what_does_not_fit_or_is_not_stated_is_refused(values, words, voice):
    with pytest.raises(ModelError) as refused:
        imported(voice, **values)
    assert words in f"{refused.value.what}: {refused.value.why}"
