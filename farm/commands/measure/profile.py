"""farm profile: measure the time of each kernel of an inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.commands.common import (
    Session,
    check_writable,
    host_profile,
    with_session,
    write_atomically,
)
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import FiniteFloatRange, configured_name_completer, with_device
from farm.commands.output import echo
from farm.commands.reservation_option import checked_reserved_devices, with_reservation
from farm.commands.thread_options import (
    ThreadSettings,
    devices_per_thread_setting,
    thread_options_decorator,
)

if TYPE_CHECKING:
    pass

_MOST = 20  # kernels, without -v


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@with_device
@click.option(
    "--seconds",
    type=FiniteFloatRange(0.1),
    default=3.0,
    show_default=True,
    help="About how long to record.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a trace of one inference for ui.perfetto.dev or speedscope.",
)
@thread_options_decorator(several=False)
@with_model_properties
@with_reservation
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="SECONDS",
    help="The longest it may take on the device.",
)
@with_session
def profile(
    session: Session,
    model: str,
    device_name: str,
    seconds: float,
    trace: Path | None,
    described: ModelProperties,
    reservation: int | None,
    deadline_s: float | None,
    asked: ThreadSettings,
) -> None:
    """Measure the time of each kernel of an inference, and its share of what the device can do.

    Recorded and unrecorded inferences alternate within one run on the device. The kernels' times
    can therefore be compared with the latency, and the time between them is shown. The roof is
    measured in addition, with the same threads. -v shows every kernel.

    \b
    farm profile --device host mobilenet_v2
    farm profile --device pi3 model.onnx --threads 1 --trace trace.json
    """
    from farm import views
    from farm.commands.progress import Spinner
    from farm.pipeline.profile import profile_model as profile_on
    from farm.views.profiling import profile_table, profile_to_json, trace_events

    check_writable(trace)
    fleet = session.fleet()
    boards = checked_reserved_devices(session, [fleet.device(device_name)], reservation)
    (device,) = devices_per_thread_setting(session, boards, asked)
    chosen = described.of(fleet.model(model))
    deadline_s = fleet.deadline_s(device, deadline_s)
    with Spinner(session, f"{chosen.name} on {device.name}") as spinner:
        profiled = profile_on(
            chosen,
            device,
            host=host_profile(fleet),
            store=session.artifacts(),
            seconds=seconds,
            deadline_s=deadline_s,
            show=spinner.show,
        )
    if trace:
        write_atomically(trace, json.dumps(trace_events(profiled), allow_nan=False) + "\n")
    if session.as_json:
        session.document("profile", profile_to_json(profiled))
        return
    console = session.out()
    console.print(profile_table(profiled, console.width, None if session.verbosity > 0 else _MOST))
    if session.verbosity > 0:
        console.print(views.ledger_table({device.name: profiled.ledger}, console.width))
    if trace:
        echo(f"one inference in {trace}: open it at https://ui.perfetto.dev or in speedscope")
