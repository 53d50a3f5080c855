"""Choose few cases of an operator that show many versions, attributes, types and forms of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import onnx
from onnx import helper

from random_operators.drawing import Case

# How much a form counts; hints alone are no reason for another case.
_VALUE, _FORM, _HINT = 4, 2, 1
_ENOUGH = 12  # elements; those of fewer hide what is wrong
_FEW = 8  # values of a constant that is taken for axes, sizes and the like


def sampled(drawn: Callable[[int], Case], seeds: int, most: int) -> list[Case]:
    """Return at most so many of the cases of these seeds, each with values of attributes or other
    forms that those before lack.

    `drawn` returns the case of a seed.
    """
    left = [
        case for case in map(drawn, range(seeds)) if not (is_refused(case) or _compiles_long(case))
    ]
    forms = {case.seed: forms_of(case) for case in left}
    chosen: list[Case] = []
    seen: set[str] = set()

    def added(case: Case) -> float:
        new = sum(weight for form, weight in forms[case.seed].items() if form not in seen)
        elements = max(value.size for value in case.fed.values())
        return new * min(1.0, elements / _ENOUGH)

    while left and len(chosen) < most:
        best = max(left, key=lambda case: (added(case), -case.seed))
        new = [weight for form, weight in forms[best.seed].items() if form not in seen]
        if chosen and max(new, default=0) <= _HINT:
            break
        seen |= set(forms[best.seed])
        chosen.append(best)
        left.remove(best)
    return chosen


def forms_of(case: Case) -> dict[str, int]:
    """Return what a case shows, with weights: version, attributes, inputs and types."""
    node = next((one for one in case.nodes if one.op_type == case.operator), case.nodes[0])
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    found = {f"outputs={len(case.outputs)}": _FORM}
    if not case.domain:
        schema = onnx.defs.get_schema(case.operator, case.opset, "")
        version = _form_of_version(case.operator, schema.since_version)
        for name in schema.attributes:
            found[f"{version} {name} {'given' if name in attributes else 'absent'}"] = _FORM
    else:
        found |= dict.fromkeys(attributes, _FORM)
    for name, value in attributes.items():
        if isinstance(value, bytes) or (isinstance(value, int) and value in (0, 1)):
            found[f"{name}={value!r}"] = _VALUE
            kind = next(iter(case.fed.values())).dtype.kind
            found[f"{name}={value!r} of {kind}"] = _HINT if isinstance(value, int) else _FORM
        elif isinstance(value, int):
            found[f"{name} {'negative' if value < 0 else 'above 1'}"] = _FORM
        elif isinstance(value, list) and value and isinstance(value[0], int):
            found |= _traits(name, np.asarray(value))
    if len(attributes) == 2 and all(value in (0, 1) for value in attributes.values()):
        found[f"both {sorted(attributes.items())}"] = _FORM
    given = sorted(name for name, value in attributes.items() if value not in (0, b"NOTSET"))
    for one, other in combinations(given, 2):
        exact = isinstance(attributes[one], float) and isinstance(attributes[other], int)
        found[f"{one} with {other}"] = _FORM if exact else _HINT
    for place, name in enumerate(node.input):
        value = case.fed.get(name, case.constants.get(name))
        if value is None:
            found[f"input {place} absent"] = _FORM
            continue
        found[f"input {place} fed={name in case.fed}"] = _HINT
        found[f"input {place} of {value.dtype.kind}"] = _FORM
        if place == 0:
            found[f"{value.dtype}" if value.dtype.kind != "f" else "float"] = _HINT
        if name in case.constants and value.size <= _FEW and value.dtype.kind == "i":
            found |= _traits(f"input {place}", value.reshape(-1))
    return found


def _form_of_version(operator: str, version: int) -> int:
    """Return the first version that had the inputs and attributes of this one, or nearly."""
    schema = onnx.defs.get_schema(operator, version, "")
    while schema.since_version > 1:
        try:
            older = onnx.defs.get_schema(operator, schema.since_version - 1, "")
        except onnx.defs.SchemaError:
            break
        if older.deprecated or _parts(older) != _parts(schema):
            break
        schema = older
    return int(schema.since_version)


def _parts(schema: onnx.defs.OpSchema) -> tuple[int, frozenset[str], frozenset[str]]:
    names = frozenset(schema.attributes)
    stated = frozenset(
        f"{name}={helper.get_attribute_value(one.default_value)}"
        for name, one in schema.attributes.items()
        if one.default_value.type
    )
    return len(schema.inputs), names, stated


def _traits(name: str, values: np.ndarray) -> dict[str, int]:
    """Return how some integers are: negative, different from each other, in which order."""
    found = {f"{name} count={min(len(values), 2)}": _HINT}
    if not len(values):
        return found
    if values.min() < 0:
        found[f"{name} negative"] = _FORM
    if values.max() > 1:
        found[f"{name} above 1"] = _HINT
    if values.min() < values.max():
        found[f"{name} uneven"] = _HINT
    middle = len(values) // 2
    if len(values) % 2 == 0 and (values[:middle] != values[middle:]).any():
        found[f"the halves of {name} differ"] = _HINT
    return found


def _compiles_long(case: Case) -> bool:
    """Return whether a case takes seconds to compile: cubic samples repeat their indices."""
    modes = [one.s for one in case.nodes[0].attribute if one.name == "mode"]
    return case.operator == "GridSample" and modes in ([b"cubic"], [b"bicubic"])


def is_refused(case: Case) -> bool:
    """Return whether farm refuses the form, by its name."""
    node = case.nodes[0]
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    kinds = [value.dtype.kind for value in case.fed.values()]
    if case.operator in ("Erf", "ReduceLogSumExp"):
        return kinds[0] != "f"
    if case.operator == "SpaceToDepth":
        return attributes.get("mode", b"DCR") != b"DCR"
    if case.operator == "Resize":
        mode = attributes.get("coordinate_transformation_mode")
        sizes = node.input[3:] or [""]
        return mode == b"tf_crop_and_resize" or (
            case.opset > 10 and sizes == [""] and attributes.get("mode", b"nearest") != b"nearest"
        )
    return False
