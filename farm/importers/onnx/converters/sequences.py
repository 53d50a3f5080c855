"""Convert operators of sequences that TVM 0.27 converts incorrectly or for some inputs only."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs, require_constant


class SplitToSequence(OnnxOpConverter):  # type: ignore[misc]
    """SplitToSequence into parts of one size, of which the last may be smaller, or of given sizes.

    TVM makes parts of another size than was asked for, and no sequence of a single part.
    """

    @classmethod
    def _impl_v11(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Tuple:
        data, axis = inputs[0], attributes.get("axis", 0)
        extent = int(data.ty.shape[axis])
        given = inputs[1] if len(inputs) > 1 else None
        if given is None:
            ends = list(range(1, extent + 1))
        else:
            split = require_constant(given, "SplitToSequence", "split")
            ends = (
                [int(end) for end in accumulate(split.tolist())]
                if split.ndim
                else [*range(int(split), extent, int(split)), extent]
            )
        parts = [data]
        if len(ends) > 1:
            made = builder.emit(relax.op.split(data, ends[:-1], axis=axis))
            parts = [builder.emit(made[place]) for place in range(len(ends))]
        if given is None and not attributes.get("keepdims", 1):
            parts = [builder.emit(relax.op.squeeze(part, [axis])) for part in parts]
        return relax.Tuple(parts)


class SequenceAt(OnnxOpConverter):  # type: ignore[misc]
    """SequenceAt, also with a position from the end."""

    @classmethod
    def _impl_v11(
        cls, _builder: relax.BlockBuilder, inputs: Inputs, _: Attributes, __: Any
    ) -> relax.Expr:
        sequence = inputs[0]
        position = int(require_constant(inputs[1], "SequenceAt", "position"))
        return sequence[position % len(sequence.ty.fields)]


CONVERTERS = {"SplitToSequence": SplitToSequence, "SequenceAt": SequenceAt}
