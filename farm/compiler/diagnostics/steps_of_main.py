"""Read the calls of kernels in `main` of a module as steps over numbered tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst

from farm.compiler.diagnostics.reference_steps import ReferenceStep
from farm.compiler.ir.constants import tensor_as_array
from farm.compiler.ir.dynamic_extents import value_at_batch_one
from farm.compiler.ir.relax_rewriter import main_inputs, main_weight_parameters, op_name
from farm.errors import BuildError

Array = np.ndarray[Any, Any]


class MainSteps:
    """The steps of `main`, with a batch of one where it is open. Every tensor has a number.

    `inputs` are the numbers of the inputs. `parameters` maps the numbers of parameters to their
    values, `places` to their index in the bundle. A kernel that slices to a dynamic extent copies
    the padded tensor in these steps. Raises BuildError for a step that is no kernel.
    """

    def __init__(self, model: str, main: relax.Function, parameters: Sequence[Array]) -> None:
        self.steps: list[ReferenceStep] = []
        self.parameters: dict[int, Array] = {}
        self.places: dict[int, int] = {}
        self._model, self._given = model, list(parameters)
        self._counts: set[Any] = set()
        self._count = 0
        self._numbers: dict[relax.Var, list[int]] = {}
        self._constants: dict[relax.Var, Array] = {}
        self._bundle = main_weight_parameters(main)
        self.inputs = [self._new(parameter) for parameter in main_inputs(main)]
        for block in main.body.blocks:
            for binding in block.bindings:
                if isinstance(binding.var.ty, relax.ShapeType):  # counts are read
                    self._counts.update(relax.analysis.tir_vars_in_type(binding.var.ty))
                else:
                    self._take(binding.var, binding.value)

    def _new(self, variable: relax.Var) -> int:
        self._numbers[variable] = [self._next()]
        return self._numbers[variable][0]

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _take(self, variable: relax.Var, value: Any) -> None:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._bundle:
            number = self._new(variable)
            self.places[number] = int(value.index)
            self.parameters[number] = self._given[int(value.index)]
        elif isinstance(value, relax.TupleGetItem):
            self._numbers[variable] = [self.of(value.tuple_value)[int(value.index)]]
        elif (constant := self._constant(value)) is not None:
            self._constants[variable] = constant
        elif isinstance(value, (relax.Var, relax.Tuple)):
            self._numbers[variable] = self.of(value)
        elif isinstance(value, Call) and op_name(value) == "relax.call_tir":
            types = (
                list(variable.ty.fields)
                if isinstance(variable.ty, relax.TupleType)
                else [variable.ty]
            )
            shapes = [type_.shape for type_ in types]
            if any(self._is_dynamic(shape) for shape in shapes):
                shapes = [value.args[1].fields[0].ty.shape]
            outputs = tuple(
                (self._next(), tuple(map(value_at_batch_one, shape)), str(type_.dtype))
                for shape, type_ in zip(shapes, types, strict=True)
            )
            self._numbers[variable] = [number for number, _, _ in outputs]
            self.steps.append(
                ReferenceStep(
                    str(value.args[0].name_hint),
                    tuple(map(self._argument, value.args[1].fields)),
                    outputs,
                )
            )
        else:
            raise self._refusal(f"it has a step that is no kernel: {str(value)[:200]}")

    def _constant(self, value: Any) -> Array | None:
        """Return the elements of a constant, or of a tensor that has none; None for others."""
        if isinstance(value, GenericConst):
            return tensor_as_array(value.value)
        if isinstance(value, Call) and op_name(value) == "relax.builtin.alloc_tensor":
            shape = [int(extent) for extent in value.args[0]]
            return np.zeros(shape, str(value.ty.dtype)) if 0 in shape else None
        return self._constants.get(value) if isinstance(value, relax.Var) else None

    def _is_dynamic(self, shape: Any) -> bool:
        found = relax.analysis.tir_vars_in_type(relax.ShapeType(list(shape)))
        return not self._counts.isdisjoint(found)

    def _refusal(self, why: str) -> BuildError:
        return BuildError(
            f"{self._model} cannot be taken apart", why, "compare its outputs only: farm deploy"
        )

    def _argument(self, value: Any) -> int | Array:
        if (constant := self._constant(value)) is not None:
            return constant
        if value not in self._numbers:
            raise self._refusal(f"the size {value} of an open axis is an input of a kernel")
        (number,) = self.of(value)
        return number

    def of(self, value: Any) -> list[int]:
        """Return the numbers of the tensors that a value consists of.

        A constant, which a model may return, gets a number as a parameter.
        """
        if (constant := self._constant(value)) is not None:
            number = self._next()
            self.parameters[number] = constant
            return [number]
        if isinstance(value, relax.Tuple):
            return [number for field in value.fields for number in self.of(field)]
        return self._numbers[value]
