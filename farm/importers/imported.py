"""What every importer returns, and the inputs to try where the model brings none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.types import Model, TensorSpec

Reference = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
Layers = Callable[[Mapping[str, np.ndarray]], Iterator[tuple[str, str, np.ndarray]]]

_SEED = 0


@dataclass(frozen=True, slots=True)
class Imported:
    """A model as TVM takes it, and the engine it came from as the reference.

    `module` is a tvm IRModule whose "main" takes the inputs, then the weights, and returns a tensor or a tuple of tensors; its
    attribute `num_input` counts the inputs. `weights` are in the order of those parameters. `reference` runs one sample, by input
    name, on `engine` and returns the outputs in order. `example` is an input to try, by name. `files` are what a
    `python:` source was made of. `network` is a torch model itself and its example arguments, positional and by name; None of other
    files. `layers` gives, of one sample, every tensor on the way: the name of the layer that made it, its operator and its values;
    None where the engine does not tell. `fixed` says why a batch that the model leaves open was given an extent.
    """

    module: Any
    weights: list[np.ndarray]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    engine: str
    example: dict[str, np.ndarray]
    reference: Reference
    files: tuple[Path, ...] = ()
    network: tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    layers: Layers | None = None
    fixed: str = ""

    @property
    def open(self) -> bool:
        """Whether the module takes any batch."""
        return any(spec.open for spec in self.inputs)


def with_fixed_shapes(model: Model, inputs: Sequence[TensorSpec]) -> Model:
    """The model with nothing left open: its inputs have these shapes."""
    return replace(model, shapes={spec.name: spec.shape for spec in inputs})


def example_inputs(inputs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Inputs from a fixed seed: standard normal for floats; 0 and 1 for integers and booleans, so that they are valid indices."""
    numbers = np.random.default_rng(_SEED)
    return {spec.name: _example(numbers, spec) for spec in inputs}


def _example(numbers: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return np.asarray(numbers.standard_normal(spec.shape), dtype)
    return np.asarray(numbers.integers(0, 2, spec.shape), dtype)
