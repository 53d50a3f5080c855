"""Weights are stored as the model has them; a library makes what its kernels read when loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy then knows bfloat16 by its name
import numpy as np
import pytest
import tvm
from relax_models import CPUS, compute, module, target
from target_profiles import ARM
from tvm import relax

from farm.compiler import parameter_files, weight_transforms
from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
from farm.compiler.host_run import make_runner
from farm.compiler.lower import LoweredModule, lower_module, resolve_target
from farm.compiler.parameter_files import (
    INDEX,
    ON_LOAD,
    PREFIX,
    SHARD,
    read_transformed_parameters,
    write_parameters,
)
from farm.compiler.weight_transforms import BlockTransform
from farm.compiler.winograd_weights import WinogradTransform
from farm.errors import BuildError

numbers = np.random.default_rng(18)
WEIGHT = numbers.standard_normal((64, 48, 3, 3)).astype("float32")
INPUTS = {"x": numbers.standard_normal((1, 48, 32, 32)).astype("float32")}


def lowered(
    machine: Any, weight: np.ndarray = WEIGHT, memory_mb: int | None = None
) -> LoweredModule:
    def body(emit, x, w):
        wide = emit(relax.op.astype(w, "float32")) if weight.dtype != np.float32 else w
        return relax.op.nn.conv2d(x, wide, padding=1)

    given = module(INPUTS, body, {"w": weight})
    return lower_module(given, [weight], machine, {}, memory_mb=memory_mb)


def loaded(made: LoweredModule, machine: Any, folder: Path) -> tuple[Any, Any]:
    """The build on TVM's virtual machine, as a board loads it, and its parameters."""
    write_parameters(folder, made.parameters, made.transforms)
    tvm.get_global_func("vm.builtin.tensor_cache.clear")()
    tvm.get_global_func("vm.builtin.tensor_cache.load")(str(folder), 1, 0)
    executable = compile_executable(made.module, machine, checks=ArgumentChecks.MARKED)
    virtual = relax.VirtualMachine(executable, tvm.cpu())
    virtual.set_input(ON_LOAD)
    virtual.invoke_stateful(ON_LOAD)
    return virtual, tvm.get_global_func("vm.builtin.param_array_from_cache")(PREFIX, -1)


