"""TVM's converter of TFLite operators, with what it lacks or has wrong: what each of ours does is in its docstring.

What TVM takes from a file, the shapes of tensors and the values of constants, it takes from LiteRT here, which knows them of all tensors.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, TensorWrapper

from farm.importers.layers import Names
from farm.importers.outline import Problem
from farm.importers.relax_module import one_line
from farm.importers.tflite_model import OF_CHANCE, TO_ONNX, Array, Opened, Operator

# They move, pick or compare bytes, which is the same for the numbers that these stand for where all are of one scale.
_MOVES = (
    "ARG_MAX", "ARG_MIN", "BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND",
    "MIRROR_PAD", "PACK", "PAD", "PADV2", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SELECT", "SELECT_V2", "SHAPE", "SLICE",
    "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TOPK_V2", "TRANSPOSE", "UNPACK",
)  # fmt: skip
# With states, subgraphs or numbers of chance: a build of fixed steps, which is compared with a reference, has none.
_REFUSED = (
    *OF_CHANCE, "ASSIGN_VARIABLE", "CALL", "CALL_ONCE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP",
    "HASHTABLE_SIZE", "IF", "READ_VARIABLE", "STABLEHLO_WHILE", "VAR_HANDLE", "WHILE",
)  # fmt: skip
_BOUNDS = {"NONE": (-np.inf, np.inf), "RELU": (0.0, np.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
_FIX = f"convert the model without them, or convert it to ONNX: {TO_ONNX}"


def converter(opened: Opened, names: Names) -> type:
    """The class for one file, as `from_tflite` takes it; hears what variables are made of which layers."""
    return type("Converter", (_Converter,), {"opened": opened, "names": names})


def problems(opened: Opened) -> list[Problem]:
    """All that the import would refuse, by operator."""
    known = converter(opened, {})(opened.model, opened.graph, None, None)
    found = defaultdict[tuple[str, str], list[str]](list)
    for operator in opened.operators:
        if operator.name not in known.convert_map or operator.name in _REFUSED:
            found[operator.name, ""].append(operator.place)
        elif why := _refusal(known, operator):
            found[operator.name, why].append(operator.place)
    return [Problem(name, why, tuple(places), _FIX) for (name, why), places in sorted(found.items())]


def _refusal(known: _Converter, operator: Operator) -> str:
    try:
        return known.refusal(operator)
    except Exception as exc:  # what TVM's reader of scales raises
        return one_line(exc)


class _Converter(OperatorConverter):  # type: ignore[misc]
    opened: Opened
    names: Names
    at: Operator | None = None  # that is being converted

    def __init__(self, model: Any, subgraph: Any, table: Any, builder: Any, state: Any = None) -> None:
        super().__init__(model, subgraph, table, builder, state)
        self.convert_map |= {"AVERAGE_POOL_2D": self._average_pool, "EXPAND_DIMS": self._expand_dims}
        self._as_floats: set[int] = set()  # quantized tensors that are floating point for now

    def refusal(self, operator: Operator) -> str:
        """Why an operator of quantized tensors cannot be converted; empty where it can."""
        given, made = self.get_tensors(operator.inputs), self.get_tensors(operator.outputs)
        quantized = [one for one in (*given, *made) if one.qnn_params is not None]
        if not quantized or self._is_hybrid(operator) or operator.name in self._SUPPORTED_QUANTIZED_OPS:
            return ""
        if operator.name not in _MOVES:
            return "of quantized tensors"
        numbers = {
            (float(one.qnn_params["scale"].value.numpy().max()), int(one.qnn_params["zero_point"].value.numpy())) for one in quantized
        }
        return "of tensors of several scales" if len(numbers) > 1 else ""

    def check_unsupported_ops(self) -> None:
        """`problems` has said it."""

    def convert_op_to_relax(self) -> None:
        """Each operator's result is a variable by itself, of which it is noted what made it; what is known is a constant."""
        for number, operator in enumerate(self.opened.operators):
            if operator.outputs and all(index in self.opened.known for index in operator.outputs):
                continue
            type(self).at = operator
            if self._is_hybrid(operator):
                self._dequantize_weights(operator)
            made = self.convert_map[operator.name](op=self.subgraph.Operators(number))
            if len(operator.outputs) == 1:
                self._put(operator.outputs[0], made, operator)
            else:
                parts = self.bb.normalize(made)
                for place, index in enumerate(operator.outputs):
                    self._put(index, parts[place], operator)

    def _put(self, index: int, made: Any, operator: Operator) -> None:
        value = self.bb.normalize(made)
        if isinstance(value, tvm.ir.Call) and isinstance(value.ty, relax.TensorType):
            value = self.bb.emit(value)
        if isinstance(value, relax.Var):
            self.names.setdefault(value.name, operator.place)
        self.exp_tab.set_expr(self.opened.tensor_name(index), value)

    def _is_hybrid(self, operator: Operator) -> bool:
        """Whether weights alone are quantized: LiteRT quantizes the data for each inference, and we compute in floating point."""
        given, made = self.get_tensors([index for index in operator.inputs if index >= 0]), self.get_tensors(operator.outputs)
        quantized = [one for one in given if one.qnn_params is not None]
        constant = all(self.opened.is_constant(one.tensor_idx) for one in quantized)
        return bool(quantized) and constant and operator.name != "DEQUANTIZE" and all(one.qnn_params is None for one in made)

    def _dequantize_weights(self, operator: Operator) -> None:
        for tensor in self.get_tensors([index for index in operator.inputs if index >= 0]):
            name = self.opened.tensor_name(tensor.tensor_idx)
            if tensor.qnn_params is not None and not self.exp_tab.has_expr(name):
                value = relax.const(self.get_tensor_value(tensor), self.get_tensor_type_str(tensor.tensor.Type()))
                self.exp_tab.set_expr(name, self.bb.emit(self.dequantize(value, tensor)))

    def _average_pool(self, op: Any) -> Any:
        """Of bytes by float32, rounded once: TVM's divides integers, which cuts off."""
        (given,), (made,) = self.get_input_tensors(op), self.get_output_tensors(op)
        if given.qnn_params is None:
            return self.convert_pool2d(op, "average")
        name = self.opened.tensor_name(given.tensor_idx)
        steps = self.exp_tab.get_expr(name)
        self.exp_tab.set_expr(name, self.bb.emit(self.dequantize(steps, given)), force_override=True)
        self._as_floats = {given.tensor_idx, made.tensor_idx}
        pooled = self.convert_pool2d(op, "average")
        self._as_floats = set()
        self.exp_tab.set_expr(name, steps, force_override=True)
        return self.quantize(self.bb.normalize(pooled), made)

    def _expand_dims(self, op: Any) -> Any:
        """TVM's calls its own operator wrongly."""
        data, axis = self.get_input_tensors(op)
        return relax.op.expand_dims(self.get_expr(data.tensor_idx), int(self.get_tensor_value(axis).item()))

    def convert_qnn_fused_activation_function(self, expr: Any, fused_activation_fn: int, scale: float, zero_point: int, dtype: str) -> Any:
        """A clamp only where the type does not make it already, as operators that our compiler looks through."""
        low, high = _BOUNDS[self.activation_fn_type[fused_activation_fn]]
        limits = np.iinfo(dtype)
        if (first := round(low / scale) + zero_point if np.isfinite(low) else limits.min) > limits.min:
            expr = relax.op.maximum(relax.const(first, dtype), self.bb.normalize(expr))
        if (last := round(high / scale) + zero_point if np.isfinite(high) else limits.max) < limits.max:
            expr = relax.op.minimum(relax.const(last, dtype), self.bb.normalize(expr))
        return expr

    def get_tensors(self, indices: Any) -> list[TensorWrapper]:
        found: list[TensorWrapper] = super().get_tensors(np.asarray(indices))
        for one in found:
            if one.tensor_idx in self._as_floats:
                one.qnn_params = None
        return found

    def get_tensor_value(self, tensor: TensorWrapper, is_sparse: bool = False) -> Array:
        """Of what constants and shapes decide, too."""
        found = self.opened.known.get(tensor.tensor_idx)
        value: Array = super().get_tensor_value(tensor, is_sparse) if found is None else found
        return value

    def get_expr(self, index: int) -> Any:
        """A constant where an operator's data is one."""
        if self.has_expr(index):
            return super().get_expr(index)
        [tensor] = self.get_tensors([index])
        return self.get_tensor_expr(tensor)

    def get_tensor_shape(self, tensor: TensorWrapper) -> Any:
        """As it is with the inputs' shapes, and not as it was when the file was made."""
        return np.asarray(self.opened.shapes[tensor.tensor_idx], np.int64)
