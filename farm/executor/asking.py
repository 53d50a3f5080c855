"""What is asked of a device in one short session: an inference, what is deployed on it, what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import releases, transports
from farm.compiler.parameters import SHARD
from farm.errors import DeviceError
from farm.executor.computing import compute_as_asked
from farm.executor.gpu import open_gpu
from farm.executor.loading import facts_of, load, open_and_load
from farm.importers import feed
from farm.parallel import Desk
from farm.types import Artifact, Device, Progress, Release, Stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def infer(
    desk: Desk, device: Device, artifact: Artifact, agent: Path | None, inputs: Mapping[str, Array], deadline_s: float
) -> list[Array]:
    """The outputs for one input."""
    with ExitStack() as stack:
        loaded, _, _ = open_and_load(stack, desk, device, artifact, agent, deadline_s, {})
        desk.note(Progress(Stage.RUNNING))
        loaded.feed(inputs)
        loaded.run()
        return loaded.outputs()


def infer_deployed(
    desk: Desk, device: Device, agent: Path | None, name: str, source: Path, deadline_s: float
) -> tuple[Release, list[Array], list[str]] | None:
    """The outputs of a deployed model for the input in a file, its release, and how an image was converted; None where none of the name is
    deployed."""
    with transports.open(device, agent, desk.scratch, deadline_s, desk.ask) as link:
        if not link.native or all(release.name != name for release in releases.listed(link)):
            return None
        compute_as_asked(link, device)
        release = releases.opened(link, name)
        _check_kind(device, release)
        said: list[str] = []
        inputs = feed.read_inputs(source, release.inputs, release.preprocess, said.append)
        desk.note(Progress(Stage.RUNNING, f"release {release.number}"))
        loaded = load(link, device, release.inputs, SHARD in release.files)
        loaded.feed(inputs)
        loaded.run()
        outputs = loaded.outputs()
        loaded.let_go()
        return release, outputs, said


def _check_kind(device: Device, release: Release) -> None:
    """Raises DeviceError where one of the two is for a GPU and the other is not: a board's devices may share what is kept on it."""
    if release.on_gpu != device.profile.on_gpu:
        kinds = {False: "CPU", True: "GPU"}
        raise DeviceError(
            f"release {release.number} of {release.name} is for {release.profile}, a {kinds[release.on_gpu]}",
            f"{device.name} computes on its {kinds[device.profile.on_gpu]} ({device.profile.name}), and shares what is deployed",
            f"farm deploy --device {device.name} {release.name}, under a name of its own where both are to stay",
        )


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
        if device.profile.on_gpu:  # which tells nothing before it is opened
            open_gpu(link, device)
        return facts_of(link)
