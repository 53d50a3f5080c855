"""The tables of devices.toml: keys, types and ranges, and pydantic's errors in plain words.

Every field is validated on its own, with the names and the folder that it refers to in
`ValidationContext`, so that one mistake hides no other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    model_validator,
)

from farm import this_machine
from farm.config.error_messages import EXPECTED, describe_value
from farm.config.model_sources import resolve_file, resolve_source
from farm.config.preprocess import PreprocessTable
from farm.config.table import Table
from farm.config.tolerances import TolerancesByDtypeTable, TolerancesTable
from farm.config.toml_parser import Key
from farm.config.urls import parse_url
from farm.errors import did_you_mean
from farm.types import DTYPES, QuantizeSettings, check_cluster_address, normalize_cache_url
from farm.types.postgres_url import is_postgres_url, parse_postgres_url
from farm.types.python_function_reference import normalize_python_function_reference

_MOST = 2**53  # largest count; JSON and SQLite store it exactly
CORES = re.compile(r"big|little|all|\d+(-\d+)?(,\d+(-\d+)?)*")
_COMMAND = 'command = ["docker", "exec", "-i", "NAME"]'
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_KEY = re.compile(r"[!#-\[\]-~]+")
# also the characters that change the direction of writing
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """The names that fields may refer to: profiles and models; and the folder of relative paths."""

    profiles: frozenset[str]
    models: frozenset[str]
    folder: Path


def _around(info: ValidationInfo) -> ValidationContext:
    return cast(ValidationContext, info.context)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            "a name is made of letters, digits, '_', '-' and '.', and starts with a letter, a "
            "digit or '_'"
        )
    return text


def _line(text: str) -> str:
    """Return a text of one line; raise ValueError for a text with control characters.

    Such texts are passed to shells, unit files and terminals.
    """
    if found := _CONTROL.search(text):
        raise ValueError(
            f"a line break or another control character has no place here, got {found[0]!r}"
        )
    return text


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError(
            "a key is made of ASCII letters, digits and signs, without spaces, quotes and "
            "backslashes"
        )
    return text


def _store(text: str) -> str:
    if is_postgres_url(text):
        parse_postgres_url(text)
    return text


def _url(text: str) -> str:
    parse_url(text)
    return text


def _known(kind: Literal["profile", "model"]) -> Callable[[str, ValidationInfo], str]:
    """Return a validator that accepts the names of known profiles or models."""

    def check(text: str, info: ValidationInfo) -> str:
        known = _around(info).profiles if kind == "profile" else _around(info).models
        if text not in known:
            raise ValueError(
                f"unknown {kind} {text!r}, {did_you_mean(text, known) or 'there are none'}"
            )
        return text

    return check


def _command(words: list[str]) -> list[str]:
    if not words:
        raise ValueError(f"a command has at least one word, for example {_COMMAND}")
    return words


def _cores(text: str) -> str:
    if not CORES.fullmatch(text):
        raise ValueError(
            f'cores are "big", "little", "all", or numbers such as "0,2-3", got {text!r}'
        )
    return text


def _file(text: str, info: ValidationInfo) -> str:
    return str(resolve_file(text, _around(info).folder))


def _data(text: str, info: ValidationInfo) -> str:
    return str(resolve_file(text, _around(info).folder, or_folder=True))


def _source(text: str, info: ValidationInfo) -> str:
    return resolve_source(text, _around(info).folder)


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise ValueError(f"unknown type {text!r}, {did_you_mean(text, DTYPES)}")
    return text


def _short_for(key: str) -> Callable[[object], object]:
    """Return a validator that reads a text as a table with this key.

    `preprocess = "imagenet"` is short for `preprocess = { kind = "imagenet" }`.
    """
    return lambda value: {key: value} if isinstance(value, str) else value


def _target_value(value: object) -> object:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            _line(text)
    words = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if not (isinstance(value, (str, int, dict)) or words):
        raise ValueError(
            "expected text, a whole number, true or false, a list of texts or a table, got "
            f"{describe_value(value)}"
        )
    return value


Text = Annotated[str, Field(min_length=1), AfterValidator(_line)]
Name = Annotated[str, AfterValidator(_name)]
File = Annotated[Text, AfterValidator(_file)]
Data = Annotated[Text, AfterValidator(_data)]
KnownProfile = Annotated[str, AfterValidator(_known("profile"))]
KnownModel = Annotated[str, AfterValidator(_known("model"))]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(gt=0, le=_MOST)]
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


class ProfileTable(Table):
    """A table `[profiles.NAME]`: a kind of board."""

    inherits: KnownProfile | None = None
    """The profile whose keys apply if this one lacks them. Under the name of a built-in profile the
    default is that profile."""
    description: str | None = None
    """The board, its CPU, and what else a user must know."""
    target: dict[str, Annotated[Any, AfterValidator(_target_value)]] | None = None
    """The argument of `tvm.target.Target`. A target without `kind` adds its keys to the inherited
    target; `mcpu = "native"` is the CPU of this machine."""
    triple: Text | None = None
    """The target triple of the toolchain (zig, lld, clang, gcc)."""
    agent: (
        Literal["x86_64", "aarch64", "armv7", "riscv64", "x86_64-cuda", "aarch64-cuda"] | None
    ) = None
    """The build of the agent that the board runs."""
    linker: list[Text] | None = None
    """The linker as a command and its arguments. Without it farm uses its bundled linker."""
    source: str | None = None
    """The source of the facts in this profile."""
    quantize: Literal["int8", "float16"] | None = None
    """Quantize all models for this profile; int8 needs their `calibration_data`."""
    memory_mb: Positive | None = None
    """The board's RAM in MB. Kernels that are faster with several times the memory of their weights
    are used as far as the weights take at most half of it. Without it there is no limit."""


class DeviceOptionsTable(Table):
    """The table `options` of a device."""

    deadline_s: PositiveSeconds | None = None
    """The longest a job may take on this device, instead of the one in `[bench]`."""
    gpu: Count | None = None
    """The index of the GPU on the board, as `nvidia-smi -L` counts."""
    graphs: bool | None = None
    """Replay inferences as one CUDA graph if the GPU and the model allow it. The default is true.
    """
    threads: Positive | None = None
    """Threads of an inference. The default is one for each of the chosen cores."""
    cores: Annotated[str, AfterValidator(_cores)] | None = None
    """The cores to compute on: `"big"` (the default), `"little"`, `"all"`, or numbers such as
    `"0,2-3"`."""
    pinned: bool | None = None
    """Pin each thread to a core of its own."""
    key: Annotated[Text, AfterValidator(_key)] | None = None
    """The key that the agent or RPC server expects. A `key_file` is safer."""
    key_file: File | None = None
    """A file of mode 0600 that contains the key. Neither is needed for an agent that you started on
    this machine with `farm agent`."""
    launcher: Text | None = None
    """A command in front of the agent's, such as `taskset -c 4-5`. It is run unchanged."""
    store: Text | None = None
    """The folder on the device for files that are kept between sessions."""
    store_budget_mb: Positive | None = None
    """The largest size, in MB, of the stored files on the device. The default is 2 GiB."""
    userland: Literal["any"] | None = None
    """`"any"` accepts a 64-bit profile on a board whose kernel is 64-bit and whose programs are
    32-bit."""
    command: Annotated[list[Text], AfterValidator(_command)] | None = None
    """For `exec:` urls: the command that runs a shell there, as a list of words; farm adds `sh`,
    `-c` and a script to them. It must pass its standard input on: `docker exec` needs `-i`."""
    work_dir: Text | None = None
    """The folder on the device for files of one session."""
    wait_s: PositiveSeconds | None = None
    """For boards of a lab: the longest wait for a free one, in seconds. The default is 600."""
    for_s: PositiveSeconds | None = None
    """For boards of a lab: the longest that one is kept, in seconds. The default is 3600."""
    lease_class: Annotated[Literal["interactive", "ci", "batch"] | None, Field(alias="class")] = (
        None
    )
    """For boards of a lab: how urgent a lease is, as `class`: interactive (the default), ci, batch.
    """

    @field_serializer("command")
    def _joined(self, words: list[str] | None) -> str | None:
        return None if words is None else shlex.join(words)

    @model_validator(mode="after")
    def _one_key(self) -> DeviceOptionsTable:
        if self.key is not None and self.key_file is not None:
            raise ValueError("key and key_file: leave one of them out")
        return self


