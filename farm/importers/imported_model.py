"""Define the class that every importer returns, and make example inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.importers.size_limits import check_specs_fit_memory
from farm.types import Model, TensorSpec

Reference = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
Layers = Callable[[Mapping[str, np.ndarray]], Iterator[tuple[str, str, np.ndarray]]]

_SEED = 0


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """An imported model: its Relax module and weights, and the source engine as the reference.

    `module` is a tvm IRModule whose "main" takes the inputs, then the weights, and returns a tensor
    or a tuple of tensors; its attribute `num_input` counts the inputs. `weights` are in the order
    of those parameters. `reference` runs one inference on `engine`: it takes the inputs by name and
    returns the outputs in order. `example` holds example inputs by name. `files` are the files that
    a `python:` source was made of. `network` is the torch model and its example arguments,
    positional and by name; None for other formats. `layers` yields the intermediate tensors of one
    inference: layer name, operator and values; None if the engine cannot report them. `fixed`
    states why an open batch was given a fixed extent; "" if it was not. `data_dependent`
    says that extents depend on values: rounding can decide what is selected.
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
    data_dependent: bool = False

    @property
    def open(self) -> bool:
        """Return whether the module accepts any batch."""
        return any(spec.open for spec in self.inputs)


def fix_input_shapes(model: Model, inputs: Sequence[TensorSpec]) -> Model:
    """Return the model with the shape of each input set to that of its spec."""
    return replace(model, shapes={spec.name: spec.shape for spec in inputs})


def example_inputs(inputs: Sequence[TensorSpec], seed: int = _SEED) -> dict[str, np.ndarray]:
    """Return inputs from a seed.

    Floats are standard normal; integers and booleans are 0 or 1, so that they are valid indices.
    Raises ModelError for shapes that are larger than this machine's memory.
    """
    check_specs_fit_memory("the model", inputs)
    numbers = np.random.default_rng(seed)
    return {spec.name: _example(numbers, spec) for spec in inputs}


def _example(numbers: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return np.asarray(numbers.standard_normal(spec.shape), dtype)
    return np.asarray(numbers.integers(0, 2, spec.shape), dtype)
