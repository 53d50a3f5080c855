"""The tables of devices.toml: their keys, types and ranges, and pydantic's findings in plain words.

Every field is checked by itself, with the names and the folder that it refers to in the `Surroundings`, so that one mistake hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from farm.config.limits import AllLimitsTable, LimitsTable
from farm.config.preprocess import PreprocessTable
from farm.config.sources import file_at, source_at
from farm.config.table import Table
from farm.config.toml_lines import Key
from farm.config.urls import parse_url
from farm.config.wording import EXPECTED, described
from farm.errors import did_you_mean
from farm.types import DTYPES, Quantize
from farm.types.python_source import python_source

CORES = re.compile(r"big|little|all|\d+(-\d+)?(,\d+(-\d+)?)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What fields may refer to: the known profiles and models, and the folder that relative paths start from."""

    profiles: frozenset[str]
    models: frozenset[str]
    folder: Path


def _around(info: ValidationInfo) -> Surroundings:
    return cast(Surroundings, info.context)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name is made of letters, digits, '_', '-' and '.', and starts with a letter, a digit or '_'")
    return text


def _url(text: str) -> str:
    parse_url(text)
    return text


def _known(kind: Literal["profile", "model"]) -> Callable[[str, ValidationInfo], str]:
    def check(text: str, info: ValidationInfo) -> str:
        known = _around(info).profiles if kind == "profile" else _around(info).models
        if text not in known:
            raise ValueError(f"unknown {kind} {text!r}, {did_you_mean(text, known) or 'there are none'}")
        return text

    return check


def _cores(text: str) -> str:
    if not CORES.fullmatch(text):
        raise ValueError(f'cores are "big", "little", "all", or numbers such as "0,2-3", got {text!r}')
    return text


def _file(text: str, info: ValidationInfo) -> str:
    return str(file_at(text, _around(info).folder))


def _data(text: str, info: ValidationInfo) -> str:
    return str(file_at(text, _around(info).folder, or_folder=True))


def _source(text: str, info: ValidationInfo) -> str:
    return source_at(text, _around(info).folder)


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise ValueError(f"unknown type {text!r}, {did_you_mean(text, DTYPES)}")
    return text


def _short_for(key: str) -> Callable[[object], object]:
    """`preprocess = "imagenet"` is short for `preprocess = { kind = "imagenet" }`."""
    return lambda value: {key: value} if isinstance(value, str) else value


def _target_value(value: object) -> object:
    words = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if not (isinstance(value, (str, int, dict)) or words):
        raise ValueError(f"expected text, a whole number, true or false, a list of texts or a table, got {described(value)}")
    return value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_name)]
File = Annotated[Text, AfterValidator(_file)]
Data = Annotated[Text, AfterValidator(_data)]
KnownProfile = Annotated[str, AfterValidator(_known("profile"))]
KnownModel = Annotated[str, AfterValidator(_known("model"))]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


class ProfileTable(Table):
    inherits: KnownProfile | None = None
    description: str | None = None
    target: dict[str, Annotated[Any, AfterValidator(_target_value)]] | None = None
    triple: Text | None = None
    agent: Literal["x86_64", "aarch64", "armv7", "riscv64", "x86_64-cuda", "aarch64-cuda"] | None = None
    linker: list[Text] | None = None
    source: str | None = None
    quantize: Literal["int8", "float16"] | None = None


class OptionsTable(Table):
    deadline_s: PositiveSeconds | None = None
    gpu: Count | None = None
    graphs: bool | None = None
    threads: Positive | None = None
    cores: Annotated[str, AfterValidator(_cores)] | None = None
    pinned: bool | None = None
    key: Text | None = None
    launcher: Text | None = None
    store: Text | None = None
    store_budget_mb: Positive | None = None
    userland: Literal["any"] | None = None
    work_dir: Text | None = None


class DeviceTable(Table):
    profile: KnownProfile
    url: Annotated[str, AfterValidator(_url)]
    tags: list[Name] = Field(default_factory=list)
    options: OptionsTable = OptionsTable()


class QuantizeTable(Table):
    """What is not said is as `Quantize` has it."""

    dtype: Literal["int8", "float16"] = "int8"
    calibration: Literal["kl_divergence", "minmax", "percentile", "global_scale"] | None = None
    weight_scale: Literal["max", "power2"] | None = None
    per_channel: bool | None = None
    samples: Positive | None = None
    percentile: Annotated[float, Field(gt=0, le=100)] | None = None
    global_scale: Annotated[float, Field(gt=0)] | None = None

    def made(self) -> Quantize:
        return Quantize(**self.model_dump(exclude_none=True))

    @model_validator(mode="after")
    def _for_its_type(self) -> QuantizeTable:
        said = sorted(self.model_fields_set - {"dtype"})
        if self.dtype == "float16" and said:
            raise ValueError(f"float16 is not calibrated: leave out {', '.join(said)}")
        return self


