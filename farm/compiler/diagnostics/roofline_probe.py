"""Kernels that measure a device's peak, for the roofline of `farm profile`.

There are two for each profile: one for arithmetic, one for memory bandwidth. The roofline model is
that of Williams, Waterman and Patterson, https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.compiler.artifact import LIBRARY
from farm.compiler.build import link_scratch_folder
from farm.compiler.build_digests import (
    compiler_package_versions,
    compiler_sources_digest,
    host_cpu_description,
    nvrtc_version,
)
from farm.compiler.codegen.link import fcompile_for_profile
from farm.compiler.codegen.nvrtc import use_nvrtc_for_cuda
from farm.compiler.codegen.parallel_codegen import export_shared_library
from farm.compiler.diagnostics import roofline_probe_gpu
from farm.compiler.gpu.schedule import CUDA, is_gpu
from farm.compiler.lower import resolve_target
from farm.compiler.target.cpu_model import CpuModel, cpu_model_of
from farm.processes.workers import TaskContext
from farm.store import Store, digest_of_parts
from farm.types import Profile

ARITHMETIC, MEMORY = "farm_probe_arithmetic", "farm_probe_memory"
BLOCK_BYTES = 1 << 16  # bytes that one iteration of the memory kernel copies
_TASKS = 240  # equal tasks; a multiple of the thread counts of common boards
_STEPS = 512
_STACK_BYTES = 1023  # limit for the accumulators: TVM allocates larger buffers on the heap
_FLOAT = "float32"


@dataclass(frozen=True, slots=True)
class ProbeLibrary:
    """A library with the two kernels of a profile.

    ARITHMETIC(factors [2, lanes], sums [tasks, width]) performs `operations` floating-point
    operations in registers for each task; if `tasks` is None, the caller chooses the number of
    tasks. MEMORY(from [n, floats], to [n, floats]) copies n blocks of BLOCK_BYTES.
    """

    library: Path
    lanes: int
    width: int
    operations: int
    tasks: int | None


def build_probe_library(context: TaskContext, profile: Profile, cache: Path) -> ProbeLibrary:
    """Return the probe of a profile, built if the store does not have it.

    Raises BuildError if there is no compiler for its GPU.
    """
    store, target = Store(cache), resolve_target(profile)
    compiler = nvrtc_version() if target.kind.name == CUDA else ""
    digest = digest_of_parts(
        "probe",
        str(target),
        str(profile.linker),
        host_cpu_description(),
        compiler,
        compiler_sources_digest(),
        compiler_package_versions(),
    )
    kernels, about = _kernels(target)
    if not (kept := store.find("probes", digest)):
        with store.publish("probes", digest) as folder:
            module = tvm.IRModule(
                {
                    name: function.with_attr("global_symbol", name)
                    for name, function in kernels.items()
                }
            )
            with use_nvrtc_for_cuda(target, store):
                executable = tvm.compile(module, target=target)
            export_shared_library(
                executable,
                folder / LIBRARY,
                fcompile_for_profile(profile),
                link_scratch_folder(context),
            )
            (folder / "probe.json").write_text(json.dumps(about))
        kept = store.find("probes", digest)
        assert kept is not None, "published, and not there"
    return ProbeLibrary(kept / LIBRARY, **about)


def _kernels(target: tvm.target.Target) -> tuple[dict[str, tirx.PrimFunc], dict[str, Any]]:
    """Return the kernels by name, and the attributes of their Probe."""
    if is_gpu(target):
        made, lanes, width, steps, tasks = (
            roofline_probe_gpu.probe_kernels(BLOCK_BYTES),
            1,
            roofline_probe_gpu.WIDTH,
            roofline_probe_gpu.STEPS,
            None,
        )
    else:
        core = cpu_model_of(target)
        tile = min(core.accumulators, _STACK_BYTES // (4 * core.lanes))
        made, lanes, width, steps, tasks = (
            (_arithmetic(core, tile), _memory(core)),
            core.lanes,
            tile * core.lanes,
            _STEPS,
            _TASKS,
        )
    about = {"lanes": lanes, "width": width, "operations": 2 * steps * width, "tasks": tasks}
    return dict(zip((ARITHMETIC, MEMORY), made, strict=True)), about


def _arithmetic(core: CpuModel, tile: int) -> tirx.PrimFunc:
    """Return a kernel of dependent multiply-adds for a CPU.

    It has as many independent chains as hide the latency of a multiply-add and fit into registers.
    """
    lanes = core.lanes
    factors = te.placeholder((2, lanes), _FLOAT, "factors")

    def program(inputs: list[tirx.Buffer], outputs: list[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as made, T.parallel(0, _TASKS) as task:
            (given,), (result,) = (
                [T.buffer_proxy(buffer) for buffer in buffers] for buffers in (inputs, outputs)
            )
            sums = T.buffer_proxy(T.alloc_buffer((tile, lanes), _FLOAT, scope="local"))
            with T.unroll(0, tile) as row, T.vectorized(0, lanes) as lane:
                sums[row, lane] = given[1, lane]
            with T.serial(0, _STEPS), T.unroll(0, tile) as row, T.vectorized(0, lanes) as lane:
                sums[row, lane] = sums[row, lane] * given[0, lane] + given[1, lane]
            with T.unroll(0, tile) as row, T.vectorized(0, lanes) as lane:
                result[task, row * lanes + lane] = sums[row, lane]
        return made.get()

    sums = te.extern((_TASKS, tile * lanes), [factors], program, name=ARITHMETIC, dtype=_FLOAT)
    return te.create_prim_func([factors, sums])


def _memory(core: CpuModel) -> tirx.PrimFunc:
    """Return a kernel that copies blocks with vector loads and stores."""
    blocks, floats, lanes = tirx.Var("blocks", "int64"), BLOCK_BYTES // 4, core.lanes
    source = te.placeholder((blocks, floats), _FLOAT, "source")

    def program(inputs: list[tirx.Buffer], outputs: list[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as made, T.parallel(0, blocks) as block:
            (given,), (result,) = (
                [T.buffer_proxy(buffer) for buffer in buffers] for buffers in (inputs, outputs)
            )
            with T.serial(0, floats // lanes) as step, T.vectorized(0, lanes) as lane:
                result[block, step * lanes + lane] = given[block, step * lanes + lane]
        return made.get()

    copied = te.extern((blocks, floats), [source], program, name=MEMORY, dtype=_FLOAT)
    return te.create_prim_func([source, copied])
