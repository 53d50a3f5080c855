"""A report as Markdown, for a pull request's comment: a table, the failures, and the comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from farm import formatting
from farm.stats import ChangeVerdict
from farm.types import Run
from farm.views.report_content import Report

_LINKED = re.compile(r"@(?=\w)|://|(?i:www)(?=\.)")  # GitHub turns these into links or mentions
_SIGN = {
    ChangeVerdict.SLOWER: "🔺",
    ChangeVerdict.FASTER: "🟢",
    ChangeVerdict.SAME: "＝",
    ChangeVerdict.UNSURE: "❔",
}


def markdown_report(report: Report) -> str:
    """Return the text, which ends with a line break."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"### {_text(report.title)}"
    yield ""
    counted = ", ".join(f"{number} {verdict.value}" for verdict, number in report.verdicts.items())
    models, devices = (
        formatting.format_count(len(report.models), "model"),
        formatting.format_count(len(report.devices), "device"),
    )
    yield f"{models} on {devices}: {counted or 'no runs'}."
    yield ""
    if report.series:
        yield from _table(
            ["device", *report.models],
            [[_text(device), *_row(report, device)] for device in report.devices],
        )
    for whose, what in report.complaints:
        yield f"- ✗ **{_text(whose)}**: {_text(what)}"
    if report.complaints:
        yield ""
    if report.pairs:
        yield f"**Compared with {_text(report.baseline)}**"
        yield ""
        rows = []
        for pair in report.pairs:
            found, (first, second) = pair.found, (_median(run) for run in (pair.first, pair.second))
            change = f"{_SIGN[found.change]} {found.change.value}"
            cells = (
                pair.second.device,
                pair.second.title,
                first,
                second,
                change,
                found.reason,
                "; ".join(pair.differences),
            )
            rows.append(list(map(_text, cells)))
        yield from _table(
            ["device", "model", "before", "after", "", "in words", "also differs"], rows
        )
    if steps := [move for one in report.series.values() for move in one.moves]:
        count = formatting.format_count(len(steps), "step")
        yield f"<details><summary>{count} in the history</summary>"
        yield ""
        yield from (
            f"- {_text(move.after.title)} on {_text(move.after.device)}: {_text(move.in_words)}"
            for move in steps
        )
        yield ""
        yield "</details>"


def _row(report: Report, device: str) -> list[str]:
    runs = [report.series.get((device, model)) for model in report.models]
    return [_cell(one.newest) if one else "" for one in runs]


def _cell(run: Run) -> str:
    verdict = run.verdict.value if run.good else f"**{run.verdict.value}**"
    return f"{_text(_median(run))} {verdict}".strip()


def _median(run: Run) -> str:
    return "" if run.emulated else formatting.format_median_latency_and_iqr(run)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table. The titles are plain text, the cells are Markdown."""
    yield "| " + " | ".join(map(_text, titles)) + " |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _text(text: str) -> str:
    """Return untrusted text on one line, escaped for Markdown.

    It contains no markup, entity, link or mention of a person: names may hold | or <.
    """
    escaped = re.sub(
        r"([\\`*_{}\[\]<>#|~$])", r"\\\1", formatting.sanitized_line(text).replace("&", "&amp;")
    )
    return _LINKED.sub(lambda found: f"{found[0]}<!-- -->", escaped)
