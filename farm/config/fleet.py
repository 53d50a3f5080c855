"""The fleet: the content of devices.toml as values, and look-ups in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from farm.config import model_sources
from farm.errors import UsageError, did_you_mean, join_names
from farm.types import Device, MeasurementSettings, Model, OutputErrorLimits, Profile

_Noun = TypeVar("_Noun")


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Settings of `farm bench`: the models that it uses if none are named, and how it measures."""

    models: tuple[str, ...]
    plan: MeasurementSettings


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """The address of `farm tracker`.

    It listens on the first free port of the range from `port` up to, but excluding, `port_end`.
    """

    host: str = "127.0.0.1"
    port: int = 9190
    port_end: int = 9199


@dataclass(frozen=True, slots=True)
class Fleet:
    """A whole configuration.

    `path` is its file, None for the built-in one. `store` is where runs are kept, a path or a
    postgresql:// URL; None for the user's own record. `cache` is the URL of the shared cache of
    builds, `cluster` the address of the cluster that makes builds, None for none. `built_in_models`
    are found by name in every fleet, unless a model of its file has the name.
    """

    path: Path | None
    devices: dict[str, Device]
    profiles: dict[str, Profile]
    models: dict[str, Model]
    bench: BenchSettings
    tracker: TrackerSettings
    limits: Mapping[str, OutputErrorLimits]  # for models that are not configured
    store: str | None = field(default=None, repr=False)  # may contain a password
    cache: str | None = None
    cluster: str | None = None
    built_in_models: Mapping[str, Model] = field(default_factory=dict)

    def deadline_s(self, device: Device, asked: float | None = None) -> float:
        """Return the limit of a job on a device, in seconds.

        It is `asked` if given, else the device's own, else that of [bench].
        """
        return asked or device.deadline_s or self.bench.plan.deadline_s

    def device(self, name: str) -> Device:
        """Return the device with this name. Raises UsageError for an unknown name."""
        fix = f"add [devices.{name}] to {self._file()}, or see: farm devices"
        if name not in self.devices and name in self.profiles:
            having = [one.name for one in self.devices.values() if one.profile.name == name]
            why = f"{name} is a profile, of {join_names(having) or 'no device'}"
            raise UsageError(f"unknown device {name!r}", why, fix)
        return _lookup("device", name, self.devices, fix)

    def profile(self, name: str) -> Profile:
        """Return the profile with this name. Raises UsageError for an unknown name."""
        return _lookup("profile", name, self.profiles, f"add [profiles.{name}] to {self._file()}")

    def names_source(self, word: str) -> bool:
        """Return whether a word means a file or a function, rather than the name of a model.

        The name is that of a configured or a deployed model.
        """
        return word not in self.models and model_sources.is_model_source(word)

    def model(self, name_or_source: str) -> Model:
        """Return the configured or built-in model with this name, or one created from a source.

        A source is a file or `python:package.module:function`. Raises UsageError for an unknown
        name, ModelError for a file that does not exist.
        """
        if self.names_source(name_or_source):
            made = model_sources.model_from_source(name_or_source, self.models)
            return made if made.name in self.models else replace(made, limits=self.limits)
        fix = (
            f"name a model file, python:package.module:function, or add [models.{name_or_source}] "
            f"to {self._file()}"
        )
        return _lookup("model", name_or_source, {**self.built_in_models, **self.models}, fix)

    def models_together(self, names_or_sources: Iterable[str]) -> list[Model]:
        """Return the models that one command works with, each once, as by `model`.

        Models from files with the same stem (net.onnx, net.pt2) get their full file names. Raises
        UsageError if those are equal too, because what is built and stored under one name must be
        one model.
        """
        found = list(
            {(one.name, one.source): one for one in map(self.model, names_or_sources)}.values()
        )
        alike, named = _of_one_name(found), {**self.built_in_models, **self.models}
        made = [
            replace(one, name=model_sources.absolute_source(one.source))
            if one.name in alike and named.get(one.name) != one
            else one
            for one in found
        ]
        for name, (first, second, *_) in _of_one_name(made).items():
            fix = f"give each a name: [models.NAME] with source = ... in {self._file()}"
            raise UsageError(f"two models go by the name {name}", f"{first} and {second}", fix)
        return made

    def select_devices(
        self,
        names: Iterable[str] = (),
        tags: Iterable[str] = (),
        all: bool = False,  # noqa: A002 - the name of the option
    ) -> tuple[Device, ...]:
        """Return the named devices and those with any of the tags, each once; or all devices.

        Raises UsageError for an unknown name or tag, and if nothing was selected.
        """
        chosen = {name: self.device(name) for name in names}
        for tag in tags:
            tagged = {device.name: device for device in self.devices.values() if tag in device.tags}
            if not tagged:
                known = {tag for device in self.devices.values() for tag in device.tags}
                raise UsageError(
                    f"no device has the tag {tag!r}",
                    did_you_mean(tag, known),
                    "see the tags with: farm devices",
                )
            chosen |= tagged
        if all:
            chosen |= self.devices
            if not chosen:
                raise UsageError(
                    "there are no devices", f"{self._file()} has no [devices.NAME] table", "add one"
                )
        if not chosen:
            raise UsageError(
                "no device was chosen",
                did_you_mean("", self.devices),
                "choose with --device NAME, --tag TAG or --all",
            )
        return tuple(chosen.values())

    def _file(self) -> str:
        return str(self.path or "a devices.toml")


def _of_one_name(models: Iterable[Model]) -> dict[str, list[str]]:
    """Return, by name, the sources of models that share a name."""
    by_name: dict[str, list[str]] = {}
    for model in models:
        if model.source not in (known := by_name.setdefault(model.name, [])):
            known.append(model.source)
    return {name: known for name, known in by_name.items() if len(known) > 1}


def _lookup(noun: str, name: str, known: Mapping[str, _Noun], fix: str) -> _Noun:
    if name not in known:
        raise UsageError(f"unknown {noun} {name!r}", did_you_mean(name, known), fix)
    return known[name]
