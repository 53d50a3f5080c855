"""farm accuracy: count correct answers on labelled samples, on devices and on the reference."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.commands.common import Session, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import (
    FiniteFloatRange,
    add_device_selection_options,
    configured_name_completer,
)
from farm.commands.output import echo, show_error
from farm.commands.reservation_option import checked_reserved_devices, with_reservation

if TYPE_CHECKING:
    from farm.pipeline.accuracy import AccuracyResults
    from farm.types import Accuracy, Device, Model


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@add_device_selection_options
@click.option(
    "--data",
    "path",
    type=click.Path(path_type=Path),
    metavar="DIR|NPZ",
    help=(
        "Images in folders by class, or an .npz with inputs and labels. [default: the model's "
        "`dataset`]"
    ),
)
@click.option(
    "--samples",
    "count",
    type=click.IntRange(1),
    metavar="N",
    help="The number of samples, spread evenly. [default: all]",
)
@click.option(
    "--min-top1",
    type=FiniteFloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with 7 if the top-1 of a device is below this.",
)
@click.option("--fresh", is_flag=True, help="Start again; discard the answers of an earlier run.")
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="SECONDS",
    help="The longest to wait for a device's next answers.",
)
@with_model_properties
@with_reservation
@with_session
def accuracy(
    session: Session,
    model: str,
    devices: tuple[str, ...],
    tags: tuple[str, ...],
    everywhere: bool,
    path: Path | None,
    count: int | None,
    min_top1: float | None,
    fresh: bool,
    deadline_s: float | None,
    described: ModelProperties,
    reservation: int | None,
) -> None:
    """Measure top-1 and top-5 accuracy of a classifier on devices and on its reference.

    All devices, and the reference on this machine, run in parallel on the same samples.

    The folders of DIR are named after the model's labels or after their numbers. If neither fits
    and there are as many folders as classes, they are the classes in order of name. Images are
    preprocessed as the model's `preprocess` says. The set may be larger than memory. Answers are
    stored as they arrive: if the run is interrupted, for example by Ctrl-C, the same command
    continues it.

    \b
    farm accuracy --device pi3 digits
    farm accuracy --device pi5 --device rk3399 net.onnx --data imagenet/val --samples 5000
    farm accuracy --all net --data test.npz --min-top1 75
    """
    from farm.pipeline.accuracy import accuracy_to_json

    fleet = session.fleet()
    chosen = described.of(fleet.model(model))
    boards = checked_reserved_devices(
        session, fleet.select_devices(devices, tags, everywhere), reservation
    )
    measured = _count(
        session,
        chosen,
        boards,
        _path(chosen, path),
        count,
        fresh,
        deadline_s,
    )
    found = measured.found
    failed = [one for one in found if one.failure]
    low = [
        one.name
        for one in found[:-1]
        if min_top1 is not None and one.answered and 100 * one.top1 < min_top1 * one.answered
    ]
    if session.as_json:
        *on_devices, reference = map(accuracy_to_json, found)
        session.document(
            "accuracy",
            {
                "model": chosen.name,
                "devices": on_devices,
                "reference": reference,
                "note": measured.note,
                "below": low,
            },
        )
    else:
        _show(session, measured)
    _end(failed, low, min_top1)


def _path(model: Model, path: Path | None) -> Path:
    from farm.errors import UsageError

    if path is None and model.dataset is None:
        why = "it has no `dataset` in devices.toml"
        raise UsageError(
            f"there are no data for {model.name}",
            why,
            f"farm accuracy {shlex.quote(model.name)} --data DIR",
        )
    return path.absolute() if path else model.dataset  # type: ignore[return-value]


def _count(
    session: Session,
    model: Model,
    devices: Sequence[Device],
    path: Path,
    count: int | None,
    fresh: bool,
    deadline_s: float | None,
) -> AccuracyResults:
    from farm import dashboard
    from farm.pipeline.accuracy import AccuracyProgressState
    from farm.pipeline.accuracy import measure_accuracy as measure
    from farm.processes import signals
    from farm.store import PredictionStore

    fleet = session.fleet()
    last: list[AccuracyProgressState] = []
    with (
        signals.defer_signals(),
        dashboard.show_accuracy_progress(session.err(), quiet=session.verbosity < 0) as display,
    ):

        def show(counting: AccuracyProgressState) -> None:
            last[:] = [counting]
            display(counting)

        try:
            return measure(
                model,
                devices,
                path,
                host=host_profile(fleet),
                store=session.artifacts(),
                keep=PredictionStore.of_user(),
                deadlines_s={
                    device.name: fleet.deadline_s(device, deadline_s) for device in devices
                },
                count=count,
                fresh=fresh,
                told=display.told,
                show=show,
            )
        except BaseException:
            kept = sum(len(one.best) for one in last[0].participants) if last else 0
            if kept:
                echo(f"{kept} answers kept: the same command goes on", err=True)
            raise


def _show(session: Session, measured: AccuracyResults) -> None:
    from farm.views.accuracy import accuracy_table

    console, found = session.out(), measured.found
    console.print(accuracy_table(found, measured.classes, console.width))
    converted = Counter[str]()
    for one in found:
        converted |= Counter(one.converted)  # each device reads the same images
    for words, count in sorted(converted.items()):
        echo(f"{count} images converted: {words}")
    if measured.note:
        echo(measured.note)
    if kept := max(one.kept for one in found):
        echo(f"up to {kept} answers are from an earlier run (--fresh begins anew)")


def _end(failed: Sequence[Accuracy], low: Sequence[str], min_top1: float | None) -> None:
    """Print each distinct failure once, and exit with its code."""
    from farm.errors import WrongAnswer, error_from_failure

    failures = {(one.failure.what, one.failure.why): one.failure for one in failed if one.failure}
    for failure in failures.values():
        show_error(error_from_failure(failure))
    if failures:
        raise SystemExit(next(iter(failures.values())).exit_code if len(failures) == 1 else 1)
    if low:
        show_error(
            WrongAnswer(
                f"top-1 is below {min_top1:g} % on {', '.join(low)}",
                "that is what --min-top1 asks for",
                "",
            )
        )
        raise SystemExit(WrongAnswer.exit_code)
