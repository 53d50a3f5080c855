"""Run generated graphs one after the other, for tools/fuzz-graphs: graph_runner.py HOW FOLDER
SEED...

Prints a line of JSON for each. HOW is `cpu:NAME`, LLVM's name of a CPU whose code this machine can
run: the kernels run one by one, as by `farm check --guard`. Or it is `profile:NAME`: farm's agent
runs the graph on an emulated board of that profile.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import random_onnx_graphs  # noqa: E402

from farm import transports  # noqa: E402
from farm.compiler.artifact import LIBRARY, PARAMETERS  # noqa: E402
from farm.compiler.build import OBJECTS, generate_module_code, link_objects  # noqa: E402
from farm.compiler.codegen.executable import compile_executable  # noqa: E402
from farm.compiler.codegen.link import fcompile_for_profile  # noqa: E402
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks  # noqa: E402
from farm.compiler.codegen.parallel_codegen import export_shared_library  # noqa: E402
from farm.compiler.diagnostics import guarded_run  # noqa: E402
from farm.compiler.diagnostics.steps_of_main import MainSteps  # noqa: E402
from farm.compiler.lower import lower_module, resolve_target  # noqa: E402
from farm.compiler.parameter_files import SHARD  # noqa: E402
from farm.config.profiles import built_in_profile_tables, profile_from_table  # noqa: E402
from farm.errors import DeviceError, FarmError  # noqa: E402
from farm.executor.loading import load_model, upload_file  # noqa: E402
from farm.importers.imported_model import ImportedModel  # noqa: E402
from farm.importers.onnx.load import load  # noqa: E402
from farm.pipeline.worker_tasks import build_agent_task  # noqa: E402
from farm.processes.workers import TaskContext  # noqa: E402
from farm.store import user_cache_dir  # noqa: E402
from farm.types import Device, Model, Profile  # noqa: E402

_RIGHT = 1e-4  # of the largest number of an output
_ROUNDING = 2e-7  # relative: what rounding to float32 changes in an input, and a little more
_CHANGES, _TIMES_ROUNDING = 4, 8  # inputs changed so; how far off an answer may be then
_SESSION_S, _GRAPHS = 3600.0, 200  # of a session with an emulated board
_AGENT_S = 1800.0
Answer = tuple[str, str]  # right, refused, failed, wrong, guard or crashed; and why
Checker = Callable[[ImportedModel, Path], Answer]


def check(path: Path, by: Checker) -> Answer:
    """The result of the graph in a file, by a checker."""
    try:
        imported = load(Model("graph", str(path)))
    except FarmError as error:
        return "refused", f"{error.what}: {error.why}"
    return by(imported, path)


def check_with_guards(imported: ImportedModel, path: Path, cpu: str) -> Answer:
    """The result on this machine, of the kernels one by one between guard pages."""
    profile = Profile("fuzz", {"kind": "llvm", "mcpu": cpu}, "")
    with tempfile.TemporaryDirectory(prefix="graph-") as folder:
        library = Path(folder) / "library.so"
        try:
            target = resolve_target(profile)
            lowered = lower_module(imported.module, imported.weights, target, {})
            main = lowered.module["main"]
            steps = MainSteps("graph", main, lowered.parameters_as_called())
            outputs = steps.of(main.body.body)
            export_shared_library(
                compile_executable(lowered.module, target, checks=ArgumentChecks.MARKED),
                library,
                fcompile_for_profile(profile),
                Path(folder),
            )
        except Exception as error:  # whatever TVM says
            return "failed", str(error).strip().splitlines()[-1][:200]
        values = dict(steps.parameters)
        for number, spec in zip(steps.inputs, imported.inputs, strict=True):
            values[number] = imported.example[spec.name]
        ran = guarded_run.run_guarded(library, steps.steps, outputs, values, path.parent)
    if ran.findings:
        one = ran.findings[0]
        return "guard", f"{one.kernel} {one.what} ({one.place})"
    return compared(imported, ran.outputs)


class EmulatedBoard:
    """A board of a profile, emulated: its agent runs graphs in a session that is kept open."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.profile = profile_from_table(name, built_in_profile_tables()[name])
        self.device = Device(name, profile=self.profile, url="qemu:")
        self.scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="board-")))
        assert self.profile.agent, "a board that can be emulated has an agent"
        self.agent = build_agent_task(
            TaskContext(self.scratch), self.profile.agent, user_cache_dir(), _AGENT_S
        )
        self.session, self.link, self.ran = contextlib.ExitStack(), None, 0
        stack.callback(lambda: self.session.close())

    def check(self, imported: ImportedModel, path: Path) -> Answer:
        """The result of a graph on the board."""
        with tempfile.TemporaryDirectory(prefix="graph-") as name:
            folder = Path(name)
            try:
                code = generate_module_code(
                    imported.module,
                    imported.weights,
                    self.profile,
                    records={},
                    cache=user_cache_dir(),
                    folder=folder,
                    note=lambda _: None,
                    seconds={},
                )
                objects = [folder / OBJECTS / one for one in code.generated.objects]
                link_objects(self.profile, folder / LIBRARY, objects)
            except Exception as error:  # whatever TVM says
                return "failed", str(error).strip().splitlines()[-1][:200]
            try:
                return compared(imported, self._outputs(imported, folder, f"{path.stem}.so"))
            except DeviceError as error:
                self.session.close()
                self.link = None
                return "crashed", f"{error.what}: {error.why}"[:300]

    def _outputs(self, imported: ImportedModel, folder: Path, library: str) -> list[Any]:
        if self.link is None or self.ran % _GRAPHS == 0:
            self.session.close()
            self.session = contextlib.ExitStack()
            self.link = self.session.enter_context(
                transports.open(self.device, self.agent, self.scratch, _SESSION_S)
            )
        self.ran += 1
        upload_file(self.link, folder / LIBRARY, library)
        for parameters in (folder / PARAMETERS).iterdir():
            upload_file(self.link, parameters, parameters.name)
        parametric = (folder / PARAMETERS / SHARD).stat().st_size > 0
        loaded = load_model(self.link, self.device, imported.inputs, parametric, library)
        loaded.feed(imported.example)
        loaded.run()
        return loaded.outputs()


