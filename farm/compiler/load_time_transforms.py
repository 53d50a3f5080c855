"""Store parameters as the model has them, and make what the kernels read when a build is loaded.

A build's library has a function `ON_LOAD`, which whoever loads the build calls once, after TVM's
tensor cache has the parameters. It checks the type and shape of each, which most kernels and TVM's
virtual machine do not, and replaces those that kernels read in another form. The device computes
these forms on all of its cores:

    float16 -> float32                the model has such weights, see graph.precision.fp16_weights
    bfloat16 -> float32               the same for bfloat16, see graph.precision.bf16_weights
    a weight -> Winograd's transform  often several times as large, see winograd_weights
    a weight -> blocks of columns     if other parameters are made of it, too: it is stored once;
                                      or if each of its groups is padded to whole blocks
    indices and a table -> a tensor   whose columns are repeated, such as biases of relative
                                      positions

The index of the parameters (tensor_cache) says which are transformed, for those who read the files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx

from farm.compiler.cpu.kernel_config import PackedWeight
from farm.compiler.cpu.load_time_kernels import block_transform_kernel, gather_transform_kernel
from farm.compiler.cpu.winograd.weight_transform_kernel import weight_transform_kernel
from farm.compiler.equal_arrays import first_equal_arrays
from farm.compiler.graph.precision import bf16_weights, fp16_weights
from farm.compiler.graph.precision.fp16_weights import HALF, SINGLE
from farm.compiler.ir.checked_kernels import (
    mark_checked_kernel,
    mark_first_kernel_of_parameters,
)
from farm.compiler.ir.constants import array_address
from farm.compiler.parameter_files import ON_LOAD, PREFIX
from farm.compiler.weight_transforms import (
    BlockTransform,
    GatherTransform,
    WeightTransform,
    gather_of_repeated_columns,
)
from farm.compiler.winograd_weights import Phases, WinogradTransform, transform_coefficients

Array = np.ndarray[Any, Any]
# Kernels by the types of which they make float32, with their names
_WIDENINGS: Mapping[Any, tuple[str, Callable[[], tirx.PrimFunc]]] = {
    np.dtype(np.float16): (fp16_weights.WIDENING, fp16_weights.fp16_to_fp32_kernel),
    np.dtype(ml_dtypes.bfloat16): (bf16_weights.WIDENING, bf16_weights.bf16_to_fp32_kernel),
}
# Names of kernels, by whether the weight is transposed, and by the type of its numbers
_BLOCKS = {
    (False, SINGLE): "weights_in_blocks",
    (True, SINGLE): "transposed_weights_in_blocks",
    (False, HALF): "half_weights_in_blocks",
    (True, HALF): "transposed_half_weights_in_blocks",
}

_GATHER = "gathered_columns"


@dataclass(frozen=True, slots=True)
class ModuleWithStoredParameters:
    """A module whose parameters are as they are stored, and the transforms by their index."""

    module: tvm.IRModule
    parameters: list[Array]
    transforms: Mapping[int, WeightTransform]


def defer_transforms_to_load(
    module: tvm.IRModule,
    parameters: Sequence[Array],
    large_weights: Mapping[int, PackedWeight],
    weights_in_blocks: Mapping[int, PackedWeight] = MappingProxyType({}),
    *,
    on_cpu: bool = True,
) -> ModuleWithStoredParameters:
    """Return the module and the parameters as they are stored.

    With parameters, the module has a function ON_LOAD. The first kernel that reads a parameter
    which the function transforms is marked to check its arguments: it refuses the parameter of a
    caller that does not call the function. The module's parameters must be lifted. `large_weights`
    and `weights_in_blocks` are what the legalization has transformed, by the address of the
    transformed numbers: constants are not copied by TVM's passes. A parameter that was copied is
    stored as the kernels read it. Only a CPU gathers columns (`on_cpu`).
    """
    found = _sources(parameters, large_weights)
    blocks = _sources(parameters, weights_in_blocks)
    plain = [
        value.astype(SINGLE) if value.dtype == HALF else value
        for index, value in enumerate(parameters)
        if index not in found and index not in blocks and value.ndim > 1
    ]
    found |= _stored_as_weights(blocks, found.values(), plain)
    kept = {index: source.weight for index, source in found.items()}
    kept = {index: kept.get(index, value) for index, value in enumerate(parameters)}
    halves = bf16_weights.bf16_parameters(module["main"], kept)
    halves |= fp16_weights.fp16_parameters(module["main"], kept)
    transforms: dict[int, WeightTransform] = {
        index: source.transform for index, source in found.items()
    }
    stored = [halves.get(index, value) for index, value in kept.items()]
    for index, value in enumerate(stored):
        if not on_cpu or index in found or index in halves:
            continue
        if (gathered := gather_of_repeated_columns(value)) is not None:
            stored[index], transforms[index] = gathered
    if changed := {*halves, *transforms}:
        module = mark_first_kernel_of_parameters(module, changed)
    if stored:
        module = _with_function(module, stored, set(halves), transforms)
    return ModuleWithStoredParameters(module, stored, transforms)


def _sources(
    parameters: Sequence[Array], sources: Mapping[int, PackedWeight]
) -> dict[int, PackedWeight]:
    """Return of what the parameters are made that were transformed, by index."""
    return {
        index: source
        for index, value in enumerate(parameters)
        if (source := sources.get(array_address(value))) and value.shape == source.shape
    }


def _stored_as_weights(
    sources: Mapping[int, PackedWeight],
    others: Iterable[PackedWeight],
    plain: Sequence[Array],
) -> dict[int, PackedWeight]:
    """Return the sources that are stored as their weights.

    These are the ones with padded groups, whose weight is smaller, and those whose weight the file
    has anyway: that of another source or of one of `others`, or a parameter that kernels read as it
    is (`plain`). The transpose of such a parameter counts too: the source is then made of that.
    """
    weights = [source.weight for source in (*sources.values(), *others)]
    firsts = [id(first) for first in first_equal_arrays([*weights, *plain])]
    uses = Counter(firsts)
    found = {}
    for (index, source), first in zip(sources.items(), firsts, strict=False):
        transform = source.transform
        if uses[first] > 1 or (isinstance(transform, BlockTransform) and transform.groups > 1):
            found[index] = source
        elif (whole := _transposed_of(source.weight, plain)) is not None:
            turned = BlockTransform(source.transform.block, transposed=True)
            found[index] = replace(source, weight=whole, transform=turned)
    return found


def _transposed_of(weight: Array, plain: Iterable[Array]) -> Array | None:
    """Return the array of which the weight is the transpose, to the bit."""
    if weight.ndim != 2 or weight.dtype != SINGLE:
        return None
    bits = np.ascontiguousarray(weight).view(np.uint32).T
    return next(
        (
            one
            for one in plain
            if one.shape == bits.shape
            and one.dtype == weight.dtype
            and np.array_equal(np.ascontiguousarray(one).view(np.uint32), bits)
        ),
        None,
    )


def transform_parameters(
    module: tvm.IRModule, parameters: Sequence[Array], transforms: Mapping[int, WeightTransform]
) -> list[Array]:
    """Return parameters that `defer_transforms_to_load` returned in the form that `main` takes."""
    if not parameters:
        return []
    types = module["main"].params[-1].ty.fields
    return [
        transforms[index].apply(value) if index in transforms else value
        for index, value in enumerate(
            value.astype(str(type_.dtype), copy=False)
            for value, type_ in zip(parameters, types, strict=True)
        )
    ]


def _with_function(
    module: tvm.IRModule,
    stored: Sequence[Array],
    halves: set[int],
    transforms: Mapping[int, WeightTransform],
) -> tvm.IRModule:
    """Add the function that checks all parameters in the tensor cache, and changes some.

    The function returns all that it made, so that no two share memory.
    """
    builder = relax.BlockBuilder(module.clone())
    taken = module["main"].params[-1].ty.fields
    winograd = [
        (one.phases(stored[index].shape), one.tile(stored[index].shape))
        for index, one in transforms.items()
        if isinstance(one, WinogradTransform)
    ]
    blocks = {
        (one.transposed, str(taken[index].dtype))
        for index, one in transforms.items()
        if isinstance(one, BlockTransform)
    }
    used: dict[str, Callable[[], tirx.PrimFunc]] = {
        name: make_kernel
        for dtype, (name, make_kernel) in _WIDENINGS.items()
        if any(stored[index].dtype == dtype for index in halves)
    }
    for phases in sorted({phases for phases, _ in winograd}):
        used[_winograd_kernel_name(phases)] = partial(weight_transform_kernel, phases)
    for transposed, dtype in sorted(blocks):
        used[_BLOCKS[transposed, dtype]] = partial(
            block_transform_kernel, transposed=transposed, dtype=dtype
        )
    if any(isinstance(one, GatherTransform) for one in transforms.values()):
        used[_GATHER] = gather_transform_kernel
    kernels = {
        name: builder.add_func(
            mark_checked_kernel(make_kernel().with_attr("tirx.is_scheduled", True)), name
        )
        for name, make_kernel in used.items()
    }
    matrices = {
        tile: relax.const(np.array(transform_coefficients(tile)), "float64")
        for tile in {tile for _, tile in winograd}
    }
    with builder.function(ON_LOAD, [], pure=False):
        made = []
        for index, array in enumerate(stored):
            name = tvm.ir.StringImm(f"{PREFIX}_{index}")
            found = builder.emit(_runtime("tensor_cache.get", relax.ObjectType(), name))
            type_ = relax.TensorType(list(array.shape), str(array.dtype))
            value = builder.match_cast(found, type_)
            dtype = str(taken[index].dtype)
            if index in halves and dtype == SINGLE:
                kernel, _ = _WIDENINGS[array.dtype]
                value = _widened(builder, kernels[kernel], value, array)
            transform = transforms.get(index)
            if isinstance(transform, WinogradTransform):
                kernel = kernels[_winograd_kernel_name(transform.phases(array.shape))]
                matrix = matrices[transform.tile(array.shape)]
                value = builder.emit(relax.call_tir(kernel, [value, matrix], taken[index]))
            elif isinstance(transform, BlockTransform):
                kernel = kernels[_BLOCKS[transform.transposed, dtype]]
                value = _in_blocks(builder, kernel, value, transform, array.shape, dtype)
            elif isinstance(transform, GatherTransform):
                type_ = relax.TensorType([transform.rows, transform.columns], SINGLE)
                value = builder.emit(relax.call_tir(kernels[_GATHER], [value], type_))
                value = _reshaped(builder, value, transform.shape)
            elif index not in halves:
                continue
            again = tirx.const(1, "int64")
            builder.emit(_runtime("tensor_cache.update", relax.ObjectType(), name, value, again))
            made.append(value)
        builder.emit_func_output(relax.Tuple(made))
    return builder.get()


def _widened(
    builder: relax.BlockBuilder, kernel: Any, half: relax.Expr, stored: Array
) -> relax.Expr:
    halves = _reshaped(builder, half, [stored.size], str(stored.dtype))
    wide = builder.emit(relax.call_tir(kernel, [halves], relax.TensorType([stored.size], SINGLE)))
    return _reshaped(builder, wide, stored.shape)


def _in_blocks(
    builder: relax.BlockBuilder,
    kernel: Any,
    weight: relax.Expr,
    transform: BlockTransform,
    shape: tuple[int, ...],
    dtype: str,
) -> relax.Expr:
    """Return the blocks of a weight of this shape: the kernel takes an axis of groups and two."""
    blocks = transform.shape(shape)
    leading, last, groups = math.prod(shape[:-1]), shape[-1], transform.groups
    grouped = (1, leading, last) if transform.transposed else (leading, groups, last // groups)
    number, *_, block = blocks
    packed = (groups, number // groups, last if transform.transposed else leading, block)
    type_ = relax.TensorType(list(packed), dtype)
    made = relax.call_tir(kernel, [_reshaped(builder, weight, grouped, dtype)], type_)
    return _reshaped(builder, builder.emit(made), blocks, dtype)


def _reshaped(
    builder: relax.BlockBuilder, value: relax.Expr, shape: Sequence[int], dtype: str = SINGLE
) -> relax.Expr:
    type_, extents = relax.TensorType(list(shape), dtype), relax.ShapeExpr(list(shape))
    return builder.emit(_runtime("reshape", type_, value, extents))


def _runtime(name: str, type_: Any, *arguments: relax.Expr) -> relax.Call:
    return relax.Call(relax.ExternFunc(f"vm.builtin.{name}"), list(arguments), None, [type_])


def _winograd_kernel_name(phases: Phases) -> str:
    name = "winograd_weights_{}x{}".format(*phases.taps)
    return name if phases.strides == (1, 1) else name + "_strides_{}x{}".format(*phases.strides)
