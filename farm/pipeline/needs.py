"""What a job needs to be made first, and in which order such things are begun."""

from __future__ import annotations

from collections.abc import Iterable

from farm.types import Job

Key = tuple[str, ...]  # ("agent", machine), ("prepare", model) or ("build", model, profile)


def needs_of(job: Job) -> list[Key]:
    needs: list[Key] = [("prepare", job.model.name), build_key(job)]
    if job.device.gets_agent and job.device.profile.agent:
        needs.insert(0, ("agent", job.device.profile.agent))
    return needs


def build_key(job: Job) -> Key:
    return ("build", *job.build)


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Each key once. Agents first, which take longest, then what others wait for."""
    return sorted(dict.fromkeys(keys), key=lambda key: ("agent", "prepare", "build").index(key[0]))
