"""Import TorchScript (torch.jit.save). The reference is the script itself.

The script is converted by torch's converter to an exported program, as it is or frozen; if both
fail, by torch's export to ONNX. A script does not state the shapes of its inputs; a traced script
stores those of its trace. Arguments with a default keep it, unless their shape is given. Control
flow that depends on shapes and constants is resolved; both converters report control flow that they
cannot resolve.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._export import converter
from torch.jit._recursive import wrap_cpp_module

from farm.errors import ModelError, did_you_mean
from farm.importers.imported_model import ImportedModel, example_inputs
from farm.importers.relax_postprocessing import one_line_error, suppress_output_warnings_and_logs
from farm.importers.torch.checks.checked_arguments import CheckedArguments
from farm.importers.torch.checks.pickle_callables import SAVE
from farm.importers.torch.checks.torchscript_check import check_graphs
from farm.importers.torch.convert import (
    Arguments,
    cast_module_and_arguments,
    export_module,
    import_program,
    make_torch_reference,
    output_names,
)
from farm.importers.torch.dtypes import dtype_name, tensor_spec
from farm.importers.torch.torchscript_non_tensor_arguments import user_values_as_literals
from farm.importers.torch.torchscript_numbers import ConverterForKnownShapes
from farm.importers.torch.torchscript_traced_inputs import Spec, traced_input_specs
from farm.types import Model

_OPSET = 17
Script: TypeAlias = Any  # a torch.jit.ScriptModule; mypy has no type information for it
Tensors = dict[str, torch.Tensor]


def load(source: Model) -> ImportedModel:
    """Import a script; `source` gives shapes and element types if it was not traced.

    Raises ModelError for a damaged file, for inputs without a shape, and if no converter can
    convert the script.
    """
    path = Path(source.source)
    what = path.name
    script, graphs = _read(path)
    check_graphs(graphs, what)
    plain = user_values_as_literals(script, source.values, what)
    names = _fed(script, {*source.shapes, *source.dtypes} - {""}, plain, what)
    inputs = _inputs(names, traced_input_specs(path), source, what)
    script = _of_tensors(script, names, plain)
    precision: dict[str, str] = {name: dtype for name, dtype in source.dtypes.items() if not name}
    module, (values, _) = cast_module_and_arguments(
        script, (tuple(inputs.values()), {}), precision, what
    )
    inputs = dict(zip(names, values, strict=True))
    _check_run(module, inputs, what)
    refusals = []
    for attempt in (_by_program, _by_frozen_program, _by_onnx):
        try:
            return attempt(module, inputs, what)
        except ModelError as error:
            refusals.append(error)
    first, _, last = refusals
    raise ModelError(
        first.what,
        f"{first.why}; by way of ONNX: {last.what.removeprefix(f'{what}: ')}: {last.why}",
        SAVE,
    ) from first


def _read(path: Path) -> tuple[Script, list[Any]]:
    """Return the script in evaluation mode, and the graphs of all its functions and methods.

    Its pickle is read by torch's own reader of scripts, which creates no Python objects.
    """
    try:
        # As torch.jit.load does, which keeps the compilation unit to itself.
        unit = torch._C.CompilationUnit()
        with suppress_output_warnings_and_logs(), CheckedArguments():
            module = torch._C.import_ir_module(
                unit, os.fspath(path), torch.device("cpu"), {}, False
            )
            script: Script = wrap_cpp_module(module).eval()
        return script, [function.graph for function in unit.get_functions()]
    except Exception as exc:
        why = (
            f"{one_line_error(exc)}; it may be damaged, or saved by a later torch (this is "
            f"{torch.__version__})"
        )
        raise ModelError(f"{path} cannot be loaded as TorchScript", why, SAVE) from exc


def _fed(script: Script, asked: set[str], plain: Mapping[str, str], what: str) -> list[str]:
    """Return the names of the arguments that are fed.

    These are the tensors without a default, and those for which the user gives a shape or type.
    Arguments in `plain` are constants.
    Raises ModelError for unknown names and for arguments that are not tensors.
    """
    _, *arguments = script.forward.schema.arguments
    if unknown := sorted(asked - {argument.name for argument in arguments}):
        listed = [argument.name for argument in arguments]
        raise ModelError(
            f"{what} has no input {unknown[0]!r}",
            f"its inputs are {', '.join(listed)}",
            did_you_mean(unknown[0], listed),
        )
    fed = [
        argument
        for argument in arguments
        if argument.name not in plain
        and (not argument.has_default_value() or argument.name in asked)
    ]
    if others := [
        f"{argument.name} ({argument.type})"
        for argument in fed
        if str(argument.type) not in ("Tensor", "Optional[Tensor]")
    ]:
        fix = (
            "state plain numbers with --value NAME=VALUE, or script a module that takes tensors "
            "and makes the rest of them"
        )
        raise ModelError(
            f"{what}: not every input is a tensor", f"these are not: {', '.join(others)}", fix
        )
    return [argument.name for argument in fed]


def _inputs(
    names: Sequence[str], traced: Sequence[Spec | None], source: Model, what: str
) -> Tensors:
    """Return example inputs, with the given shapes and types, else with those of the trace.

    Raises ModelError if a shape is unknown.
    """
    known = {name: spec for name, spec in zip(names, traced, strict=False) if spec is not None}
    if missing := [name for name in names if name not in known and name not in source.shapes]:
        options = " ".join(f"--shape {name}:1,3,224,224" for name in missing)
        why = (
            f"{', '.join(missing)}: a script that was not traced has no shapes, nor element types "
            "(float32 where --dtype says nothing)"
        )
        raise ModelError(
            f"{what} leaves the shape of {', '.join(missing)} open",
            why,
            f"say it with `{options}` (with your own numbers)",
        )
    specs = []
    for name in names:
        shape, traced = known.get(name, ((), torch.float32))
        dtype = getattr(torch, source.dtypes[name]) if name in source.dtypes else traced
        specs.append(tensor_spec(name, source.shapes.get(name, shape), dtype, what))
    return {name: torch.from_numpy(array) for name, array in example_inputs(specs).items()}


def _of_tensors(script: Script, names: Sequence[str], plain: Mapping[str, str]) -> Script:
    """Return the script as a function of the fed arguments.

    All others have the values of `plain`, or their defaults.
    """
    _, *arguments = script.forward.schema.arguments
    if [argument.name for argument in arguments if str(argument.type) == "Tensor"] == list(
        names
    ) and len(arguments) == len(names):
        return script
    with suppress_output_warnings_and_logs():
        outer = torch.nn.Module()
        outer.inner = script
        scripted: Script = torch.jit.script(outer.eval())
        given = ", ".join(f"{name}: Tensor" for name in names)
        passed = ", ".join(
            f"{name}={value}" for name, value in {**{name: name for name in names}, **plain}.items()
        )
        scripted.define(f"def forward(self, {given}):\n    return self.inner.forward({passed})\n")
    return scripted


def _check_run(script: Callable[..., Any], inputs: Tensors, what: str) -> None:
    """Raise ModelError if torch cannot run the script on the inputs."""
    checked = CheckedArguments()
    try:
        with torch.no_grad(), checked:
            script(*inputs.values())
    except Exception as exc:
        shown = ", ".join(
            f"{name} {dtype_name(value.dtype)} {list(value.shape)}"
            for name, value in inputs.items()
        )
        # torch's own message is the last line.
        *_, why = ["", *(line for line in str(exc).splitlines() if line.strip())]
        fix = "correct --shape, and --dtype NAME:int64 where an input counts or indexes"
        why = checked.last_error or why
        raise ModelError(f"{what}: torch cannot run the script with {shown}", why, fix) from exc


def _by_program(script: Any, inputs: Tensors, what: str) -> ImportedModel:
    """Import the script by way of an exported program."""
    arguments: Arguments = (tuple(inputs.values()), {})
    try:
        with (
            suppress_output_warnings_and_logs(),
            torch.no_grad(),
            CheckedArguments(),
            _converting_for_these_shapes(),
            _converting_containers(),
        ):
            program = ConverterForKnownShapes(script, arguments[0]).convert()
    except Exception as exc:
        raise ModelError(
            f"{what}: torch cannot convert the script to an exported program",
            one_line_error(exc),
            SAVE,
        ) from exc
    return import_program(
        export_module(program.module(), arguments, what), script, arguments, what, list(inputs)
    )


@contextlib.contextmanager
def _converting_for_these_shapes() -> Iterator[None]:
    """Have torch's converter of scripts export for the shapes of the example within the block.

    It exports for all shapes, which takes minutes for a model that computes with them, such as one
    that divides an image into windows. Only these shapes are needed.
    """
    name = "_tree_map_with_path"  # makes the argument dynamic_shapes of the export
    before = getattr(converter, name, None)
    if before is None:  # another torch
        yield
        return
    setattr(converter, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(converter, name, before)


def _copied(values: Any) -> Any:
    """Return a copy of a list or dict that can be written to."""
    return dict(values) if isinstance(values, dict) else list(values)


def _sliced(values: Any, start: int | None, end: int | None, step: int) -> Any:
    """Return a part of a list."""
    return values[start:end:step]


def _dict_values(values: Any) -> list[Any]:
    """Return the values of a dict."""
    return list(values.values())


def _dict_items(values: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of a dict."""
    return list(values.items())