def compared(imported: ImportedModel, outputs: Sequence[Any]) -> Answer:
    """Right or wrong: the outputs of a graph against ONNX Runtime's.

    An output that ONNX Runtime itself changes as much when the inputs are rounded is right.
    """
    expected = imported.reference(imported.example)
    for number, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return "wrong", f"{ours.dtype} {ours.shape} instead of {theirs.dtype} {theirs.shape}"
        scale = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0)))
        if np.allclose(ours, theirs, rtol=_RIGHT, atol=_RIGHT * scale, equal_nan=True):
            continue
        off = np.abs(ours.astype("float64") - theirs).max()
        if not off <= _TIMES_ROUNDING * _change_by_rounding(imported, number):
            return "wrong", f"by {off:.3g}"
    return "right", ""


def _change_by_rounding(imported: ImportedModel, number: int) -> float:
    """Return how much an output of ONNX Runtime changes when the inputs are rounded."""
    exact = imported.reference(imported.example)[number].astype("float64")
    largest = 0.0
    for seed in range(_CHANGES):
        generator = np.random.default_rng(seed)
        inputs = {
            name: (array * (1 + _ROUNDING * generator.uniform(-1, 1, array.shape))).astype(
                array.dtype
            )
            if array.dtype.kind == "f"
            else array
            for name, array in imported.example.items()
        }
        changed = imported.reference(inputs)[number]
        largest = max(largest, float(np.nan_to_num(np.abs(changed - exact)).max(initial=0)))
    return largest


def main() -> None:
    how, folder, seeds = sys.argv[1], Path(sys.argv[2]), list(map(int, sys.argv[3:]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, _, name = how.partition(":")
    with contextlib.ExitStack() as stack:
        checker: Checker = (
            EmulatedBoard(name, stack).check
            if kind == "profile"
            else lambda imported, path: check_with_guards(imported, path, name)
        )
        for seed in seeds:
            path = folder / f"{seed}.onnx"
            onnx.save(random_onnx_graphs.generated(seed), path)
            result, why = check(path, checker)
            if result == "right":
                path.unlink()
            line = json.dumps({"seed": seed, "result": result, "why": why})
            print(line, file=answers, flush=True)


if __name__ == "__main__":
    main()
