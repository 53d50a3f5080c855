"""Draw single-operator TFLite models: the values of a case, and what its rule decides them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from random_operators.random_values import Array, RandomValues, Shape
from tflite_models import TYPES, Graph

FLOAT_OR_BYTES = ("float32", "float32", "float32", "int8", "uint8", "int16")
WIDE = ("float32", "float32", "int32", "int64")
_TOLD = 8  # elements


@dataclass
class Tensor:
    """A tensor of a case: fed or constant if it has a value, computed if not."""

    dtype: str
    value: Array | None = None
    fed: bool = False
    scale: Any = None
    zero: int = 0
    axis: int = 0

    @property
    def quantization(self) -> dict[str, Any]:
        return {"scale": self.scale, "zero": self.zero, "axis": self.axis}

    def __str__(self) -> str:
        shape = "" if self.value is None else list(self.value.shape)
        said = f"{self.dtype}{shape}"
        if self.scale is not None:
            said += f" x{np.round(np.ravel(self.scale)[:2], 3).tolist()} from {self.zero}"
        if self.fed:
            return f"fed {said}"
        if self.value is not None and self.value.size <= _TOLD:
            return f"{said}={self.value.tolist()}"
        return said


@dataclass
class Case:
    """A model of an operator, and its inputs."""

    operator: str
    seed: int
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)  # of the operator; -1 for none
    outputs: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)  # variables
    options: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 0.0  # more than usual
    steps: int = 0  # by which integers may differ, as they are rounded
    unordered: int | None = None  # the axis along which the order of results is not defined

    def __str__(self) -> str:
        given = ", ".join("-" if at < 0 else str(self.tensors[at]) for at in self.inputs)
        made = ", ".join(str(self.tensors[at]) for at in self.outputs)
        return f"({given}) {dict(self.fields)} -> {made}"

    @property
    def fed(self) -> dict[str, Array]:
        return {
            f"x{at}": one.value
            for at, one in enumerate(self.tensors)
            if one.fed and one.value is not None
        }

    def save(self, path: Path, shapes: Sequence[Shape] | None = None) -> None:
        """Write the model, with the shapes of its results, if they are known."""
        graph = Graph()
        made = dict(zip(self.outputs, shapes or [()] * len(self.outputs), strict=True))
        for at, one in enumerate(self.tensors):
            if one.value is None:
                graph.tensor(f"y{at}", made[at], one.dtype, **one.quantization)
            elif one.fed:
                graph.tensor(f"x{at}", one.value.shape, one.dtype, **one.quantization)
            elif at in self.states:
                graph.variable(f"s{at}", one.value.shape, one.dtype, **one.quantization)
            else:
                graph.constant(f"c{at}", one.value, **one.quantization)
        graph.op(self.operator, self.inputs, self.outputs, self.options, **self.fields)
        fed = [at for at, one in enumerate(self.tensors) if one.fed]
        graph.save(path, fed, self.outputs)


class Draw(RandomValues):
    """What the rule of an operator draws its case with; tensors are known by their numbers."""

    def __init__(self, operator: str, seed: int) -> None:
        super().__init__(operator, seed)
        self.case = Case(operator, seed)

    def _add(self, tensor: Tensor) -> int:
        self.case.tensors.append(tensor)
        return len(self.case.tensors) - 1

    def feed(self, value: Any, **quantization: Any) -> int:
        value = np.asarray(value)
        return self._add(Tensor(value.dtype.name, value, fed=True, **quantization))

    def constant(self, value: Any, **quantization: Any) -> int:
        value = np.asarray(value)
        return self._add(Tensor(value.dtype.name, value, **quantization))

    def state(self, shape: Sequence[int]) -> int:
        """Return a variable, which is zeros."""
        self.case.states.append(self.constant(np.zeros(shape, np.float32)))
        return self.case.states[-1]

    def given(self, value: Any, **quantization: Any) -> int:
        """Return a tensor that is fed or a constant."""
        add = self.feed if self.chance(0.6) else self.constant
        return add(value, **quantization)

    def whole_numbers(self, *values: Any) -> int:
        return self.constant(np.asarray(values, np.int32))

    def scalar(self, value: Any, dtype: str = "int32") -> int:
        return self.constant(np.asarray(value, dtype))

    def quantization(self, dtype: str) -> dict[str, Any]:
        """Return a random scale and zero point of a type of bytes; nothing for floats."""
        if dtype not in ("int8", "uint8", "int16"):
            return {}
        low, high = {"int8": (-40, 40), "uint8": (90, 160), "int16": (0, 0)}[dtype]
        scale = self.random.uniform(0.02, 0.15) / (1 if dtype != "int16" else 200)
        return {"scale": float(np.float32(scale)), "zero": self.whole(low, high)}

    def values(self, shape: Sequence[int], dtype: str, scale: float = 2.0) -> Array:
        """Return numbers as `array` does; of bytes all their range."""
        if dtype in ("int8", "uint8", "int16"):
            limits = np.iinfo(dtype)
            return self.random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        return self.array(shape, dtype, scale)

    def data(self, shape: Sequence[int], dtype: str, like: int | None = None) -> int:
        """Return a tensor that is fed, quantized if its type is of bytes, as `like` is if given."""
        return self.feed(self.values(shape, dtype), **self.quantized_like(dtype, like))

    def quantized_like(self, dtype: str, like: int | None) -> dict[str, Any]:
        if like is None:
            return self.quantization(dtype)
        return self.case.tensors[like].quantization

    def made(self, dtype: str, like: int | None = None) -> int:
        """Return a result, quantized by itself, or as `like` is."""
        at = self._add(Tensor(dtype, **self.quantized_like(dtype, like)))
        if self.case.tensors[at].scale is not None:
            self.case.steps = max(self.case.steps, 1 if like is None else 0)
        return at

    def made_plain(self, dtype: str) -> int:
        """Return a result that is not quantized, whatever its type."""
        return self._add(Tensor(dtype))

    def dtype_of(self, tensor: int) -> str:
        return self.case.tensors[tensor].dtype

    def op(
        self, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **fields: Any
    ) -> None:
        case = self.case
        case.inputs, case.outputs, case.options = list(inputs), list(outputs), options
        case.fields = fields

    def moved(self, *inputs: int, options: str = "", **fields: Any) -> None:
        """Make an operator whose result has the first input's type and scale."""
        self.op(inputs, [self.made(self.dtype_of(inputs[0]), inputs[0])], options, **fields)


def type_number(dtype: str) -> int:
    """Return the number of a type in the schema."""
    return int(getattr(schema.TensorType, TYPES[dtype]))


Rule = Callable[[Draw], None]
