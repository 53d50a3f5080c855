"""Run a model's kernels on this machine with each tensor and workspace against a guard page.

import and code (sandbox) -> link -> run with guards (sandbox; again behind a crash) -> compare

A kernel that leaves its tensors ends the process that runs it. The process is started again, with
room around the tensors of that kernel, so that those behind it are checked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import stats
from farm.errors import FarmError
from farm.pipeline.operations import Show, run_task
from farm.pipeline.sandboxed_tasks import (
    run_build_sandboxed_if_untrusted,
    run_sandboxed_if_untrusted,
)
from farm.pipeline.worker_tasks import open_pool
from farm.processes.workers import TaskContext
from farm.store import Store, TuningRecordStore
from farm.types import Agreement, Model, Profile, Progress, Stage

if TYPE_CHECKING:
    import numpy as np

    from farm.compiler.build import GenerationResult, RawChoices
    from farm.compiler.diagnostics.guarded_run import GuardedRunResult, KernelFault
    from farm.compiler.diagnostics.reference_steps import ReferenceStep

    Array = np.ndarray[Any, Any]

_DEADLINE_S = 3600.0  # of the import with its build, and of the run
_MOST_CRASHES = 5
_LIBRARY, _PLACES = "guarded.so", "places"


@dataclass(frozen=True, slots=True)
class GuardedModel:
    """The code of a model for a guarded run, beside files in a folder.

    `forms` are the shapes and types of the tensors whose values are in the folder: the inputs and
    the parameters. `outputs` are the numbers of the outputs, `expected` what the reference engine
    `engine` computes for them, and `bounded` says which of them have dynamic extents. `layers`
    names the operators of the source that each step computes.
    """

    generated: GenerationResult
    steps: tuple[ReferenceStep, ...]
    layers: tuple[str, ...]
    forms: Mapping[int, tuple[tuple[int, ...], str]]
    outputs: tuple[int, ...]
    bounded: tuple[bool, ...]
    expected: tuple[Any, ...]
    engine: str
    precision: str


@dataclass(frozen=True, slots=True)
class FaultyKernel:
    """A kernel that leaves its tensors, does not fill them, or depends on the number of threads.

    `number` is its place in the model, from 1. `guard` is the side of the guard page, and `threads`
    the number of threads, with which it was seen. `what` is a sentence without its subject.
    """

    kernel: str
    number: int
    layer: str
    guard: str
    threads: int
    what: str


@dataclass(frozen=True, slots=True)
class GuardReport:
    """The result of a guarded run of a model.

    `kernels` is the number of calls of kernels. `agreement` compares the outputs with
    those of the reference engine `engine`; it is None if the kernels behind `faulty` were not run.
    """

    kernels: int
    faulty: tuple[FaultyKernel, ...]
    engine: str
    agreement: Agreement | None

    @property
    def right(self) -> bool:
        """True if nothing was found, and the outputs agree with the reference's."""
        return not self.faulty and self.agreement is not None and self.agreement.right


Maker = Callable[..., GuardedModel]


def check_with_guards(
    model: Model, host: Profile, *, store: Store, show: Show, maker: Maker | None = None
) -> GuardReport:
    """Build a model for this machine, and run its kernels with guards.

    `host` is the profile of this machine. `maker` replaces `make_guarded_model`. Raises ModelError
    or BuildError if the model cannot be imported, built or divided into kernels.
    """
    records = TuningRecordStore.of_user()
    every = {core: records.choices(core) for core in records.cores()}
    with store.scratch() as folder:
        with open_pool(store) as pool:
            arguments = (model, host, every, store.root, folder, maker or make_guarded_model)
            made: GuardedModel = run_task(
                pool, _make_task, arguments, show, _DEADLINE_S, f"building {model.name}"
            )
        crashes: dict[int, FaultyKernel] = {}
        ran: GuardedRunResult | None = None
        while ran is None and len(crashes) < _MOST_CRASHES:
            try:
                ran = _run(model, store, made, folder, frozenset(crashes), show)
            except FarmError as error:
                crash = _crash(made, folder)
                if crash is None or crash.number - 1 in crashes:
                    raise
                crashes[crash.number - 1] = replace(crash, what=f"{crash.what}: {error.what}")
    return _report(model, made, list(crashes.values()), ran)


def _run(
    model: Model, store: Store, made: GuardedModel, folder: Path, loose: frozenset[int], show: Show
) -> GuardedRunResult:
    """Run the kernels in a process that has run none before; those in `loose` without guards."""
    kept = replace(made, expected=())
    with open_pool(store) as pool:
        ran: GuardedRunResult = run_task(
            pool,
            _run_task,
            (model, kept, folder, loose),
            show,
            _DEADLINE_S,
            f"running {model.name} with guard pages",
        )
    return ran


def _crash(made: GuardedModel, folder: Path) -> FaultyKernel | None:
    """Return the kernel that ended the process of a run; None if no kernel did."""
    from farm.compiler.diagnostics.guarded_memory import GuardSide
    from farm.compiler.diagnostics.guarded_run import last_call_site

    place = last_call_site(folder / _PLACES)
    if place is None or place.step >= len(made.steps):
        return None
    side = {GuardSide.END: "behind the end", GuardSide.BEGIN: "before the begin"}.get(
        GuardSide(place.guard)
    )
    return FaultyKernel(
        made.steps[place.step].kernel,
        place.step + 1,
        made.layers[place.step],
        place.guard,
        place.threads,
        f"touches memory {side} of a tensor or workspace" if side else "ends the process",
    )


