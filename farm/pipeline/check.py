"""Whether a model would build for a profile, and what it would cost: `farm check`, up to where code is generated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError, InternalError
from farm.parallel import Desk
from farm.pipeline.single import Show, do
from farm.pipeline.tasks import PREPARE_S, crew_of
from farm.store import Store
from farm.types import Failure, Model, Profile, Progress, Stage, batch_in_words

if TYPE_CHECKING:
    from farm.importers.outline import Outline


@dataclass(frozen=True, slots=True)
class Report:
    """`operations` are those of one inference; `loaded_bytes` is what the parameters take in memory, as the code takes them, and
    `working_bytes` the most that intermediate results take at once. None: not known.

    `batch` says in words what becomes of a batch that the model leaves open; the figures are then those of a batch of one.

    `failure` is what would stop the build, where `outline` does not name it.
    """

    outline: Outline | None
    operations: int | None = None
    loaded_bytes: int | None = None
    working_bytes: int | None = None
    batch: str = ""
    failure: Failure | None = None

    @property
    def builds(self) -> bool:
        return self.failure is None and self.outline is not None and not self.outline.problems


def check(model: Model, profile: Profile, *, store: Store, show: Show) -> Report:
    """The report on a model, whatever is wrong with it: made in a process of its own, which an importer may take down."""
    with crew_of(store) as crew:
        try:
            report: Report = do(crew, check_task, (model, profile, store.root), show, PREPARE_S, f"checking {model.name}")
        except InternalError:
            raise
        except FarmError as error:
            return Report(None, failure=error.as_failure())
        return report


def check_task(desk: Desk, model: Model, profile: Profile, cache: Path) -> Report:
    """In the worker."""
    from farm import quantize
    from farm.compiler.build import compiling
    from farm.importers import outline

    desk.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    report = Report(outline.before_import(model))
    if report.outline is not None and report.outline.problems:
        return report
    try:
        imported = quantize.load(replace(model, quantize=None), cache, profile, lambda *_: None)
        if report.outline is None:
            report = replace(report, outline=outline.of_imported(model, imported))
        report = replace(report, batch=batch_in_words(imported.inputs, imported.fixed))
        desk.note(Progress(Stage.COMPILING, f"for {profile.name}: graph and schedules"))
        with compiling(model.name, profile):
            operations, loaded, working = _cost(imported, profile, Store(cache))
    except FarmError as error:
        return replace(report, failure=error.as_failure())
    return replace(report, operations=operations, loaded_bytes=loaded, working_bytes=working)


def _cost(imported: Any, profile: Profile, store: Store) -> tuple[int, int, int]:
    from farm.compiler.cuda import device_code
    from farm.compiler.lower import lower, resolve_target

    target = resolve_target(profile)
    with device_code(target, store):
        lowered = lower(imported.module, imported.weights, target, {})
    main = lowered.module["main"]
    loaded = sum(_nbytes(parameter.ty) for parameter in main.params[int(main.attrs["num_input"]) :])
    return sum(kernel.operations for kernel in lowered.kernels), loaded, _most_at_once(main)


def _most_at_once(main: Any) -> int:
    """Bytes of the results that are alive at once, at the worst moment: each from where it is made to where it is last read."""
    from tvm import relax

    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    last: dict[Any, int] = {}

    def read(expression: Any, index: int) -> None:
        relax.analysis.post_order_visit(expression, lambda node: last.__setitem__(node, index) if isinstance(node, relax.Var) else None)

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
    import numpy as np
    from tvm import relax

    from farm.compiler.extents import product_at_one

    if isinstance(type_, relax.TupleType):
        return sum(_nbytes(field) for field in type_.fields)
    extents = list(type_.shape) if isinstance(getattr(type_, "shape", None), relax.ShapeExpr) else []
    return product_at_one(extents) * np.dtype(str(type_.dtype)).itemsize
