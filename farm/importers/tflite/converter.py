"""Extend TVM's converter of TFLite operators where it is incomplete or wrong.

The docstring of each method states what it corrects. TVM reads the shapes of tensors and the values
of constants from the file; here they come from LiteRT, which knows them for all tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import TensorWrapper

from farm.importers.fourier import fourier_transform
from farm.importers.layer_names import Names
from farm.importers.relax_postprocessing import one_line_error
from farm.importers.summary import ImportProblem
from farm.importers.tflite.corrected import CorrectedConverter
from farm.importers.tflite.tflite_file import OF_CHANCE, TO_ONNX, Array, Operator, TfliteFile
from farm.importers.tflite.unroll import MOST_OPERATORS, WHILE

# These move, select or compare bytes. The result is the same as for the numbers that the bytes
# stand for, if all tensors have one scale.
_MOVES = (
    "ARG_MAX", "ARG_MIN", "BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "EMBEDDING_LOOKUP", "EXPAND_DIMS", "GATHER", "GATHER_ND",  # noqa: E501
    "MATRIX_DIAG", "MATRIX_SET_DIAG", "MIRROR_PAD", "PACK", "PAD", "PADV2", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_SEQUENCE", "REVERSE_V2", "SELECT", "SELECT_V2", "SHAPE", "SLICE",  # noqa: E501
    "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TOPK_V2", "TRANSPOSE", "UNPACK",  # noqa: E501
)  # fmt: skip
# Of quantized tensors, these are computed in float32.
_IN_FLOATS = (
    *("BATCH_MATMUL", "ELU", "GELU", "L2_NORMALIZATION", "PRELU", "RELU_0_TO_1"),
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
)
# Operators with states, subgraphs or random numbers. A build runs fixed steps and is compared with
# a reference, so it supports none of them.
REFUSED = (
    *OF_CHANCE, "ASSIGN_VARIABLE", "CALL", "CALL_ONCE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP",  # noqa: E501
    "HASHTABLE_SIZE", "IF", "READ_VARIABLE", "STABLEHLO_WHILE", "SVDF", "VAR_HANDLE", WHILE,
)  # fmt: skip
_WHILE_REASON = (
    f"whose number of runs depends on data, or with more than {MOST_OPERATORS:,} operators unrolled"
)
_BOUNDS = {
    "NONE": (-np.inf, np.inf),
    "RELU": (0.0, np.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
_WHILE_FIX = "run the loop in your program, and give farm the model of one step"
_FIX = f"convert the model without them, or convert it to ONNX: {TO_ONNX}"


@dataclass
class FileConversion:
    """The conversion of one file, from which `from_tflite` makes its converter.

    It records in `names` the layer of each Relax variable, and in `at` the operator that is being
    converted.
    """

    opened: TfliteFile
    names: Names = field(default_factory=dict)
    at: Operator | None = None

    def __call__(self, model: Any, subgraph: Any, table: Any, builder: Any) -> _Converter:
        """Return a converter of a graph of the file; the parameters are TVM's."""
        return _Converter(self, model, subgraph, table, builder)


def import_problems(opened: TfliteFile) -> list[ImportProblem]:
    """Return everything that the import would refuse, sorted by operator."""
    known = FileConversion(opened)(opened.model, opened.graph, None, None)
    found = defaultdict[tuple[str, str], list[str]](list)
    for operator in opened.operators:
        if operator.name not in known.convert_map or operator.name in REFUSED:
            why = _WHILE_REASON if operator.name == WHILE else ""
            found[operator.name, why].append(operator.place)
        elif why := _refusal(known, operator):
            found[operator.name, why].append(operator.place)
    return [
        ImportProblem(name, why, tuple(places), _WHILE_FIX if name == WHILE else _FIX)
        for (name, why), places in sorted(found.items())
    ]


def _refusal(known: _Converter, operator: Operator) -> str:
    """Return why an operator cannot be converted; "" if it can."""
    try:
        return known.refusal(operator)
    except Exception as exc:  # exceptions of TVM's reader of scales
        return one_line_error(exc)


