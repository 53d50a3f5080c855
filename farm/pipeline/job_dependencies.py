"""Determine what a job depends on and in which order it is built, and hold the outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from farm.errors import FarmError, UsageError
from farm.types import RECIPES, Artifact, Job, Model, PreparedModel, Profile, QuantizeSettings


@dataclass(frozen=True, slots=True)
class AgentKey:
    """The native agent for an architecture, such as "aarch64"."""

    architecture: str


@dataclass(frozen=True, slots=True)
class PrepareKey:
    """The import of a model."""

    model: str


@dataclass(frozen=True, slots=True)
class BuildKey:
    """The build of a prepared model for a profile."""

    model: str
    profile: str


Key = AgentKey | PrepareKey | BuildKey
Outcome = Path | PreparedModel | Artifact | FarmError  # of a task: its result, or why there is none
_ORDER = (AgentKey, PrepareKey, BuildKey)


@dataclass
class TaskOutcomes:
    """The outcomes of the tasks that have ended."""

    _by_key: dict[Key, Outcome] = field(default_factory=dict)

    def __contains__(self, key: Key) -> bool:
        """Return True if the task has ended, also if it failed."""
        return key in self._by_key

    def add(self, key: Key, outcome: Outcome) -> None:
        """Record how a task ended."""
        self._by_key[key] = outcome

    def agent(self, key: AgentKey) -> Path | None:
        """Return the executable of an agent; None before it is built and if that failed."""
        outcome = self._by_key.get(key)
        return outcome if isinstance(outcome, Path) else None

    def prepared(self, key: PrepareKey) -> PreparedModel | None:
        """Return a prepared model; None before it is imported and if that failed."""
        outcome = self._by_key.get(key)
        return outcome if isinstance(outcome, PreparedModel) else None

    def artifact(self, key: BuildKey) -> Artifact | None:
        """Return a build; None before it is made and if that failed."""
        outcome = self._by_key.get(key)
        return outcome if isinstance(outcome, Artifact) else None

    def error(self, key: Key) -> FarmError | None:
        """Return the error of a task that failed; None for any other."""
        outcome = self._by_key.get(key)
        return outcome if isinstance(outcome, FarmError) else None

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return all builds, in the order in which they were made."""
        return tuple(made for made in self._by_key.values() if isinstance(made, Artifact))


def model_for_profile(model: Model, profile: Profile) -> Model:
    """Return the model as a profile needs it: quantized and renamed if the profile says so.

    Raises UsageError if the quantization needs calibration data and the model names none.
    """
    if profile.quantize is None or model.quantize is not None or model.source.endswith(RECIPES):
        return model
    settings = QuantizeSettings(dtype=profile.quantize)
    if settings.calibrates and model.calibration_data is None:
        what = (
            f"{model.name} cannot be quantized for {profile.name}: there are no data to calibrate "
            "it by"
        )
        why = f'the profile has quantize = "{profile.quantize}"'
        raise UsageError(
            what, why, f'add calibration_data = "DIR" to [models.{model.name}] in devices.toml'
        )
    return replace(model, name=f"{model.name}.{profile.quantize}", quantize=settings)


def can_build_remotely(profile: Profile) -> bool:
    """Return whether a build for a profile may be made by another machine.

    Not if it is for the CPU of this one, or linked by a program of this one.
    """
    return "native" not in json.dumps(dict(profile.target)) and not profile.linker


def job_dependency_keys(job: Job) -> list[Key]:
    """Return the keys of everything that a job depends on."""
    needs: list[Key] = [prepare_key(job), build_key(job)]
    if job.device.gets_agent and job.device.profile.agent:
        needs.insert(0, AgentKey(job.device.profile.agent))
    return needs


def prepare_key(job: Job) -> PrepareKey:
    """Return the key of the import of a job's model."""
    return PrepareKey(job.model.name)


def build_key(job: Job) -> BuildKey:
    """Return the key of a job's build."""
    return BuildKey(*job.build)


def unique_keys_in_build_order(keys: Iterable[Key]) -> list[Key]:
    """Return each key once: agents first, which take longest, then imports, then builds."""
    return sorted(dict.fromkeys(keys), key=lambda key: _ORDER.index(type(key)))
