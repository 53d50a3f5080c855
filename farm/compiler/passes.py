"""The graph passes between import and schedules, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.core import Core
from farm.compiler.folding import FoldConstants
from farm.compiler.kernels import legalization

Array = np.ndarray[Any, Any]
_INLINE_BYTES = 64  # a constant this small stays in the code


def bind(module: tvm.IRModule, weights: Sequence[Array]) -> tvm.IRModule:
    """Make the weights, the parameters of `main` after its inputs, constants."""
    main = module["main"]
    names = [parameter.name for parameter in main.params[int(main.attrs["num_input"]) :]]
    tensors = {name: tvm.runtime.tensor(value) for name, value in zip(names, weights, strict=True)}
    return relax.transform.BindParams("main", tensors)(module)


def optimize(module: tvm.IRModule, core: Core) -> tvm.IRModule:
    """From the imported operators to fused loop nests. The target must be the current one."""
    transform = relax.transform
    passes = [
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),
        _SplitClip(),
        FoldConstants(),
        transform.DeadCodeElimination(),
        transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
        transform.Normalize(),
        FoldConstants(),
        transform.CanonicalizeBindings(),
        transform.EliminateCommonSubexpr(),
        transform.DeadCodeElimination(),
        transform.LegalizeOps(legalization(core)),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(module)


def lift_parameters(module: tvm.IRModule) -> tuple[tvm.IRModule, list[Array]]:
    """Move the constants of `main` out of the code, into one tuple that is its last parameter.

    Code and parameters then have digests of their own, and a device keeps and loads each on its own.
    """
    lifter = _Lifter(module)
    main = lifter.visit_expr(module["main"])
    inputs = len(main.params)
    variables = list(lifter.variables.values())
    if variables:
        main = relax.Function([*main.params, *variables], main.body, main.ret_ty, main.is_pure, main.attrs)
    module.update_func(module.get_global_var("main"), main.with_attr("num_input", inputs))
    if variables:
        module = relax.transform.BundleModelParams("parameters")(module)
    return module, list(lifter.values.values())


@mutator
class _Lifter(PyExprMutator):  # type: ignore[misc]
    """Replaces each distinct constant tensor by a variable."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.variables: dict[bytes, relax.Var] = {}
        self.values: dict[bytes, Array] = {}

    def visit_generic_const_(self, expression: GenericConst) -> relax.Expr:
        value = expression.value.numpy()
        if value.nbytes <= _INLINE_BYTES:
            return expression
        key = f"{value.dtype}{value.shape}".encode() + value.tobytes()
        if key not in self.variables:
            self.variables[key] = relax.Var(f"parameter_{len(self.variables)}", expression.ty)
            self.values[key] = value
        return self.variables[key]


@mutator
class _ClipSplitter(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.clip" or str(call.ty.dtype) != "float32":
            return call
        data, low, high = call.args
        bounds = [relax.const(np.float32(bound.value)) for bound in (low, high)]
        return relax.op.minimum(self.builder_.emit(relax.op.maximum(data, bounds[0])), bounds[1])


@tvm.transform.module_pass(opt_level=0, name="farm.SplitClip")
class _SplitClip:
    """clip -> minimum(maximum()): ConvertLayout has no rule for clip and would put two transposes around each."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                module.update_func(name, _ClipSplitter(module).visit_expr(function))
        return module
