"""Define the fields of an exported program's JSON and the kinds of their values.

The schema is that of torch/_export/serde/schema.py, version 8.20. torch accepts any JSON value for
any field, ignores its type, and writes names into the source of functions. Here a field's type is a
kind of value or another record; "[...]" is a list, "{...}" a mapping by name, a trailing "?" means
that it may be null. A record of UNIONS has exactly one of its fields. A test compares the schema
with torch.
"""

from __future__ import annotations

Record = dict[str, str]

_SYMBOLIC = {kind: {"as_expr": "SymExpr", f"as_{kind}": kind} for kind in ("int", "float", "bool")}
_SYMBOLIC_ARGUMENT = {
    kind: {"as_name": "variable", f"as_{kind}": kind} for kind in ("int", "float", "bool")
}

# Exactly one field of each of these is present.
UNIONS: dict[str, Record] = {
    "SymExprHint": {"as_int": "int", "as_bool": "bool", "as_float": "float"},
    "SymInt": _SYMBOLIC["int"],
    "SymFloat": _SYMBOLIC["float"],
    "SymBool": _SYMBOLIC["bool"],
    "SymIntArgument": _SYMBOLIC_ARGUMENT["int"],
    "SymFloatArgument": _SYMBOLIC_ARGUMENT["float"],
    "SymBoolArgument": _SYMBOLIC_ARGUMENT["bool"],
    "OptionalTensorArgument": {"as_tensor": "TensorArgument", "as_none": "bool"},
    "Argument": {
        "as_none": "bool",
        "as_tensor": "TensorArgument",
        "as_tensors": "[TensorArgument]",
        "as_int": "int",
        "as_ints": "[int]",
        "as_float": "float",
        "as_floats": "[float]",
        "as_string": "text",
        "as_strings": "[text]",
        "as_sym_int": "SymIntArgument",
        "as_sym_ints": "[SymIntArgument]",
        "as_scalar_type": "int",
        "as_memory_format": "int",
        "as_layout": "int",
        "as_device": "Device",
        "as_bool": "bool",
        "as_bools": "[bool]",
        "as_sym_bool": "SymBoolArgument",
        "as_sym_bools": "[SymBoolArgument]",
        "as_graph": "GraphArgument",
        "as_optional_tensors": "[OptionalTensorArgument]",
        "as_custom_obj": "forbidden",
        "as_operator": "operator",
        "as_sym_float": "SymFloatArgument",
        "as_sym_floats": "[SymFloatArgument]",
        "as_optional_tensor": "OptionalTensorArgument",
        "as_complex": "ComplexValue",
        "as_nested_tensors": "[[TensorArgument]]",
        "as_int_lists": "[[int]]",
        "as_string_to_argument": "{Argument}",
        "as_float_lists": "[[float]]",
    },
    "ConstantValue": {
        "as_none": "bool",
        "as_int": "int",
        "as_float": "float",
        "as_string": "plain",
        "as_bool": "bool",
    },
    "InputSpec": {
        "user_input": "UserInputSpec",
        "parameter": "InputToParameterSpec",
        "buffer": "InputToBufferSpec",
        "tensor_constant": "InputToTensorConstantSpec",
        "custom_obj": "forbidden",
        "token": "InputTokenSpec",
        "constant_input": "InputToConstantInputSpec",
    },
    "OutputSpec": {
        "user_output": "UserOutputSpec",
        "loss_output": "LossOutputSpec",
        "buffer_mutation": "BufferMutationSpec",
        "gradient_to_parameter": "GradientToParameterSpec",
        "gradient_to_user_input": "GradientToUserInputSpec",
        "user_input_mutation": "UserInputMutationSpec",
        "token": "OutputTokenSpec",
        "parameter_mutation": "ParameterMutationSpec",
    },
}

