"""Compute digests of everything that a model's content depends on, without importing a framework.

A file's fingerprint is that of its bytes. The dependencies of a `python:` source are known only
after it has run; `record_dependencies` records them in `cache/python-sources/`, as the files it
read with their digests and the packages it imported.
"""

from __future__ import annotations

import ast
import json
import mmap
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from farm.errors import ModelError
from farm.importers.model_file_check import check_file
from farm.importers.onnx import external_data_files
from farm.store import digest_of_parts, file_digest, source_digest
from farm.types import Model

_ALWAYS = ("apache-tvm", "apache-tvm-ffi", "numpy")
_ONNX = ("onnx", "onnxruntime")
_TORCH = ("torch",)
_TFLITE = ("tflite", "ai-edge-litert")
_SOURCES = ("importers", "kernels", "types/layer_variable_names.py")
# The key under which ONNX stores the name of an external data file.
_EXTERNAL = b"location"
# A line of a RECORD with a file of a top-level module: a folder, a source or an extension.
_RECORD_LINE = r'^"?(?:{})(?:/|\.[^/,\n]*,)'
_OF_KEY = re.compile(
    r"id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|.+\.(?:pem|ppk|p12|pfx|jks|kdbx?|gpg|asc|env)"
    r"|(?:credentials|secrets?)(?:\.\w+)?",
    re.IGNORECASE | re.DOTALL,
)


def fingerprint_onnx_import(model: Model, _: Path) -> str:
    """Return the digest of the file, its external data, the shapes and package versions."""
    path = Path(model.source)
    check_file(path)
    files = [path, *checked_external_files(path)]
    return _digest(model, [file_digest(file) for file in files], _ONNX)


def fingerprint_torch_file_import(model: Model, cache: Path) -> str | None:
    """Return the digest of the file, the shapes, and the versions of torch and onnx.

    If a module is named, its fingerprint is included; None if that is unknown.
    """
    path = Path(model.source)
    check_file(path)
    # TorchScript may be imported by way of ONNX.
    content, packages = [file_digest(path)], (*_TORCH, *_ONNX)
    if model.module is None:
        return _digest(model, content, packages)
    module = fingerprint_python_function_import(replace(model, source=model.module), cache)
    return None if module is None else _digest(model, [*content, module], packages)


def fingerprint_tflite_import(model: Model, _: Path) -> str:
    """Return the digest of the file, the shapes and the versions of the importing packages."""
    path = Path(model.source)
    check_file(path)
    return _digest(model, [file_digest(path)], _TFLITE)


def fingerprint_python_function_import(model: Model, cache: Path) -> str | None:
    """Return the digest of the files and packages of the last recorded run.

    Returns None if there is no record, if other importers than these wrote it, which may have
    recorded other files, or if one of its files has changed or is missing.
    """
    record = _record(model.source, cache)
    try:
        known = json.loads(record.read_text())
        if known["importers"] != _importers_digest():
            return None
        files: dict[str, str] = known["files"]
        packages: list[str] = known["packages"]
        if any(file_digest(Path(file)) != digest for file, digest in files.items()):
            return None
    except (OSError, ValueError, KeyError):
        return None
    contents = [[Path(file).name, digest] for file, digest in files.items()]
    return _digest(model, [model.source, platform.python_version(), contents], (*_TORCH, *packages))


def record_dependencies(source: str, cache: Path, files: Iterable[Path]) -> None:
    """Record the files that a `python:` source read and their packages. The write is atomic."""
    digests = {str(file): file_digest(file) for file in files}
    record = _record(source, cache)
    record.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=record.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            packages = _packages(map(Path, digests))
            content = {
                "source": source,
                "importers": _importers_digest(),
                "files": digests,
                "packages": packages,
            }
            json.dump(content, file, indent=1)
        Path(name).replace(record)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _record(source: str, cache: Path) -> Path:
    """Return the path of the record of a source.

    It depends on the working directory too, because the source's module is imported from there.
    """
    return cache / "python-sources" / f"{digest_of_parts(source, str(Path.cwd()))}.json"


