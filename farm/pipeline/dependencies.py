"""Determine what a job depends on, and the order in which dependencies are built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from farm.errors import UsageError
from farm.types import RECIPES, Job, Model, Profile, Quantize

# ("agent", machine), ("prepare", model) or ("build", model, profile)
Key = tuple[str, ...]


def for_profile(model: Model, profile: Profile) -> Model:
    """Return the model as a profile needs it: quantized and renamed if the profile says so.

    Raises UsageError if the quantization needs calibration data and the model names none.
    """
    if profile.quantize is None or model.quantize is not None or model.source.endswith(RECIPES):
        return model
    settings = Quantize(dtype=profile.quantize)
    if settings.calibrates and model.calibration_data is None:
        what = f"{model.name} cannot be quantized for {profile.name}: there are no data to calibrate it by"
        why = f'the profile has quantize = "{profile.quantize}"'
        raise UsageError(what, why, f'add calibration_data = "DIR" to [models.{model.name}] in devices.toml')
    return replace(model, name=f"{model.name}.{profile.quantize}", quantize=settings)


def needs_of(job: Job) -> list[Key]:
    """Return the keys of everything that a job depends on."""
    needs: list[Key] = [("prepare", job.model.name), build_key(job)]
    if job.device.gets_agent and job.device.profile.agent:
        needs.insert(0, ("agent", job.device.profile.agent))
    return needs


def build_key(job: Job) -> Key:
    """Return the key of a job's build."""
    return ("build", *job.build)


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Return each key once: agents first, which take longest, then imports, then builds."""
    return sorted(dict.fromkeys(keys), key=lambda key: ("agent", "prepare", "build").index(key[0]))
