"""Check that values which left a sandbox have the types that their dataclasses declare.

A constructor of a dataclass accepts anything. Code that reads a number, a text or a path from a
field would otherwise get whatever a process that was taken over has put there.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def find_mistyped_field(value: Any, known: tuple[type, ...] = ()) -> str:
    """Return the name of a field of a dataclass whose value is not of its type; "" if none is.

    `known` are types that annotations may name and that their module imports for type checkers
    only.
    """
    hints = _hints(type(value), known)  # type: ignore[arg-type]
    return next(
        (
            field.name
            for field in fields(value)
            if not is_of_type(getattr(value, field.name), hints[field.name])
        ),
        "",
    )


@functools.cache
def _hints(cls: type, known: tuple[type, ...]) -> dict[str, Any]:
    return get_type_hints(cls, localns={one.__name__: one for one in known})


def is_of_type(value: Any, hint: Any) -> bool:
    """Return whether a value is of the type that an annotation declares.

    True is no number. An integer is a float. A dataclass in a field is taken to be checked itself.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin in (Union, types.UnionType):
        return any(is_of_type(value, one) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return type(value) in (float, int)
    if hint in (int, str, bool, bytes):
        return type(value) is hint
    if origin is not None:
        return _fits_container(value, origin, arguments)
    return isinstance(hint, type) and isinstance(value, hint)


def _fits_container(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(is_of_type(one, arguments[0]) for one in value)
        return len(value) == len(arguments) and all(map(is_of_type, value, arguments))
    if not isinstance(value, origin) or isinstance(value, (str, bytes)):
        return False
    if isinstance(value, Mapping):
        return all(
            is_of_type(key, arguments[0]) and is_of_type(one, arguments[1])
            for key, one in value.items()
        )
    if isinstance(value, (Sequence, Set)):
        return all(is_of_type(one, arguments[0]) for one in value)
    return not isinstance(value, Collection) or type(value).__module__ == "numpy"


def type_checked_constructor(cls: type, known: tuple[type, ...] = ()) -> Any:
    """Return a constructor of a dataclass that raises TypeError for a field of another type."""
    assert is_dataclass(cls)

    def construct(*arguments: Any) -> Any:
        value = cls(*arguments)
        if name := find_mistyped_field(value, known):
            raise TypeError(
                f"{cls.__name__}.{name} is {type(getattr(value, name)).__name__}, or holds "
                "another type"
            )
        return value

    return construct
