"""Keep the names of a source model's operators as the names of Relax variables.

Graph passes preserve variable names, and TVM's importers do not record operator names. TVM's
converters are therefore wrapped to record them, and the variables are renamed once the module is
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.types.layer_variable_names import layer_variable_name

Names = dict[str, str]  # layer name by the name of the variable that an importer has made


@contextmanager
def recording_onnx_names() -> Iterator[Names]:
    """Record, inside the context, the names of nodes that TVM's ONNX importer converts."""
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    names: Names = {}
    original = ONNXGraphImporter._convert_operator

    def convert(importer: Any, operator: str, inputs: Any, attributes: Any, opset: int) -> Any:
        result = original(importer, operator, inputs, attributes, opset)
        if isinstance(result, tvm.ir.Call) and isinstance(result.ty, relax.TensorType):
            # Without it the consumer would emit the call, and the name would be lost.
            result = importer.bb.emit(result)
        if isinstance(result, relax.Var):
            names.setdefault(result.name, attributes.get("tvm_custom", {}).get("name") or operator)
        return result

    ONNXGraphImporter._convert_operator = convert
    try:
        yield names
    finally:
        ONNXGraphImporter._convert_operator = original


@contextmanager
def recording_torch_names() -> Iterator[Names]:
    """Record, inside the context, the operators that TVM's torch importer converts.

    Each operator is named after the module that called it.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    names: Names = {}
    create, update = (
        ExportedProgramImporter.create_convert_map,
        ExportedProgramImporter.update_convert_map,
    )

    def heard(convert: Callable[..., Any]) -> Callable[..., Any]:
        def converted(node: Any, *rest: Any) -> Any:
            result = convert(node, *rest)
            for variable in result.fields if isinstance(result, relax.Tuple) else [result]:
                if isinstance(variable, relax.Var):
                    names.setdefault(variable.name, _caller(node))
            return result

        return converted

    def all_heard(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        return {name: heard(convert) for name, convert in table.items()}

    ExportedProgramImporter.create_convert_map = lambda importer: all_heard(create(importer))
    ExportedProgramImporter.update_convert_map = lambda importer, table: update(
        importer, all_heard(table)
    )
    try:
        yield names
    finally:
        ExportedProgramImporter.create_convert_map, ExportedProgramImporter.update_convert_map = (
            create,
            update,
        )


def _caller(node: Any) -> str:
    """Return the path of the innermost module that an operator belongs to.

    Returns the operator's own name if it belongs to the model's function itself.
    """
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0] if stack and stack[-1][0] else node.name)


def rename_variables(module: tvm.IRModule, names: Names) -> tvm.IRModule:
    """Return the module with the variables of `main` renamed."""
    result = module.clone()
    result["main"] = _Renamer(names).visit_expr(module["main"])
    return result


@mutator
class _Renamer(PyExprMutator):  # type: ignore[misc]
    """Mutator that renames the variables listed in `names`, numbered in order."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names, self._count = names, 0

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rebind a listed variable under its layer's name."""
        name = binding.var.name
        if isinstance(binding.value, relax.Var):  # an output is an alias of an operator's result
            name = binding.value.name
        if name not in self._names:
            super().visit_var_binding_(binding)
            return
        self._count += 1
        kind = relax.DataflowVar if isinstance(binding.var, relax.DataflowVar) else relax.Var
        variable = kind(layer_variable_name(self._count, self._names[name]), binding.var.ty)
        value = self.visit_expr(binding.value)
        self.set_var_remap(binding.var, variable)
        self.builder_.emit_normalized(relax.VarBinding(variable, value))
