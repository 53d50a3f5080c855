"""Kernels of a program that compiles and calls them itself do not check their arguments, and their
other code is the same; the calls are checked when they are compiled.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from relax_models import lowered, target
from tvm import relax

from farm.compiler.codegen.executable import compile_executable

IMAGE = np.ones((1, 8, 6, 7), "float32")
WEIGHTS = np.ones((16, 8, 3, 3), "float32")


def convolution() -> Any:
    return lowered(
        {"x": IMAGE},
        lambda emit, x, w: emit(relax.op.nn.softmax(emit(relax.op.nn.conv2d(x, w)), 1)),
        {"w": WEIGHTS},
    ).module


def functions(module: Any) -> dict[str, str]:
    """LLVM's text of each function of a library, without the numbers of its metadata."""
    text = compile_text(module)
    found = re.findall(r"^define [^@]*@([\w.]+)\(.*?\n}\n", text, re.MULTILINE | re.DOTALL)
    bodies = re.finditer(r"^define .*?\n}\n", text, re.MULTILINE | re.DOTALL)
    return {
        name: re.sub(r"[!#]\d+", "", body.group()) for name, body in zip(found, bodies, strict=True)
    }


def compile_text(executable: Any) -> str:
    (library,) = executable.mod.imports
    return str(library.inspect_source("ll"))


def test_only_the_checks_of_arguments_are_left_out() -> None:
    module = convolution()
    checked, unchecked = (
        functions(compile_executable(module, target(), check_arguments=check))
        for check in (True, False)
    )
    kernels = [name for name in checked if name.endswith("_compute_")]
    assert len(kernels) >= 2
    assert {name: unchecked[name] for name in kernels} == {name: checked[name] for name in kernels}
    assert any("set_raised" in body for body in checked.values())
    assert not any("set_raised" in body for body in unchecked.values())


@pytest.mark.parametrize(
    "given",
    [IMAGE[:, :, 1:], IMAGE.astype("float64"), IMAGE[0]],
    ids=["shape", "data type", "axes"],
)
def test_inputs_are_checked_all_the_same(given: np.ndarray[Any, Any]) -> None:
    low = lowered({"x": IMAGE}, lambda emit, x: emit(relax.op.exp(x)))
    executable = compile_executable(low.module, target(), check_arguments=False)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    with pytest.raises((RuntimeError, ValueError), match="param=x"):
        machine["main"](tvm.runtime.tensor(given))


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        (IMAGE[:, :, 1:], r"takes float32 \[.*5.*\] for \w+, not .*6"),
        (IMAGE.astype("float64"), r"takes float64 .* not .*float32"),
        (IMAGE[0], r"takes float32 \[.*\] for \w+, not "),
    ],
    ids=["shape", "data type", "axes"],
)
def test_a_call_with_another_tensor_than_the_kernel_takes_is_not_compiled(
    taken: np.ndarray[Any, Any], sentence: str
) -> None:
    def kernel(x: np.ndarray[Any, Any]) -> tuple[Any, str]:
        module = lowered({"x": x}, lambda emit, x: emit(relax.op.nn.relu(x))).module
        return module, "relu"

    (module, name), (other, other_name) = kernel(IMAGE), kernel(taken)
    module.update_func(module.get_global_var(name), other[other_name])
    with pytest.raises(TypeError, match=sentence):
        compile_executable(module, target())
