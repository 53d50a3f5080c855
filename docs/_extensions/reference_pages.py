"""Generate the reference pages of the documentation from the program, when Sphinx reads them.

A page names what it wants in a line `<!-- generated: NAME -->`; that line is replaced by the
Markdown that the function of this name in `GENERATORS` returns. Nothing generated is kept in the
repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import operator_lists

import farm
from farm import config, errors

PLACEHOLDER = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_SCHEMA_MODULES = ("farm.config.schema", "farm.config.preprocess", "farm.config.tolerances")
_TABLES = {  # heading in devices.toml: class of farm.config.schema
    "top level": "Document",
    "[devices.NAME]": "DeviceTable",
    "[devices.NAME] options": "DeviceOptionsTable",
    "[profiles.NAME]": "ProfileTable",
    "[models.NAME]": "ModelTable",
    "[models.NAME] preprocess": "PreprocessTable",
    "[models.NAME] quantize": "QuantizeTable",
    "[models.NAME] limits, [limits.DTYPE]": "TolerancesTable",
    "[limits]": "TolerancesByDtypeTable",
    "[bench]": "BenchTable",
    "[tracker]": "TrackerTable",
}


def expand(text: str) -> str:
    """Replace each placeholder of a page by what it stands for."""
    return PLACEHOLDER.sub(lambda match: GENERATORS[match[1]](), text)


_FIELDS = {"class": "lease_class"}  # of keys that are no names in Python


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    escaped = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [titles, ["---"] * len(titles), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def devices_toml() -> str:
    """Return a section per table of devices.toml: its keys, their types, defaults and meanings."""
    from farm.config.schema import Document

    schema = Document.model_json_schema()
    classes = {"Document": schema, **schema["$defs"]}
    described = attribute_docstrings()
    parts = []
    for heading, name in _TABLES.items():
        keys = classes[name]["properties"]
        required = classes[name].get("required", ())
        rows = [
            [
                f"`{key}`",
                _type(field, schema["$defs"]),
                "required" if key in required else _default(field),
                described[name, _FIELDS.get(key, key)],
            ]
            for key, field in keys.items()
        ]
        parts.append(f"## {heading}\n\n{table(['key', 'value', 'default', 'meaning'], rows)}")
    return "\n\n".join(parts)


def attribute_docstrings() -> dict[tuple[str, str], str]:
    """Return the docstrings of the fields of the tables, by class and field."""
    from sphinx.pycode import ModuleAnalyzer

    found: dict[tuple[str, str], str] = {}
    for module in _SCHEMA_MODULES:
        documented = ModuleAnalyzer.for_module(module).find_attr_docs()
        found |= {key: " ".join(lines).strip() for key, lines in documented.items()}
    return found


def _type(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the type of a field of a JSON Schema in words."""
    if "anyOf" in field:
        return " or ".join(
            _type(kind, definitions) for kind in field["anyOf"] if kind.get("type") != "null"
        )
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return next(f"table, see {heading}" for heading, kind in _TABLES.items() if kind == name)
    if "const" in field:
        return f"`{_toml(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{_toml(value)}`" for value in field["enum"])
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field['items'], definitions)}"
    if kind == "object":
        values = field["additionalProperties"]
        words = "" if values is True else _type(values, definitions)
        return (
            words.replace("table, see", "tables by name, see")
            if "table, see" in words
            else f"table of {words}"
            if words
            else "table"
        )
    words = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        None: "value",
    }
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    ranges = [f"{text} {field[key]:g}" for key, text in limits.items() if key in field]
    return " ".join([words[kind], ", ".join(ranges)]).strip()


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return f"`{_toml(value)}`" if value is not None and not isinstance(value, dict) else ""


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def profiles() -> str:
    """Return a table of the built-in profiles and their CPUs or GPUs."""
    known = config.load_fleet(Path(farm.__file__).parent / "devices.toml").profiles
    rows = [
        [
            f"`{profile.name}`",
            profile.description,
            f"`{profile.target.get('mcpu') or profile.target.get('arch') or profile.target['kind']}`",  # noqa: E501
            f"`{profile.agent}`" if profile.agent else "none",
            profile.source,
        ]
        for profile in known.values()
    ]
    titles = ["profile", "board", "`mcpu` or `arch`", "agent", "source of the facts"]
    return table(titles, rows)


