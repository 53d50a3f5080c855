"""Digests of farm's own source code: a change of the source leads to a new build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm.store.artifact_store import digest_of_parts

_PACKAGE = Path(__file__).resolve().parents[1]


def source_digest(names: Sequence[str], package: Path | None = None) -> str:
    """Return the SHA-256, in hexadecimal, of the Python files that `names` stand for.

    A name is a package below `farm` ("compiler", with all its sub-packages) or a module
    ("types/layer_variable_names.py"). File names are included: a module that moves changes the
    digest. `package` is the folder of `farm`. Raises FileNotFoundError for a name that stands for
    no file.
    """
    root = package or _PACKAGE
    parts: list[str | Path] = []
    for name in names:
        paths = [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
        if not paths:
            raise FileNotFoundError(f"no Python files in {root / name}")
        for path in paths:
            parts += [path.relative_to(root).as_posix(), path]
    return digest_of_parts(*parts)
