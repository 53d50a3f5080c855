"""The node tests that ship with onnx, as models, inputs and expected outputs; and how farm runs one
of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from farm.errors import FarmError
from farm.importers.onnx.load import load_with_session_factory
from farm.types import Model, Profile

HOST = Profile("this machine", {"kind": "llvm", "mcpu": "native"}, "")
LATE = 5  # the exit code of a device's error: too late to say that a model cannot be computed
# of answers in half precision: the tests' 1e-3 is the distance of two neighbouring numbers
_HALF_RTOL = 5e-3
_SUMS = (
    "DFT",
    "STFT",
)  # whose expected zeros are what numpy's rounding leaves of sums: as far from 0 as the last bit of the largest number  # noqa: E501
Array = np.ndarray[Any, Any]
RunOn = Callable[[Any, list[Array]], list[Array]]  # (an import, its inputs in order) -> outputs


@dataclass(frozen=True)
class Case:
    name: str
    operator: str
    folder: Path
    rtol: float
    atol: float


def cases(folder: Path) -> list[Case]:
    """All of them, written into a folder: the model of each, and its inputs and outputs."""
    from onnx.backend.test.loader import load_model_tests

    return [
        _written(case, folder / case.name)
        for case in load_model_tests(kind="node")
        if case.model is not None
    ]


def _written(case: Any, folder: Path) -> Case:
    folder.mkdir()
    onnx.save(case.model, folder / "model.onnx")
    (folder / "data.pickle").write_bytes(
        pickle.dumps([[_array(value) for value in values] for values in case.data_sets[0]])
    )
    nodes = case.model.graph.node
    operator = str(nodes[0].op_type) if len(nodes) == 1 else f"({nodes[0].op_type} and others)"
    return Case(case.name, operator, folder, case.rtol, case.atol)


def _array(value: Any) -> Any:
    value = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    return np.asarray(value) if isinstance(value, np.generic) else value


def check(case: Case, run_on: RunOn) -> bool:
    """Run a case with all inputs fed; where that is refused, with all but the first as constants,
    as models have shapes and axes.

    Returns whether it took the constants. Raises AssertionError for a wrong answer, FarmError for a
    refusal.
    """
    try:
        _check(case, run_on, constants=False)
    except FarmError as error:
        if error.exit_code == LATE:
            raise
        try:
            _check(case, run_on, constants=True)
        except FarmError:
            raise error from None
        return True
    return False


def _check(case: Case, run_on: RunOn, constants: bool) -> None:
    model = onnx.load(case.folder / "model.onnx")
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [value.name for value in model.graph.input if value.name not in weights]
    given, expected = pickle.loads((case.folder / "data.pickle").read_bytes())
    inputs = dict(zip(fed, given, strict=False))
    path = case.folder / "model.onnx"
    if constants:
        model.graph.initializer.extend(
            numpy_helper.from_array(inputs[name], name)
            for name in fed[1:]
            if isinstance(inputs[name], np.ndarray)
        )
        path = case.folder / "constants.onnx"
        onnx.save(model, path)
        inputs = {name: inputs[name] for name in fed[:1]}
    shapes = {name: value.shape for name, value in inputs.items() if isinstance(value, np.ndarray)}
    imported = load_with_session_factory(Model(case.name, str(path), shapes=shapes), lambda _: None)
    answers = run_on(imported, [np.asarray(inputs[spec.name]) for spec in imported.inputs])
    assert len(answers) == len(expected), f"{len(answers)} outputs instead of {len(expected)}"
    for ours, theirs in zip(answers, expected, strict=True):
        last_bit = float(np.spacing(np.abs(theirs).max())) if case.operator in _SUMS else 0.0
        assert isinstance(theirs, np.ndarray), "a tensor instead of a sequence"
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), (
            f"{ours.dtype} {ours.shape}, not {theirs.dtype} {theirs.shape}"
        )
        np.testing.assert_allclose(
            ours.astype(_plain(ours)),
            theirs.astype(_plain(theirs)),
            rtol=max(case.rtol, _HALF_RTOL if theirs.dtype == np.float16 else 0),
            atol=max(case.atol, last_bit),
        )


def _plain(array: Array) -> Any:
    return (
        np.float32
        if array.dtype.kind == "V" or ("float" in array.dtype.name and array.dtype.itemsize < 2)
        else array.dtype
    )


@contextmanager
def runner(agent: bool, folder: Path) -> Iterator[RunOn]:
    """What runs an import: in this process, or on an agent that serves this machine."""
    if not agent:
        yield _run_here
        return
    with _agent(folder) as session:
        yield lambda imported, inputs: _run_there(session, folder, imported, inputs)


def _run_here(imported: Any, inputs: list[Array]) -> list[Array]:
    import tvm

    executable, parameters = _compiled(imported)
    return _run(
        executable, tvm.cpu(), inputs, [tvm.runtime.tensor(parameter) for parameter in parameters]
    )


def _run_there(session: Any, folder: Path, imported: Any, inputs: list[Array]) -> list[Array]:
    import tvm

    from farm.compiler.codegen.link import fcompile_for_profile

    executable, parameters = _compiled(imported)
    library = folder / "model.so"
    executable.export_library(str(library), fcompile=fcompile_for_profile(HOST))
    session.upload(str(library), "model.so")
    remember, recall = (
        session.get_function(f"vm.builtin.{name}")
        for name in ("tensor_cache.update", "param_array_from_cache")
    )
    for index, parameter in enumerate(parameters):
        remember(f"p_{index}", tvm.runtime.tensor(parameter, device=session.cpu(0)), True)
    kept = recall("p", len(parameters)) if parameters else None
    return _run(session.load_module("model.so"), session.cpu(0), inputs, kept)


def _compiled(imported: Any) -> tuple[Any, list[Array]]:
    from farm.compiler.build import tvm_errors_as_build_errors
    from farm.compiler.codegen.executable import compile_executable
    from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
    from farm.compiler.lower import lower_module, resolve_target

    target = resolve_target(HOST)
    with tvm_errors_as_build_errors("the model", HOST):
        lowered = lower_module(imported.module, imported.weights, target, {})
        executable = compile_executable(lowered.module, target, checks=ArgumentChecks.MARKED)
        return executable, lowered.parameters_as_called()


def _run(executable: Any, device: Any, inputs: list[Array], parameters: Any) -> list[Array]:
    import tvm
    from tvm import relax

    from farm.compiler.host_run import flatten_outputs
    from farm.errors import DeviceError

    try:
        machine = relax.VirtualMachine(executable, device)
        arguments: list[Any] = [
            tvm.runtime.tensor(np.asarray(value, order="C"), device=device) for value in inputs
        ]
        if parameters:
            arguments.append(parameters)
        machine.set_input("main", *arguments)
        machine.invoke_stateful("main")
        return flatten_outputs(machine.get_outputs("main"))
    except Exception as exc:
        raise DeviceError(
            "it compiles and does not run", str(exc).splitlines()[-1] if str(exc) else ""
        ) from exc


@contextmanager
def _agent(folder: Path) -> Iterator[Any]:
    """A session with an agent of this machine's kind."""
    import platform
    import time

    from tvm import rpc

    from farm.agent import build
    from farm.processes import subprocesses
    from farm.processes.deadline import Deadline
    from farm.store import user_cache_dir

    executable = build.ensure_executable(
        platform.machine(), user_cache_dir(), lambda *_: None, Deadline(1800)
    )
    port = folder / "port"
    child = subprocesses.start_program(
        [str(executable), "--port-file", str(port), "--work-dir", str(folder / "work")],
        log=folder / "log",
    )
    try:
        deadline = Deadline(20)
        while not port.exists() and not deadline.expired:
            time.sleep(0.02)
        session = rpc.connect("127.0.0.1", int(port.read_text()), session_timeout=1800)
        yield session
    finally:
        subprocesses.end_program(child, grace_s=5)
