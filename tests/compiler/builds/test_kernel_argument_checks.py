"""Kernels check their arguments only where the virtual machine cannot know that they are right, and
their other code is the same; the calls of a module are checked when they are compiled.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from relax_models import lowered, target
from tvm import relax

from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks

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
        functions(compile_executable(module, target(), checks=checks))
        for checks in (ArgumentChecks.ALL, ArgumentChecks.NONE)
    )
    kernels = [name for name in checked if name.endswith("_compute_")]
    assert len(kernels) >= 2
    assert {name: unchecked[name] for name in kernels} == {name: checked[name] for name in kernels}
    assert any("set_raised" in body for body in checked.values())
    assert not any("set_raised" in body for body in unchecked.values())


def kernels_with_checks(module: Any, checks: ArgumentChecks) -> list[str]:
    made = functions(compile_executable(module, target(), checks=checks))
    prefix = "__tvm_ffi_"
    return sorted(
        name.removeprefix(prefix)
        for name, body in made.items()
        if name.startswith(prefix) and "set_raised" in body
    )


def test_of_a_build_for_a_device_only_kernels_that_read_an_input_check_it() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        second = emit(relax.op.nn.softmax(emit(relax.op.nn.softmax(x)), 1))
        return relax.op.nn.log_softmax(emit(relax.op.add(second, y)), 2)

    module = lowered({"x": IMAGE, "y": IMAGE}, body).module
    checked = kernels_with_checks(module, ArgumentChecks.MARKED)
    assert checked == ["fused_softmax1_add", "softmax"]
    every = kernels_with_checks(module, ArgumentChecks.ALL)
    assert set(every) - set(checked) == {"log_softmax", "no_kernel"}


@pytest.mark.parametrize("reshaped", [False, True])
def test_an_input_that_is_not_contiguous_is_refused(reshaped: bool) -> None:
    def body(emit: Any, x: Any) -> Any:
        given = emit(relax.op.reshape(x, (8, 42))) if reshaped else x
        return relax.op.nn.softmax(emit(relax.op.exp(given)))

    executable = compile_executable(
        lowered({"x": IMAGE}, body).module, target(), checks=ArgumentChecks.MARKED
    )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    every_second = torch.ones(1, 8, 6, 14)[..., ::2]
    given = tvm_ffi.from_dlpack(every_second, require_contiguous=False)
    with pytest.raises((RuntimeError, ValueError), match="compact array"):
        machine["main"](given)


@pytest.mark.parametrize(
    "given",
    [IMAGE[:, :, 1:], IMAGE.astype("float64"), IMAGE[0]],
    ids=["shape", "data type", "axes"],
)
def test_inputs_are_checked_all_the_same(given: np.ndarray[Any, Any]) -> None:
    low = lowered({"x": IMAGE}, lambda emit, x: emit(relax.op.exp(x)))
    executable = compile_executable(low.module, target(), checks=ArgumentChecks.NONE)
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
