"""The pipelines of passes that lower scheduled loop nests: TVM's passes, and farm's among them.

No pass can be inserted into TVM's own pipeline (tvm.s_tir.pipeline.default_s_tir_pipeline). Its
passes are therefore listed here, without those for options that farm does not set.
"""

from __future__ import annotations

from enum import Enum

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from farm.compiler.codegen.stack_tiles import TilesOnStack
from farm.compiler.cpu.tir_passes.constant_lets import ConstantLets
from farm.compiler.cpu.tir_passes.flatten_without_conditions import FlattenBufferWithoutConditions
from farm.compiler.cpu.tir_passes.keep_wrapping_loops_scalar import KeepWrappingLoopsScalar
from farm.compiler.cpu.tir_passes.safe_loop_partition import HideUnsafeConditions
from farm.compiler.ir.checked_kernels import is_marked

# The name of the pipeline for GPUs
_GPU = "farm-gpu"


class ArgumentChecks(Enum):
    """Which kernels for CPUs check what they are called with.

    A check compares the types, shapes, strides and devices of the tensors. LLVM takes up to half
    of its time for these checks; the other code of a kernel is the same without them. The values
    are the names of the pipelines.
    """

    ALL = "farm"
    MARKED = "farm-marked"  # those that ir.checked_kernels has marked
    NONE = "farm-unchecked"


def register_cpu_pipeline(checks: ArgumentChecks = ArgumentChecks.ALL) -> str:
    """Register the pipeline for CPUs, and return its name for TVM's builds."""
    without_checks: dict[ArgumentChecks, tuple[tvm.transform.Pass, ...]] = {
        ArgumentChecks.ALL: (),
        ArgumentChecks.MARKED: (_SkipUnmarkedChecks(),),
        ArgumentChecks.NONE: (tirx.transform.SkipAssert(),),
    }

    def host_passes() -> tvm.transform.Pass:
        return tvm.transform.Sequential(
            [*without_checks[checks], TilesOnStack(), pipeline.finalize_host_passes()]
        )

    register_tir_pipeline(
        checks.value,
        lambda: (
            tvm.transform.Sequential(_passes(for_gpu=False)),
            host_passes,
            pipeline.finalize_device_passes,
        ),
    )
    return checks.value


@tvm.transform.module_pass(opt_level=0, name="farm.SkipUnmarkedChecks")
class _SkipUnmarkedChecks:
    """Pass that removes the checks of arguments from the kernels that are not marked."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        unmarked = {
            variable: function
            for variable, function in module.functions_items()
            if not is_marked(function)
        }
        module.update(tirx.transform.SkipAssert()(tvm.IRModule(unmarked)))
        return module


def register_gpu_pipeline() -> str:
    """Register the pipeline for GPUs, and return its name for TVM's builds."""
    register_tir_pipeline(_GPU, _gpu_pipeline)
    return _GPU


def _gpu_pipeline() -> tuple[object, object, object]:
    return (
        tvm.transform.Sequential(_passes(for_gpu=True)),
        pipeline.finalize_host_passes,
        pipeline.finalize_device_passes,
    )


def _passes(*, for_gpu: bool) -> list[tvm.transform.Pass]:
    """Return the passes that come before those of the host and of the device, in order.

    ConvertSSA comes first: a block that is inlined in two places binds one variable by two `Let`,
    and TVM's simplifier would use the first value for both. ConstantLets comes before the two
    passes that simplify the same `Let` twice. RenormalizeSplitPattern comes before loops are
    unrolled and not after: there is less to read, and the code is the same.
    """

    def gpu(*passes: tvm.transform.Pass) -> tuple[tvm.transform.Pass, ...]:
        return passes if for_gpu else ()

    return [
        tirx.transform.ConvertSSA(),
        HideUnsafeConditions(),
        s_tir.transform.CanonicalizeLoop(),
        *gpu(s_tir.transform.LowerCrossThreadReduction()),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        *gpu(
            s_tir.transform.LiftThreadBinding(),
            s_tir.transform.ManifestSharedMemoryLocalStage(),
        ),
        s_tir.transform.CompactBufferAllocation(),
        *gpu(s_tir.transform.LowerAutoCopy(), s_tir.transform.UnifyThreadBinding()),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        *gpu(
            s_tir.transform.InjectPermutedLayout(),
            s_tir.transform.AnnotateIrregularLoop(),
            s_tir.transform.InjectSoftwarePipeline(),
            s_tir.transform.TransformMmaBufferLayout(),
        ),
        s_tir.transform.LowerOpaqueBlock(),
        ConstantLets(),
        FlattenBufferWithoutConditions(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(),
        *gpu(s_tir.transform.InjectVirtualThread(), s_tir.transform.InjectDoubleBuffer()),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        ConstantLets(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        *(() if for_gpu else (KeepWrappingLoopsScalar(),)),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.FP8ComputeLegalize(),
        *gpu(s_tir.transform.VerifyVTCMLimit(), s_tir.transform.LowerVtcmAlloc()),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        *gpu(
            s_tir.transform.ThreadSync("shared"),
            s_tir.transform.ThreadSync("shared.dyn"),
            s_tir.transform.ThreadSync("warp"),
            s_tir.transform.InferFragment(),
            s_tir.transform.LowerThreadAllreduce(),
            s_tir.transform.MergeSharedMemoryAllocations(),
        ),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]
