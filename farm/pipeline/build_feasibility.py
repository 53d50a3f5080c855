"""Predict, without generating code, whether a model builds for a profile and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError, InternalError
from farm.pipeline.operations import Show, run_task
from farm.pipeline.sandboxed_tasks import run_sandboxed_if_untrusted
from farm.pipeline.worker_tasks import PREPARE_S, open_pool
from farm.processes.workers import TaskContext
from farm.store import Store
from farm.types import Failure, Model, Profile, Progress, Stage, describe_open_batch

if TYPE_CHECKING:
    from farm.importers.summary import ModelSummary


@dataclass(frozen=True, slots=True)
class BuildPrediction:
    """The result of a check: the model's summary, its cost, and the reason why it would not build.

    `operations` counts those of one inference. `stored_bytes` are those of the parameters in the
    files of a build and in its upload. `loaded_bytes` is their memory in the form that the code
    takes, and `working_bytes` the peak memory of the intermediate results. None means that the
    number is not known.

    `batch` describes how an open batch is handled; the numbers are then those of a batch of one.
    `failure` is the error that would stop the build, if `outline` does not name it.
    """

    outline: ModelSummary | None
    operations: int | None = None
    stored_bytes: int | None = None
    loaded_bytes: int | None = None
    working_bytes: int | None = None
    batch: str = ""
    failure: Failure | None = None

    @property
    def builds(self) -> bool:
        """Return True if nothing was found that would stop the build."""
        return self.failure is None and self.outline is not None and not self.outline.problems


def predict_build(model: Model, profile: Profile, *, store: Store, show: Show) -> BuildPrediction:
    """Return the report on a model, whatever is wrong with the model.

    The check runs in a worker process, because a malformed model may crash an importer.
    """
    with open_pool(store) as pool:
        try:
            report: BuildPrediction = run_task(
                pool,
                predict_build_task,
                (model, profile, store.root),
                show,
                PREPARE_S,
                f"checking {model.name}",
            )
        except InternalError:
            raise
        except FarmError as error:
            return BuildPrediction(None, failure=error.as_failure())
        return report


def predict_build_task(
    context: TaskContext, model: Model, profile: Profile, cache: Path
) -> BuildPrediction:
    """Check a model in a worker process, in a sandbox if the model needs one."""
    from farm.importers.summary import ImportProblem, ModelSummary

    read = []
    if profile.on_gpu:
        from farm.compiler.codegen.cuda_driver_stub import build_driver_stub

        read.append(build_driver_stub(Store(cache)).parent)
    report: BuildPrediction = run_sandboxed_if_untrusted(
        context,
        model,
        _check,
        model,
        profile,
        cache,
        read=read,
        types=(BuildPrediction, ModelSummary, ImportProblem),
    )
    return report


def _check(context: TaskContext, model: Model, profile: Profile, cache: Path) -> BuildPrediction:
    """Summarise a model and lower it without generating code; called in the sandbox."""
    from farm.checked_model_import import import_and_quantize
    from farm.compiler.build import tvm_errors_as_build_errors
    from farm.importers import summary as outline

    context.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    report = BuildPrediction(outline.summarize_onnx_or_tflite_file(model))
    if report.outline is not None and report.outline.problems:
        return report
    try:
        imported = import_and_quantize(
            replace(model, quantize=None), cache, profile, lambda *_: None
        )
        if report.outline is None:
            report = replace(report, outline=outline.summarize_imported(model, imported))
        report = replace(report, batch=describe_open_batch(imported.inputs, imported.fixed))
        context.note(Progress(Stage.COMPILING, f"for {profile.name}: graph and schedules"))
        with tvm_errors_as_build_errors(model.name, profile):
            return _with_cost(report, imported, profile, Store(cache))
    except FarmError as error:
        return replace(report, failure=error.as_failure())


def _with_cost(
    report: BuildPrediction, imported: Any, profile: Profile, store: Store
) -> BuildPrediction:
    """Return the report with what a model costs."""
    from farm.compiler.codegen.nvrtc import use_nvrtc_for_cuda
    from farm.compiler.ir.relax_rewriter import main_weight_parameters
    from farm.compiler.lower import lower_module, resolve_target

    target = resolve_target(profile)
    with use_nvrtc_for_cuda(target, store):
        lowered = lower_module(
            imported.module, imported.weights, target, {}, memory_mb=profile.memory_mb
        )
    main = lowered.module["main"]
    return replace(
        report,
        operations=sum(kernel.operations for kernel in lowered.kernels),
        stored_bytes=sum(parameter.nbytes for parameter in lowered.parameters),
        loaded_bytes=sum(_nbytes(parameter.ty) for parameter in main_weight_parameters(main)),
        working_bytes=_most_at_once(main),
    )


def _most_at_once(main: Any) -> int:
    """Return the peak number of bytes of live results.

    A result is live from the binding that makes it to the binding that reads it last.
    """
    from tvm import relax

    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    last: dict[Any, int] = {}

    def read(expression: Any, index: int) -> None:
        relax.analysis.post_order_visit(
            expression,
            lambda node: last.__setitem__(node, index) if isinstance(node, relax.Var) else None,
        )

    for index, binding in enumerate(bindings):
        read(binding.value, index)
    read(main.body.body, len(bindings))
    alive, most, dying = 0, 0, dict[int, int]()
    for index, binding in enumerate(bindings):
        made = _nbytes(binding.var.ty) if isinstance(binding.value, relax.Call) else 0
        alive += made
        most = max(most, alive)
        end = last.get(binding.var, index)
        dying[end] = dying.get(end, 0) + made
        alive -= dying.pop(index, 0)
    return most


def _nbytes(type_: Any) -> int:
    """Return the bytes of a tensor, or of all tensors of a tuple, with a batch of 1.

    A count that a kernel computes is taken for 1, too.
    """
    import numpy as np
    from tvm import relax

    from farm.compiler.ir.dynamic_extents import product_at_batch_one

    if isinstance(type_, relax.TupleType):
        return sum(_nbytes(field) for field in type_.fields)
    if isinstance(type_, relax.ShapeType):
        return 0
    extents = (
        list(type_.shape) if isinstance(getattr(type_, "shape", None), relax.ShapeExpr) else []
    )
    return product_at_batch_one(extents) * np.dtype(str(type_.dtype)).itemsize
