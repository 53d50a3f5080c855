"""Process a module from TVM's importers: detach weights, read output specs, shorten errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from types import MappingProxyType
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.errors import ModelError
from farm.importers.size_limits import check_intermediates_fit_memory
from farm.types import TensorSpec

_FEWEST_WEIGHTS = 64
_END = 300


def detach_weights(module: tvm.IRModule, count: int) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Turn constant weights in "main" into parameters that follow its `count` inputs.

    Weights are constants with at least one axis, except integer and boolean constants of fewer than
    64 elements, which are indices and shapes. Raises ModelError for tensors that are larger than
    this machine's memory.

    TVM's own option for this leaves torch's buffers constant, repeats ONNX initializers that are
    listed as inputs, and prevents the ONNX importer from folding constants.
    """
    check_intermediates_fit_memory("the model", module)
    main = module["main"]
    lifter = _Lifter(module)
    body = lifter.visit_expr(main.body)
    parameters = [*main.params, *lifter.lifted.values()]
    lifted = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs).with_attr(
        "num_input", count
    )
    result = module.clone()
    result["main"] = lifted
    return result, [constant.value.numpy() for constant in lifter.lifted]


@mutator
class _Lifter(PyExprMutator):  # type: ignore[misc]
    """Mutator that replaces weight constants by parameters; `lifted` maps one to the other."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.lifted: dict[Any, Any] = {}  # constant -> parameter

    def visit_generic_const_(self, constant: Any) -> Any:
        """Replace a constant by a parameter if it is a weight."""
        if constant not in self.lifted:
            if not _is_weight(constant.value):
                return constant
            self.lifted[constant] = relax.Var(f"weight{len(self.lifted)}", constant.ty)
        return self.lifted[constant]


def _is_weight(value: Any) -> bool:
    """Return whether a constant is a weight."""
    if not isinstance(value, tvm.runtime.Tensor) or not value.shape:
        return False
    return "float" in str(value.dtype) or math.prod(value.shape) >= _FEWEST_WEIGHTS


def output_specs(
    module: tvm.IRModule,
    names: Sequence[str],
    bounds: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> tuple[TensorSpec, ...]:
    """Return names, shapes and dtypes of the outputs of "main", with an open batch set to one.

    `bounds` has the padded shapes of outputs with dynamic extents. Raises
    ModelError if another shape depends on the data, or if an output is not a tensor.
    """
    types = _returned(module)
    # Variables of the inputs' shapes only, not those that depend on values.
    batch = {
        one
        for parameter in module["main"].params
        for one in relax.analysis.tir_vars_in_type(parameter.ty)
    }
    if len(types) != len(names):
        raise ModelError(
            f"TVM's importer made {len(types)} outputs of the {len(names)} that the model has",
            f"they are {', '.join(names)}",
        )
    if not batch:
        return tuple(
            TensorSpec(name, bounds[name], str(type_.dtype), bounded=True)
            if name in bounds
            else _output_spec(name, type_)
            for name, type_ in zip(names, types, strict=True)
        )
    specs = map(
        _output_spec,
        names,
        _returned(
            relax.transform.BindSymbolicVars(
                {one: tvm.tirx.const(1, "int64") for one in batch}, "main"
            )(module)
        ),
    )
    return tuple(
        replace(spec, open=bool(relax.analysis.tir_vars_in_type(type_)))
        for spec, type_ in zip(specs, types, strict=True)
    )


def _returned(module: tvm.IRModule) -> list[Any]:
    """Return the types of the outputs of "main"."""
    returned = module["main"].ret_ty
    return list(returned.fields) if isinstance(returned, relax.TupleType) else [returned]


def _output_spec(name: str, type_: Any) -> TensorSpec:
    """Return the spec of an output; raise ModelError unless it is a tensor of fixed shape."""
    axes = (
        list(type_.shape)
        if isinstance(type_, relax.TensorType) and isinstance(type_.shape, relax.ShapeExpr)
        else None
    )
    if axes is None or not all(isinstance(axis, tvm.tirx.IntImm) for axis in axes):
        raise ModelError(
            f"output {name!r} is not a tensor of a fixed shape",
            (
                f"TVM sees it as {type_}: it depends on the values of the inputs, not only on "
                "their shapes"
            ),
            (
                "export the model to ONNX, where farm builds NonZero and NonMaxSuppression; "
                "or end it before the step that selects by value"
            ),
        )
    return TensorSpec(name, tuple(int(axis) for axis in axes), str(type_.dtype))


@contextmanager
def suppress_output_warnings_and_logs() -> Iterator[None]:
    """Suppress importers' output, warnings and log messages; relevant errors become ModelErrors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with catch_warnings(), redirect_stdout(StringIO()):
            simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def one_line_error(error: BaseException) -> str:
    """Return a foreign error's message on one line, shortened and without its backtrace."""
    words = " ".join(str(error).split("\nStack trace")[0].split("\nTraceback")[0].split())
    short = words if len(words) <= 2 * _END else f"{words[:_END]} ... {words[-_END:]}"
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
