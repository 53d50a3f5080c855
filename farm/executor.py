"""Run an artifact on a device: open a link, push what is not there, load, run, measure. The only user of RPC objects; none leaves it.

Every function here runs in a worker process, with RPC in its main thread, so that it can be killed. Times are the device's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import prepare, releases, stats, transports
from farm.clock import timed
from farm.compiler.build import LIBRARY
from farm.compiler.parameters import PREFIX, SHARD
from farm.deadline import Deadline
from farm.errors import DeviceError, LinkError
from farm.importers import feed
from farm.parallel import Desk
from farm.store import file_digest
from farm.transports import Link
from farm.types import Artifact, Device, Model, Plan, Prepared, Progress, Release, Samples, Stage, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_CPU = 1  # DLPack's kDLCPU
_BATCH_S = 0.25  # of samples between two notes of progress
_MOST_SAMPLES = 10_000  # more say no more, and each is kept
_NOTE_EVERY = 10  # labelled samples
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # between tries on a connection that breaks; anew whenever something got across


@dataclass(slots=True)
class _Loaded:
    """A model on a device, ready to run."""

    machine: Any
    device: Any
    parameters: list[Any]
    inputs: tuple[TensorSpec, ...]

    def feed(self, inputs: Mapping[str, Array]) -> None:
        import numpy as np
        import tvm

        tensors = [tvm.runtime.tensor(np.asarray(inputs[spec.name], order="C"), device=self.device) for spec in self.inputs]
        self.machine.set_input("main", *tensors, *self.parameters)

    def run(self) -> None:
        self.machine.invoke_stateful("main")

    def outputs(self) -> list[Array]:
        return prepare.flat(self.machine.get_outputs("main"))

    def time(self, count: int) -> list[float]:
        """Seconds of each of `count` inferences by the device's clock; it runs one more, first."""
        evaluate = self.machine.time_evaluator("invoke_stateful", self.device, number=1, repeat=count)
        return [float(seconds) for seconds in evaluate("main").results]


@dataclass(slots=True)
class _Meter:
    """Tells of files on their way to a device, and counts the bytes sent, those of transfers that were cut among them."""

    desk: Desk
    sent: int = 0

    def of(self, path: Path) -> Callable[[int], None]:
        """What hears how much of a file is there. Where that is less than before, the difference was lost and is sent again."""
        size, last = path.stat().st_size, -1

        def note(there: int) -> None:
            nonlocal last
            self.sent += there - last if 0 <= last < there else 0
            last = there
            self.desk.note(Progress(Stage.UPLOADING, f"{path.name}, {size / 1e6:.1f} MB", there / size if size else None))

        return note


def measure(desk: Desk, device: Device, model: Model, prepared: Prepared, artifact: Artifact, agent: Path | None, plan: Plan) -> Samples:
    """One job: the answer on the example input, samples of the latency, the labelled samples. Raises DeviceError and its kin."""
    ledger: dict[str, float] = {}
    inputs, expected = prepare.reference(prepared)
    with ExitStack() as stack:
        loaded, link, uploaded = _open_and_load(stack, desk, device, artifact, agent, plan.deadline_s, ledger)
        before = facts_of(link)
        desk.note(Progress(Stage.RUNNING, "first inference"))
        with timed(ledger, "first run"):
            loaded.feed(inputs)
            begin = time.perf_counter()
            loaded.run()
            first_s = time.perf_counter() - begin
            agreement = stats.agreement(loaded.outputs(), expected, prepared.tolerance)
        seconds = _sample(desk, device, loaded, plan, first_s, ledger)
        correct, total = _classify(desk, loaded, model, plan, ledger)
        release = releases.install(link, model, artifact) if plan.install and link.native and agreement.right else None
        after = facts_of(link)
        return Samples(tuple(seconds), first_s, agreement, correct, total, before, after, ledger, uploaded, release)


def infer(
    desk: Desk, device: Device, artifact: Artifact, agent: Path | None, inputs: Mapping[str, Array], deadline_s: float
) -> list[Array]:
    """The outputs for one input."""
    with ExitStack() as stack:
        loaded, _, _ = _open_and_load(stack, desk, device, artifact, agent, deadline_s, {})
        desk.note(Progress(Stage.RUNNING))
        loaded.feed(inputs)
        loaded.run()
        return loaded.outputs()


def infer_deployed(
    desk: Desk, device: Device, agent: Path | None, name: str, source: Path, deadline_s: float
) -> tuple[Release, list[Array]] | None:
    """The outputs of a deployed model for the input in a file, and its release; None where no model of the name is deployed."""
    with transports.open(device, agent, desk.scratch, deadline_s, desk.ask) as link:
        if not link.native or all(release.name != name for release in releases.listed(link)):
            return None
        release = releases.opened(link, name)
        inputs = feed.read_inputs(source, release.inputs, release.preprocess)
        desk.note(Progress(Stage.RUNNING, f"release {release.number}"))
        loaded = _load(link, release.inputs, SHARD in release.files)
        loaded.feed(inputs)
        loaded.run()
        return release, loaded.outputs()


