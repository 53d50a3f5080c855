"""farm run: run a model on a device with one input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import FiniteFloatRange, configured_name_completer, with_device
from farm.commands.output import echo
from farm.commands.reservation_option import reserved_devices, with_reservation
from farm.commands.thread_options import (
    ThreadSettings,
    devices_per_thread_setting,
    thread_options_decorator,
)

if TYPE_CHECKING:
    import numpy as np

    from farm.api import Answer
    from farm.types import Device, Model, TensorSpec
    from farm.views import Score

_TOP = 5


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@with_device
@click.option(
    "-i",
    "--input",
    "source",
    required=True,
    type=click.Path(path_type=Path),
    help="An image, .npy, or .npz with the inputs by name.",
)
@thread_options_decorator(several=False)
@with_model_properties
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file."
)
@click.option(
    "--build",
    is_flag=True,
    help="Build the model as it is now, even if one of its name is deployed.",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="SECONDS",
    help="The longest it may take on the device.",
)
@with_reservation
@with_session
def run(
    session: Session,
    model: str,
    device_name: str,
    source: Path,
    described: ModelProperties,
    output: Path | None,
    build: bool,
    deadline_s: float | None,
    reservation: int | None,
    asked: ThreadSettings,
) -> None:
    """Run a model on a device with an input of yours.

    It prints the five best labels of a classifier. --output writes the outputs as .npz.

    If MODEL is the name of a deployed model, that release is run, and nothing is built or sent.
    Otherwise MODEL is a model as for farm deploy, and it is built.

    \b
    farm run --device pi3 mobilenet_v2 --input cat.jpg
    farm run --device rk3399 model.onnx --input inputs.npz --output outputs.npz
    """
    fleet = session.fleet()
    reserved = reserved_devices(session, [fleet.device(device_name)], reservation)
    (device,) = devices_per_thread_setting(session, reserved, asked)
    seconds = fleet.deadline_s(device, deadline_s)
    answer = _ask(
        session,
        described.of(fleet.model(model)) if described else model,
        device,
        source,
        seconds,
        build,
    )
    if output:
        _save(output, answer.specs, answer.outputs)
    _tell(session, device, answer, output)
    _warn_of_no_numbers(answer)


def _ask(
    session: Session, model: str | Model, device: Device, source: Path, seconds: float, build: bool
) -> Answer:
    from farm.commands.progress import Spinner

    name = model if isinstance(model, str) else model.name
    with Spinner(session, f"{name} on {device.name}") as spinner:
        answer = session.farm().answer(
            model, device, source, deadline_s=seconds, build=build, show=spinner.show
        )
    for words in answer.converted if session.verbosity >= 0 else ():
        echo(f"{source} was converted: {words}", err=True)
    if answer.release and session.verbosity >= 0:
        there = (
            f"release {answer.release.number} of "
            f"{answer.release.installed_at[:16].replace('T', ' ')} UTC"
        )
        echo(
            (
                f"{name} as it is deployed on {device.name}: {there} (--build for the model as it "
                "is now)"
            ),
            err=True,
        )
    return answer


def _tell(session: Session, device: Device, answer: Answer, output: Path | None) -> None:
    best = _best(answer)
    if session.as_json:
        described = [
            {"name": spec.name, "shape": list(value.shape), "dtype": spec.dtype}
            for spec, value in answer.named
        ]
        top = [{"index": score.index, "label": score.label, "score": score.score} for score in best]
        release = answer.release.number if answer.release else None
        body = {
            "device": device.name,
            "model": answer.model,
            "release": release,
            "outputs": described,
            "top": top,
            "path": str(output or ""),
        }
        session.document("outputs", body)
        return
    for score in best:
        echo(f"{score.score:10.4f}  {score.label}")
    if output:
        echo(f"outputs in {output}")
    elif not best:
        for spec, value in answer.named:
            content = (
                f"from {value.min():.4g} to {value.max():.4g}" if value.size else "no elements"
            )
            echo(f"{spec.name}: {spec.dtype} {list(value.shape)}, {content}")


def _warn_of_no_numbers(answer: Answer) -> None:
    import numpy as np

    for spec, value in answer.named:
        if value.dtype.kind == "f" and (count := int(np.isnan(value).sum())):
            cause = (
                "what the input asks of a table that has no such row is NaN: a token beyond the "
                "vocabulary, for one"
            )
            echo(
                f"warning: {count} of {value.size} values of {spec.name} are no numbers (NaN)",
                err=True,
            )
            echo(f"  {cause}", err=True)


def _save(
    path: Path, specs: tuple[TensorSpec, ...], outputs: Sequence[np.ndarray[Any, Any]]
) -> None:
    import numpy as np

    from farm.errors import UsageError

    try:
        with path.open("wb") as file:
            np.savez(file, **{spec.name: value for spec, value in zip(specs, outputs, strict=True)})  # type: ignore[arg-type]
    except OSError as exc:
        raise UsageError(
            f"the outputs cannot be written to {path}", str(exc), "name another file with --output"
        ) from exc


def _best(answer: Answer) -> list[Score]:
    """Return the best classes if the model's only output is a vector of scores; else none."""
    from farm import views

    outputs = answer.outputs
    if (
        len(outputs) != 1
        or outputs[0].ndim != 2
        or outputs[0].shape[0] != 1
        or outputs[0].shape[1] < 2
    ):
        return []
    return views.top_k(outputs[0][0], answer.labels, _TOP)
