"""Convert the operators of `farm.importers.onnx.bounded_shapes`, whose results have a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.kernels import bounded_selection, sort

Inputs = Sequence[Any]
Attributes = dict[str, Any]


class BoundedNonZero(OnnxOpConverter):  # type: ignore[misc]
    """NonZero, and the number of places that it found."""

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


class CountedTopK(OnnxOpConverter):  # type: ignore[misc]
    """TopK of the first elements of each row, as many as a count says."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, valid = inputs
        count, largest = attributes["count"], bool(attributes["largest"])
        return builder.emit(sort.emit_counted_top_k(builder, data, valid, count, largest))


class PlacesOfParts(OnnxOpConverter):  # type: ignore[misc]
    """The places of the elements of parts that are stored one behind the other."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        return builder.emit(
            bounded_selection.emit_places_of_parts(
                builder, inputs[0], attributes["lengths"], attributes["most"]
            )
        )


class ScatterRows(OnnxOpConverter):  # type: ignore[misc]
    """A tensor with some of its rows replaced, as many as a count says."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, _: Attributes, __: Any
    ) -> relax.Expr:
        return builder.emit(bounded_selection.emit_scatter_rows(builder, *inputs))


class CutToCounts(OnnxOpConverter):  # type: ignore[misc]
    """The first elements along axes, as many as counts say when the model runs."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, *counts = inputs
        return bounded_selection.emit_cut(builder, data, counts, attributes["axes"])


CONVERTERS = {
    "BoundedNonZero": BoundedNonZero,
    "BoundedNonMaxSuppression": BoundedNonMaxSuppression,
    "CountedTopK": CountedTopK,
    "PlacesOfParts": PlacesOfParts,
    "ScatterRows": ScatterRows,
    "CutToCounts": CutToCounts,
}
