"""Models that stay on a device: releases that its agent keeps, written and read over a link (the agent's functions `farm.deploy.*`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from farm import __version__
from farm.compiler.build import specs
from farm.compiler.parameters import INDEX, SHARD
from farm.errors import DeviceError
from farm.importers import feed
from farm.store import file_digest
from farm.transports import Link
from farm.types import Artifact, Device, Model, Preprocess, Release


def check(device: Device, link: Link) -> None:
    """Raises DeviceError for a device that keeps no deployments."""
    if not link.native:
        why, fix = "TVM's own RPC server answers there, which keeps nothing", f"start farm's agent there: farm agent, for {device.url}"
        raise DeviceError(f"{device.name} keeps no deployments", why, fix)


def install(link: Link, model: Model, artifact: Artifact) -> int:
    """Make what lies in the device's store the current release of the model's name; the number of the release."""
    return int(link.call("farm.deploy.install", json.dumps(manifest(model, artifact))))


def listed(link: Link) -> list[Release]:
    """All releases on the device: by name, the newest first."""
    found: list[Release] = []
    for deployment in json.loads(link.call("farm.deploy.list")):
        found += [_release(body, body["release"] == deployment["current"]) for body in deployment["releases"]]
    return found


def opened(link: Link, name: str) -> Release:
    """The current release of a name, its files in the session's folder."""
    return _release(json.loads(link.call("farm.deploy.open", name)), True)


def rolled_back(link: Link, name: str, number: int) -> Release:
    """The release that is current now: the one of this number; with 0, the one before the current."""
    return _release(json.loads(link.call("farm.deploy.rollback", name, number)), True)


def removed(link: Link, name: str) -> None:
    """No release of the name is left."""
    link.call("farm.deploy.remove", name)


def files(artifact: Artifact) -> list[Any]:
    """The files of an artifact that a device needs. A model without parameters has no shard."""
    shard = artifact.parameters / SHARD
    return [artifact.library, artifact.parameters / INDEX, *([shard] if shard.stat().st_size else [])]


def manifest(model: Model, artifact: Artifact) -> dict[str, Any]:
    """What is kept of a release on the device, for a host that knows nothing else of it."""
    return {
        "name": model.name,
        "artifact": artifact.digest,
        "profile": artifact.profile,
        "files": {path.name: file_digest(path) for path in files(artifact)},
        "inputs": [asdict(spec) for spec in artifact.inputs],
        "outputs": [asdict(spec) for spec in artifact.outputs],
        "preprocess": asdict(model.preprocess),
        "labels": feed.read_labels(model.labels) if model.labels else None,
        "installed_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"farm": __version__, **artifact.versions},
    }


def _release(body: Mapping[str, Any], current: bool) -> Release:
    preprocess = body["preprocess"]
    return Release(
        body["name"],
        int(body["release"]),
        current,
        body["artifact"],
        body["profile"],
        dict(body["files"]),
        specs(body["inputs"]),
        specs(body["outputs"]),
        Preprocess(**{**preprocess, "mean": tuple(preprocess["mean"]), "std": tuple(preprocess["std"])}),
        tuple(body["labels"] or ()),
        body["installed_at"],
        dict(body["versions"]),
    )