def _report(
    model: Model, made: GuardedModel, crashes: list[FaultyKernel], ran: GuardedRunResult | None
) -> GuardReport:
    agreement = None
    others: list[FaultyKernel] = []
    if ran is not None:
        limits = model.limits[made.precision]
        # Here a slice to a dynamic extent copies the padded tensor
        outputs = [
            output[tuple(map(slice, expected.shape))] if bounded else output
            for output, expected, bounded in zip(
                ran.outputs, made.expected, made.bounded, strict=True
            )
        ]
        agreement = stats.compare_outputs_with_reference(outputs, list(made.expected), limits)
        others = [_faulty(made, finding) for finding in ran.findings]
    faulty = sorted([*crashes, *others], key=lambda one: one.number)
    return GuardReport(len(made.steps), tuple(faulty), made.engine, agreement)


def _faulty(made: GuardedModel, finding: KernelFault) -> FaultyKernel:
    place = finding.place
    layer = made.layers[place.step] if 0 <= place.step < len(made.steps) else ""
    return FaultyKernel(
        finding.kernel, place.step + 1, layer, place.guard, place.threads, finding.what
    )


def _make_task(
    context: TaskContext,
    model: Model,
    host: Profile,
    records: Mapping[str, RawChoices],
    cache: Path,
    folder: Path,
    maker: Maker,
) -> GuardedModel:
    """Import a model and generate its code, in a sandbox if the model needs one, and link it."""
    from farm.compiler.build import GenerationResult, checked_object_files, link_objects
    from farm.compiler.diagnostics.reference_steps import ReferenceStep

    types = (GuardedModel, GenerationResult, ReferenceStep)
    made: GuardedModel = run_sandboxed_if_untrusted(
        *(context, model, maker, model, host, records, cache, folder),
        write=(folder,),
        types=types,
    )
    what = f"{model.name}: the process that compiled it"
    objects = checked_object_files(what, folder, made.generated.objects)
    link_objects(host, folder / _LIBRARY, objects)
    (folder / _PLACES).mkdir()
    return made


def make_guarded_model(
    context: TaskContext,
    model: Model,
    host: Profile,
    records: Mapping[str, RawChoices],
    cache: Path,
    folder: Path,
) -> GuardedModel:
    """Import a model and write its code and the values of its inputs and parameters to a folder.

    An open batch is one. Raises ModelError and BuildError.
    """
    from farm.checked_model_import import import_and_quantize, lowest_precision
    from farm.compiler.build import generate_module_code, tvm_errors_as_build_errors
    from farm.compiler.diagnostics.reference_steps import tensor_value_file
    from farm.compiler.diagnostics.steps_of_main import MainSteps
    from farm.compiler.execution_graph import describe_execution_graph
    from farm.compiler.parameter_files import array_bytes

    context.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    imported = import_and_quantize(model, cache, host, lambda *_: None)
    context.note(Progress(Stage.IMPORTING, f"asking {imported.engine}"))
    expected = tuple(imported.reference(imported.example))

    def note(text: str) -> None:
        context.note(Progress(Stage.COMPILING, f"for {host.name}: {text}"))

    with tvm_errors_as_build_errors(model.name, host):
        code = generate_module_code(
            imported.module, imported.weights, host, records, cache, folder, note, {}
        )
        lowered = code.lowered.module
        main = lowered["main"]
        steps = MainSteps(model.name, main, code.lowered.parameters_as_called())
        outputs = tuple(steps.of(main.body.body))
        layers = [
            str(one["layer"])
            for one in describe_execution_graph(lowered)["steps"]
            if "layer" in one
        ]
    values = dict(steps.parameters)
    for number, spec in zip(steps.inputs, imported.inputs, strict=True):
        values[number] = imported.example[spec.name]
    for number, value in values.items():
        tensor_value_file(folder, number).write_bytes(array_bytes(value))
    forms = {number: (tuple(value.shape), value.dtype.name) for number, value in values.items()}
    return GuardedModel(
        code.generated,
        tuple(steps.steps),
        tuple(layers),
        forms,
        outputs,
        tuple(spec.bounded for spec in imported.outputs),
        expected,
        imported.engine,
        lowest_precision(imported.module),
    )


def _run_task(
    context: TaskContext, model: Model, made: GuardedModel, folder: Path, loose: frozenset[int]
) -> GuardedRunResult:
    """Run the kernels in a sandbox, which has none of the model's own files."""
    from farm.compiler.diagnostics.guarded_run import GuardedRunResult, KernelCallSite, KernelFault

    ran: GuardedRunResult = run_build_sandboxed_if_untrusted(
        *(context, model, _run_here, made, folder, loose),
        read=(folder,),
        write=(folder / _PLACES,),
        types=(GuardedRunResult, KernelFault, KernelCallSite),
        modules=("farm.compiler.diagnostics.guarded_run",),
        what=f"running {model.name}",
    )
    return ran


def _run_here(
    context: TaskContext, made: GuardedModel, folder: Path, loose: frozenset[int]
) -> GuardedRunResult:
    from farm.compiler.diagnostics import guarded_run
    from farm.compiler.diagnostics.reference_steps import ReferenceSteps, ReferenceValues

    def note(step: int) -> None:
        kernel = f"{made.steps[step].kernel}, {step + 1} of {len(made.steps)}, with guard pages"
        context.note(Progress(Stage.RUNNING, kernel, step / len(made.steps)))

    files = ReferenceValues("the model", ReferenceSteps(made.steps, (), made.forms, {}), folder, {})
    values = {number: files.value(number) for number in made.forms}
    run = partial(guarded_run.run_guarded, folder / _LIBRARY, made.steps, made.outputs, values)
    return run(folder / _PLACES, loose, note)
