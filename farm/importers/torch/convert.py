"""Convert an exported torch program to an `ImportedModel`: `.pt2` files and `python:` sources."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch._export import utils as export_utils
from torch._ops import HigherOrderOperator
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils._pytree import tree_flatten, tree_unflatten

from farm.errors import ModelError, did_you_mean
from farm.importers import farm_kernels, layer_names
from farm.importers.imported_model import ImportedModel, Reference, example_inputs
from farm.importers.relax_postprocessing import (
    detach_weights,
    one_line_error,
    output_specs,
    suppress_output_warnings_and_logs,
)
from farm.importers.torch import rewriting
from farm.importers.torch.checks.checked_arguments import CheckedArguments
from farm.importers.torch.decompositions import decompositions
from farm.importers.torch.dtypes import is_numpy_dtype, tensor_spec
from farm.importers.torch.intermediates import make_intermediate_results_function
from farm.importers.torch.random_numbers import check_answers_agree
from farm.importers.torch.type_promotion import cast_operands

_PLACES_SHOWN = 3
_CHECKS = ("_assert_async.msg", "_assert_scalar.default", "_assert_tensor_metadata.default")
_CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def export_module(
    module: Callable[..., Any], arguments: Arguments, what: str
) -> torch.export.ExportedProgram:
    """Return the module exported by `torch.export.export` for exactly these shapes.

    Raises ModelError if torch cannot export it.
    """
    positional, named = arguments
    try:
        with suppress_output_warnings_and_logs(), torch.no_grad():
            return torch.export.export(module, positional, named)
    except Exception as exc:
        fix = (
            "make the module exportable, see https://docs.pytorch.org/docs/stable/export.html, or "
            "export it to ONNX and name that file"
        )
        raise ModelError(
            f"{what}: torch.export cannot export the module", one_line_error(exc), fix
        ) from exc


def import_program(
    program: torch.export.ExportedProgram,
    run: Callable[..., Any],
    arguments: Arguments,
    what: str,
    names: Sequence[str] | None = None,
    batched: Sequence[str] = (),
) -> ImportedModel:
    """Import a program of fixed shapes, except for the batch of the inputs `batched`.

    `run(*positional, **named)` is the reference, `arguments` the example. `names` are the inputs'
    names if users know other names than the program's own.
    """
    _check_control_flow(program, what)
    names = names or input_names(program, what)
    values, structure = tree_flatten(arguments)
    inputs = tuple(
        replace(tensor_spec(name, value.shape, value.dtype, what), open=name in batched)
        for name, value in zip(names, values, strict=True)
    )
    engine = f"torch {torch.__version__}"
    example = {name: value.detach().numpy() for name, value in zip(names, values, strict=True)}
    with torch.no_grad():
        returned = _call(run, arguments, what)
        outputs = output_names(returned, what)
        check_answers_agree(program, returned, lambda: _call(run, arguments, what), what)
    module, weights = detach_weights(_to_relax(program, what), len(inputs))
    asked, made = make_torch_reference(run, names, structure, what), output_specs(module, outputs)
    told = make_intermediate_results_function(program, names, structure)
    return ImportedModel(
        module, weights, inputs, made, engine, example, asked, network=(run, arguments), layers=told
    )


def input_names(program: torch.export.ExportedProgram, what: str) -> list[str]:
    """Return the placeholder names of the inputs, in order.

    Raises ModelError if an input is not a tensor.
    """
    arguments = [
        spec.arg
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    if others := [
        argument.name for argument in arguments if not isinstance(argument, TensorArgument)
    ]:
        fix = (
            "bind them in the module (functools.partial, or an attribute), so that only tensors "
            "are fed"
        )
        raise ModelError(
            f"{what}: not every input is a tensor", f"these are not: {', '.join(others)}", fix
        )
    return [argument.name for argument in arguments]


def arguments_with_shapes(
    arguments: Arguments,
    fixed: Mapping[str, Sequence[int | None]],
    shapes: Mapping[str, tuple[int, ...]],
    what: str,
) -> Arguments:
    """Return the arguments, with example values where `shapes` requests another shape.

    `fixed` gives the extents of every input, in order; None is an open axis. Raises ModelError for
    a shape that does not fit.
    """
    if unknown := sorted(set(shapes) - set(fixed)):
        raise ModelError(
            f"{what} has no input {unknown[0]!r}",
            f"its inputs are {', '.join(fixed)}",
            did_you_mean(unknown[0], fixed),
        )
    for name, shape in shapes.items():
        axes = fixed[name]
        fits = len(shape) == len(axes) and all(
            length > 0 and axis in (None, length) for length, axis in zip(shape, axes, strict=True)
        )
        if not fits:
            why = f"the model has {['any' if axis is None else axis for axis in axes]} there"
            raise ModelError(
                f"{what}: the shape {list(shape)} does not fit input {name!r}",
                why,
                "change the override in devices.toml or --shape",
            )
    values, structure = tree_flatten(arguments)
    changed = [
        name in shapes and tuple(value.shape) != shapes[name]
        for name, value in zip(fixed, values, strict=True)
    ]
    specs = [
        tensor_spec(name, shapes.get(name, tuple(value.shape)), value.dtype, what)
        for name, value in zip(fixed, values, strict=True)
    ]
    made = example_inputs(specs)
    mixed = [
        torch.from_numpy(made[spec.name]) if new else old
        for spec, new, old in zip(specs, changed, values, strict=True)
    ]
    result: Arguments = tree_unflatten(mixed, structure)
    return result


def cast_module_and_arguments(
    module: torch.nn.Module, arguments: Arguments, dtypes: Mapping[str, str], what: str
) -> tuple[torch.nn.Module, Arguments]:
    """Return the module and the example in the floating-point type of `dtypes[""]`.

    Raises ModelError for a type that is not floating point, and for types of single inputs.
    """
    if named := [name for name in dtypes if name]:
        fix = "change the example inputs, or write --dtype float16 for the whole module"
        raise ModelError(
            f"{what}: the type of input {named[0]!r} is that of the example",
            "a module comes with its example inputs",
            fix,
        )
    if "" not in dtypes:
        return module, arguments
    dtype = getattr(torch, dtypes[""], None)
    if (
        not isinstance(dtype, torch.dtype)
        or not dtype.is_floating_point
        or not is_numpy_dtype(dtype)
    ):
        why = "it stands for all floating-point numbers of the module"
        raise ModelError(
            f"{what}: the type {dtypes['']} is asked for",
            why,
            "name float16, float32 or float64: --dtype float16",
        )

    def cast(value: Any) -> Any:
        return (
            value.to(dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
        )

    values, structure = tree_flatten(arguments)
    return module.to(dtype), tree_unflatten([cast(value) for value in values], structure)


def output_names(returned: Any, what: str) -> list[str]:
    """Return the keys of a dict of tensors; output0, output1, ... for any other result.

    Raises ModelError for a tensor of a type that numpy lacks.
    """
    values = tree_flatten(returned)[0]
    names = [f"output{index}" for index in range(len(values))]
    if isinstance(returned, Mapping) and all(
        isinstance(value, torch.Tensor) for value in returned.values()
    ):
        names = [str(name) for name in returned]
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor):
            tensor_spec(name, value.shape, value.dtype, what, "output")
    return names


def _to_relax(program: torch.export.ExportedProgram, what: str) -> Any:
    """Return the Relax module of a program; raise ModelError if TVM cannot import it."""
    from tvm.relax.frontend.torch import from_exported_program

    from farm.importers.torch.converters import (
        complex_numbers,
        elementwise,
        experts,
        indexing,
        norms,
        operators,
        pools,
        products,
        pt2e,
        recurrent,
    )

    try:
        with suppress_output_warnings_and_logs():
            table = recurrent.decompositions_without_recurrent_layers(program)
            table.update(decompositions())
            for whole in operators.undecomposed():
                table.pop(whole, None)
            with _looking_operators_up_once():
                program = program.run_decompositions(table)
            _drop_checks(program.graph)
            rewriting.rewrite(program.graph)
            cast_operands(program.graph)
            program = complex_numbers.with_real_weights(program, what)
            ours = {
                **pt2e.converters(),
                **operators.converters(),
                **norms.converters(),
                **pools.converters(),
                **elementwise.converters(),
                **products.converters(),
                **indexing.converters(),
                **recurrent.converters(program),
                **experts.converters(),
            }
            ours |= complex_numbers.converters(ours)
            _check_operators(program, ours, what)
            with layer_names.recording_torch_names() as names:
                module = from_exported_program(
                    program,
                    unwrap_unit_return_tuple=True,
                    custom_convert_map=ours,
                    run_ep_decomposition=False,
                )
            return farm_kernels.replace_operators_by_farm_kernels(
                layer_names.rename_variables(module, names)
            )
    except ModelError:
        raise
    except Exception as exc:
        fix = (
            "avoid the operator, or export the module to ONNX (torch.onnx.export) and name that "
            "file"
        )
        raise ModelError(f"{what}: TVM cannot import the module", one_line_error(exc), fix) from exc


@contextlib.contextmanager
def _looking_operators_up_once() -> Iterator[None]:
    """Have torch look its C++ operators up once within the block.

    `run_decompositions` looks all of them up for each of thirty namespaces, twice.
    """
    name = "_materialize_cpp_cia_ops"
    look_up = getattr(export_utils, name, None)
    if look_up is None:  # another torch
        yield
        return
    setattr(export_utils, name, functools.cache(look_up))
    try:
        yield
    finally:
        setattr(export_utils, name, look_up)


def _drop_checks(graph: torch.fx.Graph) -> None:
    """Remove nodes that only raise errors for values out of range: boards have no code for them."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target.__name__ in _CHECKS:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _check_control_flow(program: torch.export.ExportedProgram, what: str) -> None:
    """Raise ModelError for branches and loops that depend on the values of inputs."""
    found = [
        _place(node)
        for node in program.graph.nodes
        if isinstance(node.target, HigherOrderOperator) and node.target.__name__ in _CONTROL_FLOW
    ]
    if found:
        raise ModelError(
            f"{what} has branches or loops that depend on the values of its inputs",
            ", ".join(found[:_PLACES_SHOWN]),
            "run them in your program and export what is inside, or export the module to ONNX "
            "(torch.onnx.export), of which farm takes an If and a Loop of known length",
        )