def _digest(model: Model, content: object, packages: Iterable[str]) -> str:
    """Return the digest of a model's content, its options, package versions and the importers."""
    versions = {name: _version(name) for name in (*_ALWAYS, *packages)}
    asked = {
        "shapes": model.shapes,
        "dtypes": model.dtypes,
        "module": model.module,
        "batch": model.batch,
        "values": model.values,
    }
    return digest_of_parts(
        {"content": content, **asked, "versions": versions, "importers": _importers_digest()}
    )


@lru_cache
def _importers_digest() -> str:
    """Return the digest of the importers' sources."""
    return source_digest(_SOURCES)


def _version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages(files: Iterable[Path]) -> list[str]:
    """Return the installed packages that the Python files among `files` import.

    `metadata.packages_distributions` would do, but it takes a second: it makes objects of the
    names of all installed files.
    """
    imported = {name for file in files if file.suffix == ".py" for name in _imports(file)}
    names = imported - sys.stdlib_module_names
    if not names:
        return []
    of_names = re.compile(
        _RECORD_LINE.format("|".join(map(re.escape, sorted(names)))), re.MULTILINE
    )
    return sorted(
        {one.metadata["Name"] for one in metadata.distributions() if _has(one, names, of_names)}
    )


def _has(package: metadata.Distribution, names: set[str], of_names: re.Pattern[str]) -> bool:
    """Return whether a package has a top-level module of one of these names.

    `of_names` finds a line of a package's record with such a module.
    """
    if declared := (package.read_text("top_level.txt") or "").split():
        return not names.isdisjoint(declared)
    if record := package.read_text("RECORD"):
        return of_names.search(record) is not None
    return any(file.parts[0].partition(".")[0] in names for file in package.files or ())


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level names that a Python file imports absolutely."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def checked_external_files(path: Path) -> list[Path]:
    """Return the external weight files of an ONNX model, sorted.

    Raises ModelError if one of them is missing, or does not lie in or below the model's folder: it
    would be read to its end for its digest. Raises it also for what is likely to be a secret of
    whoever stored a stranger's model in the folder: it would become part of builds.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(_EXTERNAL) < 0:
            return []
    files = external_data_files.external_files(path)
    folder = path.resolve().parent
    if outside := [file for file in files if not _is_below(file, folder)]:
        raise ModelError(
            f"{path.name}: its external weights are not in its folder",
            f"it names {str(outside[0])[:300]}",
            "put the file with the weights beside the model, as the exporter wrote it",
        )
    if hidden := [file for file in files if _is_private(file, path, folder)]:
        raise ModelError(
            f"{path.name}: its external weights look like a private file",
            f"it names {str(hidden[0])[:300]}: exporters write no weights under a hidden name or "
            "under that of a key",
            "if it does hold weights, rename it, and its `location` in the model",
        )
    if missing := [file for file in files if not file.is_file()]:
        fix = "put the file with the weights beside the model, as the exporter wrote it"
        raise ModelError(
            f"{path.name}: its external weights are missing", f"no file {missing[0]}", fix
        )
    return files


def external_weight_files(model: Model) -> list[Path]:
    """Return the external weight files of a model; none for other formats and refused files."""
    path = Path(model.source)
    if path.suffix.lower() != ".onnx":
        return []
    try:
        check_file(path)
        return checked_external_files(path)
    except ModelError:  # the import reports it
        return []


def _is_private(file: Path, model: Path, folder: Path) -> bool:
    """Return whether a file below the model's folder is hidden, or has the name of a key.

    Its permissions say nothing: onnx.save writes weights that only their owner can read.
    """
    parts = list(file.resolve().relative_to(folder).parts)
    for base in (model.parent, folder):
        if file.is_relative_to(base):  # as it is written, before its links
            parts += file.relative_to(base).parts
    return any(part != ".." and (part.startswith(".") or _OF_KEY.fullmatch(part)) for part in parts)


def _is_below(file: Path, folder: Path) -> bool:
    """Return whether a file, after its links, lies in or below a folder; no, if it cannot."""
    try:
        file.lstat()
    except FileNotFoundError:
        pass  # reported as missing, where it lies below the folder
    except (OSError, ValueError):  # a name that is too long, or has a zero byte
        return False
    try:
        return file.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # links in a circle
        return False
