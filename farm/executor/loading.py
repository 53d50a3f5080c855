"""A model gets onto a device: a link, what is not there yet, library and parameters loaded. A link that breaks is made again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import releases, transports
from farm.asking import patiently
from farm.clock import timed
from farm.compiler import here
from farm.compiler.build import LIBRARY
from farm.compiler.parameters import PREFIX, SHARD, WIDEN
from farm.deadline import Deadline
from farm.errors import DeviceError, LinkError
from farm.executor.computing import compute_as_asked
from farm.parallel import Desk
from farm.store import file_digest
from farm.transports import Link
from farm.types import Artifact, Device, Progress, Stage, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_KINDS = {"cpu": 1, "cuda": 2}  # of devices, as DLPack numbers them
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # between tries on a connection that breaks; anew whenever something got across
_TRIES_TO_LOAD = 2  # again, where the connection was made and then broke and nothing got across
_TRY_S = 5.0  # that another try needs at the least: its error says more than that the time is over


@dataclass(slots=True)
class Loaded:
    """A model on a device, ready to run."""

    machine: Any
    device: Any
    parameters: list[Any]
    inputs: tuple[TensorSpec, ...]
    on_gpu: bool = False
    recordable: bool = False
    recorded: bool = False

    def let_go(self) -> None:
        """Give back what it has of its session, before that is over (see `Link.let_go`)."""
        self.machine, self.parameters = None, []

    def feed(self, inputs: Mapping[str, Array]) -> None:
        import numpy as np
        import tvm

        tensors = [tvm.runtime.tensor(np.asarray(inputs[spec.name], order="C"), device=self.device) for spec in self.inputs]
        self.machine.set_input("main", *tensors, *self.parameters)

    def run(self) -> None:
        self.machine.invoke_stateful("main")
        if self.on_gpu:  # which is only given its work so far
            self.device.sync()

    def record(self) -> None:
        """Have inferences be launched as one graph from now on, where they run on a GPU that can: once inputs are fed. The facts tell."""
        if self.recordable and not self.recorded:
            self.machine.module["record"]("main")
            self.device.sync()
            self.recorded = True

    def outputs(self) -> list[Array]:
        return here.flat(self.machine.get_outputs("main"))

    def time(self, count: int, block: int = 1) -> list[float]:
        """Seconds per inference of each of `count` blocks of inferences, by the device's clock; it runs one more, first."""
        evaluate = self.machine.time_evaluator("invoke_stateful", self.device, number=block, repeat=count)
        return [float(seconds) for seconds in evaluate("main").results]


@dataclass(slots=True)
class _Meter:
    """Tells of files on their way to a device, and counts the bytes sent, those of transfers that were cut among them."""

    desk: Desk
    sent: int = 0
    _there: dict[Path, int] = field(default_factory=dict)

    def of(self, path: Path) -> Callable[[int], None]:
        """What hears how much of a file is there. Where that is less than before, the difference was lost and is sent again."""
        size = path.stat().st_size

        def note(there: int) -> None:
            self.sent += max(0, there - self._there.get(path, there))
            self._there[path] = there
            self.desk.note(Progress(Stage.UPLOADING, f"{path.name}, {size / 1e6:.1f} MB", there / size if size else None))

        return note


def open_and_load(
    stack: ExitStack, desk: Desk, device: Device, artifact: Artifact, agent: Path | None, timeout_s: float, ledger: dict[str, float]
) -> tuple[Loaded, Link, int]:
    """A model on a device, its link, and the bytes sent. A connection that breaks on the way is made again, to go on from there."""
    deadline, meter, tries, broken = Deadline(timeout_s), _Meter(desk), 0, False
    while True:
        link, sent = None, meter.sent
        try:
            with ExitStack() as attempt:
                link = _connect(attempt, desk, device, agent, deadline, ledger)
                with timed(ledger, "upload"):
                    _push(link, artifact, meter)
                desk.note(Progress(Stage.LOADING))
                with timed(ledger, "load"):
                    loaded = load(link, device, artifact.inputs, has_parameters(artifact))
                if device.on_this_machine:
                    attempt.callback(loaded.let_go)
                stack.enter_context(attempt.pop_all())
                return loaded, link, meter.sent
        except DeviceError as error:
            tries = 0 if meter.sent > sent else tries
            broken = broken or isinstance(error, LinkError)
            again = isinstance(error, LinkError) or (broken and link is None)  # while the network is down, there is no way to the device
            if device.on_this_machine or (link and tries == _TRIES_TO_LOAD):  # it is not the network that ends it
                again = False
            if not again or tries == len(_PAUSES_S) or deadline.remaining < _PAUSES_S[tries] + _TRY_S:
                raise
            desk.note(Progress(Stage.CONNECTING, f"{error.what}; trying again in {_PAUSES_S[tries]:.0f} s"))
        time.sleep(_PAUSES_S[tries])
        tries += 1


