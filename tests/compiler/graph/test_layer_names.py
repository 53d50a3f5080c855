"""Each step of a built model names the operators of the source that it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from farm import importers
from farm.compiler.execution_graph import describe_execution_graph
from farm.compiler.lower import lower_module, resolve_target
from farm.types import Model, Profile

PROFILE = Profile("test", {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, "")


def layers(source: Path) -> list[tuple[str, str]]:
    imported = importers.import_model(Model("model", str(source)), source.parent)
    lowered = lower_module(imported.module, imported.weights, resolve_target(PROFILE), {})
    return [
        (step["kernel"], step["layer"])
        for step in describe_execution_graph(lowered.module)["steps"]
    ]


def of(found: list[tuple[str, str]], word: str) -> list[str]:
    return [layer for kernel, layer in found if word in kernel]


def test_a_kernel_of_two_layers_has_the_names_of_both(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shapes = {"w": (32, 16, 1, 1), "d": (32, 1, 3, 3), "v": (16, 32, 1, 1)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype("float32"), name)
        for name, shape in shapes.items()
    ]
    nodes, given = [], "x"
    for block in ("/b0", "/b1"):  # equal kernels, of which each call has its own layers
        nodes += [
            helper.make_node("Conv", [given, "w"], [f"{block}a"], name=f"{block}/expand"),
            helper.make_node("Relu", [f"{block}a"], [f"{block}b"], name=f"{block}/relu"),
            helper.make_node(
                "Conv", [f"{block}b", "d"], [f"{block}c"], f"{block}/dw", pads=[1] * 4, group=32
            ),
            helper.make_node("Conv", [f"{block}c", "v"], [f"{block}d"], name=f"{block}/project"),
        ]
        given = f"{block}d"
    nodes[-1].output[0] = "y"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 12, 12]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "m.onnx",
    )
    *found, _ = of(layers(tmp_path / "m.onnx"), "convolution")  # the last is joined to a transpose
    assert found == [
        "/b0/expand, /b0/relu, /b0/dw",
        "/b0/project",
        "/b1/expand, /b1/relu, /b1/dw",
    ]


def test_equal_kernels_of_an_onnx_model_have_the_names_of_their_own_nodes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((8, 8, 1, 1)).astype("float32"), f"w{index}")
        for index in range(3)
    ]

    def conv(name: str, given: str, index: int) -> Any:
        return helper.make_node("Conv", [given, f"w{index}"], [f"{name}_out"], name=name)

    nodes = [
        conv("/left/Conv", "x", 0),
        helper.make_node("Relu", ["/left/Conv_out"], ["left"], name="/left/Relu"),
        conv("/right/Conv", "x", 1),
        helper.make_node("Relu", ["/right/Conv_out"], ["right"], name="/right/Relu"),
        conv("/after/Conv", "left", 2),
        helper.make_node("Add", ["/after/Conv_out", "right"], ["y"], name="/Add"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 6, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "m.onnx",
    )
    found = layers(tmp_path / "m.onnx")
    assert sorted(of(found, "convolution")) == [
        "/after/Conv",
        "/left/Conv, /left/Relu",
        "/right/Conv, /right/Relu",
    ], found
    assert of(found, "transpose") == ["", "/Add"], (
        "the output's layout is the input's again after the last operator"
    )


def test_tensors_of_one_name_are_told_apart() -> None:
    names, variables = (
        ("lv", "lv", "lv_1", "lv", "x"),
        [relax.Var("x", relax.TensorType((3,), "float32"))],
    )
    bindings = []
    for extent, name in enumerate(names, 4):
        call = relax.op.builtin.alloc_tensor(relax.ShapeExpr([extent]), "float32", 0)
        variables.append(relax.Var(name, relax.TensorType((extent,), "float32")))
        bindings.append(relax.VarBinding(variables[-1], call))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(variables))
    result = relax.TupleType([variable.ty for variable in variables])
    main = relax.Function(variables[:1], body, result).with_attr("num_input", 1)
    found = describe_execution_graph(tvm.IRModule({"main": main}))
    assert [found["tensors"][name]["shape"] for name in found["outputs"]] == [
        [extent] for extent in range(3, 9)
    ]
    assert [step["output"] for step in found["steps"]] == found["outputs"][1:]
    assert found["inputs"] == found["outputs"][:1]


def test_steps_of_a_torch_model_have_the_paths_of_its_modules(tmp_path: Path) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.act = (
                torch.nn.Linear(16, 16),
                torch.nn.Linear(16, 16),
                torch.nn.ReLU(),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.act(self.first(x))) + x

    net = torch.nn.Sequential(Block(), Block()).eval()
    torch.export.save(torch.export.export(net, (torch.ones(3, 16),)), tmp_path / "m.pt2")
    found = of(layers(tmp_path / "m.pt2"), "dense")
    assert ["0.first" in layer or "0.second" in layer for layer in found] == [
        True,
        True,
        False,
        False,
    ], found
    assert [layer.split(", ")[-1] for layer in found] == ["0.act", "0", "1.act", "1"], found
