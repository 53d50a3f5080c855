"""Check `.pt2` files before torch reads them: refuse everything that can carry code.

torch.export.load evaluates expressions, unpickles constants, resolves the names of operators to any
attribute reachable from its module, imports modules that structures name, loads compiled libraries,
and writes names into the source of functions that it runs. In a file that passes this check, each
of these has a form that torch itself writes, with operators that only compute. The check does not
need torch.

Sources: torch/export/pt2_archive/_package.py, torch/_export/serde/serialize.py,
torch/utils/_pytree.py, torch/fx/graph.py.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.errors import ModelError
from farm.importers.archive_check import Archive
from farm.importers.size_limits import check_tensor_fits_memory
from farm.importers.torch.checks.allowed_operators import (
    OperatorOfPackage,
    check_target_not_of_package,
    is_allowed_target,
)
from farm.importers.torch.checks.exported_program_schema import RECORDS, UNIONS, Record
from farm.importers.torch.checks.expressions import (
    ForbiddenExpression,
    check_guard,
    check_symbolic_extent,
    is_quotable_key,
)
from farm.importers.torch.checks.pickle_check import check_saved_tensors

_JSON_BYTES = 128 << 20
# Bytes of example inputs, or of weights as older versions of torch stored them.
_TENSORS_BYTES = 8 << 30
_DEEPEST = 64  # nesting of records, e.g. graphs in graphs
_PATH = re.compile(r"[^\x00-\x1f\x7f\"'\\(){};]*")
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_RECORD = re.compile(r"(?:weight|tensor)_[0-9]+")
_KNOWN = re.compile(
    r"models/model\.json|data/weights/(?:model_weights_config\.json|model\.pt|weight_[0-9]+)"
    r"|data/constants/(?:model_constants_config\.json|model\.pt|tensor_[0-9]+)|data/sample_inputs/model\.pt"
    r"|archive_format|archive_version|byteorder|version|\.data/(?:version|serialization_id)|\.format_version|extra/.+|\.storage_alignment"
)
_OLD = re.compile(
    r"version|serialized_(?:exported_program\.json|(?:state_dict|constants|example_inputs)\.pt)|extra_files/.+"
)
_FIX = (
    "save it with torch.export.save, of a module of torch's own operators; farm runs no code that "
    "a model file brings"
)
_CONTAINER = {"type", "context", "children_spec"}
_FACTORIES = frozenset(("list", "dict", "tuple", "set", "int", "float", "str", "bool"))


class _Forbidden(ValueError):
    """A value that torch does not write, or that could run code."""


def check_exported_program(path: Path) -> None:
    """Raise ModelError unless torch can read the program without running code from the file."""
    with Archive(path) as archive:
        names = [name for name in archive.entries if not name.endswith("/")]
        old = "serialized_exported_program.json" in names
        if not names:
            raise _refusal(path, "it holds folders and no file")
        root = "" if old else names[0].partition("/")[0] + "/"
        for name in names:
            if not name.startswith(root) or not (_OLD if old else _KNOWN).fullmatch(
                name.removeprefix(root)
            ):
                raise _refusal(
                    path,
                    f"{name!r} in it is nothing that torch.export.save writes{_compiled(name)}",
                )
        programs = ["serialized_exported_program.json"] if old else [f"{root}models/model.json"]
        configs = [name for name in names if name.endswith("_config.json")]
        for kind, listed in (("ExportedProgram", programs), ("PayloadConfig", configs)):
            for name in listed:
                _check_json(path, archive, name, kind)
        for name in names:
            if name.endswith(".pt") and archive.entries[name].bytes:
                check_saved_tensors(archive.read(name, _TENSORS_BYTES), f"{path}: {name}")


def _compiled(name: str) -> str:
    """Return why a file of the archive is refused, if it is a known kind."""
    if "aotinductor" in name:
        return ": it is compiled code"
    return ": it would be unpickled" if "_obj_" in name else ""


def _refusal(path: Path, why: str) -> ModelError:
    """Return the ModelError that refuses the file."""
    return ModelError(f"{path} could run code when it is read, so it is not read", why, _FIX)


def _check_json(path: Path, archive: Archive, name: str, kind: str) -> None:
    """Check a JSON file of the archive against a record of the schema."""
    if name not in archive.entries:
        raise _refusal(path, f"it has no {name}")
    try:
        value = json.loads(archive.read(name, _JSON_BYTES), object_pairs_hook=_without_repeats)
        _check(value, kind, kind, 0)
    except OperatorOfPackage as exc:
        raise exc.as_model_error(path, f"{name.rpartition('/')[2]} in it") from exc
    except _Forbidden as exc:
        raise _refusal(path, f"{name.rpartition('/')[2]} in it: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise _refusal(path, f"{name} in it is no JSON that farm reads: {exc}") from exc


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise _Forbidden for repeated names."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Forbidden("a name is there twice")
    return found


def _check(value: Any, kind: str, where: str, depth: int) -> None:
    """Check a JSON value against its kind in the schema.

    `where` is its path in the error message. Raises _Forbidden.
    """
    if depth > _DEEPEST:
        raise _Forbidden(f"it is nested more than {_DEEPEST} deep")
    if (check := _VALUES.get(kind)) is not None:  # most values; the other forms are of few
        check(value, where)
    elif (union := UNIONS.get(kind)) is not None:
        if len(_of(dict, value, where)) != 1:
            raise _Forbidden(f"{where} has {len(value)} values instead of one")
        _check_fields(value, union, where, depth)
    elif (record := RECORDS.get(kind)) is not None:
        _check_fields(_of(dict, value, where), record, where, depth)
        if kind == "TensorMeta":
            extents = [extent.get("as_int", 1) for extent in value.get("sizes", [])]
            check_tensor_fits_memory(where, "a tensor", extents, 1)
    elif kind.endswith("?"):
        if value is not None:
            _check(value, kind[:-1], where, depth)
    elif kind.startswith("["):
        inner = kind[1:-1]
        for one in _of(list, value, where):
            _check(one, inner, where, depth)
    elif kind.startswith("{"):
        inner = kind[1:-1]
        for name, one in _of(dict, value, where).items():
            _path(name, where)
            _check(one, inner, f"{where}[{name}]", depth)
    else:
        raise KeyError(kind)


def _check_fields(value: dict[str, Any], fields: Record, where: str, depth: int) -> None:
    """Check the fields of a record; unknown fields may only be empty."""
    for name, one in value.items():
        if name in fields:
            _check(one, fields[name], f"{where}.{name}", depth + 1)
        elif one:
            raise _Forbidden(
                f"{where} has a field {name!r}, which farm does not know: it may be of a "
                "later torch"
            )


def _of(kind: type, value: Any, where: str) -> Any:
    """Return the value if it is of this type; else raise _Forbidden."""
    if not isinstance(value, kind):
        raise _Forbidden(f"{where} is {_shown(value)} instead of a {kind.__name__}")
    return value


def _shown(value: object) -> str:
    """Return the value's repr, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _int(value: Any, where: str) -> None:
    """Check an integer of 64 bits, signed or unsigned."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        raise _Forbidden(f"{where} is {_shown(value)} instead of an integer of 64 bits")


def _bool(value: Any, where: str) -> None:
    """Check a boolean."""
    _of(bool, value, where)


def _float(value: Any, where: str) -> None:
    """Check a number, or one of the words that torch writes for numbers that JSON lacks."""
    if value not in ("Infinity", "-Infinity", "NaN") and (
        isinstance(value, bool) or not isinstance(value, (int, float))
    ):
        raise _Forbidden(f"{where} is {_shown(value)} instead of a number")


def _text(value: Any, where: str) -> None:
    """Check text that torch stores or passes to operators, and never reads as code."""
    _of(str, value, where)


def _plain(value: Any, where: str) -> None:
    """Check a plain name."""
    if not is_quotable_key(_of(str, value, where)):
        raise _Forbidden(f"{where} is {_shown(value)}, which is no plain name")


def _variable(value: Any, where: str) -> None:
    """Check a name that torch writes into the source of a function."""
    if (
        not _of(str, value, where).isidentifier()
        or keyword.iskeyword(value)
        or value.startswith("__")
    ):
        raise _Forbidden(f"{where} is {_shown(value)}, which is no name of a variable")


def _parameter(value: Any, where: str) -> None:
    """Check the name of an operator's argument: may be a keyword of Python, e.g. `from`.

    The name "" is that of a positional argument.
    """
    if value != "" and not _of(str, value, where).isidentifier():
        raise _Forbidden(f"{where} is {_shown(value)}, which is no name of an argument")


def _path(value: Any, where: str) -> None:
    """Check a dotted path of submodules and attributes.

    torch writes it between quotes and resolves it.
    """
    if not _PATH.fullmatch(_of(str, value, where)) or any(
        re.fullmatch("__.*__", part) for part in value.split(".")
    ):
        raise _Forbidden(f"{where} has the name {_shown(value)}, which no module of torch has")


def _device(value: Any, where: str) -> None:
    """Check the name of a kind of device."""
    if not _DEVICE.fullmatch(_of(str, value, where)):
        raise _Forbidden(f"{where} is {_shown(value)}, which is no kind of device")


def _record(value: Any, where: str) -> None:
    """Check the name of the archive's file that holds a tensor's data."""
    if not _RECORD.fullmatch(_of(str, value, where)):
        raise _Forbidden(
            f"{where} is {_shown(value)}: of constants farm reads tensors alone, no objects, "
            "which torch unpickles"
        )


def _false(value: Any, where: str) -> None:
    """Check that a tensor is not pickled."""
    if value is not False:
        raise _Forbidden(f"{where} is {_shown(value)}: unpickling can run any code")


def _nothing(value: Any, where: str) -> None:
    """Check that there are no objects of classes that torch does not define."""
    if value:
        raise _Forbidden(f"{where} holds objects of classes that torch does not have by itself")


def _forbidden(_: Any, where: str) -> None:
    """Refuse an object of a class that torch does not define."""
    raise _Forbidden(f"{where} is an object of a class that torch does not have by itself")


def _operator(value: Any, where: str) -> None:
    """Check that an operator is allowed."""
    if not is_allowed_target(_of(str, value, where)):
        check_target_not_of_package(value)
        raise _Forbidden(
            f"{where} is {_shown(value)}, which is none of the operators that farm lets a file run"
        )


def _expression(value: Any, where: str) -> None:
    """Check an extent."""
    _by_grammar(check_symbolic_extent, value, where)


def _guard(value: Any, where: str) -> None:
    """Check a condition on the inputs."""
    _by_grammar(check_guard, value, where)


def _by_grammar(check: Callable[[str], None], value: Any, where: str) -> None:
    """Call `check` on a text; raise _Forbidden for its ForbiddenExpression."""
    try:
        check(_of(str, value, where))
    except ForbiddenExpression as exc:
        raise _Forbidden(f"{where}: {exc}") from exc


def _structure(value: Any, where: str) -> None:
    """Check the structure of inputs or outputs (a pytree), which is JSON inside the JSON."""
    for node in _nodes(value, where):
        _check_container(node["type"], node["context"], where)


def _arguments(value: Any, where: str) -> None:
    """Check the structure of the inputs.

    torch writes the names of keyword arguments into the source of a function.
    """
    _structure(value, where)
    children = json.loads(value)[1].get("children_spec", []) if value else []
    for child in children[1:2]:
        names = _context(child["context"], where) or []
        if not isinstance(names, list):
            raise _Forbidden(f"{where}: {_shown(names)} are no names of arguments")
        for name in names:
            _variable(name, where)


def _nodes(value: Any, where: str) -> list[dict[str, Any]]:
    """Return all containers of a pytree; raise _Forbidden if it is malformed."""
    if _of(str, value, where) == "":
        return []
    parsed = json.loads(value, object_pairs_hook=_without_repeats)
    if not (isinstance(parsed, list) and len(parsed) == 2 and parsed[0] == 1):
        raise _Forbidden(f"{where} is no structure that farm knows")
    level, found = [parsed[1]], []
    for _ in range(_DEEPEST):
        for node in level:
            if (
                not isinstance(node, dict)
                or set(node) != {"type", "context", "children_spec"}
                or not isinstance(node["children_spec"], list)
            ):
                raise _Forbidden(f"{where} is no structure that farm knows")
        found += level
        level = [child for node in level for child in node["children_spec"]]
        if not level:
            return found
    raise _Forbidden(f"{where} is nested more than {_DEEPEST} deep")


def _context(context: Any, where: str) -> Any:
    """Return the parsed context of a container, such as the keys of a dict.

    The context is JSON in text again. Raises _Forbidden for enumerations, whose modules torch
    imports, and for keys that are not plain text.
    """
    value = (
        json.loads(context, object_pairs_hook=_without_repeats)
        if isinstance(context, str) and context[:1] in '[{"n'
        else context
    )
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "__enum__" in one:
                raise _Forbidden(f"{where} names a module to be imported, {_shown(one)}")
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str) and not is_quotable_key(one):
            raise _Forbidden(f"{where} has the key {_shown(one)}, which is no plain name")
    return value


def _check_container(kind: Any, context: Any, where: str) -> None:
    """Check the type of a container and its context."""
    if kind is not None:
        _path(kind, where)
    if kind == "collections.defaultdict":
        factory = context if isinstance(context, dict) else {}
        if (
            factory.get("default_factory_module") != "builtins"
            or factory.get("default_factory_name") not in _FACTORIES
        ):
            raise _Forbidden(f"{where} names a function to be imported, {_shown(context)}")
    if kind == "collections.namedtuple":
        _path(context, where)
        return
    _context(context, where)


_VALUES: dict[str, Callable[[Any, str], None]] = {
    "int": _int,
    "bool": _bool,
    "float": _float,
    "text": _text,
    "plain": _plain,
    "variable": _variable,
    "parameter": _parameter,
    "path": _path,
    "device": _device,
    "record": _record,
    "false": _false,
    "nothing": _nothing,
    "forbidden": _forbidden,
    "operator": _operator,
    "expression": _expression,
    "guard": _guard,
    "structure": _structure,
    "arguments": _arguments,
}
