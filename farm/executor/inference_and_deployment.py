"""Operations that take one short session with a device: an inference, deployments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import deployments as farm_deployments
from farm import transports
from farm.compiler.parameter_files import SHARD
from farm.errors import DeviceError
from farm.executor.loading import connect_and_load_model, load_model
from farm.executor.threads import configure_threads_and_gpu
from farm.inputs import read
from farm.processes.workers import TaskContext
from farm.types import Artifact, Device, Progress, Release, Stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def infer(
    context: TaskContext,
    device: Device,
    artifact: Artifact,
    agent: Path | None,
    inputs: Mapping[str, Array],
    deadline_s: float,
) -> list[Array]:
    """Return the outputs for one input."""
    with ExitStack() as stack:
        loaded, _, _ = connect_and_load_model(
            stack, context, device, artifact, agent, deadline_s, {}
        )
        context.note(Progress(Stage.RUNNING))
        loaded.feed(inputs)
        loaded.run()
        return loaded.outputs()


def infer_deployed(
    context: TaskContext,
    device: Device,
    agent: Path | None,
    name: str,
    source: Path,
    deadline_s: float,
) -> tuple[Release, list[Array], list[str]] | None:
    """Run a deployed model for the input in a file.

    Returns its release, the outputs, and sentences that describe how an image was converted; None
    if no model of that name is deployed.
    """
    with transports.open(device, agent, context.scratch, deadline_s, context.ask) as link:
        if not link.native or all(
            release.name != name for release in farm_deployments.list_all_releases(link)
        ):
            return None
        configure_threads_and_gpu(link, device)
        release = farm_deployments.open_release(link, name)
        _check_kind(device, release)
        said: list[str] = []
        inputs = read.read_inputs(source, release.inputs, release.preprocess, said.append)
        context.note(Progress(Stage.RUNNING, f"release {release.number}"))
        loaded = load_model(link, device, release.inputs, SHARD in release.files)
        loaded.feed(inputs)
        loaded.run()
        outputs = loaded.outputs()
        return release, outputs, said


def _check_kind(device: Device, release: Release) -> None:
    """Raise DeviceError if a release is for a GPU and the device is not one, or the reverse.

    The devices of one board may share its deployments.
    """
    if release.on_gpu != device.profile.on_gpu:
        kinds = {False: "CPU", True: "GPU"}
        raise DeviceError(
            (
                f"release {release.number} of {release.name} is for {release.profile}, a "
                f"{kinds[release.on_gpu]}"
            ),
            (
                f"{device.name} computes on its {kinds[device.profile.on_gpu]} "
                f"({device.profile.name}), and shares what is deployed"
            ),
            (
                f"farm deploy --device {device.name} {shlex.quote(release.name)}, under a name of "
                "its own where both are to stay"
            ),
        )


def list_deployments(
    context: TaskContext, device: Device, agent: Path | None, timeout_s: float
) -> list[Release]:
    """Return all releases on a device, by name and the newest first.

    Raises DeviceError if the device keeps no deployments.
    """
    with transports.open(device, agent, context.scratch, timeout_s, context.ask) as link:
        farm_deployments.check_supported(device, link)
        return farm_deployments.list_all_releases(link)


def roll_back_deployment(
    context: TaskContext,
    device: Device,
    agent: Path | None,
    timeout_s: float,
    name: str,
    number: int,
) -> Release:
    """Make release `number` current and return it; with 0, the one before the current.

    Raises DeviceError if there is no such release.
    """
    with transports.open(device, agent, context.scratch, timeout_s, context.ask) as link:
        farm_deployments.check_supported(device, link)
        return farm_deployments.roll_back(link, name, number)


def undeploy(
    context: TaskContext, device: Device, agent: Path | None, timeout_s: float, names: Sequence[str]
) -> None:
    """Remove all releases of the names. Raises DeviceError for a name that is not deployed."""
    with transports.open(device, agent, context.scratch, timeout_s, context.ask) as link:
        farm_deployments.check_supported(device, link)
        for name in names:
            farm_deployments.remove(link, name)