# Operators on lists and dicts as Python has them, by their names in aten. They have names, by which
# torch finds them where it copies a part of a program.
_ON_CONTAINERS: dict[str, Callable[..., Any]] = {
    "copy": _copied,
    "slice": _sliced,
    "_set_item": operator.setitem,
    "len": len,
    "__contains__": operator.contains,
    "dict": dict,
    "keys": list,
    "values": _dict_values,
    "items": _dict_items,
}
_CONTAINERS = ("ListType", "DictType")


def _leave_out(_converter: Any, _node: Any) -> None:
    """Convert a node to nothing."""


@contextlib.contextmanager
def _converting_containers() -> Iterator[None]:
    """Have torch's converter of scripts convert operators on lists and dicts within the block.

    It takes them for operators on tensors, which they are not: torchvision's models of
    segmentation, scripted, take parts of shapes and write to dicts. These are Python's when the
    converted program is traced. Warnings are left out.
    """

    def converting(function: Callable[..., Any]) -> Callable[[Any, Any], None]:
        def convert(own: Any, node: Any) -> None:
            kinds = [value.type().kind() for value in node.inputs()][:1]
            if function is not dict and kinds[0] not in _CONTAINERS:
                own.convert_call_function_op(node)
                return
            values = tuple(own.get_fx_value_by_ir_value(value) for value in node.inputs())
            made = own.fx_graph.call_function(function, values)
            for output in node.outputs():
                own.name_to_node[output.debugName()] = made

        return convert

    graph_converter = getattr(converter, "TS2FXGraphConverter", object)
    added = {
        f"convert_aten_{name}": converting(function)
        for name, function in _ON_CONTAINERS.items()
        if not hasattr(graph_converter, f"convert_aten_{name}")
    }
    if graph_converter is object:  # another torch
        added = {}
    else:
        added["convert_aten_warn"] = _leave_out
    for name, convert in added.items():
        setattr(graph_converter, name, convert)
    try:
        yield
    finally:
        for name in added:
            delattr(graph_converter, name)


