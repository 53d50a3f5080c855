"""farm run: one input through a model on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, complete, host_profile, says_more, shape_option, shared, with_shapes
from farm.commands.computing import Asked, settings, with_threads

if TYPE_CHECKING:
    import numpy as np

    from farm.types import Device, Model, Release, TensorSpec
    from farm.views import Score

_TOP = 5


@click.command()
@click.argument("model", shell_complete=complete("models"))
@click.option("-d", "--device", "device_name", required=True, metavar="NAME", help="The device.", shell_complete=complete("devices"))
@click.option(
    "-i", "--input", "source", required=True, type=click.Path(path_type=Path), help="An image, .npy, or .npz with the inputs by name."
)
@with_threads(several=False)
@shape_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the outputs go, as .npz.")
@click.option("--build", is_flag=True, help="Build the model as it is now, even where one of its name is deployed.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(1), metavar="SECONDS", help="The longest it may take on the device.")
@shared
def run(
    session: Session,
    model: str,
    device_name: str,
    source: Path,
    shapes: tuple[str, ...],
    output: Path | None,
    build: bool,
    deadline_s: float | None,
    asked: Asked,
) -> None:
    """Run a model on a device with an input of yours: the five best labels of a classifier, and the outputs as .npz.

    MODEL is the name of a deployed model, which is run as it is there, with nothing built or sent; or, where none of that name is
    deployed, a model as farm deploy takes it.

    \b
    farm run --device pi3 mobilenet_v2 --input cat.jpg
    farm run --device rk3399 model.onnx --input inputs.npz --output outputs.npz
    """
    fleet = session.fleet()
    (device,) = settings(session, [fleet.device(device_name)], asked)
    seconds = deadline_s or float(device.options.get("deadline_s", fleet.bench.plan.deadline_s))
    answer = None
    if not (build or says_more(shapes) or fleet.names_source(model)):
        answer = _run_deployed(session, model, device, source, seconds)
    answer = answer or _build_and_run(session, with_shapes(fleet.model(model), shapes), device, source, seconds)
    if output:
        _save(output, answer.specs, answer.outputs)
    _tell(session, device, answer, output)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The outputs of a run, and what is known of the model: `release` is None where it was not a deployed one."""

    model: str
    specs: tuple[TensorSpec, ...]
    outputs: list[np.ndarray[Any, Any]]
    labels: Sequence[str]
    release: Release | None = None


def _run_deployed(session: Session, name: str, device: Device, source: Path, seconds: float) -> _Answer | None:
    from farm.commands.progress import Spinner
    from farm.pipeline import infer_deployed
    from farm.store import Store, cache_root

    with Spinner(session, f"{name} on {device.name}") as spinner:
        found = infer_deployed(name, device, source, store=Store(cache_root()), deadline_s=seconds, show=spinner.show)
    if found is None:
        return None
    release, outputs, said = found
    _tell_converted(session, source, said)
    if session.verbosity >= 0:
        when = release.installed_at[:16].replace("T", " ")
        click.echo(
            f"{name} as it is deployed on {device.name}: release {release.number} of {when} UTC (--build for the model as it is now)",
            err=True,
        )
    return _Answer(name, release.outputs, outputs, release.labels, release)


def _build_and_run(session: Session, model: Model, device: Device, source: Path, seconds: float) -> _Answer:
    from farm.commands.progress import Spinner
    from farm.importers import feed
    from farm.pipeline import infer
    from farm.store import Store, cache_root

    host = host_profile(session.fleet())
    with Spinner(session, f"{model.name} on {device.name}") as spinner:
        specs, outputs, said = infer(model, device, source, host=host, store=Store(cache_root()), deadline_s=seconds, show=spinner.show)
    _tell_converted(session, source, said)
    return _Answer(model.name, specs, outputs, feed.read_labels(model.labels) if model.labels else ())


def _tell_converted(session: Session, source: Path, said: Sequence[str]) -> None:
    for words in said if session.verbosity >= 0 else ():
        click.echo(f"{source} was converted: {words}", err=True)


def _tell(session: Session, device: Device, answer: _Answer, output: Path | None) -> None:
    best = _best(answer)
    if session.as_json:
        described = [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype} for spec in answer.specs]
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
        click.echo(f"{score.score:10.4f}  {score.label}")
    if output:
        click.echo(f"outputs in {output}")
    elif not best:
        for spec, value in zip(answer.specs, answer.outputs, strict=True):
            click.echo(f"{spec.name}: {spec.dtype} {list(spec.shape)}, from {value.min():.4g} to {value.max():.4g}")


def _save(path: Path, specs: tuple[TensorSpec, ...], outputs: list[np.ndarray[Any, Any]]) -> None:
    import numpy as np

    from farm.errors import UsageError

    try:
        with path.open("wb") as file:
            np.savez(file, **{spec.name: value for spec, value in zip(specs, outputs, strict=True)})  # type: ignore[arg-type]
    except OSError as exc:
        raise UsageError(f"the outputs cannot be written to {path}", str(exc), "name another file with --output") from exc


def _best(answer: _Answer) -> list[Score]:
    """The best classes, where the model's one output is a vector of scores."""
    from farm import views

    outputs = answer.outputs
    if len(outputs) != 1 or outputs[0].ndim != 2 or outputs[0].shape[0] != 1 or outputs[0].shape[1] < 2:
        return []
    return views.top_k(outputs[0][0], answer.labels, _TOP)
