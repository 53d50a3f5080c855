"""farm report: what was measured, as one page or as Markdown."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import click

from farm.commands import comparing
from farm.commands.common import Session, complete, shared

_DEFAULT = Path("report.html")


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete("models"))
@click.option(
    "-d", "--device", "devices", multiple=True, metavar="NAME", help="A device; may be repeated.", shell_complete=complete("devices")
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file.  [default: report.html; Markdown: stdout]")
@click.option("--markdown", is_flag=True, help="Markdown, for the comment of a pull request.")
@click.option("--baseline", metavar="NAME", help="Compare the newest runs with a baseline.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="The newest so many runs of each model on each device."
)
@click.option("--title", default="Models on devices", show_default=True, help="The heading.")
@shared
def report(
    session: Session,
    models: tuple[str, ...],
    devices: tuple[str, ...],
    output: Path | None,
    markdown: bool,
    baseline: str | None,
    limit: int,
    title: str,
) -> None:
    """Write what was measured as one page that needs no network: verdicts, distributions, history with its steps, comparison, ledger.

    Of all kept runs, or of the models and devices named. A browser shows it in light or dark, on a desk or a phone.

    \b
    farm report -o report.html
    farm report mobilenet_v2 --device pi4 --baseline release-1
    farm report --markdown --baseline release-1 > comment.md
    """
    from farm.store import RunStore, data_root
    from farm.views.report import gather

    before = comparing.baseline_named(baseline, None)
    runs = RunStore(data_root() / "runs.sqlite").newest(limit, models, devices)
    if not runs:
        click.echo("no runs yet: farm bench --all", err=True)
    made_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = gather(runs, title=title, made_at=made_at, baseline=baseline or "", before=before)
    if markdown:
        from farm.views.markdown import document as text_of
    else:
        from farm.views.html import page as text_of
    text, path = text_of(found), output or (None if markdown else _DEFAULT)
    if path:
        _write(path, text)
    if session.as_json:
        session.document("report", {"path": str(path or ""), **found.as_json()})
    elif path is None:
        click.echo(text, nl=False)
    elif session.verbosity >= 0:
        click.echo(f"{path}: {len(text.encode()) / 1e6:.2f} MB, {found.run_count} runs of {len(found.series)} models on devices", err=True)


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    from farm.errors import UsageError

    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written", exc.strerror or str(exc), "name a file in a folder that you may write to") from exc
