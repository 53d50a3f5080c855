"""Operators that a package defines: torch files that use them are refused with that reason."""

from __future__ import annotations

import pytest
import torch

from farm import importers
from farm.errors import ModelError
from farm.types import Model


class Detecting(torch.nn.Module):
    """The end of a detector of torchvision."""

    def forward(self, boxes, scores):
        return boxes[torch.ops.torchvision.nms(boxes, scores, 0.5)]


@pytest.fixture
def torchvision_nms():
    """Define torchvision's operator, so that the tests need no torchvision."""
    with torch.library._scoped_library("torchvision", "DEF") as library:
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", lambda boxes, scores, _: scores.argsort()[:2], "CPU")
        library.impl("nms", lambda boxes, scores, _: scores.argsort()[:2], "Meta")
        yield


def written(kind, tmp_path):
    arguments = (torch.rand(6, 4), torch.rand(6))
    if kind == "pt2":
        torch.export.save(torch.export.export(Detecting(), arguments), tmp_path / "m.pt2")
    elif kind == "traced":
        torch.jit.trace(Detecting(), arguments, check_trace=False).save(tmp_path / "m.pt")
    else:
        torch.jit.script(Detecting()).save(tmp_path / "m.pt")
    return tmp_path / ("m.pt2" if kind == "pt2" else "m.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["pt2", "traced", "scripted"])
def test_an_operator_of_torchvision_is_named_as_such(kind, tmp_path, torchvision_nms):
    path = written(kind, tmp_path)
    with pytest.raises(ModelError) as error:
        importers.import_model(Model("m", str(path)), tmp_path)
    assert error.value.what == f"{path} uses an operator of torchvision, which farm does not load"
    assert "torchvision::nms" in error.value.why
    assert "ONNX" in error.value.fix


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_that_also_does_more_than_compute_is_refused_for_that(tmp_path, torchvision_nms):
    class Saving(Detecting):
        def forward(self, boxes, scores):
            torch.save(boxes, "taken")
            return boxes[torch.ops.torchvision.nms(boxes, scores, 0.5)]

    script = torch.jit.script(Saving())
    script.save(tmp_path / "m.pt")
    with pytest.raises(ModelError, match="could do more than compute"):
        importers.import_model(Model("m", str(tmp_path / "m.pt")), tmp_path)
