"""The layers of a quantized model, and their error relative to the float model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from farm.types import QuantizedTensorSnr
from farm.views.tables import Column, build_table


def layers_table(layers: Sequence[QuantizedTensorSnr], width: int) -> Table:
    """Return a table in the order given. A layer's number is its position in the model."""
    columns: list[Column[QuantizedTensorSnr]] = [
        Column("layer", lambda layer: str(layer.index), right=True),
        Column("what", lambda layer: layer.name, style="bold"),
        Column("SNR dB", lambda layer: f"{layer.snr_db:.1f}", right=True),
    ]
    return build_table(columns, layers, width)
