"""Draw numbers, shapes, axes and arrays, decided by a name and a seed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

_EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 13, 17)
_MOST = 1500  # elements of a tensor
FLOATS = ("float32", "float32", "float32", "float64", "float16")
SIGNED = ("int64", "int32", "int8", "int16")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *FLOATS, *INTEGERS)
Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class RandomValues:
    """Draw values for the case of an operator and a seed."""

    def __init__(self, operator: str, seed: int) -> None:
        self.random = np.random.default_rng([zlib.crc32(operator.encode()), seed])

    def whole(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one_of(self, values: Sequence[Any]) -> Any:
        return values[self.whole(0, len(values) - 1)]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def some(self, **choices: Sequence[Any]) -> dict[str, Any]:
        """Return attributes, each left out or one of its choices."""
        return {name: self.one_of(values) for name, values in choices.items() if self.chance(0.7)}

    def shape(self, low: int = 0, high: int = 5, least: int = 1) -> Shape:
        rank = self.whole(low, high)
        extents = [max(least, self.one_of(_EXTENTS)) for _ in range(rank)]
        while np.prod(extents, initial=1) > _MOST:
            longest = int(np.argmax(extents))
            extents[longest] = max(least, extents[longest] // 2)
        return tuple(extents)

    def axis(self, rank: int) -> int:
        """Return an axis, half of them counted from the end."""
        return self.whole(-rank, rank - 1)

    def axes(self, rank: int, least: int = 1) -> list[int]:
        """Return different axes in any order, some counted from the end."""
        chosen = self.random.permutation(rank)[: self.whole(least, rank)]
        return [int(axis) - (rank if self.chance(0.5) else 0) for axis in chosen]

    def array(self, shape: Sequence[int], dtype: str = "float32", scale: float = 2.0) -> Array:
        """Return numbers around 0: whole ones from -9 to 9, or such as `scale` says."""
        if dtype == "bool":
            return self.random.random(shape) < 0.5
        if "float" in dtype:
            return np.asarray(self.random.standard_normal(shape) * scale).astype(dtype)
        low = 0 if dtype.startswith("u") else -9
        return np.asarray(self.random.integers(low, 10, shape)).astype(dtype)

    def between(self, low: float, high: float, shape: Sequence[int], dtype: str) -> Array:
        return np.asarray(self.random.uniform(low, high, shape)).astype(dtype)


class HasInputs(Protocol):
    """A case with inputs: arrays that are fed and constants, by name."""

    fed: dict[str, Array]
    constants: dict[str, Array]


class RandomInputs(RandomValues):
    """Draw the inputs of a case, and give them to it."""

    case: HasInputs

    def feed(self, value: Any) -> str:
        name = f"x{len(self.case.fed)}"
        self.case.fed[name] = np.asarray(value)
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.case.constants)}"
        self.case.constants[name] = np.asarray(value)
        return name

    def given(self, value: Any) -> str:
        """Return an input that is fed or a constant."""
        return self.feed(value) if self.chance(0.5) else self.constant(value)
