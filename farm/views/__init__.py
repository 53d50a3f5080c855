"""Tables for people and documents for programs.

    tables                 build a table from columns, omitting those that are empty or do not fit
    runs                   runs: the final table of bench, and the history
    comparison             compared runs, and the history of a model on a device
    accuracy               accuracies of devices and of the reference
    bisection              the layers of a bisected model, and advice
    quantization_errors    the layers of a quantized model, with their error
    profiling              a profile: table, JSON, trace
    lab                    the boards and the leases of a lab
    other_engines          farm compared with other engines
    report_content         the content of a report; html and markdown show it
    html_report            a report as one HTML page
    markdown               a report as Markdown
    charts                 charts of the HTML report, as SVG
    profile_roofline_data  read the JSON of `farm profile` for the report
    schema                 JSON Schemas of all documents

Devices, deployments, kernels, tuning records and time ledgers are in this module. All are pure
functions, and the caller prints. Text from devices, models and errors is plain text, never markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from farm import formatting as words
from farm import stats
from farm.types import Kernel, Release, TuningRecord
from farm.views.tables import Column, build_table, table_with_note

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATE_STYLE = {
    "ready": "green",
    "emulated": "magenta",
    "busy": "yellow",
    "offline": "red",
    "unavailable": "red",
    "unknown": "bright_black",
}


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device as `farm devices` shows it. `facts` are shown below its note."""

    name: str
    profile: str
    url: str
    tags: tuple[str, ...] = ()
    state: str = "unknown"
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheRow:
    """A cache, and the numbers of imported models, builds and bytes in it."""

    place: str
    models: int
    builds: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Score:
    """One of the largest scores: its class's index and label, and the score itself.

    The label is the index if the class has none.
    """

    index: int
    label: str
    score: float


def devices_table(rows: Sequence[DeviceRow], width: int) -> Table:
    """Return a table of devices and their state."""
    columns: list[Column[DeviceRow]] = [
        Column("device", lambda row: row.name, style="bold"),
        Column("profile", lambda row: row.profile),
        Column("state", lambda row: Text(row.state, STATE_STYLE.get(row.state, ""))),
        Column("url", lambda row: row.url),
        Column("tags", lambda row: ", ".join(row.tags), 90, style="bright_black"),
        Column("note", _note),
    ]
    return build_table(columns, rows, width)


def deployments_table(rows: Sequence[tuple[str, Release]], width: int) -> Table:
    """Return a table of the releases on devices, with an arrow at the current ones."""
    columns: list[Column[tuple[str, Release]]] = [
        Column("device", lambda row: row[0], style="bold"),
        Column("model", lambda row: row[1].name),
        Column(
            "release", lambda row: f"{'→ ' if row[1].current else ''}{row[1].number}", right=True
        ),
        Column("installed (UTC)", lambda row: row[1].installed_at[:16].replace("T", " ")),
        Column("artifact", lambda row: row[1].artifact[:12]),
        Column("profile", lambda row: row[1].profile, 90, style="bright_black"),
        Column("farm", lambda row: row[1].versions.get("farm", ""), 90, style="bright_black"),
        Column("TVM", lambda row: row[1].versions.get("apache-tvm", ""), 110, style="bright_black"),
    ]
    return build_table(columns, rows, width)


def kernel_table(kernels: Sequence[Kernel], width: int) -> Group:
    """Return a table of a build's fused kernels and their schedules, and a summary below it.

    The kernels with the most arithmetic come first. The summary says which share of the arithmetic
    uses the general rule or fell back.
    """
    total, halved = (
        sum(kernel.operations for kernel in kernels) or 1,
        any(kernel.halves for kernel in kernels),
    )
    columns: list[Column[Kernel]] = [
        Column("kernel", lambda kernel: kernel.name, style="bold"),
        Column("rule", lambda kernel: kernel.rule),
        Column("tile", lambda kernel: f"{kernel.choice}{', recorded' if kernel.recorded else ''}"),
        Column(
            "share %",
            lambda kernel: f"{100 * kernel.operations / total:.1f}" if kernel.operations else "",
            right=True,
        ),
        Column(
            "of peak %",
            lambda kernel: "" if kernel.share is None else f"{100 * kernel.share:.0f}",
            right=True,
        ),
        Column("note", _remark, style="yellow"),
    ]
    if halved:
        columns.insert(
            3,
            Column("float16 weights", lambda kernel: kernel.halves and f"widened {kernel.halves}"),
        )
    table = build_table(columns, sorted(kernels, key=lambda kernel: -kernel.operations), width)
    return table_with_note(table, Text(_summary(kernels, total)))


def _remark(kernel: Kernel) -> str:
    """Return why a kernel fell back, or why it is slow."""
    return kernel.note or (kernel.slow and f"slow: {kernel.slow}")