def _connect(stack: ExitStack, desk: Desk, device: Device, agent: Path | None, deadline: Deadline, ledger: dict[str, float]) -> Link:
    desk.note(Progress(Stage.CONNECTING, device.url))
    with timed(ledger, "connect"):
        link = stack.enter_context(transports.open(device, agent, desk.scratch, deadline.remaining, patiently(desk.ask, deadline)))
        compute_as_asked(link, device)
        return link


def _push(link: Link, artifact: Artifact, meter: _Meter, library: str = LIBRARY) -> None:
    """Have the artifact's files in the session's folder. What our agent has kept by digest is not sent again."""
    for path in releases.files(artifact):
        send(link, path, library if path == artifact.library else path.name, meter.of(path))


def send(link: Link, path: Path, name: str, note: Callable[[int], None] = lambda _: None) -> None:
    """Have a file in the session's folder, under a name; `note` hears how many bytes of it are there."""
    if link.native:
        digest = file_digest(path)
        if link.call("farm.store.has", digest) < 0:
            link.put(path, digest, note)
        link.call("farm.store.link", digest, name)
    else:
        note(0)
        link.session.upload(str(path), name)
        note(path.stat().st_size)


@contextlib.contextmanager
def quiet(desk: Desk, device: Device) -> Iterator[None]:
    """While nothing else of ours runs here, if the device is this machine."""
    if device.scheme != "local":
        yield
        return
    desk.note(Progress(Stage.MEASURING, "waiting for quiet"))
    with desk.quiet():
        yield


def push(desk: Desk, link: Link, artifact: Artifact, library: str) -> None:
    """Have the artifact's files in the session's folder, its library under a name of its own; parameters take the place of others'."""
    _push(link, artifact, _Meter(desk), library)


def has_parameters(artifact: Artifact) -> bool:
    """Whether the model's code takes any."""
    return (artifact.parameters / SHARD).stat().st_size > 0


def place_of(link: Link, device: Device) -> Any:
    """Where a session's tensors lie: TVM's device for the CPU or the GPU."""
    return link.session.device("cuda", device.gpu) if device.profile.on_gpu else link.session.cpu(0)


def load(link: Link, device: Device, inputs: tuple[TensorSpec, ...], parametric: bool, library: str = LIBRARY) -> Loaded:
    """What lies in the session's folder, with its parameters and all it computes on the device's CPU or GPU."""
    from tvm.runtime.vm import VirtualMachine

    on_gpu = device.profile.on_gpu
    kind, number = ("cuda", device.gpu) if on_gpu else ("cpu", 0)
    there = place_of(link, device)
    link.call("vm.builtin.tensor_cache.clear")  # of a model that was loaded before, which may have had more of them
    link.call("vm.builtin.tensor_cache.load", link.call("tvm.rpc.server.workpath", ""), _KINDS[kind], number)
    module, recordable = link.session.load_module(library), on_gpu and link.native and bool(device.options.get("graphs", True))
    machine = VirtualMachine(link.call("farm.gpu.machine", module) if recordable else module, there)
    if parametric and _has(machine, WIDEN):
        machine.set_input(WIDEN)
        machine.invoke_stateful(WIDEN)
    parameters = link.call("vm.builtin.param_array_from_cache", PREFIX, -1)
    return Loaded(machine, there, [parameters] if parametric else [], inputs, on_gpu, recordable)


def _has(machine: Any, function: str) -> bool:
    try:
        machine.module.get_function(function)
    except AttributeError:
        return False
    return True


def facts_of(link: Link) -> dict[str, str]:
    """What a device says of itself, in texts; nothing from TVM's own server."""
    if not link.native:
        return {}
    content = json.loads(link.call("farm.agent.facts"))
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.items() if value is not None}
