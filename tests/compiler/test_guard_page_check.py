"""farm check --guard: kernels that leave their tensors are found, and each one of them."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import faulty_kernels
import forked_commands
import numpy as np
import pytest
import tvm
from host_profile import HOST
from onnx_models import graph, node, save, save_selecting

from farm.compiler.diagnostics import guarded_run
from farm.compiler.diagnostics.guarded_memory import FILL, GuardedBuffer, GuardSide
from farm.compiler.diagnostics.guarded_run import KernelCallSite
from farm.compiler.diagnostics.reference_steps import ReferenceStep
from farm.errors import BuildError
from farm.pipeline.guard_page_check import check_with_guards
from farm.store import Store
from farm.types import Model


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"])]
    constants = {"w": np.ones((40, 17), "float32")}
    made = graph(nodes, {"x": [3, 40]}, {"y": [3, 17]}, constants)
    return save(tmp_path_factory.mktemp("model") / "small.onnx", made, opset=18)


@pytest.mark.parametrize("trust", [False, True], ids=["in the sandbox", "trusted"])
def test_each_kernel_that_leaves_its_memory_is_named_and_those_behind_it_are_run(
    trust, small_model, tmp_path
):
    model = Model("planted", str(small_model), trust=trust)
    found = check_with_guards(
        model, HOST, store=Store(tmp_path), show=lambda _: None, maker=faulty_kernels.made
    )
    said = {one.kernel: (one.guard, one.what) for one in found.faulty}
    assert list(said) == list(faulty_kernels.KERNELS)[1:]
    assert said["reads_behind"][0] == "end" and "behind the end" in said["reads_behind"][1]
    assert said["reads_before"][0] == "begin" and "before the begin" in said["reads_before"][1]
    assert said["writes_near"] == ("end", "writes byte 400 of a tensor of 400 bytes")
    assert said["leaves_out"] == (
        "begin",
        "does not write all of its output: 3 of 100 elements, the first is 97",
    )
    assert said["changes_input"] == ("end", "writes into one of its inputs")
    assert "workspace" in said["beyond_workspace"][1]
    assert found.faulty[0].layer == "layer of reads_behind"
    assert found.agreement is not None and found.agreement.right, "the output is of a right kernel"
    assert not found.right


def test_kernels_that_select_by_value_are_in_order_and_the_answer_is_right(tmp_path):
    model = Model("selecting", str(save_selecting(tmp_path / "model.onnx")))
    found = check_with_guards(model, HOST, store=Store(tmp_path), show=lambda _: None)
    assert found.right and not found.faulty and found.kernels > 4


def test_a_model_that_returns_constants_and_a_tensor_without_elements_is_run(tmp_path):
    constants = {"c": np.arange(6, dtype="float32"), "e": np.zeros((0, 2), "float32")}
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["c"], ["z"]), node("Neg", ["e"], ["w"])]
    made = graph(nodes, {"x": [3]}, {"y": [3], "z": [6], "w": [0, 2]}, constants)
    model = Model("constant", str(save(tmp_path / "model.onnx", made)))
    found = check_with_guards(model, HOST, store=Store(tmp_path), show=lambda _: None)
    assert found.right and found.kernels == 1


def test_other_bits_with_other_threads_are_found() -> None:
    first, second = np.zeros(5, "float32"), np.array([0, 0, 1, 0, 0], "float32")
    places = KernelCallSite(0, "begin", 2), KernelCallSite(0, "end", 1)
    said = guarded_run._difference([second], [first], *places)
    assert said == "computes other bits than with 1 thread: 1 of 5 elements, the first is 2"
    assert guarded_run._difference([first], [first.copy()], *places) == ""


@pytest.mark.parametrize("size", [0, 1, 64, 4095, 4096, 4097, 100_000])
@pytest.mark.parametrize("side", list(GuardSide))
def test_memory_is_filled_aligned_and_watched_on_both_sides(side, size):
    memory = GuardedBuffer(size, side)
    assert memory.address % 64 == 0
    assert (memory.bytes() == FILL[side]).all() and memory.bytes().size == size
    assert memory.touched() is None
    memory.bytes()[:] = 1
    assert memory.touched() is None
    memory.free()


@pytest.mark.parametrize("side", list(GuardSide))
def test_a_byte_that_is_written_beside_memory_is_found_at_its_place(side: GuardSide) -> None:
    memory = GuardedBuffer(100, side)
    for place in (100, 127) if side is GuardSide.BEGIN else (-64, -1, 100, 127):
        ctypes.memset(memory.address + place, 1, 1)
        assert memory.touched() == place
        ctypes.memset(memory.address + place, FILL[side], 1)
    assert memory.touched() is None
    memory.free()


def test_a_kernel_runs_on_both_sides_with_each_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    kernels = {
        "right": lambda x, y: y.copyfrom(x.numpy() + 1),
        "by_threads": lambda x, y: y.copyfrom(x.numpy() + used[-1] // 3),
    }
    library = SimpleNamespace(get_function=lambda name, _: kernels[name])
    monkeypatch.setenv(guarded_run.THREADS_VARIABLE, "1")
    monkeypatch.setattr(tvm.runtime, "load_module", lambda _: library)
    monkeypatch.setattr(tvm, "get_global_func", lambda _: lambda mode, count: used.append(count))
    workspaces = SimpleNamespace(guard=None, take_touched=list)
    monkeypatch.setattr(guarded_run, "GuardedWorkspaces", lambda _: workspaces)
    steps = [
        ReferenceStep(name, (number,), ((number + 1, (5,), "float32"),))
        for number, name in enumerate(kernels)
    ]
    values = {0: np.arange(5, dtype="float32")}
    found = guarded_run.run_guarded(tmp_path / "library.so", steps, [2], values, tmp_path)
    assert used == [1, 2, 3, 1, 2, 3, 1, 2, 3]
    [fault] = found.findings
    assert (fault.kernel, fault.place) == ("by_threads", KernelCallSite(1, "end", 3))
    assert "computes other bits than with 1 thread: 5 of 5 elements" in fault.what
    np.testing.assert_array_equal(found.outputs[0], values[0] + 1)


def test_a_place_that_hostile_code_has_written_is_none(tmp_path: Path) -> None:
    for text in ("", "[1]", '[-1, "end", 1]', '[0, "other", 1]', "[" * 100_000, '["a", "end", 1]'):
        (tmp_path / "place.json").write_text(text)
        assert guarded_run.last_call_site(tmp_path) is None
    (tmp_path / "place.json").write_text('[3, "end", 2]')
    assert guarded_run.last_call_site(tmp_path) == KernelCallSite(3, "end", 2)


def farm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(["check", "-q", *arguments])


def test_a_right_model_is_checked_by_the_command(small_model, tmp_path, monkeypatch):
    monkeypatch.setenv("FARM_CACHE", str(tmp_path))
    done = farm("--guard", small_model, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["guard"]
    assert said["kernels"] >= 2 and said["faulty"] == [] and said["agreement"]["right"]


def test_guards_are_of_this_machine_only(small_model):
    done = farm("--guard", "--profile", "rasp4-64", small_model)
    assert done.returncode == 2
    assert "farm check --guard --profile" in done.stderr


def test_a_kernel_that_takes_the_size_of_an_open_batch_is_refused(tmp_path):
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=1)]
    made = graph(nodes, {"x": ["batch", 3, 8, 8]}, {"y": [4]})
    path = save(tmp_path / "sizes.onnx", made)
    with pytest.raises(BuildError, match="sizes cannot be taken apart") as caught:
        check_with_guards(
            Model("sizes", str(path)), HOST, store=Store(tmp_path), show=lambda _: None
        )
    assert "the size batch of an open axis" in caught.value.why
