"""tools/requirements.lock has every package that the set-up needs, with hashes; only torch comes
without.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
WITHOUT_HASHES = {"torch"}  # and what its build for CUDA brings
ENTRY = re.compile(
    r"^(?P<requirement>\S.*?) \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)*)",
    re.MULTILINE,
)


def locked() -> dict[str, list[str]]:
    """The versions of each package in the lock."""
    found: dict[str, list[str]] = {}
    text = (ROOT / "tools" / "requirements.lock").read_text()
    for entry in ENTRY.finditer(text):
        requirement = Requirement(entry["requirement"])
        assert entry["hashes"], f"{requirement.name} has no hashes"
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        found.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    assert len(re.findall(r"^[^\s#]", text, re.MULTILINE)) == sum(map(len, found.values()))
    return found


def asked() -> dict[str, Requirement]:
    """What pyproject.toml asks for, with what the extra `dev` brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: list(map(Requirement, lines))
        for name, lines in project["optional-dependencies"].items()
    }
    waiting, found = [*map(Requirement, project["dependencies"]), *extras["dev"]], {}
    while waiting:
        one = waiting.pop()
        if one.name == project["name"]:
            waiting += [requirement for extra in one.extras for requirement in extras[extra]]
        else:
            found[canonicalize_name(one.name)] = one
    return found


def test_all_that_the_set_up_asks_for_is_locked_in_a_version_that_it_takes() -> None:
    lock = locked()
    wanted = asked()
    assert wanted.keys() - lock.keys() == WITHOUT_HASHES
    for name in wanted.keys() - WITHOUT_HASHES:
        assert all(wanted[name].specifier.contains(version) for version in lock[name]), name


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    lock = locked()
    lines = [
        line.split("#")[0].strip()
        for line in (ROOT / "tools" / "constraints.txt").read_text().splitlines()
    ]
    for constraint in map(Requirement, filter(None, lines)):
        name = canonicalize_name(constraint.name)
        if name not in WITHOUT_HASHES:
            assert all(constraint.specifier.contains(version) for version in lock[name]), (
                f"{name}: run tools/lock"
            )