RECORDS: dict[str, Record] = {
    "Device": {"type": "device", "index": "int?"},
    "SymExpr": {"expr_str": "expression", "hint": "SymExprHint?"},
    "TensorMeta": {
        "dtype": "int",
        "sizes": "[SymInt]",
        "requires_grad": "bool",
        "device": "Device",
        "strides": "[SymInt]",
        "storage_offset": "SymInt",
        "layout": "int",
    },
    "TensorArgument": {"name": "variable"},
    "TokenArgument": {"name": "variable"},
    "GraphArgument": {"name": "variable", "graph": "Graph"},
    "ComplexValue": {"real": "float", "imag": "float"},
    "NamedArgument": {"name": "parameter", "arg": "Argument", "kind": "int?"},
    "Node": {
        "target": "operator",
        "inputs": "[NamedArgument]",
        "outputs": "[Argument]",
        "metadata": "{text}",
        "is_hop_single_tensor_return": "bool?",
        "name": "variable?",
    },
    "Graph": {
        "inputs": "[Argument]",
        "outputs": "[Argument]",
        "nodes": "[Node]",
        "tensor_values": "{TensorMeta}",
        "sym_int_values": "{SymInt}",
        "sym_bool_values": "{SymBool}",
        "is_single_tensor_return": "bool",
        "custom_obj_values": "nothing",
        "sym_float_values": "{SymFloat}",
    },
    "UserInputSpec": {"arg": "Argument"},
    "InputToConstantInputSpec": {"name": "variable", "value": "ConstantValue"},
    "InputToParameterSpec": {"arg": "TensorArgument", "parameter_name": "path"},
    "InputToBufferSpec": {"arg": "TensorArgument", "buffer_name": "path", "persistent": "bool"},
    "InputToTensorConstantSpec": {"arg": "TensorArgument", "tensor_constant_name": "path"},
    "InputTokenSpec": {"arg": "TokenArgument"},
    "UserOutputSpec": {"arg": "Argument"},
    "LossOutputSpec": {"arg": "TensorArgument"},
    "BufferMutationSpec": {"arg": "TensorArgument", "buffer_name": "path"},
    "ParameterMutationSpec": {"arg": "TensorArgument", "parameter_name": "path"},
    "GradientToParameterSpec": {"arg": "TensorArgument", "parameter_name": "path"},
    "GradientToUserInputSpec": {"arg": "TensorArgument", "user_input_name": "variable"},
    "UserInputMutationSpec": {"arg": "TensorArgument", "user_input_name": "variable"},
    "OutputTokenSpec": {"arg": "TokenArgument"},
    "GraphSignature": {"input_specs": "[InputSpec]", "output_specs": "[OutputSpec]"},
    "RangeConstraint": {"min_val": "int?", "max_val": "int?"},
    "ModuleCallSignature": {
        "inputs": "[Argument]",
        "outputs": "[Argument]",
        "in_spec": "arguments",
        "out_spec": "structure",
        "forward_arg_names": "[variable]?",
    },
    "ModuleCallEntry": {"fqn": "path", "signature": "ModuleCallSignature?"},
    "NamedTupleDef": {"field_names": "[plain]"},
    "GraphModule": {
        "graph": "Graph",
        "signature": "GraphSignature",
        "module_call_graph": "[ModuleCallEntry]",
        "metadata": "{text}",
        "treespec_namedtuple_fields": "{NamedTupleDef}",
    },
    "SchemaVersion": {"major": "int", "minor": "int"},
    "ExportedProgram": {
        "graph_module": "GraphModule",
        "opset_version": "{int}",
        "range_constraints": "{RangeConstraint}",
        "schema_version": "SchemaVersion",
        "verifiers": "[plain]",
        "torch_version": "text",
        "guards_code": "[guard]",
    },
    "PayloadMeta": {
        "path_name": "record",
        "is_param": "bool",
        "use_pickle": "false",
        "tensor_meta": "TensorMeta?",
    },
    "PayloadConfig": {"config": "{PayloadMeta}"},
}
