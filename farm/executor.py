"""Run an artifact on a device: open a link, push what is not there, load, run, measure. The only user of RPC objects; none leaves it.

Every function here runs in a worker process, with RPC in its main thread, so that it can be killed. Times are the device's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import prepare, stats, transports
from farm.clock import timed
from farm.compiler.parameters import INDEX, PREFIX, SHARD
from farm.errors import DeviceError
from farm.importers import feed
from farm.parallel import Desk
from farm.store import file_digest
from farm.transports import Link
from farm.types import Artifact, Device, Model, Plan, Prepared, Progress, Samples, Stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_CPU = 1  # DLPack's kDLCPU
_BATCH_S = 0.25  # of samples between two notes of progress
_MOST_SAMPLES = 10_000  # more say no more, and each is kept
_NOTE_EVERY = 10  # labelled samples
PROTOCOL = 1  # of the agent's own functions


@dataclass(slots=True)
class _Loaded:
    """A model on a device, ready to run."""

    machine: Any
    device: Any
    parameters: list[Any]
    artifact: Artifact

    def feed(self, inputs: Mapping[str, Array]) -> None:
        import numpy as np
        import tvm

        tensors = [tvm.runtime.tensor(np.asarray(inputs[spec.name], order="C"), device=self.device) for spec in self.artifact.inputs]
        self.machine.set_input("main", *tensors, *self.parameters)

    def run(self) -> None:
        self.machine.invoke_stateful("main")

    def outputs(self) -> list[Array]:
        return prepare.flat(self.machine.get_outputs("main"))

    def time(self, count: int) -> list[float]:
        """Seconds of each of `count` inferences by the device's clock; it runs one more, first."""
        evaluate = self.machine.time_evaluator("invoke_stateful", self.device, number=1, repeat=count)
        return [float(seconds) for seconds in evaluate("main").results]


def measure(desk: Desk, device: Device, model: Model, prepared: Prepared, artifact: Artifact, agent: Path | None, plan: Plan) -> Samples:
    """One job: the answer on the example input, samples of the latency, the labelled samples. Raises DeviceError and its kin."""
    ledger: dict[str, float] = {}
    inputs, expected = prepare.reference(prepared)
    with ExitStack() as stack:
        loaded, link, uploaded = _open_and_load(stack, desk, device, artifact, agent, plan.deadline_s, ledger)
        before = _facts(link)
        desk.note(Progress(Stage.RUNNING, "first inference"))
        with timed(ledger, "first run"):
            loaded.feed(inputs)
            begin = time.perf_counter()
            loaded.run()
            first_s = time.perf_counter() - begin
            agreement = stats.agreement(loaded.outputs(), expected, prepared.tolerance)
        seconds = _sample(desk, device, loaded, plan, first_s, ledger)
        correct, total = _classify(desk, loaded, model, plan, ledger)
        after = _facts(link)
        return Samples(tuple(seconds), first_s, agreement, correct, total, before, after, ledger, uploaded)


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


def facts(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> dict[str, str]:
    """What a device says of itself; nothing from TVM's own server."""
    with transports.open(device, agent, desk.scratch, timeout_s, desk.ask) as link:
        return _facts(link)


def _open_and_load(
    stack: ExitStack, desk: Desk, device: Device, artifact: Artifact, agent: Path | None, timeout_s: float, ledger: dict[str, float]
) -> tuple[_Loaded, Link, int]:
    desk.note(Progress(Stage.CONNECTING, device.url))
    with timed(ledger, "connect"):
        link = stack.enter_context(transports.open(device, agent, desk.scratch, timeout_s, desk.ask))
        _check_protocol(device, link)
    with timed(ledger, "upload"):
        uploaded = _push(desk, link, artifact)
    desk.note(Progress(Stage.LOADING))
    with timed(ledger, "load"):
        return _load(link, artifact), link, uploaded


def _check_protocol(device: Device, link: Link) -> None:
    if link.native and (spoken := json.loads(link.call("farm.agent.facts")).get("protocol")) != PROTOCOL:
        raise DeviceError(
            f"the agent on {device.name} is of another version",
            f"it speaks protocol {spoken}, this farm speaks {PROTOCOL}",
            "farm agent, from this version, on the board",
        )


def _push(desk: Desk, link: Link, artifact: Artifact) -> int:
    """Have the artifact's files in the session's folder; returns the bytes sent. What our agent has kept by digest is not sent again."""
    files = [artifact.library, artifact.parameters / INDEX]
    if (artifact.parameters / SHARD).stat().st_size:
        files.append(artifact.parameters / SHARD)
    sent = 0
    for path in files:
        digest = file_digest(path) if link.native else ""
        if link.native and link.call("farm.store.has", digest) >= 0:
            link.call("farm.store.link", digest, path.name)
            continue
        size = path.stat().st_size
        desk.note(Progress(Stage.UPLOADING, f"{path.name}, {size / 1e6:.1f} MB"))
        link.session.upload(str(path))
        sent += size
        if link.native:
            link.call("farm.store.keep", path.name, digest)
    return sent


def _load(link: Link, artifact: Artifact) -> _Loaded:
    from tvm import relax

    cpu = link.session.cpu(0)
    link.call("vm.builtin.tensor_cache.load", link.call("tvm.rpc.server.workpath", ""), _CPU, 0)
    parameters = link.call("vm.builtin.param_array_from_cache", PREFIX, -1)
    machine = relax.VirtualMachine(link.session.load_module(artifact.library.name), cpu)
    has_parameters = (artifact.parameters / SHARD).stat().st_size > 0
    return _Loaded(machine, cpu, [parameters] if has_parameters else [], artifact)


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
    samples, labels = feed.read_dataset(model.dataset, loaded.artifact.inputs)
    samples, labels = samples[: plan.dataset_limit], labels[: plan.dataset_limit]
    name, correct = loaded.artifact.inputs[0].name, 0
    with timed(ledger, "accuracy"):
        for index, (sample, label) in enumerate(zip(samples, labels, strict=True)):
            if index % _NOTE_EVERY == 0:
                desk.note(Progress(Stage.ACCURACY, f"{index} of {len(labels)}", index / len(labels)))
            loaded.feed({name: sample[None]})
            loaded.run()
            correct += int(loaded.outputs()[0].argmax() == label)
    return correct, len(labels)


def _facts(link: Link) -> dict[str, str]:
    if not link.native:
        return {}
    content = json.loads(link.call("farm.agent.facts"))
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.items() if value is not None}
