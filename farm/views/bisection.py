"""A bisected model as a table, and advice about the findings as text."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from farm import formatting
from farm.types import BisectedLayer, KernelBisection
from farm.views.tables import Column, build_table

_MUCH_DB = 20.0


def layers_table(found: KernelBisection, width: int) -> Table:
    """Return a table with a line per layer and an arrow at the first bad one."""
    first = found.first_bad
    columns: list[Column[tuple[int, BisectedLayer]]] = [
        Column("", lambda row: "→" if row[0] == first else "", style="bold red"),
        Column("#", lambda row: str(row[0]), right=True),
        Column("layer", lambda row: row[1].name, style="bold"),
        Column("operator", lambda row: row[1].operator),
        Column("kernel", lambda row: row[1].kernel, 110, style="bright_black"),
        Column(
            "output", lambda row: f"{row[1].dtype} {list(row[1].shape)}", 140, style="bright_black"
        ),
        Column("SNR dB", lambda row: _ratio(row[1]), right=True),
        Column("max abs", lambda row: formatting.format_number(row[1].max_abs, 2), right=True),
        Column("", _mark),
    ]
    return build_table(columns, list(enumerate(found.layers)), width)


def _ratio(layer: BisectedLayer) -> str:
    if math.isinf(layer.snr_db):
        return "equal" if layer.snr_db > 0 else ""
    return f"{layer.snr_db:.1f}"


def _mark(row: tuple[int, BisectedLayer]) -> Text:
    layer = row[1]
    return (
        Text(f"BAD{f', {layer.not_finite}' if layer.not_finite else ''}", "bold red")
        if layer.bad
        else Text("")
    )


def describe_findings(found: KernelBisection, model: str, device: str, artifact: str) -> list[str]:
    """Return the findings and what to do about them, as lines of text."""
    if found.first_bad is None:
        return _nothing_bad(found, model, device)
    layer, others = found.layers[found.first_bad], sum(layer.bad for layer in found.layers) - 1
    where = (
        f"layer {found.first_bad}"
        + (f", {layer.name} ({layer.operator})" if layer.name else "")
        + f", kernel {layer.kernel}"
    )
    what = (
        f"gives {layer.not_finite} where finite numbers are due"
        if layer.not_finite
        else f"differs: signal to noise {_ratio(layer) or '-inf'} dB"
    )
    lines = [f"the first layer whose output differs on {device} is {where}: it {what}"]
    lines.append(_advice(layer, model, artifact))
    if others:
        selves = "by themselves" if others > 1 else "by itself"
        lines.append(
            f"{others} more layer{'s are' if others > 1 else ' is'} bad {selves}, with the "
            "right inputs: see the table"
        )
    return lines


def _advice(layer: BisectedLayer, model: str, artifact: str) -> str:
    if layer.damaged:
        return (
            "its parameters in the build are not those of the model: remove the build, and it is "
            f"made anew: rm -r {artifact}"
        )
    if (
        not layer.not_finite
        and layer.alone_db is not None
        and layer.alone_db > layer.snr_db + _MUCH_DB
    ):
        return (
            f"with the right inputs it is right ({layer.alone_db:.0f} dB): small errors of the "
            "layers before it add up; see --min-snr"
        )
    return (
        "with the right inputs it is wrong too, and its parameters are the model's: so its code "
        "is, or the board. See how it was "
        f"scheduled: farm compile {model} -v; whether farm tune chose it: farm records; and "
        "whether another board of the kind errs as well"
    )


def _nothing_bad(found: KernelBisection, model: str, device: str) -> list[str]:
    if found.whole.right:
        return [f"no layer of {model} differs on {device}, and the whole answer is right"]
    unknown = next(
        (place for place, layer in enumerate(found.layers) if not layer.name and layer.kernel), None
    )
    lines = [
        (
            f"no kernel differs on {device}, but the whole answer does: largest difference "
            f"{found.whole.max_abs:.2g}"
        )
    ]
    place = (
        (
            f"; layer {unknown}, {found.layers[unknown].kernel}, is the first that the source "
            "engine does not know"
        )
        if unknown is not None
        else ""
    )
    return [
        *lines,
        (
            "so it is the import or the graph passes, or how the kernels are put together, and "
            f"no board{place}; report it, with the model"
        ),
    ]