class _Converter(CorrectedConverter):
    """TVM's converter with farm's corrections.

    TVM would make converters of inner graphs by another signature; `import_problems` reports all
    operators with such graphs.
    """

    def __init__(
        self, conversion: FileConversion, model: Any, subgraph: Any, table: Any, builder: Any
    ) -> None:
        super().__init__(model, subgraph, table, builder)
        self.conversion, self.opened = conversion, conversion.opened
        self.convert_map |= {
            "AVERAGE_POOL_2D": self._average_pool,
            "BATCH_MATMUL": self._batch_matmul,
            "CAST": self._cast,
            "EXPAND_DIMS": self._expand_dims,
            "RESHAPE": self._reshape,
            "RFFT2D": self._rfft2d,
            "SQUEEZE": self._squeeze,
        }
        # By tensor: the runs of an unrolled loop share their weights
        self._constants: dict[int, Any] = {}
        # Quantized tensors that are floating point temporarily.
        self._as_floats: set[int] = set()

    def refusal(self, operator: Operator) -> str:
        """Return why an operator of quantized tensors cannot be converted; "" if it can."""
        given, made = self.get_tensors(operator.inputs), self.get_tensors(operator.outputs)
        quantized = [one for one in (*given, *made) if one.qnn_params is not None]
        if (
            not quantized
            or self._is_hybrid(operator)
            or operator.name in self._SUPPORTED_QUANTIZED_OPS
        ):
            return ""
        if operator.name in _IN_FLOATS:
            return ""
        if operator.name not in _MOVES:
            return "of quantized tensors"
        numbers = {
            (
                float(one.qnn_params["scale"].value.numpy().max()),
                int(one.qnn_params["zero_point"].value.numpy()),
            )
            for one in quantized
        }
        return "of tensors of several scales" if len(numbers) > 1 else ""

    def check_unsupported_ops(self) -> None:
        """Do nothing: `import_problems` has reported unsupported operators."""

    def get_tensor_expr(self, tensor: TensorWrapper, is_sparse: bool = False) -> Any:
        """Return the expression of a tensor; TVM makes a constant for each of its uses."""
        index = tensor.tensor_idx
        if self.has_expr(index):
            return super().get_tensor_expr(tensor, is_sparse)
        if index not in self._constants:
            self._constants[index] = super().get_tensor_expr(tensor, is_sparse)
        return self._constants[index]

    def convert_op_to_relax(self) -> None:
        """Convert all operators.

        Each result is bound to its own variable, and the operator that it comes from is recorded.
        Operators whose results are known become constants.
        """
        for number, operator in enumerate(self.opened.operators):
            if operator.outputs and all(index in self.opened.known for index in operator.outputs):
                continue
            self.conversion.at = operator
            if self._is_hybrid(operator):
                self._dequantize_weights(operator)
            convert, op = self.convert_map[operator.name], self.subgraph.Operators(number)
            made = self._in_floats(op, convert) if operator.name in _IN_FLOATS else convert(op=op)
            if len(operator.outputs) == 1:
                self._put(operator.outputs[0], made, operator)
            else:
                parts = self.bb.normalize(made)
                for place, index in enumerate(operator.outputs):
                    self._put(index, parts[place], operator)

    def _put(self, index: int, made: Any, operator: Operator) -> None:
        """Bind an operator's result to a variable, and record its layer name."""
        value = self.bb.normalize(made)
        if isinstance(value, tvm.ir.Call) and isinstance(value.ty, relax.TensorType):
            value = self.bb.emit(value)
        if isinstance(value, relax.Var):
            self.conversion.names.setdefault(value.name, operator.place)
        self.exp_tab.set_expr(self.opened.tensor_name(index), value)

    def _is_hybrid(self, operator: Operator) -> bool:
        """Return whether only weights are quantized.

        LiteRT then quantizes the data for each inference; farm computes in floating point.
        """
        given, made = (
            self.get_tensors([index for index in operator.inputs if index >= 0]),
            self.get_tensors(operator.outputs),
        )
        quantized = [one for one in given if one.qnn_params is not None]
        constant = all(self.opened.is_constant(one.tensor_idx) for one in quantized)
        return (
            bool(quantized)
            and constant
            and operator.name != "DEQUANTIZE"
            and all(one.qnn_params is None for one in made)
        )

    def _dequantize_weights(self, operator: Operator) -> None:
        """Dequantize the constant inputs of an operator."""
        for tensor in self.get_tensors([index for index in operator.inputs if index >= 0]):
            name = self.opened.tensor_name(tensor.tensor_idx)
            if tensor.qnn_params is not None and not self.exp_tab.has_expr(name):
                value = relax.const(
                    self.get_tensor_value(tensor), self.get_tensor_type_str(tensor.tensor.Type())
                )
                self.exp_tab.set_expr(name, self.bb.emit(self.dequantize(value, tensor)))

    def _average_pool(self, op: Any) -> Any:
        """Convert an average pool of bytes in float32; TVM's divides integers, which truncates."""
        return self._in_floats(op, partial(self.convert_pool2d, pool_type="average"))

    def _in_floats(self, op: Any, convert: Callable[[Any], Any]) -> Any:
        """Convert an operator of quantized tensors in float32, rounded once."""
        given = [
            one
            for one in self.get_input_tensors(op)
            if one.qnn_params is not None and not one.tensor.IsVariable()  # a state begins as zero
        ]
        [made] = self.get_output_tensors(op)
        if made.qnn_params is None:
            return convert(op)
        steps = {one.tensor_idx: self.get_expr(one.tensor_idx) for one in given}
        for one in given:
            value = self.bb.emit(self.dequantize(steps[one.tensor_idx], one))
            name = self.opened.tensor_name(one.tensor_idx)
            self.exp_tab.set_expr(name, value, force_override=True)
        self._as_floats = {made.tensor_idx, *steps}
        result = convert(op)
        self._as_floats = set()
        for index, value in steps.items():
            self.exp_tab.set_expr(self.opened.tensor_name(index), value, force_override=True)
        return self.quantize(self.bb.normalize(result), made)

    def _expand_dims(self, op: Any) -> Any:
        """Convert EXPAND_DIMS; TVM's converter calls its own operator incorrectly."""
        data, axis = self.get_input_tensors(op)
        return relax.op.expand_dims(
            self.get_expr(data.tensor_idx), int(self.get_tensor_value(axis).item())
        )

    def _batch_matmul(self, op: Any) -> Any:
        """Convert BATCH_MATMUL; TVM fails for two tensors of different rank."""
        from tflite.BatchMatMulOptions import BatchMatMulOptions

        given = self.get_input_tensors(op)
        table, options = op.BuiltinOptions(), BatchMatMulOptions()
        options.Init(table.Bytes, table.Pos)
        factors = []
        for one, adjoint in zip(given, (options.AdjX(), options.AdjY()), strict=True):
            factor = self.bb.normalize(self.get_expr(one.tensor_idx))
            if adjoint:
                axes = list(range(len(factor.ty.shape)))
                axes[-2:] = reversed(axes[-2:])
                factor = self.bb.emit(relax.op.permute_dims(factor, axes))
            factors.append(factor)
        return relax.op.matmul(*factors)

    def _rfft2d(self, op: Any) -> Any:
        """Convert RFFT2D, whose transforms TVM computes one multiply-add after the other.

        The rows are real, and only the first half of their sums is made; the transform along the
        columns is complex. Inputs that are shorter or longer are padded with zeros, or cut.
        """
        (data, lengths), _ = self.get_input_tensors(op), self.get_output_tensors(op)
        height, width = (int(length) for length in self.get_tensor_value(lengths))
        rows = self._with_extents(self.get_expr(data.tensor_idx), (height, width))
        parts = fourier_transform(self.bb, [rows], width // 2 + 1)
        if height > 1:
            axes = list(range(len(rows.ty.shape)))
            axes[-2:] = reversed(axes[-2:])
            parts = [self.bb.emit(relax.op.permute_dims(part, axes)) for part in parts]
            parts = fourier_transform(self.bb, parts, height)
            parts = [self.bb.emit(relax.op.permute_dims(part, axes)) for part in parts]
        return relax.op.stack(parts, -1)

    def _with_extents(self, data: Any, extents: tuple[int, ...]) -> Any:
        """Return data whose last axes are padded with zeros, or cut, to these extents."""
        given = [int(extent) for extent in data.ty.shape]
        begin = len(given) - len(extents)
        for axis, (has, wanted) in enumerate(zip(given[begin:], extents, strict=True), begin):
            if has > wanted:
                data = self.bb.emit(relax.op.strided_slice(data, [axis], [0], [wanted]))
            elif has < wanted:
                shape = [int(extent) for extent in data.ty.shape]
                shape[axis] = wanted - has
                more = relax.op.zeros(shape, str(data.ty.dtype))
                data = self.bb.emit(relax.op.concat([data, self.bb.emit(more)], axis))
        return data

    def _cast(self, op: Any) -> Any:
        """Convert CAST; of a complex number LiteRT takes the real part, TVM both."""
        [data] = self.get_input_tensors(op)
        if not self._is_complex(data):
            return self.convert_cast(op)
        [made] = self.get_output_tensors(op)
        real = self.bb.emit(self.convert_real(op))
        return relax.op.astype(real, self.get_tensor_type_str(made.tensor.Type()))

    def _squeeze(self, op: Any) -> Any:
        """Convert SQUEEZE.

        TVM would count axes from the end of the parts of complex numbers, and takes out none where
        none is named, which are all of one element.
        """
        [data] = self.get_input_tensors(op)
        if self._is_complex(data):
            return self._parts_in_shape_of_result(op)
        return relax.op.reshape(*self._given(op), self._type_and_shape_of_result(op)[1])

    def _reshape(self, op: Any) -> Any:
        """Convert RESHAPE, also of complex numbers."""
        data = self.get_input_tensors(op)[0]
        return (
            self._parts_in_shape_of_result(op)
            if self._is_complex(data)
            else (self.convert_reshape(op))
        )

    def _parts_in_shape_of_result(self, op: Any) -> Any:
        [made] = self.get_output_tensors(op)
        shape = [int(extent) for extent in self.get_tensor_shape(made)]
        return relax.op.reshape(self.get_expr(int(op.Inputs(0))), [*shape, 2])

    def _is_complex(self, tensor: TensorWrapper) -> bool:
        return bool(self._is_tflite_complex64_type(tensor.tensor.Type()))

    def convert_qnn_fused_activation_function(
        self, expr: Any, fused_activation_fn: int, scale: float, zero_point: int, dtype: str
    ) -> Any:
        """Clamp to a fused activation's bounds, unless the type already implies them.

        The clamp uses operators that farm's graph passes recognise.
        """
        low, high = _BOUNDS[self.activation_fn_type[fused_activation_fn]]
        limits = np.iinfo(dtype)
        if (
            first := round(low / scale) + zero_point if np.isfinite(low) else limits.min
        ) > limits.min:
            expr = relax.op.maximum(relax.const(first, dtype), self.bb.normalize(expr))
        if (
            last := round(high / scale) + zero_point if np.isfinite(high) else limits.max
        ) < limits.max:
            expr = relax.op.minimum(relax.const(last, dtype), self.bb.normalize(expr))
        return expr

    def get_tensors(self, indices: Any) -> list[TensorWrapper]:
        """Return the tensors; those in `_as_floats` have no quantization."""
        found: list[TensorWrapper] = super().get_tensors(np.asarray(indices))
        for one in found:
            if one.tensor_idx in self._as_floats:
                one.qnn_params = None
        return found

    def get_tensor_value(self, tensor: TensorWrapper, is_sparse: bool = False) -> Array:
        """Return a tensor's value, also if constants and shapes determine it."""
        found = self.opened.known.get(tensor.tensor_idx)
        value: Array = super().get_tensor_value(tensor, is_sparse) if found is None else found
        return value

    def get_expr(self, index: int) -> Any:
        """Return a tensor's expression; a constant if its value is one."""
        if self.has_expr(index):
            return super().get_expr(index)
        [tensor] = self.get_tensors([index])
        return self.get_tensor_expr(tensor)

    def get_tensor_shape(self, tensor: TensorWrapper) -> Any:
        """Return a tensor's shape for the current input shapes, not that stored in the file."""
        return np.asarray(self.opened.shapes[tensor.tensor_idx], np.int64)