def _for_its_url(options: DeviceOptionsTable, info: ValidationInfo) -> DeviceOptionsTable:
    if "url" not in info.data:  # it is wrong, which has been said
        return options
    by_command = info.data["url"].startswith("exec:")
    if by_command and options.command is None:
        raise ValueError(f"an exec: url needs a command, for example {_COMMAND}")
    if options.command is not None and not by_command:
        raise ValueError("command: only an exec: url has one; did you mean launcher?")
    return options


class DeviceTable(Table):
    """A table `[devices.NAME]`."""

    profile: KnownProfile
    """The kind of board: a built-in profile or one of `[profiles.NAME]`. For `local:` it may be
    left out: it is then `arm64` on an ARM64 machine, and `x86` elsewhere."""
    url: Annotated[str, AfterValidator(_url)]
    """How to reach the device."""
    tags: list[Name] = Field(default_factory=list)
    """Words that select devices: `--tag WORD`."""
    options: Annotated[
        DeviceOptionsTable, Field(validate_default=True), AfterValidator(_for_its_url)
    ] = DeviceOptionsTable()
    """Settings of this device."""

    @model_validator(mode="before")
    @classmethod
    def _of_this_machine(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("url") != "local:" or "profile" in data:
            return data
        return {**data, "profile": this_machine.native_profile_name() or "x86"}


class QuantizeTable(Table):
    """The table `quantize` of a model.

    Unset keys have the defaults of `farm.types.QuantizeSettings`.
    """

    dtype: Literal["int8", "float16"] = "int8"
    """The element type to quantize to. float16 uses none of the other keys."""
    calibration: Literal["kl_divergence", "minmax", "percentile", "global_scale"] | None = None
    """How the ranges of tensors are chosen. The default is `kl_divergence`."""
    weight_scale: Literal["max", "power2"] | None = None
    """`power2` rounds the scales of weights up to powers of two. The default is `max`."""
    per_channel: bool | None = None
    """One scale for each output channel of a weight (the default), or one for the whole tensor."""
    samples: Positive | None = None
    """The number of calibration samples, at most, spread evenly over the data. The default is 128.
    """
    percentile: Annotated[float, Field(gt=0, le=100)] | None = None
    """For `calibration = "percentile"`. The default is 99.99."""
    global_scale: Annotated[float, Field(gt=0)] | None = None
    """For `calibration = "global_scale"`. The default is 8."""

    def made(self) -> QuantizeSettings:
        """Return the quantization settings."""
        return QuantizeSettings(**self.model_dump(exclude_none=True))

    @model_validator(mode="after")
    def _for_its_type(self) -> QuantizeTable:
        said = sorted(self.model_fields_set - {"dtype"})
        if self.dtype == "float16" and said:
            raise ValueError(f"float16 is not calibrated: leave out {', '.join(said)}")
        return self


class ModelTable(Table):
    """A table `[models.NAME]`."""

    source: Annotated[Text, AfterValidator(_source)]
    """A file, `python:package.module:function`, or `package:PATH` inside farm's own folder."""
    shapes: dict[str, list[Count]] = Field(default_factory=dict)
    """The shapes of inputs that the model leaves open, by name. An input of an ONNX model may have
    no elements, as the cache of a decoder before its first token: [1, 8, 0, 64]."""
    values: dict[str, bool | int | float | list[Any]] = Field(default_factory=dict)
    """Inputs of ONNX models, and numbers that TorchScript takes, that are constants, by name: a
    number, or lists of numbers."""
    preprocess: Annotated[PreprocessTable, BeforeValidator(_short_for("kind"))] = PreprocessTable()
    """How an image becomes an input. A text is short for `{ kind = TEXT }`."""
    labels: File | None = None
    """A text file with one label per line."""
    dataset: Data | None = None
    """Labelled samples: an .npz with `inputs` and `labels`, or a folder of images by class."""
    limits: TolerancesTable = TolerancesTable()
    """The largest differences of answers from the reference's."""
    module: Annotated[Text, AfterValidator(normalize_python_function_reference)] | None = None
    """For a .pth file of weights: the function that returns the module, as
    `package.module:function`."""
    dtypes: dict[str, Annotated[str, AfterValidator(_dtype)]] = Field(default_factory=dict)
    """The element types of inputs of TorchScript files, by name."""
    quantize: Annotated[QuantizeTable | None, BeforeValidator(_short_for("dtype"))] = None
    """Quantize the model. A text is short for `{ dtype = TEXT }`."""
    calibration_data: Data | None = None
    """Samples to calibrate int8 with: an .npz or a folder of images. Labels are not needed."""
    trust: bool = False
    """Import the model without a sandbox, as `--trust` does."""

    @model_validator(mode="after")
    def _with_data(self) -> ModelTable:
        if (
            self.quantize is not None
            and self.quantize.dtype == "int8"
            and self.calibration_data is None
        ):
            raise ValueError(
                'quantize needs samples to calibrate by, for example calibration_data = "images"'
            )
        return self


class BenchTable(Table):
    """The table `[bench]`."""

    models: list[KnownModel] | None = None
    """The models that `farm bench` runs if none are named. The default is all models of the file,
    or the built-in ones if it has none."""
    warmup: Count = 3
    """The smallest number of inferences before the first sample."""
    count: Positive = 50
    """The smallest number of samples."""
    minimum_s: Seconds = 1.0
    """The shortest time to take samples for, in seconds."""
    maximum_s: Seconds = 10.0
    """The longest time to take samples for, in seconds."""
    deadline_s: PositiveSeconds = 600.0
    """The longest a whole job may take on a device, in seconds."""
    dataset_limit: Count | None = None
    """The largest number of labelled samples. The default is all of them."""

    @model_validator(mode="after")
    def _in_order(self) -> BenchTable:
        if self.minimum_s > self.maximum_s:
            raise ValueError(
                f"minimum_s ({self.minimum_s:g}) is more than maximum_s ({self.maximum_s:g})"
            )
        return self


class TrackerTable(Table):
    """The table `[tracker]`."""

    host: Text = "127.0.0.1"
    """The address that `farm tracker` listens on."""
    port: Port = 9190
    """The first port that it tries."""
    port_end: Annotated[int, Field(ge=2, le=65536)] | None = None
    """The first port that it no longer tries. The default is `port` + 9."""

    @model_validator(mode="after")
    def _in_order(self) -> TrackerTable:
        if self.end() <= self.port:
            raise ValueError(f"port_end ({self.port_end}) must be more than port ({self.port})")
        return self

    def end(self) -> int:
        """Return the end of the range of ports, exclusive."""
        return min(self.port + 9, 65536) if self.port_end is None else self.port_end


class Document(Table):
    """A whole devices.toml."""

    store: Annotated[Text, AfterValidator(_store)] | None = None
    """The place of the record of runs: a file, or the URL of a PostgreSQL server."""
    cache: Annotated[Text, AfterValidator(normalize_cache_url)] | None = None
    """The shared cache of builds: a bucket, as `s3://BUCKET/PREFIX`, or a folder, as
    `file:///FOLDER`."""
    cluster: Annotated[Text, AfterValidator(check_cluster_address)] | None = None
    """The cluster that makes builds: the scheduler of Dask, as `tcp://HOST:8786` or
    `tls://HOST:8786`; or Slurm, as `slurm` or `slurm:/FOLDER`."""
    devices: dict[Name, DeviceTable] = Field(default_factory=dict)
    """The devices by name."""
    profiles: dict[Name, ProfileTable] = Field(default_factory=dict)
    """Kinds of board that are added or changed, by name."""
    models: dict[Name, ModelTable] = Field(default_factory=dict)
    """The models by name."""
    bench: BenchTable = BenchTable()
    """How to measure."""
    limits: TolerancesByDtypeTable = TolerancesByDtypeTable()
    """The largest differences of answers from the reference's, for all models."""
    tracker: TrackerTable = TrackerTable()
    """The address that `farm tracker` listens on."""


_TABLES: Mapping[Key, type[Table]] = {
    (): Document,
    ("devices", "*"): DeviceTable,
    ("devices", "*", "options"): DeviceOptionsTable,
    ("profiles", "*"): ProfileTable,
    ("models", "*"): ModelTable,
    ("models", "*", "preprocess"): PreprocessTable,
    ("models", "*", "quantize"): QuantizeTable,
    ("models", "*", "limits"): TolerancesTable,
    ("limits",): TolerancesByDtypeTable,
    **{("limits", name): TolerancesTable for name in TolerancesByDtypeTable.model_fields},
    ("bench",): BenchTable,
    ("tracker",): TrackerTable,
}
_EXAMPLES = {
    "profile": 'profile = "rasp3b"',
    "url": 'url = "local:"',
    "source": 'source = "model.onnx"',
}


def table_keys(table: type[Table]) -> list[str]:
    """Return the keys of a table; `class` is no name that Python has for a field."""
    return [field.alias or name for name, field in table.model_fields.items()]


def document_and_validation_errors(
    data: Mapping[str, Any], around: ValidationContext
) -> tuple[Document | None, list[tuple[Key, str]]]:
    """Return the document, or None and every mistake in it as (key, message)."""
    try:
        return Document.model_validate(data, context=around), []
    except ValidationError as exc:
        found = [
            (tuple(one["loc"]), one["type"], describe_error(one))
            for one in exc.errors(include_url=False)
        ]
    misspelt = {
        (*path[:-1], words.split("'")[1])
        for path, kind, words in found
        if kind == "extra_forbidden" and "did you mean" in words
    }
    found = [one for one in found if not (one[1] == "missing" and one[0] in misspelt)]
    return None, [
        (tuple(part for part in path if part != "[key]"), words) for path, _, words in found
    ]


def describe_error(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors in words for users who know TOML and not pydantic."""
    path, kind, value, limits = error["loc"], error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        named = path[0] not in ("bench", "limits", "tracker")
        pattern = tuple(
            "*" if place == 1 and named else part for place, part in enumerate(path[:-1])
        )
        return f"unknown key, {did_you_mean(str(path[-1]), table_keys(_TABLES[pattern]))}"
    if kind == "missing":
        return f"is missing, for example {_EXAMPLES[str(path[-1])]}"
    if kind == "value_error":
        return str(limits["error"])
    if kind in EXPECTED:
        return f"{EXPECTED[kind].format_map(limits)}, got {describe_value(value)}"
    return f"{describe_value(value)} is not accepted here"
