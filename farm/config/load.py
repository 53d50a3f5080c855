"""Load a configuration file: read it, check it as a whole, and make a Fleet of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farm import sanitize
from farm.config import locate, profiles
from farm.config.fleet import BenchSettings, Fleet, TrackerSettings
from farm.config.toml_parser import Key, Mistake, ParseResult, parse
from farm.errors import ConfigError
from farm.types import Device, MeasurementSettings, Model, OutputErrorLimits, Profile

if TYPE_CHECKING:
    from farm.config.schema import DeviceTable, Document, ModelTable

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def load_fleet(path: Path | None = None) -> Fleet:
    """Return the fleet of a configuration file.

    The file is `path`, else the one that `locate.find_config` finds, else the built-in one. Raises
    ConfigError that lists every mistake in the file with its line and key.
    """
    found = locate.find_config(path)
    return parse_fleet(locate.read_config_text(found or locate.SHIPPED), found)


def parse_fleet(text: str, found: Path | None) -> Fleet:
    """Return the fleet of the text of a configuration file, which is or will be at a path.

    `found` is None for the built-in file. Raises ConfigError as `load_fleet` does.
    """
    shipped = built_in_document()
    parsed = parse(text)
    known = profiles.built_in_profile_tables()
    own, mistakes = profiles.resolve_inheritance(parsed.data.get("profiles"), known)
    document = None
    if parsed.sound:
        document, more = _checked(
            parsed, {**known, **own}, frozenset(shipped.models), (found or locate.SHIPPED).parent
        )
        mistakes += more
    located = parsed.mistakes + [
        Mistake(parsed.line(key), key, message)
        for key, message in mistakes
        if not parsed.is_broken(key)
    ]
    if document is None or located:
        raise _error(found, located)
    return _fleet(
        found,
        document,
        {
            name: profiles.profile_from_table(name, table)
            for name, table in {**known, **own}.items()
        },
        shipped,
    )


def built_in_document() -> Document:
    """Return the checked built-in devices.toml, whose models are found by name in every fleet."""
    parsed = parse(locate.read_config_text(locate.SHIPPED))
    document, mistakes = _checked(
        parsed, profiles.built_in_profile_tables(), frozenset(), locate.SHIPPED.parent
    )
    assert document is not None, mistakes
    return document


def _checked(
    parsed: ParseResult,
    known: Mapping[str, profiles.Raw],
    built_in_models: frozenset[str],
    folder: Path,
) -> tuple[Document | None, list[tuple[Key, str]]]:
    """Return the checked document, or None, and the mistakes found.

    `known` are the profiles and `built_in_models` the models that the file may name without having
    a table for them.
    """
    # imported here because pydantic takes a tenth of a second to import
    with _without_pydantic_plugins():
        from farm.config import schema

    names = frozenset(known) | parsed.names("profiles")
    document, mistakes = schema.document_and_validation_errors(
        parsed.data,
        schema.ValidationContext(names, built_in_models | parsed.names("models"), folder),
    )
    devices = parsed.data.get("devices")
    for name, device in devices.items() if isinstance(devices, dict) else ():
        profile = device.get("profile") if isinstance(device, dict) else None
        if (
            isinstance(profile, str)
            and device.get("url") == "qemu:"
            and profile in known
            and not known[profile].get("agent")
        ):
            mistakes.append(
                (
                    ("devices", name, "url"),
                    f"profile {profile!r} has no agent that could be emulated",
                )
            )
    return document, mistakes


@contextlib.contextmanager
def _without_pydantic_plugins() -> Iterator[None]:
    """Let pydantic find no plugins within the block.

    None is for these tables, and to find them it would read a file of each installed package.
    """
    before = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PLUGINS]
        else:
            os.environ[_PLUGINS] = before


def _error(path: Path | None, mistakes: list[Mistake]) -> ConfigError:
    """Return the ConfigError that lists the mistakes by line."""
    shown = locate.config_display_name(path)
    lines = [
        sanitize.sanitized_line(f"{shown}:{one.line}: {_dotted(one.path)}{one.message}")
        for one in sorted(mistakes, key=lambda one: one.line)
    ]
    count = "a mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return ConfigError(
        f"{path or shown} has {count}",
        "\n".join(lines),
        f"correct {'this line' if len(lines) == 1 else 'these lines'}",
    )


def _dotted(path: Key) -> str:
    """Return a key as a prefix such as `devices.pi3.tags[0]: `, empty for an empty key."""
    text = ""
    for part in path:
        text += (
            f"[{part}]"
            if isinstance(part, int)
            else f".{part}"
            if _BARE.fullmatch(part)
            else f'."{part}"'
        )
    return f"{text.removeprefix('.')}: " if text else ""


def _fleet(
    path: Path | None, document: Document, known: dict[str, Profile], shipped: Document
) -> Fleet:
    folder = (path or locate.SHIPPED).parent
    every = document.limits.made()
    models = {name: _model(name, table, every) for name, table in document.models.items()}
    bench = document.bench
    benched = (
        bench.models if bench.models is not None else list(models) or shipped.bench.models or []
    )
    plan = MeasurementSettings(
        bench.warmup,
        bench.count,
        bench.minimum_s,
        bench.maximum_s,
        bench.deadline_s,
        bench.dataset_limit,
    )
    return Fleet(
        path=path,
        devices={
            name: _device(name, table, known, folder) for name, table in document.devices.items()
        },
        profiles=known,
        models=models,
        bench=BenchSettings(tuple(dict.fromkeys(benched)), plan),
        limits=every,
        tracker=TrackerSettings(
            document.tracker.host, document.tracker.port, document.tracker.end()
        ),
        store=document.store
        if document.store is None or "://" in document.store
        else str(folder / Path(document.store).expanduser()),
        cache=document.cache,
        cluster=document.cluster,
        built_in_models={
            name: _model(name, table, every) for name, table in shipped.models.items()
        },
    )


def _device(name: str, table: DeviceTable, known: Mapping[str, Profile], folder: Path) -> Device:
    device = Device(
        name,
        known[table.profile],
        table.url,
        tuple(table.tags),
        table.options.model_dump(exclude_none=True, by_alias=True),
    )
    if not device.on_this_machine:
        return device
    places = {
        key: str(folder / Path(str(device.options[key])).expanduser())
        for key in ("store", "work_dir")
        if key in device.options
    }
    return Device(name, device.profile, device.url, device.tags, {**device.options, **places})


def _model(name: str, table: ModelTable, every: Mapping[str, OutputErrorLimits]) -> Model:
    return Model(
        name=name,
        source=table.source,
        shapes={name: tuple(shape) for name, shape in table.shapes.items()},
        values=table.values,
        preprocess=table.preprocess.made(),
        labels=Path(table.labels) if table.labels else None,
        dataset=Path(table.dataset) if table.dataset else None,
        limits=table.limits.of_model(every),
        module=table.module,
        dtypes=table.dtypes,
        quantize=table.quantize.made() if table.quantize else None,
        calibration_data=Path(table.calibration_data) if table.calibration_data else None,
        trust=table.trust,
    )