def _summary(kernels: Sequence[Kernel], total: int) -> str:
    """Return the kernels' share of the arithmetic by kind of rule, as text."""
    groups = [
        ([kernel for kernel in kernels if kernel.rule == "tensor cores"], "on tensor cores"),
        (
            [
                kernel
                for kernel in kernels
                if kernel.rule in ("general", "none") and not kernel.note
            ],
            "by the general rule (element by element, or TVM's own loops)",
        ),
        ([kernel for kernel in kernels if kernel.note], "fell back, for the reason in the note"),
        (
            [kernel for kernel in kernels if kernel.slow],
            "slow, predicted below a third of what a core can do",
        ),
    ]
    counted = [
        (group, words, 100 * sum(kernel.operations for kernel in group) / total)
        for group, words in groups
        if group
    ]
    return "\n".join(
        [
            f"{len(kernels)} kernels",
            *(
                f"{len(group)} {words}: {share:.2f} % of the arithmetic"
                for group, words, share in counted
            ),
        ]
    )


def records_table(records: Sequence[TuningRecord], width: int) -> Table:
    """Return a table of tuning records, one line per CPU model and workload."""
    columns: list[Column[TuningRecord]] = [
        Column("core", lambda record: record.core),
        Column("workload", lambda record: record.workload, style="bold"),
        Column(
            "choice",
            lambda record: " ".join(
                str(value) for name, value in record.choice.items() if name != "trace"
            ),
        ),
        Column("us", lambda record: words.format_number(1e6 * record.seconds), right=True),
        Column("speed-up", lambda record: f"{record.default_s / record.seconds:.2f}x", right=True),
        Column("runs", lambda record: str(record.runs), 120, right=True),
        Column("device", lambda record: record.device, 120),
        Column(
            "measured (UTC)",
            lambda record: record.measured_at[:16].replace("T", " "),
            140,
            style="bright_black",
        ),
    ]
    return build_table(columns, records, width)


def cache_table(rows: Sequence[CacheRow], width: int) -> Table:
    """Return a table of caches of builds."""
    columns: list[Column[CacheRow]] = [
        Column("cache", lambda row: row.place, style="bold"),
        Column("models", lambda row: str(row.models), right=True),
        Column("builds", lambda row: str(row.builds), right=True),
        Column("MB", lambda row: f"{row.nbytes / 1e6:.1f}", right=True),
    ]
    return build_table(columns, rows, width)


def ledger_table(ledger: Mapping[str, Mapping[str, float]], width: int) -> Table:
    """Return a table of seconds spent: a row per worker, a column per part.

    The smallest parts are added up as "other" if not all columns fit.
    """
    parts = list(dict.fromkeys(part for worker in ledger.values() for part in worker))
    totals = {part: sum(worker.get(part, 0.0) for worker in ledger.values()) for part in parts}
    room = (
        width - 2 - max(map(cell_len, ["seconds", *ledger])) - 2 * (3 + 6)
    )  # for "other" and "total", gaps of 3
    shown: set[str] = set()
    for part in sorted(parts, key=lambda part: -totals[part]):
        room -= max(6, cell_len(part)) + 3
        if room >= 0:
            shown.add(part)
    columns: list[Column[tuple[str, Mapping[str, float]]]] = [
        Column("seconds", lambda row: row[0], style="bold")
    ]
    columns += [
        Column(part, lambda row, part=part: _seconds(row[1].get(part)), right=True)  # type: ignore[misc]
        for part in parts
        if part in shown
    ]
    columns.append(
        Column(
            "other",
            lambda row: _seconds(sum(s for part, s in row[1].items() if part not in shown)),
            right=True,
        )
    )
    columns.append(
        Column("total", lambda row: _seconds(sum(row[1].values())), right=True, style="bold")
    )
    return build_table(columns, list(ledger.items()), width)


def json_document(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that `--json` prints: the body with the name of its schema.

    A change that would break a reader increments the number in the name.
    """
    return {"schema": f"farm/{kind}/1", **body}


def top_k(scores: NDArray[Any], labels: Sequence[str] | None = None, k: int = 5) -> list[Score]:
    """Return the k largest of a vector of scores (shape N or 1 x N), the largest first.

    Equal scores are ordered by index; NaN comes last.
    """
    if scores.size != scores.shape[-1]:
        raise ValueError(f"no vector of scores: shape {scores.shape}")
    values = scores.reshape(-1)
    order = stats.top_indices(scores, k)
    return [
        Score(
            index,
            labels[index] if labels and index < len(labels) else str(index),
            float(values[index]),
        )
        for index in order
    ]


def _note(row: DeviceRow) -> Text:
    note = Text(words.sanitized_line(row.note))
    for name, value in row.facts.items():
        note.append("\n" if note else "").append(
            words.sanitized_line(f"{name}: {value}"), "bright_black"
        )
    return note


def _seconds(value: float | None) -> str:
    if not value:
        return ""
    return (
        f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"
        if value >= 0.005
        else "<0.01"
    )
