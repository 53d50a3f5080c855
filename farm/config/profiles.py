"""Profiles: the built-in ones, those of devices.toml, and inheritance between them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from farm.config.model_sources import PACKAGE
from farm.config.toml_parser import Key, parse_valid_without_lines
from farm.types import Profile

Raw = Mapping[str, Any]


@functools.cache
def built_in_profile_tables() -> Mapping[str, Raw]:
    """Return the tables of the built-in profiles.toml, with inherited keys filled in."""
    tables, _ = resolve_inheritance(
        parse_valid_without_lines((PACKAGE / "profiles.toml").read_text(encoding="utf-8"))[
            "profiles"
        ],
        {},
    )
    return tables


def resolve_inheritance(
    tables: object, known: Mapping[str, Raw]
) -> tuple[dict[str, Raw], list[tuple[Key, str]]]:
    """Return the tables with their inherited keys filled in, and the mistakes found.

    `known` are the profiles from which a table may inherit besides those in `tables`. The mistakes
    are cycles and missing keys. `tables` is raw TOML, valid or not; the schema reports values of
    the wrong type.
    """
    own = (
        {name: table for name, table in tables.items() if isinstance(table, dict)}
        if isinstance(tables, dict)
        else {}
    )
    complete: dict[str, Raw] = {}
    mistakes: list[tuple[Key, str]] = []
    for name in own:
        chain = _chain(name, own, known)
        if chain is None:
            mistakes.append(
                (
                    ("profiles", name, "inherits"),
                    f"goes in a circle: {' -> '.join(_circle(name, own))}",
                )
            )
            continue
        merged: Raw = {}
        for table in reversed(chain):
            merged = _over(merged, table)
        complete[name] = merged
        # an unknown parent is reported by the schema
        if str(own[name].get("inherits", name)) in {name, *own, *known}:
            mistakes += _missing(name, merged)
    return complete, mistakes


def profile_from_table(name: str, table: Raw) -> Profile:
    """Return the profile of a complete and checked table."""
    return Profile(
        name=name,
        target=table["target"],
        triple=table["triple"],
        description=table.get("description", ""),
        agent=table.get("agent"),
        linker=tuple(table.get("linker", ())),
        source=table.get("source", ""),
        quantize=table.get("quantize"),
        memory_mb=table.get("memory_mb"),
    )


def _chain(name: str, own: Mapping[str, Raw], known: Mapping[str, Raw]) -> list[Raw] | None:
    """Return the table and its ancestors, nearest first; None if the inheritance is cyclic.

    A table that inherits from its own name inherits from the built-in profile of that name.
    """
    chain: list[Raw] = []
    seen: set[str] = set()
    while name in own and name not in seen:
        seen.add(name)
        chain.append(own[name])
        parent = own[name].get("inherits")
        if parent is None or (parent == name and name in known):
            break
        if not isinstance(parent, str):
            return chain
        name = parent
    else:
        if name in seen:
            return None
    return [*chain, known[name]] if name in known else chain


def _circle(name: str, own: Mapping[str, Raw]) -> list[str]:
    """Return the names on the path that leads into a cycle, ending with the first repeated name."""
    names = [name]
    while names.count(names[-1]) == 1:
        names.append(own[names[-1]]["inherits"])
    return names


def _over(base: Raw, table: Raw) -> Raw:
    """Return `base` with the keys of `table` replaced.

    A target without `kind` extends the base's target.
    """
    merged = {**base, **table}
    ours, theirs = table.get("target"), base.get("target")
    if isinstance(ours, dict) and isinstance(theirs, dict) and "kind" not in ours:
        merged["target"] = {**theirs, **ours}
    return merged


def _missing(name: str, table: Raw) -> list[tuple[Key, str]]:
    """Return the mistakes of a complete table that lacks required keys."""
    mistakes: list[tuple[Key, str]] = []
    for key, example in (
        ("target", 'target = { kind = "llvm", ... }'),
        ("triple", 'triple = "aarch64-linux-gnu"'),
    ):
        if key not in table:
            mistakes.append(
                (
                    ("profiles", name, key),
                    f'is missing, for example {example}, or inherits = "rasp4-64"',
                )
            )
    target = table.get("target")
    if isinstance(target, dict) and not isinstance(target.get("kind"), str):
        mistakes.append(
            (
                ("profiles", name, "target", "kind"),
                'is missing or not text, for example kind = "llvm"',
            )
        )
    return mistakes