def _check_operators(
    program: torch.export.ExportedProgram, ours: Collection[str], what: str
) -> None:
    """Raise ModelError if operators have neither a converter of TVM's nor one of farm's.

    The error names each of them, how often it occurs, and some of its nodes.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from farm.importers.torch.converters import complex_numbers

    known = {*ExportedProgramImporter().convert_map, *ours}
    unknown = defaultdict[str, list[str]](list)
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target.__name__ not in known:
            unknown[node.target.__name__].append(_place(node))
        elif complex_numbers.lacks_converter(node):
            unknown[f"{node.target.__name__} of complex numbers"].append(_place(node))
    if unknown:
        listed = [
            f"{name} x{len(places)} ({', '.join(places[:_PLACES_SHOWN])})"
            for name, places in sorted(unknown.items())
        ]
        raise ModelError(
            (
                f"{what} uses {len(unknown)} operator{'s' if len(unknown) > 1 else ''} that TVM "
                f"cannot import: {', '.join(sorted(unknown))}"
            ),
            f"TVM's torch importer has no converter for {', '.join(listed)}",
            (
                "write the module without them, or export it to ONNX (torch.onnx.export) and name "
                "that file"
            ),
        )


def _place(node: torch.fx.Node) -> str:
    """Return a node's name and the submodule that it belongs to."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return f"{node.name} in {path}" if path else node.name


def make_torch_reference(
    run: Callable[..., Any], names: Sequence[str], structure: Any, what: str
) -> Reference:
    """Return the function that runs torch on inputs by name.

    `structure` is the pytree of the arguments, (positional, named). None means positional tensors
    in order.
    """

    def ask(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        tensors = [torch.from_numpy(np.asarray(inputs[name], order="C")) for name in names]
        with torch.no_grad():
            arguments = (
                (tuple(tensors), {}) if structure is None else tree_unflatten(tensors, structure)
            )
            returned = _call(run, arguments, what)
        return [tensor.numpy() for tensor in tree_flatten(returned)[0]]

    return ask


def _call(run: Callable[..., Any], arguments: Arguments, what: str) -> Any:
    """Return the result of `run`; raise ModelError if it fails."""
    positional, named = arguments
    checked = CheckedArguments()
    try:
        with checked:
            return run(*positional, **named)
    except Exception as exc:
        raise ModelError(
            f"{what}: torch cannot run the module",
            checked.last_error or one_line_error(exc),
            "check the shapes and values of the inputs",
        ) from exc
