"""farm tune: search for faster kernels on real devices."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import (
    FiniteFloatRange,
    add_cluster_option,
    configured_name_completer,
    create_device_option,
)
from farm.commands.output import echo, show_error
from farm.commands.reservation_option import checked_reserved_devices, with_reservation

if TYPE_CHECKING:
    from farm.pipeline.tuning.loop import BoardState, TuningState
    from farm.pipeline.tuning.tune import TuningResult


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@create_device_option(
    "devices", "A device; may be repeated for devices of one profile.", multiple=True, required=True
)
@click.option(
    "-m",
    "--minutes",
    type=FiniteFloatRange(0.05),
    default=10.0,
    show_default=True,
    help="The longest to search.",
)
@with_model_properties
@add_cluster_option
@with_reservation
@with_session
def tune(
    session: Session,
    model: str,
    devices: tuple[str, ...],
    minutes: float,
    cluster: str | None,
    reservation: int | None,
    described: ModelProperties,
) -> None:
    """Search for faster kernels of a model on real devices, and store them as records.

    For each distinct kernel, candidate schedules are built and measured on the device, the most
    expensive kernels and the most promising candidates first, until nothing is left to gain or the
    time is over. For kernels that farm has no rule for, MetaSchedule proposes the candidates. Every
    later build of any model with the same kernel for the same core uses the records: see farm
    records. At the end the model is measured before and after, interleaved. Ctrl-C keeps the
    records found so far. On a cluster, candidates are built ahead, so that the devices do not wait.

    \b
    farm tune --device pi3 resnet18 --minutes 30
    farm tune --device host model.onnx --minutes 5
    """
    from farm import dashboard
    from farm.errors import FarmError
    from farm.pipeline.tuning.tune import tune_model as search
    from farm.processes import signals
    from farm.store import TuningRecordStore

    session.cluster = cluster
    fleet = session.fleet()
    chosen = described.of(fleet.model(model))
    boards = checked_reserved_devices(
        session, fleet.select_devices(devices, (), False), reservation
    )
    last: list[TuningState] = []

    with (
        signals.defer_signals(),
        session.farm().cluster_engine() as engine,
        dashboard.show_tuning_progress(
            session.err(), minutes, quiet=session.verbosity < 0
        ) as display,
    ):

        def show(work: TuningState, line: str) -> None:
            last[:] = [work]
            display(work, line)

        try:
            tuned = search(
                chosen,
                boards,
                host=host_profile(fleet),
                store=session.artifacts(),
                records=TuningRecordStore.of_user(),
                minutes=minutes,
                show=show,
                cluster=engine,
            )
        except BaseException:
            if last and last[0].kept:
                echo(f"{last[0].kept} records kept: farm records", err=True)
            raise
    work = last[0]
    if session.as_json:
        session.document("tune", _body(work, tuned))
        return
    console = session.out()
    console.print(dashboard.kernel_table(work, console.width))
    for board in work.boards:
        echo(
            f"{board.slot.removeprefix('device-')}: {board.batches} "
            f"batches{waiting_time_text(board)}"
            f"{', left alone: ' + board.said if board.gone else ''}"
        )
    for name in work.skipped:
        show_error(FarmError(f"skipped: {name}", "the device died twice while it tried this", ""))
    echo(f"{work.kept} records kept for {work.core}")
    echo(f"{chosen.name}: {search_result_text(tuned)}")


def waiting_time_text(board: BoardState) -> str:
    """Return in words how long a board waited for candidates; "" for less than a second."""
    return f", waited {board.waited_s:.0f} s for candidates" if board.waited_s >= 1 else ""


def search_result_text(tuned: TuningResult) -> str:
    """Return the result of a search as text."""
    from farm.pipeline.tuning.tune import WORTH_SAYING

    if tuned.paired is None or tuned.speedup is None:
        return "nothing faster was found: the code is the same as before"
    ratio, low, high = tuned.speedup
    before, after = (
        1e3 * statistics.median(seconds) for seconds in (tuned.paired.before, tuned.paired.after)
    )
    pairs = len(tuned.paired.before)
    figures = (
        f"{before:.3g} -> {after:.3g} ms, {pairs} pairs, 95 % confidence {100 * (low - 1):+.1f} "
        f"to {100 * (high - 1):+.1f} %"
    )
    if low > 1 and ratio - 1 >= WORTH_SAYING:
        return f"{100 * (ratio - 1):.1f} % faster ({figures})"
    if tuned.slower:
        return (
            f"{100 * (1 - ratio):.1f} % slower as a whole ({figures}): the records are as they "
            "were before"
        )
    return f"nothing gained: no difference of {100 * WORTH_SAYING:.1f} % or more ({figures})"


def _body(work: TuningState, tuned: TuningResult) -> dict[str, Any]:
    kernels = [
        {
            "workload": kernel.task.workload,
            "calls": kernel.task.calls,
            "share": work.search.share(kernel),
            "choice": dict(kernel.best.choice),
            "seconds": kernel.best_s,
            "default_s": kernel.default_s,
            "tried": len(kernel.tried),
            "candidates": None if kernel.task.open else len(kernel.task.candidates),
            "skipped": kernel.skipped,
        }
        for kernel in work.search.kernels
    ]
    paired = None
    if tuned.paired and tuned.speedup:
        ratio, low, high = tuned.speedup
        paired = {
            "before_s": tuned.paired.before,
            "after_s": tuned.paired.after,
            "speedup": ratio,
            "low": low,
            "high": high,
        }
    boards = {board.slot.removeprefix("device-"): board.batches for board in work.boards}
    return {
        "model": work.model.name,
        "core": work.core,
        "records": work.kept,
        "boards": boards,
        "kernels": kernels,
        "before": tuned.before.digest,
        "after": tuned.after.digest,
        "paired": paired,
        "verdict": search_result_text(tuned),
    }
