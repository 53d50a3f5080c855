"""Connect to a device, upload what it lacks and load a model; retry if the connection breaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import deployments, transports
from farm.compiler.artifact import LIBRARY
from farm.compiler.parameter_files import ON_LOAD, PREFIX, SHARD
from farm.errors import DeviceError, LinkError
from farm.executor.threads import configure_threads_and_gpu
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.prompts import extend_deadline_while_asking
from farm.rpc.blocking_session import BlockingSession, Tensor
from farm.rpc.value_types import CPU, RemoteDevice
from farm.rpc.virtual_machine import RemoteVirtualMachine
from farm.store import file_digest
from farm.time_ledger import add_block_duration
from farm.transports import Link
from farm.transports.agent import answer_validation as agent_answers
from farm.types import Artifact, Device, Progress, Stage, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_SAMPLES = "farm.agent.samples"
_CUDA = 2  # kDLCUDA of dlpack.h
# Pauses between attempts while the connection breaks; they start over after any transfer.
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_TRIES_TO_LOAD = 2  # retries if the connection was made but broke before any transfer
_TRY_S = 5.0  # minimum time for another attempt: with less, the last error says more than a timeout


@dataclass(slots=True)
class LoadedModel:
    """A model on a device, ready to run.

    `recordable` means that its inferences can be captured as a CUDA graph, `recorded` that they
    are.
    """

    machine: RemoteVirtualMachine
    device: RemoteDevice
    parameters: list[Any]
    inputs: tuple[TensorSpec, ...]
    on_gpu: bool = False
    recordable: bool = False
    recorded: bool = False
    _fed: dict[str, Tensor] = field(default_factory=dict)
    _answer: Array | None = None  # the first output of the last inference

    @property
    def session(self) -> BlockingSession:
        """Return the session in which the model is loaded."""
        return self.machine.module.session

    def feed(self, inputs: Mapping[str, Array]) -> None:
        """Set the inputs, by name, and the parameters of the next inferences."""
        import numpy as np

        for spec in self.inputs:
            value = np.asarray(inputs[spec.name], order="C")
            there = self._fed.get(spec.name)
            if there is None or not there.takes(value):
                there = self._fed[spec.name] = self.session.empty(
                    value.shape, str(value.dtype), self.device
                )
            there.fill(value)
        # The machine copies them
        self.machine.set_input(
            "main", *(self._fed[spec.name] for spec in self.inputs), *self.parameters
        )

    def run(self) -> None:
        """Run one inference and wait for its end."""
        self.machine.invoke_stateful("main")
        if self.on_gpu:  # so far the kernels are only enqueued
            self.session.synchronize(self.device)

    def record(self) -> None:
        """Capture the kernel launches as one CUDA graph for the next inferences, if the device can.

        The inputs must have been set before. The device's facts report the capture.
        """
        if self.recordable and not self.recorded:
            self.machine.module.function("record")("main")
            self.session.synchronize(self.device)
            self.recorded = True

    def outputs(self) -> list[Array]:
        """Return the outputs of the last inference."""
        found = self.machine.outputs("main")
        self._answer = found[0]
        return found

    def first_outputs(self, samples: Sequence[Mapping[str, Array]]) -> list[Array]:
        """Return the first output for each of several inputs of one shape; all have its shape too.

        Our agent runs them in one call. TVM's own server, and a GPU, run them one by one.
        """
        if (
            self._answer is None
            or len(samples) == 1
            or self.on_gpu
            or not self.session.has_function(_SAMPLES)
        ):
            return [self._first_output(sample) for sample in samples]
        return self._first_outputs(samples)

    def _first_output(self, sample: Mapping[str, Array]) -> Array:
        self.feed(sample)
        self.record()
        self.run()
        return self.outputs()[0]

    def _first_outputs(self, samples: Sequence[Mapping[str, Array]]) -> list[Array]:
        import numpy as np

        assert self._answer is not None
        names = [spec.name for spec in self.inputs]
        stacked = [
            self.session.tensor(np.stack([sample[name] for sample in samples])) for name in names
        ]
        machine = self.machine.module
        answer = self.session.call(
            _SAMPLES, machine, "main", len(samples), len(names), *stacked, *self.parameters
        )
        content = agent_answers.check_bytes(_SAMPLES, answer)
        if len(content) != len(samples) * self._answer.nbytes:
            raise agent_answers.AgentAnswerError(f"{_SAMPLES} gives no answer for each sample")
        return list(
            np.frombuffer(content, self._answer.dtype).reshape(len(samples), *self._answer.shape)
        )

    def time(self, count: int, block: int = 1) -> list[float]:
        """Return the seconds per inference of `count` blocks of `block` inferences each.

        The device's clock is read. The device runs one more inference first.
        """
        return agent_answers.check_durations(
            "the timer", self.machine.timer(block, count)("main"), count
        )


@dataclass(slots=True)
class _Meter:
    """Reports the upload of files and counts the bytes sent, aborted transfers included."""

    context: TaskContext
    sent: int = 0
    _there: dict[Path, int] = field(default_factory=dict)

    def of(self, path: Path) -> Callable[[int], None]:
        """Return a callback that takes the number of bytes of a file that have arrived.

        If it is smaller than before, the difference was lost and is sent again.
        """
        size = path.stat().st_size

        def note(there: int) -> None:
            self.sent += max(0, there - self._there.get(path, there))
            self._there[path] = there
            self.context.note(
                Progress(
                    Stage.UPLOADING,
                    f"{path.name}, {size / 1e6:.1f} MB",
                    there / size if size else None,
                )
            )

        return note


def connect_and_load_model(
    stack: ExitStack,
    context: TaskContext,
    device: Device,
    artifact: Artifact,
    agent: Path | None,
    timeout_s: float,
    ledger: dict[str, float],
) -> tuple[LoadedModel, Link, int]:
    """Load a model on a device; return it, its link and the number of bytes sent.

    A connection that breaks is made again, and the upload continues where it was. Seconds are added
    to `ledger` by part. Raises DeviceError and its subclasses.
    """
    deadline, meter, tries, broken = Deadline(timeout_s), _Meter(context), 0, False
    while True:
        link, sent = None, meter.sent
        try:
            with ExitStack() as attempt:
                link = _connect(attempt, context, device, agent, deadline, ledger)
                with add_block_duration(ledger, "upload"):
                    _push(link, artifact, meter)
                with add_block_duration(ledger, "load"):
                    context.note(Progress(Stage.LOADING))
                    loaded = load_model(link, device, artifact.inputs, has_parameters(artifact))
                stack.enter_context(attempt.pop_all())
                return loaded, link, meter.sent
        except DeviceError as error:
            tries = 0 if meter.sent > sent else tries
            broken = broken or isinstance(error, LinkError)
            # After a broken link, a failure to connect may mean that the network is still down.
            again = isinstance(error, LinkError) or (broken and link is None)
            # In these cases the network is not the cause.
            if device.on_this_machine or (link and tries == _TRIES_TO_LOAD):
                again = False
            if (
                not again
                or tries == len(_PAUSES_S)
                or deadline.remaining < _PAUSES_S[tries] + _TRY_S
            ):
                raise
            context.note(
                Progress(
                    Stage.CONNECTING, f"{error.what}; trying again in {_PAUSES_S[tries]:.0f} s"
                )
            )
        time.sleep(_PAUSES_S[tries])
        tries += 1


def _connect(
    stack: ExitStack,
    context: TaskContext,
    device: Device,
    agent: Path | None,
    deadline: Deadline,
    ledger: dict[str, float],
) -> Link:
    # A message may take as long as a time slice of the program that it wakes
    with add_block_duration(ledger, "connect"):
        context.note(Progress(Stage.CONNECTING, device.url))
        link = stack.enter_context(
            transports.open(
                device,
                agent,
                context.scratch,
                deadline.remaining,
                extend_deadline_while_asking(context.ask, deadline),
            )
        )
        configure_threads_and_gpu(link, device)
        return link


def _push(link: Link, artifact: Artifact, meter: _Meter, library: str = LIBRARY) -> None:
    """Place the artifact's files in the session's folder, except those that our agent stores."""
    for path in deployments.artifact_files(artifact):
        upload_file(link, path, library if path == artifact.library else path.name, meter.of(path))


def upload_file(
    link: Link, path: Path, name: str, note: Callable[[int], None] = lambda _: None
) -> None:
    """Place a file in the session's folder under a name.

    `note` is called with the number of bytes that have arrived. A file that our agent stores by its
    digest is not sent again.
    """
    if link.native:
        digest = file_digest(path)
        if link.number("farm.store.has", digest, least=-1) < 0:
            link.put(path, digest, note)
        link.call("farm.store.link", digest, name)
    else:
        note(0)
        link.session.upload(path, name)
        note(path.stat().st_size)


@contextlib.contextmanager
def pause_other_workers(context: TaskContext, device: Device) -> Iterator[None]:
    """Pause all other workers on this machine within the block, if the device is this machine."""
    if device.scheme != "local":
        yield
        return
    context.note(Progress(Stage.MEASURING, "waiting for quiet"))
    with context.quiet():
        yield


def upload_artifact(context: TaskContext, link: Link, artifact: Artifact, library: str) -> None:
    """Place the artifact's files in the session's folder, with the library under a name of its own.

    Parameters replace those of another artifact.
    """
    _push(link, artifact, _Meter(context), library)


def has_parameters(artifact: Artifact) -> bool:
    """Return True if the model's code takes parameters."""
    return (artifact.parameters / SHARD).stat().st_size > 0


