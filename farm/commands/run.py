"""farm run: one input through a model on a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, complete, host_profile, shape_option, shared, with_shapes

if TYPE_CHECKING:
    import numpy as np

    from farm.types import Model, TensorSpec
    from farm.views import Score

_TOP = 5


@click.command()
@click.argument("model", shell_complete=complete("models"))
@click.option("-d", "--device", "device_name", required=True, metavar="NAME", help="The device.", shell_complete=complete("devices"))
@click.option(
    "-i", "--input", "source", required=True, type=click.Path(path_type=Path), help="An image, .npy, or .npz with the inputs by name."
)
@shape_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the outputs go, as .npz.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(1), metavar="SECONDS", help="The longest it may take on the device.")
@shared
def run(
    session: Session, model: str, device_name: str, source: Path, shapes: tuple[str, ...], output: Path | None, deadline_s: float | None
) -> None:
    """Run a model on a device with an input of yours: the five best labels of a classifier, and the outputs as .npz.

    \b
    farm run --device pi3 mobilenet_v2 --input cat.jpg
    farm run --device rk3399 model.onnx --input inputs.npz --output outputs.npz
    """
    from farm.commands.progress import Spinner
    from farm.pipeline import infer
    from farm.store import Store, cache_root

    fleet = session.fleet()
    device, chosen = fleet.device(device_name), with_shapes(fleet.model(model), shapes)
    seconds = deadline_s or float(device.options.get("deadline_s", fleet.bench.plan.deadline_s))
    with Spinner(session, f"{chosen.name} on {device.name}") as spinner:
        specs, outputs = infer(
            chosen, device, source, host=host_profile(fleet), store=Store(cache_root()), deadline_s=seconds, show=spinner.show
        )
    if output:
        _save(output, specs, outputs)
    best = _best(chosen, outputs)
    if session.as_json:
        described = [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype} for spec in specs]
        top = [{"index": score.index, "label": score.label, "score": score.score} for score in best]
        session.document(
            "outputs", {"device": device.name, "model": chosen.name, "outputs": described, "top": top, "path": str(output or "")}
        )
        return
    for score in best:
        click.echo(f"{score.score:10.4f}  {score.label}")
    if output:
        click.echo(f"outputs in {output}")
    elif not best:
        for spec, value in zip(specs, outputs, strict=True):
            click.echo(f"{spec.name}: {spec.dtype} {list(spec.shape)}, from {value.min():.4g} to {value.max():.4g}")


def _save(path: Path, specs: tuple[TensorSpec, ...], outputs: list[np.ndarray[Any, Any]]) -> None:
    import numpy as np

    from farm.errors import UsageError

    try:
        with path.open("wb") as file:
            np.savez(file, **{spec.name: value for spec, value in zip(specs, outputs, strict=True)})  # type: ignore[arg-type]
    except OSError as exc:
        raise UsageError(f"the outputs cannot be written to {path}", str(exc), "name another file with --output") from exc


def _best(model: Model, outputs: list[np.ndarray[Any, Any]]) -> list[Score]:
    """The best classes, where the model's one output is a vector of scores."""
    from farm import views
    from farm.importers import feed

    if len(outputs) != 1 or outputs[0].ndim != 2 or outputs[0].shape[0] != 1 or outputs[0].shape[1] < 2:
        return []
    labels = feed.read_labels(model.labels) if model.labels else None
    return views.top_k(outputs[0][0], labels, _TOP)