def deployments(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> list[Release]:
    """All releases on a device: by name, the newest first. Raises DeviceError where it keeps none."""
    with transports.open(device, agent, desk.scratch, timeout_s, desk.ask) as link:
        releases.check(device, link)
        return releases.listed(link)


def roll_back(desk: Desk, device: Device, agent: Path | None, timeout_s: float, name: str, number: int) -> Release:
    """The release that is current now: that of the number; with 0, the one before the current. Raises DeviceError where there is none."""
    with transports.open(device, agent, desk.scratch, timeout_s, desk.ask) as link:
        releases.check(device, link)
        return releases.rolled_back(link, name, number)


def undeploy(desk: Desk, device: Device, agent: Path | None, timeout_s: float, names: Sequence[str]) -> None:
    """No release of the names is left. Raises DeviceError for a name that is not deployed."""
    with transports.open(device, agent, desk.scratch, timeout_s, desk.ask) as link:
        releases.check(device, link)
        for name in names:
            releases.removed(link, name)


def facts(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> dict[str, str]:
    """What a device says of itself; nothing from TVM's own server."""
    with transports.open(device, agent, desk.scratch, timeout_s, desk.ask) as link:
        return facts_of(link)


def _open_and_load(
    stack: ExitStack, desk: Desk, device: Device, artifact: Artifact, agent: Path | None, timeout_s: float, ledger: dict[str, float]
) -> tuple[_Loaded, Link, int]:
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
                    loaded = _load(link, artifact.inputs, (artifact.parameters / SHARD).stat().st_size > 0)
                stack.enter_context(attempt.pop_all())
                return loaded, link, meter.sent
        except DeviceError as error:
            tries = 0 if meter.sent > sent else tries
            broken = broken or isinstance(error, LinkError)
            again = isinstance(error, LinkError) or (broken and link is None)  # while the network is down, there is no way to the device
            if not again or tries == len(_PAUSES_S) or deadline.remaining < _PAUSES_S[tries]:
                raise
            desk.note(Progress(Stage.CONNECTING, f"{error.what}; trying again in {_PAUSES_S[tries]:.0f} s"))
        time.sleep(_PAUSES_S[tries])
        tries += 1


def _connect(stack: ExitStack, desk: Desk, device: Device, agent: Path | None, deadline: Deadline, ledger: dict[str, float]) -> Link:
    desk.note(Progress(Stage.CONNECTING, device.url))
    with timed(ledger, "connect"):
        return stack.enter_context(transports.open(device, agent, desk.scratch, deadline.remaining, desk.ask))


def _push(link: Link, artifact: Artifact, meter: _Meter) -> None:
    """Have the artifact's files in the session's folder. What our agent has kept by digest is not sent again."""
    for path in releases.files(artifact):
        note = meter.of(path)
        if link.native:
            digest = file_digest(path)
            if link.call("farm.store.has", digest) < 0:
                link.put(path, digest, note)
            link.call("farm.store.link", digest, path.name)
        else:
            note(0)
            link.session.upload(str(path))
            note(path.stat().st_size)


def _load(link: Link, inputs: tuple[TensorSpec, ...], has_parameters: bool) -> _Loaded:
    from tvm import relax

    cpu = link.session.cpu(0)
    link.call("vm.builtin.tensor_cache.load", link.call("tvm.rpc.server.workpath", ""), _CPU, 0)
    parameters = link.call("vm.builtin.param_array_from_cache", PREFIX, -1)
    machine = relax.VirtualMachine(link.session.load_module(LIBRARY), cpu)
    return _Loaded(machine, cpu, [parameters] if has_parameters else [], inputs)


def _sample(desk: Desk, device: Device, loaded: _Loaded, plan: Plan, first_s: float, ledger: dict[str, float]) -> Sequence[float]:
    """Samples until there are enough of them for long enough, while nothing else of ours runs here if the device is this machine.

    None of an emulated device: they would be figures of the emulator.
    """
    if plan.maximum_s <= 0 or device.emulated:
        return []
    with ExitStack() as stack:
        with timed(ledger, "wait for quiet"):
            if device.scheme == "local":
                desk.note(Progress(Stage.MEASURING, "waiting for quiet"))
                stack.enter_context(desk.quiet())
        with timed(ledger, "measure"):
            if plan.warmup:
                loaded.time(plan.warmup)
            samples: list[float] = []
            begin = time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < plan.maximum_s:
                enough = min(len(samples) / plan.count, elapsed / plan.minimum_s if plan.minimum_s else 1.0)
                if samples and (enough >= 1 or len(samples) >= _MOST_SAMPLES):
                    break
                desk.note(Progress(Stage.MEASURING, f"{len(samples)} samples", enough))
                typical = sorted(samples)[len(samples) // 2] if samples else first_s
                samples += loaded.time(max(1, min(_MOST_SAMPLES, int(_BATCH_S / max(typical, 1e-6)))))
    return samples


def _classify(desk: Desk, loaded: _Loaded, model: Model, plan: Plan, ledger: dict[str, float]) -> tuple[int | None, int | None]:
    if model.dataset is None or plan.dataset_limit == 0:
        return None, None
    samples, labels = feed.read_dataset(model.dataset, loaded.inputs)
    samples, labels = samples[: plan.dataset_limit], labels[: plan.dataset_limit]
    name, correct = loaded.inputs[0].name, 0
    with timed(ledger, "accuracy"):
        for index, (sample, label) in enumerate(zip(samples, labels, strict=True)):
            if index % _NOTE_EVERY == 0:
                desk.note(Progress(Stage.ACCURACY, f"{index} of {len(labels)}", index / len(labels)))
            loaded.feed({name: sample[None]})
            loaded.run()
            correct += int(loaded.outputs()[0].argmax() == label)
    return correct, len(labels)


def facts_of(link: Link) -> dict[str, str]:
    """What a device says of itself, in texts; nothing from TVM's own server."""
    if not link.native:
        return {}
    content = json.loads(link.call("farm.agent.facts"))
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.items() if value is not None}
