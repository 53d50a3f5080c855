"""Models with many weights that are quickly built, for uploads that take a while."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from timeouts import wait_until


def write_heavy_model(path: Path, *then: str) -> int:
    """One layer, and the named operators after it; the weights are always the same. Returns their
    bytes.
    """
    weights = np.random.default_rng(0).standard_normal((1200, 2000)).astype("float32")
    names = ["x", *(f"t{number}" for number in range(len(then))), "y"]
    nodes = [helper.make_node("MatMul", ["x", "w"], [names[1]])]
    nodes += [
        helper.make_node(operator, [names[index + 1]], [names[index + 2]])
        for index, operator in enumerate(then)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in zip("xy", weights.shape, strict=True)
    ]
    graph = helper.make_graph(
        nodes, path.stem, ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return weights.nbytes


def arrives(folder: Path, count: int) -> int:
    """Wait until a file that is uploaded into the folder has that many bytes; return how many it
    has.

    Other uploads end meanwhile: a small part may be gone between its listing and its look-up.
    """

    def size(part: Path) -> int:
        try:
            return part.stat().st_size
        except FileNotFoundError:
            return 0

    def largest() -> int:
        found = max(map(size, folder.rglob("*.part")), default=0)
        return found if found >= count else 0

    return int(wait_until(largest, f"{count} bytes in {folder}"))
