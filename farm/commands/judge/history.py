"""farm history: list stored runs."""

from __future__ import annotations

import click

from farm.commands.common import Session, report_no_runs, with_session
from farm.commands.options import configured_name_completer, with_device_filter
from farm.commands.output import echo


@click.command()
@click.argument("model", required=False, shell_complete=configured_name_completer("models"))
@with_device_filter
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="The number of runs.",
)
@with_session
def history(session: Session, model: str | None, device: str | None, limit: int) -> None:
    """Show stored runs, the newest first, failed ones too.

    For one model on one device, also show its medians over time, the steps in them, and what else
    changed at each step.

    \b
    farm history resnet18 --device pi3
    farm history --json --limit 1000 > runs.json
    """
    from farm.store import run_to_json
    from farm.views.comparison import history_lines
    from farm.views.runs import history_table

    runs = session.farm().history(model, device=device, limit=limit)
    if session.as_json:
        session.document("history", {"runs": [run_to_json(run) for run in runs]})
        return
    if not runs:
        report_no_runs(session, (model,) if model else (), (device,) if device else ())
        return
    console = session.out()
    console.print(history_table(runs, console.width))
    if model and len({run.device for run in runs}) == 1:
        for line in history_lines(runs[::-1]):
            echo(line)