def exit_codes() -> str:
    """Return a table of the exit codes, from the classes of errors."""
    rows = [["0", "", "Everything succeeded."]]
    rows += [
        [
            str(code),
            ", ".join(f"`{kind.__name__}`" for kind in kinds),
            " ".join(map(summary, kinds)),
        ]
        for code, kinds in sorted(by_exit_code().items())
    ]
    signals = (
        "Stopped by signal N: 143 for SIGTERM, 129 when the terminal is gone, 141 when the reader "
        "of the output closed it."
    )
    return table(["code", "error", "meaning"], [*rows, ["128 + N", "", signals]])


def by_exit_code() -> dict[int, list[type[errors.FarmError]]]:
    """Return the classes of errors by the exit code that they give."""
    found: dict[int, list[type[errors.FarmError]]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.FarmError):
            found.setdefault(kind.exit_code, []).append(kind)
    return found


def summary(kind: type) -> str:
    """Return the first paragraph of a class's own docstring, on one line."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def json_documents() -> str:
    """Return a section per document of `--json`: its keys and their types."""
    from farm.views.schema import NAMES, schema

    parts = []
    for name in sorted(NAMES):
        rows = [
            [f"`{path}`", kind, "" if required else "may be absent"]
            for path, kind, required in _keys(schema(name))
        ]
        keys = table(["key", "type", ""], rows)
        parts.append(f"### farm/{name}/1\n\nJSON Schema: `farm schema {name}`\n\n{keys}")
    return "\n\n".join(parts)


def _keys(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield the path, the type and whether it is always there, of each key of an object."""
    for key, field in schema.get("properties", {}).items():
        path, kind, inner = f"{prefix}{key}", *_json_type(field)
        yield path, kind, key in schema.get("required", ())
        if inner is not None:
            yield from _keys(inner[1], f"{path}{inner[0]}.")


def _json_type(field: Mapping[str, Any]) -> tuple[str, tuple[str, Mapping[str, Any]] | None]:
    """Return a type in words, and the object inside, with the suffix that leads to it."""
    if "const" in field:
        return f"`{field['const']}`", None
    if "anyOf" in field:
        kinds = [_json_type(kind) for kind in field["anyOf"]]
        words = [kind for kind, _ in kinds if not kind.startswith("one of `inf`")]
        return " or ".join(words), next((inner for _, inner in kinds if inner), None)
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"]), None
    kind = field.get("type", "any")
    if kind == "array" and isinstance(field.get("items"), dict):
        words, inner = _json_type(field["items"])
        return f"list of {words}", (f"[]{inner[0]}", inner[1]) if inner else None
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        words, inner = _json_type(field["additionalProperties"])
        return f"map of {words}", (f".NAME{inner[0]}", inner[1]) if inner else None
    if kind == "object" and "properties" in field:
        named = field["properties"].get("schema", {}).get("const")
        return (f"a `{named}`", None) if named else ("object", ("", field))
    return kind, None


GENERATORS: Mapping[str, Callable[[], str]] = {
    "devices-toml": devices_toml,
    "exit-codes": exit_codes,
    "json-documents": json_documents,
    "onnx-operators": operator_lists.onnx_operators,
    "profiles": profiles,
    "tflite-operators": operator_lists.tflite_operators,
    "torch-operators": operator_lists.torch_operators,
}


def _examples_as_code(_app: Any, _context: Any, lines: list[str]) -> None:
    """Show the example commands of a help text, which sphinx-click makes line blocks, as code."""
    shown: list[str] = []
    for line in lines:
        if line.startswith("| farm "):
            if not shown or not shown[-1].startswith("   "):
                shown += ["", "::", ""]
            shown.append(f"   {line[2:]}")
        else:
            shown.append(line)
    lines[:] = shown


def setup(app: Any) -> dict[str, bool]:
    """Connect the generators to Sphinx."""

    def read(_app: Any, _name: str, source: list[str]) -> None:
        source[0] = expand(source[0])

    app.connect("source-read", read)
    app.connect("sphinx-click-process-description", _examples_as_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
