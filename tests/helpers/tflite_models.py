"""TFLite files written by hand, an operator or a few each, by the schema that LiteRT brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

TYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "float64": "FLOAT64",
    "int8": "INT8",
    "uint8": "UINT8",
    "int16": "INT16",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
    "complex64": "COMPLEX64",
}


class Graph:
    """Collects tensors and operators; tensors are known by their numbers."""

    def __init__(self) -> None:
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: list[Any] = []
        self._buffers = [schema.BufferT()]

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        scale: Any = None,
        zero: int = 0,
        axis: int = 0,
        open_to: Any = None,
    ) -> int:
        """A tensor that is fed or computed. `scale` is one number or one for each of an axis;
        `open_to` has -1 for open extents.
        """
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = (
            name,
            list(shape),
            getattr(schema.TensorType, TYPES[dtype]),
            0,
        )
        made.shapeSignature = open_to
        if scale is not None:
            numbers = np.atleast_1d(np.asarray(scale, np.float32))
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = (
                numbers.tolist(),
                [zero] * numbers.size,
            )
            made.quantization.quantizedDimension = axis
        self._tensors.append(made)
        return len(self._tensors) - 1

    def constant(self, name: str, value: Any, **more: Any) -> int:
        value = np.asarray(value)
        index = self.tensor(name, value.shape, value.dtype.name, **more)
        buffer = schema.BufferT()
        if value.size:
            buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        self._tensors[index].buffer = len(self._buffers)
        self._buffers.append(buffer)
        return index

    def variable(self, name: str, shape: Sequence[int], dtype: str = "float32", **more: Any) -> int:
        """A state, which is zeros at first."""
        index = self.tensor(name, shape, dtype, **more)
        self._tensors[index].isVariable = True
        return index

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str = "",
        custom: str = "",
        intermediates: Sequence[int] = (),
        **fields: Any,
    ) -> None:
        """An operator; `options` is the table of the schema that has the fields."""
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version, code.customCode = (
            min(code.builtinCode, 127),
            fields.pop("version", 1),
            custom or None,
        )
        self._codes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = (
            len(self._codes) - 1,
            list(inputs),
            list(outputs),
        )
        made.intermediates = list(intermediates) or None
        if options:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            made.builtinOptions = getattr(schema, f"{options}T")()
            for field, value in fields.items():
                assert hasattr(made.builtinOptions, field), field
                setattr(made.builtinOptions, field, value)
        self._operators.append(made)

    def save(self, path: Path, inputs: Sequence[int], outputs: Sequence[int]) -> Path:
        graph, model = schema.SubGraphT(), schema.ModelT()
        graph.tensors, graph.operators, graph.inputs, graph.outputs = (
            self._tensors,
            self._operators,
            list(inputs),
            list(outputs),
        )
        model.version, model.subgraphs, model.operatorCodes, model.buffers = (
            3,
            [graph],
            self._codes,
            self._buffers,
        )
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        path.write_bytes(builder.Output())
        return path
