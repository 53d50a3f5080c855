"""Convert the operators that `farm.importers.onnx.bounded_shapes` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.kernels import bounded_selection, scatter, sort

Inputs = Sequence[Any]
Attributes = dict[str, Any]


class BoundedNonZero(OnnxOpConverter):  # type: ignore[misc]
    """NonZero, and the number of indices that it found."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, _: Attributes, __: Any
    ) -> relax.Expr:
        return builder.emit(bounded_selection.emit_non_zero(builder, inputs[0]))


class BoundedNonMaxSuppression(OnnxOpConverter):  # type: ignore[misc]
    """NonMaxSuppression of some of the boxes, and the number of boxes that it selected."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        return builder.emit(
            bounded_selection.emit_non_max_suppression(
                builder, inputs, attributes["per_class"], bool(attributes["center_point_box"])
            )
        )


class BoundedTopK(OnnxOpConverter):  # type: ignore[misc]
    """TopK of the valid elements of each row."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, valid = inputs
        count, largest = attributes["count"], bool(attributes["largest"])
        return builder.emit(sort.emit_bounded_top_k(builder, data, valid, count, largest))


class ConcatIndices(OnnxOpConverter):  # type: ignore[misc]
    """The indices of the valid elements of concatenated tensors."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        return builder.emit(
            bounded_selection.emit_concat_indices(
                builder, inputs[0], attributes["lengths"], attributes["most"]
            )
        )


class ScatterRows(OnnxOpConverter):  # type: ignore[misc]
    """A tensor with some of its rows replaced, or with others added to them."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        adds = attributes["reduction"] == b"add"
        return builder.emit(scatter.emit_scatter_rows(builder, *inputs, adds=adds))


class SliceToDynamic(OnnxOpConverter):  # type: ignore[misc]
    """The valid elements of a padded tensor."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, *counts = inputs
        return bounded_selection.emit_slice_to_dynamic(builder, data, counts, attributes["axes"])


CONVERTERS = {
    "BoundedNonZero": BoundedNonZero,
    "BoundedNonMaxSuppression": BoundedNonMaxSuppression,
    "BoundedTopK": BoundedTopK,
    "ConcatIndices": ConcatIndices,
    "ScatterRows": ScatterRows,
    "SliceToDynamic": SliceToDynamic,
}
