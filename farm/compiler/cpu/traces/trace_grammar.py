"""Check that the trace of a schedule holds only what MetaSchedule's rules for CPUs write.

Records of tuning travel as files, so a trace may be a stranger's. TVM checks that a step of a trace
applies, not that it is harmless: an annotation `pragma_import_llvm` brings code of its own into the
kernel, a split without predicates leaves the tensor, and there are steps that TVM calls unsafe.
Therefore each step is one of those below, and so are its attributes and annotations.

A trace is [steps, decisions]; a step is [kind, inputs, attributes, outputs]. Variables of a trace
are called b0, l1, v2: blocks, loops and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_MOST_STEPS = 2000
_MOST_INPUTS = 64
_MOST_NUMBER = 1 << 31
_MOST_UNROLLED = 4096  # steps of an unrolled loop; the search takes 64 at most
_VARIABLE = re.compile(r"[blv]\d{1,6}")
_BLOCK = re.compile(r"(?:root|block_\d{1,4}(?:_[a-z]{1,12}){0,4})")
_TILING = re.compile(r'"[SR]{1,16}"')
_NUMBERED = frozenset((
    "meta_schedule.parallel",
    "meta_schedule.vectorize",
    "meta_schedule.unroll_explicit",
    "meta_schedule.unroll_implicit",
    "meta_schedule.random_compute_producer",
    "pragma_auto_unroll_max_step",
    "pragma_unroll_explicit",
))  # fmt: skip
_STRUCTURE = "meta_schedule.tiling_structure"


def check_trace(trace: object) -> None:
    """Raise ValueError for a trace with anything that is not known to be harmless."""
    match trace:
        case [list(steps), list(decisions)] if len(steps) <= _MOST_STEPS:
            pass
        case _:
            raise ValueError("a trace is a list of steps and one of decisions")
    for step in steps:
        match step:
            case [str(kind), list(inputs), list(attributes), list(outputs)] if kind in _STEPS:
                pass
            case _:
                raise ValueError(f"a trace with the step {str(step)[:100]}")
        annotates = kind == "Annotate"
        values, inputs = (inputs[1:], inputs[:1]) if annotates else ([], inputs)
        variables = (*inputs, *outputs)
        if (
            len(variables) > _MOST_INPUTS
            or not all(map(_is_variable_or_number, variables))
            or not _STEPS[kind](attributes)
            or (annotates and not _is_annotation(attributes, values))
        ):
            raise ValueError(f"a trace with the step {str(step)[:100]}")
    if len(decisions) > len(steps) or not all(map(_is_decision, decisions)):
        raise ValueError("a trace with other decisions than numbers")


def _is_number(value: object, least: int = -_MOST_NUMBER, most: int = _MOST_NUMBER) -> bool:
    return isinstance(value, int) and least <= value <= most  # bool is an int: TVM writes both


def _is_variable_or_number(value: object) -> bool:
    if isinstance(value, str):
        return _VARIABLE.fullmatch(value) is not None
    return value is None or _is_number(value)


def _is_annotation(attributes: list[Any], values: list[Any]) -> bool:
    if len(values) != 1:
        return False
    if attributes == [_STRUCTURE]:
        return isinstance(values[0], str) and _TILING.fullmatch(values[0]) is not None
    if isinstance(values[0], str):
        return _VARIABLE.fullmatch(values[0]) is not None
    return _is_number(values[0], 0, _MOST_UNROLLED)


def _is_decision(decision: object) -> bool:
    match decision:
        case [int(), list(numbers)]:
            return len(numbers) <= _MOST_INPUTS and all(map(_is_number, numbers))
        case [int(), number]:
            return _is_number(number)
    return False


def _nothing(attributes: list[Any]) -> bool:
    return not attributes


def _numbers(count: int) -> Callable[[list[Any]], bool]:
    return lambda attributes: len(attributes) == count and all(map(_is_number, attributes))


def _block(attributes: list[Any]) -> bool:
    match attributes:
        case [str(name), "main"]:
            return _BLOCK.fullmatch(name) is not None
    return False


def _annotation(attributes: list[Any]) -> bool:
    match attributes:
        case [str(key)]:
            return key in _NUMBERED or key == _STRUCTURE
    return False


def _split(attributes: list[Any]) -> bool:
    match attributes:  # the second: without predicates
        case [bool(), False]:
            return True
    return False


def _categories(attributes: list[Any]) -> bool:
    match attributes:
        case [list(values), list(chances)]:
            numbers = all(_is_number(value, 0, _MOST_UNROLLED) for value in values)
            return numbers and all(isinstance(chance, (int, float)) for chance in chances)
    return False


def _cache(attributes: list[Any]) -> bool:
    match attributes:
        case [int(index), "global"]:
            return 0 <= index < _MOST_INPUTS
    return False


# The attributes of each kind of step
_STEPS: Mapping[str, Callable[[list[Any]], bool]] = {
    **dict.fromkeys(
        (
            "GetLoops",
            "GetChildBlocks",
            "GetProducers",
            "GetConsumers",
            "SampleComputeLocation",
            "Reorder",
            "Parallel",
            "Vectorize",
            "Unroll",
            "AddUnitLoop",
            "ComputeInline",
            "ReverseComputeInline",
            "DecomposeReduction",
            "EnterPostproc",
        ),
        _nothing,
    ),
    "GetSBlock": _block,
    "SamplePerfectTile": _numbers(2),
    "SampleCategorical": _categories,
    "Split": _split,
    "Fuse": _numbers(1),
    "RFactor": _numbers(1),
    "ComputeAt": _numbers(2),
    "ReverseComputeAt": _numbers(2),
    "CacheRead": _cache,
    "CacheWrite": _cache,
    "Annotate": _annotation,
    "Unannotate": _annotation,
}
