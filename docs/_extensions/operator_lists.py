"""List the operators that the importers know, for the reference pages.

An operator is listed by its name alone: some of its forms may still be refused, as `farm check`
says of a model.
"""

from __future__ import annotations

from collections.abc import Iterable

# QLinear operators become DequantizeLinear, operator, QuantizeLinear; loops are unrolled.
_ELSEWHERE = {"Loop", "QLinearConv", "QLinearMatMul", "Scan"}
_OF_CHANCE = {"Bernoulli"}  # whose function, which depends on its type, draws random numbers


def onnx_operators() -> str:
    """Return the operators of ONNX's newest operator set, by how they are imported."""
    import onnx

    from farm.importers.onnx import operator_support

    schemas = {one.name: one for one in onnx.defs.get_all_schemas() if one.domain == ""}
    known = {
        name
        for name in schemas
        if operator_support.has_converter(onnx.helper.make_node(name, [], []))
    }
    rest = schemas.keys() - known - _ELSEWHERE
    functions = {
        name
        for name in rest
        if schemas[name].has_context_dependent_function
        or (
            schemas[name].has_function
            and {node.op_type for node in schemas[name].function_body.node} <= known
        )
    } - _OF_CHANCE
    return "\n\n".join(
        [
            f"{len(known)} operators of ONNX have a converter: {_listed(known)}.",
            f"Rewritten before the import: {_listed(_ELSEWHERE)}.",
            "Computed by the function that ONNX defines for them, if its operators are known: "
            f"{_listed(functions)}.",
            f"Not supported: {_listed(rest - functions)}.",
            "Of ONNX Runtime's own operators (`com.microsoft`), with converters: "
            f"{_listed(operator_support.MICROSOFT)}.",
        ]
    )


def torch_operators() -> str:
    """Return the ATen operators that have converters after torch's decompositions."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from farm.importers.torch.converters import complex_numbers, indexing, operators, pt2e

    table = {
        **ExportedProgramImporter().create_convert_map(),
        **operators.converters(),
        **indexing.converters(),
        **pt2e.converters(),
    }
    names = {*table, *complex_numbers.converters(table)}
    whole = {name.partition(".")[0] for name in names} - {"getitem"}
    return (
        f"{len(whole)} operators of ATen have a converter; torch decomposes most others into "
        f"these: {_listed(whole)}."
    )


def tflite_operators() -> str:
    """Return TFLite's built-in operators that have converters."""
    from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

    from farm.importers.tflite.converter import REFUSED

    known = OperatorConverter(None, None, None, None).convert_map.keys() - set(REFUSED)
    return f"{len(known)} built-in operators have a converter: {_listed(known)}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))
