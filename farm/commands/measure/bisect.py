"""farm bisect: find the first layer of a model whose output differs on a device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import (
    FiniteFloatParamType,
    FiniteFloatRange,
    configured_name_completer,
    with_device,
)
from farm.commands.output import echo

if TYPE_CHECKING:
    from farm.pipeline.layer_bisect import LayerBisectResult


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@with_device
@click.option(
    "-i",
    "--input",
    "source",
    type=click.Path(path_type=Path),
    help="An image, .npy, or .npz with the inputs by name. [default: an example]",
)
@click.option(
    "--min-snr",
    type=FiniteFloatParamType(),
    metavar="DB",
    help="A layer below this is bad. [default: 60; 30 for float16 and integers]",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="SECONDS",
    help="The longest it may take on the device.",
)
@with_model_properties
@with_session
def bisect(
    session: Session,
    model: str,
    device_name: str,
    source: Path | None,
    min_snr: float | None,
    deadline_s: float | None,
    described: ModelProperties,
) -> None:
    """Find the first layer of a model whose output differs on a device.

    Use it if farm deploy or farm bench says WRONG. Each kernel of the same build is called
    separately on the device, in order, and compared with the same kernel compiled as plain loops on
    this machine. After a bad layer the device continues with the right values, so that all bad
    layers are found. Layers have the names of the source model. The exit code is 7 if anything
    differs.

    \b
    farm bisect --device pi3 mobilenet_v2
    farm bisect --device rk3399 net.onnx --input cat.png
    """
    from farm.commands.progress import Spinner
    from farm.pipeline.layer_bisect import bisect_model as dissect
    from farm.views.bisection import describe_findings, layers_table

    fleet = session.fleet()
    chosen, device = described.of(fleet.model(model)), fleet.device(device_name)
    seconds = fleet.deadline_s(device, deadline_s)
    with Spinner(session, f"{chosen.name} on {device.name}") as spinner:
        found = dissect(
            chosen,
            device,
            source,
            host=host_profile(fleet),
            store=session.artifacts(),
            least_db=min_snr,
            deadline_s=seconds,
            show=spinner.show,
        )
    lines = describe_findings(
        found.dissection, chosen.name, device.name, str(found.artifact.library.parent)
    )
    if session.as_json:
        session.document(
            "bisect",
            {"device": device.name, "model": chosen.name, **_body(found), "findings": lines},
        )
    else:
        console = session.out()
        console.print(layers_table(found.dissection, console.width))
        for line in lines:
            echo(line)
    _end(found)


def _body(found: LayerBisectResult) -> dict[str, Any]:
    from farm.store import as_strict_json

    return {
        "artifact": found.artifact.digest,
        "reference": found.engine,
        "first_bad": found.dissection.first_bad,
        "layers": [as_strict_json(asdict(layer)) for layer in found.dissection.layers],
        "whole": as_strict_json(asdict(found.dissection.whole)),
    }


def _end(found: LayerBisectResult) -> None:
    from farm.errors import WrongAnswer

    if found.dissection.first_bad is not None or not found.dissection.whole.right:
        raise SystemExit(WrongAnswer.exit_code)
