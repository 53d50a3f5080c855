"""Small ONNX models written by hand, and a check that an import computes what its reference
does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from farm import importers
from farm.importers.imported_model import ImportedModel
from farm.types import Model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def load(cache: Path) -> Callable[..., ImportedModel]:
    """Import a source, with shapes by name."""

    def run(source: Path | str, **shapes: tuple[int, ...]) -> ImportedModel:
        return importers.import_model(Model("model", str(source), shapes=shapes), cache)

    return run


@pytest.fixture
def graph() -> Callable[..., onnx.ModelProto]:
    """A model from nodes, {name: shape} of inputs and outputs (float32, or (dtype, shape)), and
    {name: array} of initializers.
    """

    def build(
        nodes: Sequence[onnx.NodeProto],
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        weights: dict[str, np.ndarray] | None = None,
        opset: int = 17,
        **more: Any,
    ) -> onnx.ModelProto:
        tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
        body = helper.make_graph(list(nodes), "test", _values(inputs), _values(outputs), tensors)
        opsets = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
        return helper.make_model(body, opset_imports=opsets, ir_version=8, **more)

    return build


def _values(specs: dict[str, Any]) -> list[onnx.ValueInfoProto]:
    split = {
        name: spec if isinstance(spec, tuple) else (onnx.TensorProto.FLOAT, spec)
        for name, spec in specs.items()
    }
    return [
        helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in split.items()
    ]


@pytest.fixture
def onnx_file(tmp_path: Path, graph: Callable[..., onnx.ModelProto]) -> Callable[..., Path]:
    """Like `graph`, but saved."""

    def save(*arguments: Any, **named: Any) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(graph(*arguments, **named), path)
        return path

    return save


@pytest.fixture
def answers() -> Callable[[ImportedModel], list[np.ndarray]]:
    """What TVM's own host build of the module makes of the example."""
    import tvm
    from tvm import relax

    def flat(result: Any) -> list[np.ndarray]:
        return (
            [result.numpy()]
            if hasattr(result, "numpy")
            else [array for part in result for array in flat(part)]
        )

    def run(imported: ImportedModel) -> list[np.ndarray]:
        target = tvm.target.Target("llvm")
        with target:
            library = tvm.compile(
                imported.module, target, relax_pipeline=relax.get_default_pipeline(target)
            )
        arguments = [*(imported.example[spec.name] for spec in imported.inputs), *imported.weights]
        return flat(
            relax.VirtualMachine(library, tvm.cpu())["main"](*map(tvm.runtime.tensor, arguments))
        )

    return run


@pytest.fixture
def agree(answers: Callable[[ImportedModel], list[np.ndarray]]) -> Callable[[ImportedModel], None]:
    """Fail unless TVM's build gives the reference's outputs, in the shapes and dtypes that the
    import promises.
    """

    def check(imported: ImportedModel) -> None:
        import tvm

        tvm.relax.analysis.well_formed(imported.module)  # raises if it is not
        assert int(imported.module["main"].attrs["num_input"]) == len(imported.inputs)
        expected = imported.reference(imported.example)
        for spec, ours, theirs in zip(imported.outputs, answers(imported), expected, strict=True):
            assert (
                (ours.shape, ours.dtype.name)
                == (spec.shape, spec.dtype)
                == (theirs.shape, theirs.dtype.name)
            ), spec.name
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4, err_msg=spec.name)

    return check
