"""The steps of a model's reference kernels, and the values that they computed, as files.

A sandboxed process writes the files, so what is read is checked. TVM is not imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.compiler.build import require_regular_file
from farm.compiler.parameter_files import dtype_by_name
from farm.errors import BuildError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Argument = Any  # the number of a tensor (int), or the value of a constant (an array)
Form = tuple[tuple[int, ...], str]  # shape and dtype


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """A call of a kernel.

    `arguments` are its arguments in order; `outputs` are the number, shape and dtype of each
    output.
    """

    kernel: str
    arguments: tuple[Argument, ...]
    outputs: tuple[tuple[int, tuple[int, ...], str], ...]

    @property
    def tensors(self) -> list[int]:
        """The numbers of the tensors among the arguments."""
        return [one for one in self.arguments if isinstance(one, int)]


@dataclass(frozen=True, slots=True)
class ReferenceSteps:
    """A model as steps over numbered tensors, of which a folder has the values.

    `steps` are in execution order, and `inputs` are tensor numbers. `parameters` maps the numbers
    of parameters to shape and dtype, `places` to their index in the bundle of parameters.
    """

    steps: tuple[ReferenceStep, ...]
    inputs: tuple[int, ...]
    parameters: Mapping[int, Form]
    places: Mapping[int, int]


def tensor_value_file(folder: Path, number: int) -> Path:
    """Return the file of a tensor's value."""
    return folder / f"{number:d}.bin"


class ReferenceValues:
    """The values of the tensors of a model, read from the files that a run has left in a folder."""

    def __init__(
        self, model: str, computed: ReferenceSteps, folder: Path, inputs: Mapping[int, Array]
    ) -> None:
        self.computed = computed
        self._what = f"{model}: the process that computed its reference"
        self._folder, self._inputs = folder, inputs
        self._forms: dict[int, Form] = dict(computed.parameters)
        for step in computed.steps:
            self._forms.update({number: (shape, dtype) for number, shape, dtype in step.outputs})

    def value(self, number: int) -> Array:
        """Return a tensor's value. Raises BuildError if its file is not what the steps say."""
        import numpy as np

        if number in self._inputs:
            return self._inputs[number]
        shape, dtype = self._forms[number]
        kind, path = (
            dtype_by_name(dtype),
            require_regular_file(self._what, tensor_value_file(self._folder, number)),
        )
        expected, found = kind.itemsize * math.prod(shape), path.stat().st_size
        if found != expected or any(extent < 0 for extent in shape):
            why = f"{path.name} has {found} bytes, and {dtype} {list(shape)} has {expected}"
            raise BuildError(
                f"{self._what} left other files than the steps say",
                why[:600],
                "run the command again",
            )
        return np.fromfile(path, np.uint8).view(kind).reshape(shape)
