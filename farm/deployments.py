"""Models that stay on a device: releases that its agent stores (the functions `farm.deploy.*`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from farm import __version__
from farm.compiler.parameter_files import INDEX, SHARD
from farm.errors import DeviceError
from farm.inputs import read
from farm.store import file_digest
from farm.transports import Link
from farm.types import Artifact, Device, Model, Release


def check_supported(device: Device, link: Link) -> None:
    """Raise DeviceError if a device stores no deployments: if TVM's own server answers."""
    if not link.native:
        why, fix = (
            "TVM's own RPC server answers there, which keeps nothing",
            f"start farm's agent there: farm agent, for {device.url}",
        )
        raise DeviceError(f"{device.name} keeps no deployments", why, fix)


def install(link: Link, model: Model, artifact: Artifact) -> int:
    """Make the files in the device's store the current release of a model; return its number."""
    return link.number(
        "farm.deploy.install", json.dumps(release_manifest(model, artifact)), least=1
    )


def list_all_releases(link: Link) -> list[Release]:
    """Return all releases on the device, by name and the newest first."""
    from farm.transports.agent import manifest_validation

    return manifest_validation.parse_releases(link.document("farm.deploy.list"))


def open_release(link: Link, name: str) -> Release:
    """Return the current release of a name, and place its files in the session's folder."""
    return _release(link, "farm.deploy.open", name)


def roll_back(link: Link, name: str, number: int) -> Release:
    """Make release `number` current and return it; with 0, the one before the current."""
    return _release(link, "farm.deploy.rollback", name, number)


def remove(link: Link, name: str) -> None:
    """Remove all releases of a name."""
    link.call("farm.deploy.remove", name)


def artifact_files(artifact: Artifact) -> list[Any]:
    """Return the files of an artifact that a device needs.

    A model without parameters has no shard.
    """
    shard = artifact.parameters / SHARD
    return [
        artifact.library,
        artifact.parameters / INDEX,
        *([shard] if shard.stat().st_size else []),
    ]


def release_manifest(model: Model, artifact: Artifact) -> dict[str, Any]:
    """Return what the device stores about a release: all that another host learns about it."""
    return {
        "name": model.name,
        "artifact": artifact.digest,
        "profile": artifact.profile,
        "target": artifact.target["kind"],
        "files": {path.name: file_digest(path) for path in artifact_files(artifact)},
        "inputs": [asdict(spec) for spec in artifact.inputs],
        "outputs": [asdict(spec) for spec in artifact.outputs],
        "preprocess": asdict(model.preprocess),
        "labels": read.read_class_names(model.labels) if model.labels else None,
        "installed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"farm": __version__, **artifact.versions},
    }


def _release(link: Link, function: str, *arguments: Any) -> Release:
    from farm.transports.agent import manifest_validation

    return manifest_validation.parse_release(link.document(function, *arguments), current=True)
