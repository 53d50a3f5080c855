"""Blocks are found without TVM's Schedule, and its primitives called without its type checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from relax_models import module, target
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from farm.compiler.ir.blocks import (
    block_iter_types,
    blocks_in_loops,
    estimate_kernel_operations,
    is_loop_nest,
    narrow_indices_to_int32,
)
from farm.compiler.ir.unchecked_schedule import UncheckedSchedule
from farm.compiler.relax_pipeline import run_passes_before_legalization

BODIES = {
    "softmax and sum": lambda emit, x: relax.op.sum(emit(relax.op.nn.softmax(x)), axis=1),
    "padding and pool": lambda emit, x: relax.op.nn.max_pool2d(
        emit(relax.op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 0])), (2, 2)
    ),
    "scalar": lambda emit, x: relax.op.mean(x),
}


def kernels(body: Any) -> list[tirx.PrimFunc]:
    with target():
        made = run_passes_before_legalization(
            module({"x": np.zeros((2, 4, 5, 6), "float32")}, body)
        )
        made = relax.transform.LegalizeOps()(made)
    return [made[variable] for variable in made.get_global_vars() if variable.name_hint != "main"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_blocks_and_their_loops_are_those_of_tvms_schedule(body):
    found = kernels(body)
    assert found and all(map(is_loop_nest, found))
    for kernel in found:
        sch = Schedule(tvm.IRModule({"main": kernel}))
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        for nested, block in zip(blocks_in_loops(kernel), blocks, strict=True):
            assert nested.block.same_as(sch.get(block))
            assert list(nested.loops) == [sch.get(loop) for loop in sch.get_loops(block)]
            assert nested.iter_types == block_iter_types(sch, block)


def test_a_step_of_a_sum_is_two_operations_and_another_element_one():
    def body(emit: Any, x: Any) -> Any:
        weight = relax.const(np.ones((6, 3), "float32"))
        return emit(relax.op.nn.relu(emit(relax.op.matmul(x, weight))))

    operations = [estimate_kernel_operations(kernel) for kernel in kernels(body)]
    assert sorted(operations) == [2 * 4 * 5 * 3, 2 * (2 * 4 * 5 * 3 * 6)]


@pytest.mark.parametrize(
    ("rows", "dtype", "narrow"),
    [(3, "float32", True), (1 << 16, "int8", False), (3, "int64", False), (None, "int8", False)],
)
def test_indices_are_narrow_where_all_elements_of_all_tensors_have_one(rows, dtype, narrow):
    extent = tirx.Var("n", "int64") if rows is None else tirx.const(rows, "int64")
    given = te.placeholder((extent, tirx.const(1 << 15, "int64")), dtype)
    kernel = te.create_prim_func(
        [given, te.compute(given.shape, lambda *at: given(*at) + given(*at))]
    )
    found = narrow_indices_to_int32(kernel)
    assert found.same_as(kernel) != narrow
    (block,) = blocks_in_loops(found)
    assert str(block.loops[1].loop_var.ty) == ("int32" if narrow else "int64")


def test_primitives_do_the_same_without_type_checks():
    [kernel] = kernels(lambda emit, x: relax.op.nn.relu(x))
    scheduled = []
    for kind in (Schedule, UncheckedSchedule):
        sch = kind(tvm.IRModule({"main": kernel}))
        [block] = sch.get_child_blocks(sch.get_sblock("root"))
        *_, loop = sch.get_loops(block)
        _, inner = sch.split(loop, [None, 2])
        sch.vectorize(inner)
        scheduled.append(sch.mod)
    tvm.ir.assert_structural_equal(*scheduled)
    with pytest.raises(TypeError, match="split"):  # or TVM's checks are gone, and so can ours be
        Schedule(tvm.IRModule({"main": kernel})).split("no loop", [None, 2])
    assert UncheckedSchedule.split is not Schedule.split