class ModelTable(Table):
    source: Annotated[Text, AfterValidator(_source)]
    shapes: dict[str, list[Positive]] = Field(default_factory=dict)
    preprocess: Annotated[PreprocessTable, BeforeValidator(_short_for("kind"))] = PreprocessTable()
    labels: File | None = None
    dataset: Data | None = None
    limits: LimitsTable = LimitsTable()
    module: Annotated[Text, AfterValidator(python_source)] | None = None
    dtypes: dict[str, Annotated[str, AfterValidator(_dtype)]] = Field(default_factory=dict)
    quantize: Annotated[QuantizeTable | None, BeforeValidator(_short_for("dtype"))] = None
    calibration_data: Data | None = None

    @model_validator(mode="after")
    def _with_data(self) -> ModelTable:
        if self.quantize is not None and self.quantize.dtype == "int8" and self.calibration_data is None:
            raise ValueError('quantize needs samples to calibrate by, for example calibration_data = "images"')
        return self


class BenchTable(Table):
    models: list[KnownModel] | None = None
    warmup: Count = 3
    count: Positive = 50
    minimum_s: Seconds = 1.0
    maximum_s: Seconds = 10.0
    deadline_s: PositiveSeconds = 600.0
    dataset_limit: Count | None = None

    @model_validator(mode="after")
    def _in_order(self) -> BenchTable:
        if self.minimum_s > self.maximum_s:
            raise ValueError(f"minimum_s ({self.minimum_s:g}) is more than maximum_s ({self.maximum_s:g})")
        return self


class TrackerTable(Table):
    host: Text = "127.0.0.1"
    port: Port = 9190
    port_end: Annotated[int, Field(ge=2, le=65536)] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> TrackerTable:
        if self.end() <= self.port:
            raise ValueError(f"port_end ({self.port_end}) must be more than port ({self.port})")
        return self

    def end(self) -> int:
        return min(self.port + 9, 65536) if self.port_end is None else self.port_end


class Document(Table):
    store: Text | None = None
    devices: dict[Name, DeviceTable] = Field(default_factory=dict)
    profiles: dict[Name, ProfileTable] = Field(default_factory=dict)
    models: dict[Name, ModelTable] = Field(default_factory=dict)
    bench: BenchTable = BenchTable()
    limits: AllLimitsTable = AllLimitsTable()
    tracker: TrackerTable = TrackerTable()


_TABLES: Mapping[Key, type[Table]] = {
    (): Document,
    ("devices", "*"): DeviceTable,
    ("devices", "*", "options"): OptionsTable,
    ("profiles", "*"): ProfileTable,
    ("models", "*"): ModelTable,
    ("models", "*", "preprocess"): PreprocessTable,
    ("models", "*", "quantize"): QuantizeTable,
    ("models", "*", "limits"): LimitsTable,
    ("limits",): AllLimitsTable,
    **{("limits", name): LimitsTable for name in AllLimitsTable.model_fields},
    ("bench",): BenchTable,
    ("tracker",): TrackerTable,
}
_EXAMPLES = {"profile": 'profile = "rasp3b"', "url": 'url = "local:"', "source": 'source = "model.onnx"'}


def check(data: Mapping[str, Any], around: Surroundings) -> tuple[Document | None, list[tuple[Key, str]]]:
    """The document, or every mistake in it: where, and what."""
    try:
        return Document.model_validate(data, context=around), []
    except ValidationError as exc:
        found = [(tuple(one["loc"]), one["type"], in_words(one)) for one in exc.errors(include_url=False)]
    misspelt = {(*path[:-1], words.split("'")[1]) for path, kind, words in found if kind == "extra_forbidden" and "did you mean" in words}
    found = [one for one in found if not (one[1] == "missing" and one[0] in misspelt)]
    return None, [(tuple(part for part in path if part != "[key]"), words) for path, _, words in found]


def in_words(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors, for people who know TOML and not pydantic."""
    path, kind, value, limits = error["loc"], error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        named = path[0] not in ("bench", "limits", "tracker")
        pattern = tuple("*" if place == 1 and named else part for place, part in enumerate(path[:-1]))
        return f"unknown key, {did_you_mean(str(path[-1]), _TABLES[pattern].model_fields)}"
    if kind == "missing":
        return f"is missing, for example {_EXAMPLES[str(path[-1])]}"
    if kind == "value_error":
        return str(limits["error"])
    if kind in EXPECTED:
        return f"{EXPECTED[kind].format_map(limits)}, got {described(value)}"
    return f"{described(value)} is not accepted here"
