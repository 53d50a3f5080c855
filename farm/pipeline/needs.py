"""What a job needs to be made first, and in which order such things are begun."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from farm.errors import UsageError
from farm.types import RECIPES, Job, Model, Profile, Quantize

Key = tuple[str, ...]  # ("agent", machine), ("prepare", model) or ("build", model, profile)


def for_profile(model: Model, profile: Profile) -> Model:
    """A model as a profile wants it: where that has `quantize`, the quantized model, under a name of its own.

    Raises UsageError where there are no data to quantize it by.
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
    needs: list[Key] = [("prepare", job.model.name), build_key(job)]
    if job.device.gets_agent and job.device.profile.agent:
        needs.insert(0, ("agent", job.device.profile.agent))
    return needs


def build_key(job: Job) -> Key:
    return ("build", *job.build)


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Each key once. Agents first, which take longest, then what others wait for."""
    return sorted(dict.fromkeys(keys), key=lambda key: ("agent", "prepare", "build").index(key[0]))
