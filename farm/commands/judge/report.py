"""farm report: write stored runs as an HTML page or as Markdown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from farm.commands.common import Session, report_no_runs, with_session, write_atomically
from farm.commands.judge import baseline_comparison
from farm.commands.options import configured_name_completer, with_several_devices
from farm.commands.output import echo, echo_text

_DEFAULT = Path("report.html")


@click.command()
@click.argument(
    "models", nargs=-1, metavar="[MODEL]...", shell_complete=configured_name_completer("models")
)
@with_several_devices
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write. [default: report.html; Markdown: stdout]",
)
@click.option(
    "--roofline",
    "profiles",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with the output of farm profile --json; may be repeated.",
)
@click.option("--markdown", is_flag=True, help="Write Markdown, for a pull request's comment.")
@click.option("--baseline", metavar="NAME", help="Compare the newest runs with a baseline.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="The number of newest runs of each model on each device.",
)
@click.option("--title", default="Models on devices", show_default=True, help="The title.")
@with_session
def report(
    session: Session,
    models: tuple[str, ...],
    devices: tuple[str, ...],
    output: Path | None,
    markdown: bool,
    baseline: str | None,
    profiles: tuple[Path, ...],
    limit: int,
    title: str,
) -> None:
    """Write stored runs as one HTML page that needs no network.

    It shows verdicts, distributions, history with its steps, comparison, and where the time went.
    The default is all stored runs; MODEL and --device select some. The page has a light and a dark
    theme, and suits large and small screens.

    \b
    farm report -o report.html
    farm report mobilenet_v2 --device pi4 --baseline release-1
    farm report --markdown --baseline release-1 > comment.md
    """
    from farm.formatting import format_count
    from farm.views import profile_roofline_data
    from farm.views.report_content import build_report

    before = baseline_comparison.load_baseline_runs(session, baseline, None)
    runs = session.record().newest(limit, models, devices)
    if not runs:
        report_no_runs(session, models, devices)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    found = build_report(
        runs,
        title=title,
        made_at=made_at,
        baseline=baseline or "",
        before=before,
        rooflines=[profile_roofline_data.read_profile_json(path) for path in profiles],
    )
    if markdown:
        from farm.views.markdown import markdown_report as text_of
    else:
        from farm.views.html_report import render_page as text_of
    text, path = text_of(found), output or (None if markdown else _DEFAULT)
    if path:
        write_atomically(path, text)
    if session.as_json:
        session.document("report", {"path": str(path or ""), **found.as_json()})
    elif path is None:
        echo_text(text)
    elif session.verbosity >= 0:
        runs_of, on = (
            format_count(found.run_count, "run"),
            format_count(len(found.devices), "device"),
        )
        echo(
            (
                f"{path}: {len(text.encode()) / 1e6:.2f} MB, {runs_of} of "
                f"{format_count(len(found.models), 'model')} on {on}"
            ),
            err=True,
        )