def tensor_device(device: Device) -> RemoteDevice:
    """Return where the tensors of a session with a device are: on its CPU or its GPU."""
    return RemoteDevice(_CUDA, device.gpu) if device.profile.on_gpu else CPU


def load_model(
    link: Link,
    device: Device,
    inputs: tuple[TensorSpec, ...],
    parametric: bool,
    library: str = LIBRARY,
) -> LoadedModel:
    """Load the library and parameters in the session's folder on the device's CPU or GPU."""
    on_gpu, there = device.profile.on_gpu, tensor_device(device)
    link.call("vm.builtin.tensor_cache.clear")  # an earlier model may have had more parameters
    folder = link.call("tvm.rpc.server.workpath", "")
    link.call("vm.builtin.tensor_cache.load", folder, there.type, there.number)
    module, recordable = (
        link.session.load_module(library),
        on_gpu and link.native and bool(device.options.get("graphs", True)),
    )
    machine = RemoteVirtualMachine(
        link.call("farm.gpu.machine", module) if recordable else module, there
    )
    if parametric and machine.module.find(ON_LOAD):
        machine.set_input(ON_LOAD)
        machine.invoke_stateful(ON_LOAD)
    parameters = link.call("vm.builtin.param_array_from_cache", PREFIX, -1)
    return LoadedModel(
        machine, there, [parameters] if parametric else [], inputs, on_gpu, recordable
    )


def read_device_facts(link: Link, *, system: bool = True) -> dict[str, str]:
    """Return what a device reports about itself, as texts by name; empty for TVM's own server.

    With `system` those of its system are among them, which are slower to read.
    """
    if not link.native:
        return {}
    return {**(link.system_facts() if system else {}), **link.facts()}