def _by_frozen_program(script: Any, inputs: Tensors, what: str) -> ImportedModel:
    """Import the frozen script by way of an exported program.

    With all weights constant, torch resolves control flow that depends on them and on the mode.
    """
    try:
        with suppress_output_warnings_and_logs(), CheckedArguments():
            frozen = torch.jit.freeze(script)
    except Exception as exc:
        raise ModelError(
            f"{what}: torch cannot freeze the script", one_line_error(exc), SAVE
        ) from exc
    made = _by_program(frozen, inputs, what)
    return replace(made, reference=make_torch_reference(script, list(inputs), None, what))


def _by_onnx(script: Any, inputs: Tensors, what: str) -> ImportedModel:
    """Import the script by way of torch's ONNX exporter.

    The result is compared with the script, as with every import.
    """
    import onnx

    from farm.importers.onnx.load import load_with_session_factory
    from farm.importers.onnx.reference.layer_outputs import onnx_layer_outputs

    with TemporaryDirectory(prefix="farm-") as folder:
        path = Path(folder) / f"{what}.onnx"
        try:
            with suppress_output_warnings_and_logs(), torch.no_grad(), CheckedArguments():
                torch.onnx.export(
                    script,
                    tuple(inputs.values()),
                    path,
                    input_names=list(inputs),
                    opset_version=_OPSET,
                    dynamo=False,
                )
        except Exception as exc:
            raise ModelError(
                f"{what}: torch cannot export the script to ONNX", one_line_error(exc), SAVE
            ) from exc
        made = load_with_session_factory(Model(what, str(path)), lambda _: None)
        exported = path.read_bytes()
    with torch.no_grad(), CheckedArguments():
        names = output_names(script(*inputs.values()), what)
    example: Mapping[str, np.ndarray] = {
        spec.name: inputs[spec.name].numpy() for spec in made.inputs
    }
    outputs = tuple(
        replace(spec, name=name) for spec, name in zip(made.outputs, names, strict=True)
    )
    return replace(
        made,
        outputs=outputs,
        engine=f"torch {torch.__version__}",
        example=dict(example),
        reference=make_torch_reference(script, list(inputs), None, what),
        network=(script, (tuple(inputs.values()), {})),
        layers=lambda values: onnx_layer_outputs(onnx.load_from_string(exported), values),
    )
