"""farm quantize: quantize a float model to int8, or store its weights in float16."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm import this_machine
from farm.commands.common import Session, check_writable, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import FiniteFloatRange, configured_name_completer, was_given
from farm.commands.output import echo
from farm.types import QUANTIZED, QuantizeSettings

if TYPE_CHECKING:
    from farm.pipeline.quantize import QuantizationReport

METHODS = ("kl_divergence", "minmax", "percentile", "global_scale")
_CALIBRATING = (
    "calibration",
    "percentile",
    "global_scale",
    "weight_scale",
    "per_tensor",
    "samples",
)  # need calibration
_LAYERS_SHOWN = 10


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@click.option(
    "--data",
    "path",
    type=click.Path(path_type=Path),
    metavar="DIR|NPZ",
    help="Samples. [default: the model's calibration_data or dataset]",
)
@click.option(
    "--to",
    "dtype",
    type=click.Choice(QUANTIZED),
    default=QUANTIZED[0],
    show_default=True,
    help="The element type, see above.",
)
@click.option(
    "--calibration",
    type=click.Choice(METHODS),
    default=METHODS[0],
    show_default=True,
    help="How ranges are chosen, see above.",
)
@click.option(
    "--percentile",
    type=FiniteFloatRange(0, 100, min_open=True),
    default=99.99,
    show_default=True,
    help="For --calibration percentile.",
)
@click.option(
    "--global-scale",
    type=FiniteFloatRange(0, min_open=True),
    default=8.0,
    show_default=True,
    help="For --calibration global_scale.",
)
@click.option(
    "--weight-scale",
    type=click.Choice(("max", "power2")),
    default="max",
    show_default=True,
    help="power2: round up to a power of 2.",
)
@click.option(
    "--per-tensor", is_flag=True, help="One scale per weight, not one per channel: less exact."
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="The most samples to use, spread evenly over the data.",
)
@click.option(
    "-p",
    "--profile",
    "profile_name",
    default=this_machine.native_profile_name() or "x86",
    show_default=True,
    help="The kind of board whose sizes are reported.",
    shell_complete=configured_name_completer("profiles"),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write; its name ends in .int8 or .float16.",
)
@with_model_properties
@with_session
def quantize(
    session: Session,
    model: str,
    path: Path | None,
    profile_name: str,
    output: Path,
    described: ModelProperties,
    dtype: str,
    calibration: str,
    percentile: float,
    global_scale: float,
    weight_scale: str,
    per_tensor: bool,
    samples: int,
) -> None:
    """Quantize a float model, and report the effect on its accuracy, size and latency.

    int8 computes in integers, and needs samples of the model's real inputs. float16 stores the
    weights in half precision and computes in float32: half the upload and file, and half the memory
    traffic if a kernel is bound by memory and the CPU converts fast. It needs no data.

    For int8, kl_divergence clips ranges where the least information is lost, minmax covers all
    values seen, percentile covers all but the largest, and global_scale uses a step of its scale /
    128 everywhere. Labels are not needed; if there are some, the accuracy is compared.

    The file names the float model, and for int8 holds the scales. Every command takes it as a
    model, and compares it with the float model.

    \b
    farm quantize digits --data train.npz -o digits.int8
    farm quantize net.onnx --data images --calibration percentile --percentile 99.9 -o net.int8
    farm quantize net.onnx --to float16 -o net.float16
    farm bench --all net.int8
    """
    from farm.commands.progress import Spinner
    from farm.errors import UsageError
    from farm.pipeline.quantize import quantize_to_recipe as run

    fleet = session.fleet()
    chosen, profile = described.of(fleet.model(model)), fleet.profile(profile_name)
    found = path.absolute() if path else chosen.calibration_data or chosen.dataset
    settings = QuantizeSettings(
        calibration, weight_scale, not per_tensor, samples, percentile, global_scale, dtype
    )
    _check_options(settings)
    if output.suffix != f".{dtype}":
        fix = (
            "-o "
            f"{output.with_suffix(f'.{dtype}')}{', or --to float16' if output.suffix == '.float16' else ''}"  # noqa: E501
        )
        raise UsageError(
            f"-o {output}: its name does not end in .{dtype}", "that tells farm what it is", fix
        )
    if found is None and settings.calibrates:
        why = (
            "the ranges of its tensors are found by running it, and devices.toml has no "
            "calibration_data for it"
        )
        raise UsageError(
            f"there are no data to quantize {chosen.name} by",
            why,
            f"farm quantize {shlex.quote(model)} --data DIR -o {shlex.quote(str(output))}",
        )
    check_writable(output)
    asked = replace(chosen, quantize=settings, calibration_data=found)
    with Spinner(session, f"quantizing {chosen.name}") as spinner:
        report = run(
            asked,
            profile,
            output,
            host=host_profile(fleet),
            store=session.artifacts(),
            show=spinner.show,
        )
    if session.as_json:
        session.document("quantize", _body(report, output))
    else:
        _show(session, report, output)


def _check_options(settings: QuantizeSettings) -> None:
    """Raise UsageError for options of a calibration if there is none."""
    from farm.errors import UsageError

    given = [name for name in _CALIBRATING if was_given(name)]
    if given and not settings.calibrates:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(
            f"{option} says how to calibrate",
            f"{settings.dtype} is not calibrated",
            f"leave {option} out",
        )


def _body(report: QuantizationReport, output: Path) -> dict[str, Any]:
    sizes = {"float_bytes": report.float_artifact.nbytes, "bytes": report.artifact.nbytes}
    layers = [
        {**asdict(layer), "snr_db": _finite(layer.snr_db)} for layer in report.quantized.layers
    ]
    body = {
        **asdict(report.quantized),
        "output_snr_db": _finite(report.quantized.output_snr_db),
        "layers": layers,
    }
    return {"path": str(output), "profile": report.artifact.profile, **sizes, **body}


def _finite(value: float) -> float | str:
    """Return the value, or its text if it is infinite: a lossless layer's SNR, which JSON lacks."""
    return value if math.isfinite(value) else str(value)


def _show(session: Session, report: QuantizationReport, output: Path) -> None:
    from farm.formatting import format_number
    from farm.views.quantization_errors import layers_table

    found, console = report.quantized, session.out()
    shown = len(found.layers) if session.verbosity > 0 else _LAYERS_SHOWN
    console.print(layers_table(found.layers[:shown], console.width))
    if len(found.layers) > shown:
        echo(f"{len(found.layers) - shown} more layers are better; -v shows them")
    echo(f"outputs   {found.output_snr_db:.1f} dB signal to noise beside the float model")
    if found.total:
        before, after = (
            100 * count / found.total for count in (found.float_correct, found.correct)
        )
        change = f"{after - before:+.2f} points"
        echo(
            f"accuracy  {before:.2f} % float, {after:.2f} % {found.dtype} ({change}) of "
            f"{found.total} labelled samples"
        )
    else:
        echo(f"accuracy  not compared: {found.unlabelled}")
    before, after = report.float_artifact.nbytes, report.artifact.nbytes
    echo(
        f"size      {before / 1e6:.2f} MB float, {after / 1e6:.2f} MB {found.dtype} "
        f"({after / before:.0%}) for {report.artifact.profile}"
    )
    ratio = found.float_ms / found.ms
    echo(
        f"latency   {format_number(found.float_ms)} ms float, "
        f"{format_number(found.ms)} ms {found.dtype} "
        f"(x{ratio:.2f}) on this machine"
    )
    for remark in found.remarks:
        echo(f"note      {remark}")
    echo(str(output))
