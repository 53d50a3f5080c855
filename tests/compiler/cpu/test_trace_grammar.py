"""What the trace of a schedule may hold: records are files, and a stranger's must only schedule."""

from __future__ import annotations

import json
import os
from pathlib import Path

import forked_commands
import pytest
import tvm
from handmade_records import record
from target_profiles import X86
from tvm import te
from tvm.s_tir import Schedule

from farm.compiler.cpu.kernel_config import ScheduleTrace, decode_recorded_configs
from farm.compiler.cpu.traces.metaschedule_traces import name_blocks_by_number
from farm.store import write_records_file

IR = 'module asm "whatever: call somewhere"\n'
LOOPS = [
    ["GetSBlock", [], ["block_0", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
]


def kernel() -> tvm.tirx.PrimFunc:
    left, right = te.placeholder((16, 16)), te.placeholder((16, 16))
    step = te.reduce_axis((0, 16))
    product = te.compute((16, 16), lambda i, j: te.sum(left[i, step] * right[step, j], step))
    return name_blocks_by_number(te.create_prim_func([left, right, product]))


def annotated(key: str, value: object) -> list[object]:
    """A trace in TVM's own words, which annotates a loop."""
    sch = Schedule(tvm.IRModule({"main": kernel()}))
    sch.annotate(sch.get_loops(sch.get_sblock("block_0"))[0], key, value)
    text = json.dumps(sch.trace.as_json(), default=lambda number: number.value)
    trace: list[object] = json.loads(text)
    return trace


def test_a_schedule_is_read() -> None:
    trace = [
        [
            *LOOPS,
            ["Split", ["l1", 4, None], [True, False], ["l4", "l5"]],
            ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
            ["Annotate", ["l4", 64], ["pragma_auto_unroll_max_step"], []],
            ["Parallel", ["l4"], [], []],
        ],
        [[2, [4, 4]]],
    ]
    steps = ScheduleTrace.from_json({"trace": trace})
    assert decode_recorded_configs({"key": {"trace": trace}}) == {"key": steps}


def test_an_annotation_that_brings_code_into_a_kernel_is_no_schedule(tmp_path: Path) -> None:
    """TVM links LLVM's code that `pragma_import_llvm` names into the library."""
    evil = annotated("pragma_import_llvm", IR)
    sch = Schedule(tvm.IRModule({"main": kernel()}))
    tvm.s_tir.schedule.Trace.apply_json_to_schedule(evil, sch)  # TVM itself has nothing against it
    assert "whatever: call" in tvm.tirx.build(sch.mod, target="llvm").inspect_source("ll")
    with pytest.raises(ValueError, match=r"a trace with the step .*pragma_import_llvm"):
        ScheduleTrace.from_json({"trace": evil})
    assert decode_recorded_configs({"key": {"trace": evil}}) == {}
    file = tmp_path / "records.jsonl"
    write_records_file(file, [record(X86, "conv3d", {"method": "steps", "trace": evil})])
    environment = {**os.environ, "FARM_DATA": str(tmp_path / "data")}
    done = forked_commands.run(["records", "import", file], environment)
    assert done.returncode == 2
    assert f"error: {file} has a schedule that farm does not write\n" in done.stderr
    assert not (tmp_path / "data" / "records.sqlite").exists()


@pytest.mark.parametrize(
    "step",
    [
        ["Annotate", ["l1", '"SR"'], ["pragma_import_c"], []],
        ["Annotate", ["l1", '"#include <x>"'], ["meta_schedule.tiling_structure"], []],
        ["Annotate", ["l1", '"SR"'], ["pragma_unroll_explicit"], []],
        ["Annotate", ["l1", 1 << 30], ["pragma_auto_unroll_max_step"], []],
        ["Annotate", ["l1", {"type": "x"}], ["meta_schedule.parallel"], []],
        ["Annotate", ["l1"], ["meta_schedule.parallel"], []],
        ["Split", ["l1", 3, 5], [True, True], ["l4", "l5"]],  # beyond the tensor's end
        ["UnsafeSetDType", ["b0"], [0, "int8"], []],
        ["UnsafeHideBufferAccess", ["b0", [0]], ["read"], []],
        ["TransformLayout", ["b0"], [0, 1, "{}", None, True], []],
        ["Tensorize", ["l1"], ["x", True], []],
        ["SetScope", ["b0"], [0, "shared"], []],
        ["StorageAlign", ["b0"], [0, 0, 1, 1 << 20], []],
        ["CacheRead", ["b0"], [0, "texture"], ["b1"]],
        ["GetSBlock", [], ["block_0", "other"], ["b0"]],
        ["GetLoops", ["b0", "x" * 100], [], ["l1"]],
        ["GetLoops", ["b0"] * 1000, [], ["l1"]],
        ["GetLoops", ["b0"], [[]], ["l1"]],
        ["GetLoops", [["b0"]], [], ["l1"]],
        ["GetLoops", ["b0"], []],
        ["GetLoops", ["b0"], [], ["l1"], {}],
        "GetLoops",
        {},
    ],
    ids=str,
)
def test_any_other_step_is_refused(step: object) -> None:
    with pytest.raises(ValueError, match="a trace with the step"):
        ScheduleTrace.from_json({"trace": [[*LOOPS, step], []]})


@pytest.mark.parametrize(
    "trace",
    [{}, [], [[]], [LOOPS * 2000, []], [LOOPS, [[0, {}]]], [LOOPS, [["0", 1]]], [LOOPS, [1] * 3]],
    ids=lambda one: str(one)[:40],
)
def test_what_is_no_trace_is_refused(trace: object) -> None:
    with pytest.raises(ValueError, match="a trace"):
        ScheduleTrace.from_json({"trace": trace})