def right_convolution(
    image: np.ndarray, weight: np.ndarray, strides: tuple[int, int] = (1, 1)
) -> np.ndarray:
    """The convolution of an image with half a kernel around it, in double precision."""
    taps = weight.shape[2:]
    around = [(0, 0), (0, 0), *((count // 2, count // 2) for count in taps)]
    padded = np.pad(image.astype("float64"), around)
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1]]
    return np.einsum("nchwyx,ocyx->nohw", windows, weight.astype("float64"))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_file_has_the_models_weight_and_the_device_its_transform_to_the_bit(
    cpu, dtype, tmp_path
):
    weight, machine = WEIGHT.astype(dtype), target(cpu)
    made = lowered(machine, weight)
    [kept], [expected] = made.parameters, made.parameters_as_called()
    assert (kept.dtype, kept.nbytes) == (dtype, weight.nbytes)
    assert expected.nbytes > 1.7 * WEIGHT.nbytes and expected.dtype == np.float32
    virtual, parameters = loaded(made, machine, tmp_path / "parameters")
    assert parameters[0].numpy().tobytes() == expected.tobytes()
    [by_name] = read_transformed_parameters(
        tmp_path / "parameters", {f"{PREFIX}_0": "float32"}
    ).values()
    assert by_name.tobytes() == expected.tobytes()
    answer = virtual["main"](tvm.runtime.tensor(INPUTS["x"]), parameters).numpy()
    right = right_convolution(INPUTS["x"], weight)
    assert np.abs(answer - right).max() < 1e-5 * np.abs(right).max()


def test_a_convolution_of_constants_is_computed_with_transformed_weights():
    """TVM folds it when large weights have no values yet: the model is lowered again, with them."""
    image = numbers.standard_normal((1, 48, 32, 32)).astype("float32")

    def body(emit, x, w):
        return relax.op.add(x, emit(relax.op.nn.conv2d(relax.const(image), w, padding=1)))

    zeros = {"x": np.zeros((1, 64, 32, 32), "float32")}
    answer = compute(zeros, body, {"w": WEIGHT})
    assert not answer.lowered.transforms
    np.testing.assert_allclose(answer.outputs[0], right_convolution(image, WEIGHT), atol=1e-3)


def test_convolutions_that_share_a_weight_share_its_transform():
    def body(emit, x, w):
        first = emit(relax.op.nn.conv2d(x, w, padding=1))
        return relax.op.add(first, emit(relax.op.nn.conv2d(emit(relax.op.abs(x)), w, padding=1)))

    answer = compute(INPUTS, body, {"w": WEIGHT})
    assert len(answer.lowered.parameters) == len(answer.lowered.transforms) == 1
    right = right_convolution(INPUTS["x"], WEIGHT) + right_convolution(abs(INPUTS["x"]), WEIGHT)
    np.testing.assert_allclose(answer.outputs[0], right, atol=2e-3)


def test_this_machine_makes_its_parameters_by_the_function_that_a_device_calls():
    made = lowered(target("native"))
    run = make_runner(made, compile_executable(made.module, target("native")))
    [answer] = run([INPUTS["x"]])
    np.testing.assert_allclose(answer, right_convolution(INPUTS["x"], WEIGHT), atol=1e-3)
    left = tvm.get_global_func("vm.builtin.tensor_cache.get")(f"{PREFIX}_0")
    assert left is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_without_the_transform_the_code_refuses_the_weight(dtype):
    """A server that does not know the function has no answer, instead of a wrong one."""
    made = lowered(target("native"), WEIGHT.astype(dtype))
    executable = compile_executable(made.module, target("native"), checks=ArgumentChecks.MARKED)
    virtual = relax.VirtualMachine(executable, tvm.cpu())
    with pytest.raises(Exception, match="expected"):
        virtual["main"](
            tvm.runtime.tensor(INPUTS["x"]), list(map(tvm.runtime.tensor, made.parameters))
        )


@pytest.mark.parametrize(
    "other",
    [
        np.ones((24, 32), "float32"),
        np.ones((32, 25), "float32"),
        np.ones(768, "float32"),
        np.ones((32, 24), "float64"),
        None,
    ],
    ids=["order of the axes", "extent", "axes", "data type", "none"],
)
def test_parameters_of_another_model_are_refused_when_they_are_loaded(other):
    """Kernels do not check them: they would read what lies behind them."""
    inputs, weight = {"x": np.ones((3, 32), "float32")}, np.ones((32, 24), "float32")
    given = module(inputs, lambda emit, x, w: relax.op.matmul(x, w), {"w": weight})
    made = lower_module(given, [weight], target("native"), {})
    executable = compile_executable(made.module, target("native"), checks=ArgumentChecks.MARKED)
    virtual = relax.VirtualMachine(executable, tvm.cpu())
    clear, update = (
        tvm.get_global_func(f"vm.builtin.tensor_cache.{name}") for name in ("clear", "update")
    )
    clear()
    update(f"{PREFIX}_0", tvm.runtime.tensor(made.parameters[0]), True)
    virtual[ON_LOAD]()
    clear()
    if other is not None:
        update(f"{PREFIX}_0", tvm.runtime.tensor(other), True)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        virtual[ON_LOAD]()
    clear()


@pytest.mark.parametrize("board", ["armv7", "aarch64"])
def test_a_board_whose_memory_the_weights_nearly_fill_gets_no_larger_ones(board):
    machine, weight = resolve_target(ARM[board]), numbers.standard_normal((256, 48, 3, 3))
    weight = weight.astype("float32")  # 0.44 MB, transformed at least 0.78 MB
    assert lowered(machine, weight).transforms
    assert lowered(machine, weight, memory_mb=8).transforms
    assert not lowered(machine, weight, memory_mb=1).transforms


def test_a_transform_has_the_same_numbers_for_any_channels():
    weight = WEIGHT.transpose(2, 3, 1, 0)[:, :, :35, :50]
    for size in (2, 4):
        whole = WinogradTransform(size, 36, 50).apply(weight)
        for block in (4, 16, 48):
            packed = WinogradTransform(size, 40, block).apply(weight)
            joined = packed.transpose(1, 2, 3, 0, 4).reshape(size + 2, size + 2, 40, -1)
            np.testing.assert_array_equal(joined[:, :, :35, :50], whole[0, :, :, :35])
            assert not joined[:, :, 35:].any() and not joined[..., 50:].any()


def test_a_weight_of_many_channels_is_transformed_whole():
    """It is transformed in strips, of which the last is narrower."""
    weight = numbers.standard_normal((3, 3, 70, 600)).astype("float32")
    for size in (2, 4):
        whole = WinogradTransform(size, 72, 16).apply(weight)
        for first, last in ((0, 30), (30, 70)):
            part = WinogradTransform(size, last - first, 16).apply(weight[:, :, first:last])
            np.testing.assert_allclose(whole[:, :, :, first:last], part, rtol=1e-6)
        assert not whole[:, :, :, 70:].any()


def test_kernels_of_other_sizes_are_transformed_to_the_bit(tmp_path):
    """Kernels of several sizes and strides in one model: each has a function of its own."""
    machine = target(CPUS[-1])
    sizes = ((5, 5), (1, 7), (7, 1), (3, 3), (7, 7))
    strides = ((1, 1), (1, 1), (1, 1), (1, 1), (2, 2))
    weights = {
        f"w{index}": numbers.standard_normal((64, 48, *size)).astype("float32")
        for index, size in enumerate(sizes)
    }

    def body(emit, x, *kernels):
        return [
            emit(relax.op.nn.conv2d(x, kernel, strides=step, padding=[size // 2 for size in taps]))
            for kernel, taps, step in zip(kernels, sizes, strides, strict=True)
        ]

    made = lower_module(module(INPUTS, body, weights), list(weights.values()), machine, {})
    assert len(made.transforms) == len(sizes)
    virtual, parameters = loaded(made, machine, tmp_path / "parameters")
    for ours, theirs in zip(parameters, made.parameters_as_called(), strict=True):
        assert ours.numpy().tobytes() == theirs.tobytes()
    answers = virtual["main"](tvm.runtime.tensor(INPUTS["x"]), parameters)
    for answer, weight, step in zip(answers, weights.values(), strides, strict=True):
        right = right_convolution(INPUTS["x"], weight, step)
        assert np.abs(answer.numpy() - right).max() < 3e-5 * np.abs(right).max()


@pytest.mark.skipif("x86-64-v3" not in CPUS, reason="tiles of two sizes were found for AVX2")
def test_transforms_for_tiles_of_two_sizes_are_made_in_one_build(tmp_path):
    machine, other = target("x86-64-v3"), numbers.standard_normal((64, 128, 3, 3))
    weights = {"v": WEIGHT, "w": other.astype("float32")}

    def body(emit, x, y, v, w):
        pairs = ((x, v), (y, w))
        return [emit(relax.op.nn.conv2d(image, kernel, padding=1)) for image, kernel in pairs]

    given = module({**INPUTS, "y": np.zeros((1, 128, 10, 10), "float32")}, body, weights)
    made = lower_module(given, list(weights.values()), machine, {})
    assert sorted(one.size for one in made.transforms.values()) == [2, 4]
    _, parameters = loaded(made, machine, tmp_path / "parameters")
    for ours, theirs in zip(parameters, made.parameters_as_called(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize(
    ("cpu", "dtype", "channels"),
    [
        (CPUS[-1], "float32", 64),
        (CPUS[0], "float32", 67),
        (CPUS[0], "float16", 64),
        (CPUS[-1], "float16", 67),
        (CPUS[len(CPUS) // 2], "float32", 64),
        (CPUS[len(CPUS) // 2], "float16", 67),
    ],
)
def test_a_weight_that_several_kernels_read_in_different_forms_is_stored_once(
    cpu, dtype, channels, tmp_path
):
    machine = target(cpu)
    weight = numbers.standard_normal((channels, 48, 3, 3)).astype(dtype)
    steps = (1, 2)  # Winograd's method is for steps of one

    def body(emit, x, w):
        wide = emit(relax.op.astype(w, "float32")) if dtype == "float16" else w
        return [emit(relax.op.nn.conv2d(x, wide, step, padding=1)) for step in steps]

    made = lower_module(module(INPUTS, body, {"w": weight}), [weight], machine, {})
    assert {type(one) for one in made.transforms.values()} == {WinogradTransform, BlockTransform}
    folder = tmp_path / "parameters"
    virtual, parameters = loaded(made, machine, folder)
    assert (folder / SHARD).stat().st_size == weight.nbytes
    by_name = read_transformed_parameters(
        folder, {f"{PREFIX}_{index}": "float32" for index in range(len(made.parameters))}
    )
    expected = made.parameters_as_called()
    for ours, theirs, read in zip(parameters, expected, by_name.values(), strict=True):
        assert ours.numpy().tobytes() == theirs.tobytes() == read.tobytes()
    answers = virtual["main"](tvm.runtime.tensor(INPUTS["x"]), parameters)
    for answer, step in zip(answers, steps, strict=True):
        right = right_convolution(INPUTS["x"], weight)[:, :, ::step, ::step]
        assert np.abs(answer.numpy() - right).max() < 1e-5 * np.abs(right).max()


def test_products_with_one_weight_store_it_once_for_blocks_of_two_sizes(tmp_path):
    weight = numbers.standard_normal((96, 100)).astype("float32")
    rows = {"x": np.ones((1, 96), "float32"), "y": np.ones((200, 96), "float32")}

    def body(emit, x, y, w):
        return [emit(relax.op.matmul(left, w)) for left in (x, y)]

    made = lower_module(module(rows, body, {"w": weight}), [weight], target("native"), {})
    assert len({one.block for one in made.transforms.values()}) == len(made.parameters) == 2
    virtual, parameters = loaded(made, target("native"), tmp_path / "parameters")
    assert (tmp_path / "parameters" / SHARD).stat().st_size == weight.nbytes
    answers = virtual["main"](*map(tvm.runtime.tensor, rows.values()), parameters)
    for answer, left in zip(answers, rows.values(), strict=True):
        np.testing.assert_allclose(answer.numpy(), left @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("size", [100, 500])
def test_the_table_of_an_embedding_that_is_a_products_matrix_too_is_stored_once(
    size, transposed, dtype, tmp_path
):
    """As in language models, whose last product is with the transposed table.

    That product reads float16 where the table does not fit the L1 cache.
    """
    table = numbers.standard_normal((size, size)).astype(dtype)
    rows = np.array([3, size - 1, 0], np.int32)

    def body(emit, index, w):
        wide = emit(relax.op.astype(w, "float32")) if dtype == "float16" else w
        found = emit(relax.op.take(wide, index, 0))
        matrix = emit(relax.op.permute_dims(wide)) if transposed else wide
        return [found, emit(relax.op.matmul(found, matrix))]

    made = lower_module(module({"x": rows}, body, {"w": table}), [table], target("native"), {})
    virtual, parameters = loaded(made, target("native"), tmp_path / "parameters")
    assert (tmp_path / "parameters" / SHARD).stat().st_size == table.nbytes
    [how] = made.transforms.values()
    assert how.transposed == transposed
    answers = virtual["main"](tvm.runtime.tensor(rows), parameters)
    expected = table[rows].astype("float32")
    wide = table.astype("float32")
    for answer, right in zip(
        answers, (expected, expected @ (wide.T if transposed else wide)), strict=True
    ):
        np.testing.assert_allclose(answer.numpy(), right, rtol=1e-4, atol=1e-4)
    taken = [str(one.dtype) for one in made.module["main"].params[-1].ty.fields]
    by_name = read_transformed_parameters(
        tmp_path / "parameters", {f"{PREFIX}_{index}": one for index, one in enumerate(taken)}
    )
    for ours, theirs in zip(parameters, by_name.values(), strict=True):
        assert ours.numpy().tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_padding_of_groups_is_not_in_the_file(dtype, tmp_path):
    weight = numbers.standard_normal((4 * 34, 12, 1, 1)).astype(dtype)
    data = numbers.standard_normal((1, 48, 6, 7)).astype("float32")

    def body(emit, x, w):
        wide = emit(relax.op.astype(w, "float32")) if dtype == "float16" else w
        return relax.op.nn.conv2d(x, wide, groups=4)

    made = lower_module(module({"x": data}, body, {"w": weight}), [weight], target("native"), {})
    [transform] = made.transforms.values()
    assert isinstance(transform, BlockTransform) and transform.groups == 4
    virtual, parameters = loaded(made, target("native"), tmp_path / "parameters")
    assert (tmp_path / "parameters" / SHARD).stat().st_size == weight.nbytes
    [expected] = made.parameters_as_called()
    assert parameters[0].numpy().tobytes() == expected.tobytes()
    assert expected.size > weight.size
    [answer] = (virtual["main"](tvm.runtime.tensor(data), parameters),)
    right = np.einsum(
        "gihw,goi->gohw",
        data.reshape(4, 12, 6, 7).astype("float64"),
        weight.reshape(4, 34, 12).astype("float64"),
    )
    np.testing.assert_allclose(answer.numpy().reshape(right.shape), right, rtol=1e-4, atol=1e-4)


def test_a_weight_that_one_kernel_reads_in_blocks_is_stored_so():
    """A board need not make anything of it when it is loaded."""
    weight = numbers.standard_normal((96, 128)).astype("float32")
    given = module(
        {"x": np.ones((1, 96), "float32")}, lambda emit, x, w: relax.op.matmul(x, w), {"w": weight}
    )
    made = lower_module(given, [weight], target("native"), {})
    assert [value.ndim for value in made.parameters] == [3] and not made.transforms


HEADS, TOKENS = 3, 100
POSITIONS = np.add.outer(np.arange(TOKENS), TOKENS - 1 - np.arange(TOKENS))  # relative ones


def relative_position_bias(dtype: str = "float32") -> np.ndarray:
    table = numbers.standard_normal((HEADS, 2 * TOKENS - 1)).astype(dtype)
    table[0, :4] = np.inf, -0.0, 0.0, np.nan
    return np.ascontiguousarray(table[:, POSITIONS])


@pytest.mark.parametrize("cpu", CPUS)
def test_a_bias_of_relative_positions_is_stored_as_a_table_and_indices(cpu, tmp_path):
    bias = relative_position_bias()
    scores = numbers.standard_normal(bias.shape).astype("float32")

    def body(emit, x, w):
        return relax.op.add(x, w)

    made = lower_module(module({"x": scores}, body, {"w": bias}), [bias], target(cpu), {})
    folder = tmp_path / "parameters"
    virtual, parameters = loaded(made, target(cpu), folder)
    assert (folder / SHARD).stat().st_size == 4 * (TOKENS**2 + HEADS * (2 * TOKENS - 1))
    by_name = read_transformed_parameters(folder, {f"{PREFIX}_0": "float32"})
    [expected] = made.parameters_as_called()
    for found in (parameters[0].numpy(), by_name[f"{PREFIX}_0"], expected):
        assert found.shape == bias.shape and found.tobytes() == bias.tobytes()
    answer = virtual["main"](tvm.runtime.tensor(scores), parameters).numpy()
    np.testing.assert_array_equal(answer, scores + bias)


def test_the_shortest_vector_of_several_is_taken():
    """A bias of several windows repeats in each of them, and so do the columns of one."""
    bias = np.broadcast_to(relative_position_bias(), (8, HEADS, TOKENS, TOKENS))
    stored, transform = weight_transforms.gather_of_repeated_columns(np.ascontiguousarray(bias))
    assert transform.rows == 8 * HEADS
    assert transform.apply(stored).tobytes() == bias.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(numbers.standard_normal((64, 64, 9)).astype("float32"), id="a weight"),
        pytest.param(numbers.standard_normal(1 << 15).astype("float32"), id="a vector"),
        pytest.param(relative_position_bias("float64"), id="of another type"),
        pytest.param(relative_position_bias()[:, :40, :40], id="small"),
        pytest.param(relative_position_bias()[:1], id="as many indices as elements"),
        pytest.param(
            numbers.integers(-8, 8, (600, 4500)).astype("float32"), id="a weight of few values"
        ),
        pytest.param(
            np.tile(numbers.standard_normal((2, 4096)).astype("float32"), 2), id="repeated once"
        ),
    ],
)
def test_other_parameters_are_stored_as_they_are(value):
    assert weight_transforms.gather_of_repeated_columns(value) is None


def test_an_index_outside_of_the_table_reads_none_of_the_memory_around_it(tmp_path):
    bias = relative_position_bias()
    made = lower_module(
        module({"x": bias}, lambda emit, x, w: relax.op.add(x, w), {"w": bias}),
        [bias], target("native"), {},
    )  # fmt: skip
    made.parameters[0][:7] = -1, -1e30, 1e30, np.inf, -np.inf, 10**6, np.nan
    _, parameters = loaded(made, target("native"), tmp_path / "parameters")
    [expected] = made.parameters_as_called()
    assert parameters[0].numpy().tobytes() == expected.tobytes()


def test_parameters_with_the_same_bytes_are_written_once(tmp_path):
    same, other = WEIGHT.copy(), WEIGHT.reshape(-1)
    write_parameters(tmp_path / "parameters", [WEIGHT, same, -WEIGHT, other])
    assert (tmp_path / "parameters" / SHARD).stat().st_size == 3 * WEIGHT.nbytes
    found = list(parameter_files.read_stored_parameters(tmp_path / "parameters").values())
    for read, given in zip(found, [WEIGHT, same, -WEIGHT, other], strict=True):
        assert read.shape == given.shape and read.tobytes() == given.tobytes()


@pytest.mark.parametrize(
    "said",
    [
        {"winograd": 3, "depth": 48, "block": 16},
        {"winograd": -2, "depth": 48, "block": 16},
        {"winograd": 10**9, "depth": 48, "block": 16},
        {"winograd": 6, "depth": 48, "block": 16},
        {"winograd": float("inf"), "depth": 48, "block": 16},
        {"winograd": True, "depth": 48, "block": 16},
        {"winograd": 4, "depth": 10**12, "block": 16},
        {"winograd": 4, "depth": 47, "block": 16},
        {"winograd": 4, "depth": 48, "block": 0},
        {"winograd": 4, "depth": 48, "block": 16, "stride_height": 0},
        {"winograd": 4, "depth": 48, "block": 16, "stride_width": 10**12},
        {"winograd": 4, "depth": 48, "block": 16, "stride_width": 2},
        {"winograd": 4, "depth": 96, "block": 16, "stride_width": 1.0},
        {"winograd": 4, "depth": 48},
        {"winograd": "x", "depth": 48, "block": 16},
        {"columns": 0},
        {"columns": 10**9},
        {"columns": "x"},
        {"columns": 16, "transposed": 1},
        {"columns": 16, "groups": 0},
        {"columns": 16, "groups": 3},
        {"columns": 16, "groups": 64 * 64},
        {"shape": [64, 48, 3, 3], "rows": 64},
        [],
    ],
    ids=str,
)
def test_a_transform_that_does_not_fit_its_weight_is_refused(said, tmp_path):
    folder = tmp_path / "parameters"
    write_parameters(folder, [WEIGHT.transpose(2, 3, 1, 0)], {0: WinogradTransform(4, 48, 16)})
    assert read_transformed_parameters(folder, {})
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"] == {
        "transforms": {f"{PREFIX}_0": {"winograd": 4, "depth": 48, "block": 16}}
    }
    index["metadata"]["transforms"][f"{PREFIX}_0"] = said
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(BuildError, match="are damaged"):
        read_transformed_parameters(folder, {})


@pytest.mark.parametrize(
    "said",
    [
        {"shape": [], "rows": 1},
        {"shape": [0, 4], "rows": 1},
        {"shape": [-3, -8192], "rows": 3},
        {"shape": [3, 8192], "rows": 0},
        {"shape": [3, 8192], "rows": 7},
        {"shape": [3, 8193], "rows": 3},
        {"shape": [3, 8195], "rows": 3},
        {"shape": [3, 8196], "rows": 3},
        {"shape": [1 << 20, 1 << 20], "rows": 1 << 35},
        {"shape": [1 << 14, 1 << 13], "rows": 1 << 14},
        {"shape": [3, 40], "rows": 3},
        {"shape": 3, "rows": 3},
        {"shape": [3, "x"], "rows": 3},
        {"shape": [3, 8192.0], "rows": 3},
        {"shape": [3, 8192], "rows": float("inf")},
        {"shape": [3, 8192], "rows": True},
    ],
    ids=str,
)
def test_indices_and_a_table_that_do_not_fit_are_refused(said):
    """A vector of 8,195 holds 8,192 indices and one column of three rows."""
    fits, stored = {"shape": [3, 8192], "rows": 3}, np.zeros(8195, "float32")
    made = weight_transforms.transform_from_json(fits, stored.shape)
    assert made.apply(stored).shape == (3, 8192)
    with pytest.raises((KeyError, TypeError, ValueError)):
        weight_transforms.transform_from_json(said, stored.shape)


def test_a_build_without_transforms_says_nothing_of_them(tmp_path):
    parameter_files.write_parameters(tmp_path / "parameters", [WEIGHT])
    assert json.loads((tmp_path / "parameters" / INDEX).read_text())["metadata"] == {}
