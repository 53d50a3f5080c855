"""Fingerprints: digests of everything the content of a model depends on, without importing any framework.

A file's fingerprint is that of its bytes. What a `python:` source depends on shows only when it runs; `remember` keeps that in
`cache/python-sources/`, as the files it read with their digests and the packages it imported.
"""

from __future__ import annotations

import ast
import json
import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from farm.errors import ModelError
from farm.importers.files import check_file
from farm.store import digest_of, file_digest
from farm.types import Model

_ALWAYS = ("apache-tvm", "apache-tvm-ffi", "numpy")
_ONNX = ("onnx", "onnxruntime")
_TORCH = ("torch",)
_TFLITE = ("tflite", "ai-edge-litert")
_EXTERNAL = b"location"  # the key under which ONNX keeps the name of an external data file


def fingerprint_onnx(model: Model, _: Path) -> str:
    """The bytes of the file and of its external data files, the shapes, and the versions of what reads them."""
    path = Path(model.source)
    check_file(path)
    files = [path, *_external_files(path)]
    return _digest(model, [file_digest(file) for file in files], _ONNX)


def fingerprint_torch_file(model: Model, cache: Path) -> str | None:
    """The bytes of the file, the shapes, the versions of torch and onnx, and where a module is named what that depends on."""
    path = Path(model.source)
    check_file(path)
    content, packages = [file_digest(path)], (*_TORCH, *_ONNX)  # TorchScript may go by way of ONNX
    if model.module is None:
        return _digest(model, content, packages)
    module = fingerprint_python(replace(model, source=model.module), cache)
    return None if module is None else _digest(model, [*content, module], packages)


def fingerprint_tflite(model: Model, _: Path) -> str:
    """The bytes of the file, the shapes, and the versions of what reads them."""
    path = Path(model.source)
    check_file(path)
    return _digest(model, [file_digest(path)], _TFLITE)


def fingerprint_python(model: Model, cache: Path) -> str | None:
    """The files and packages of the last recorded run; None if there is no record, or a file of it has changed or is gone."""
    record = _record(model.source, cache)
    try:
        known = json.loads(record.read_text())
        files: dict[str, str] = known["files"]
        packages: list[str] = known["packages"]
        if any(file_digest(Path(file)) != digest for file, digest in files.items()):
            return None
    except (OSError, ValueError, KeyError):
        return None
    contents = [[Path(file).name, digest] for file, digest in files.items()]
    return _digest(model, [model.source, platform.python_version(), contents], (*_TORCH, *packages))


def remember(source: str, cache: Path, files: Iterable[Path]) -> None:
    """Keep what a `python:` source was made of. The record is written whole or not at all."""
    digests = {str(file): file_digest(file) for file in files}
    record = _record(source, cache)
    record.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=record.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({"source": source, "files": digests, "packages": _packages(map(Path, digests))}, file, indent=1)
        Path(name).replace(record)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _record(source: str, cache: Path) -> Path:
    """One record for a source in a working directory, from which its module is found."""
    return cache / "python-sources" / f"{digest_of(source, str(Path.cwd()))}.json"


def _digest(model: Model, content: object, packages: Iterable[str]) -> str:
    versions = {name: _version(name) for name in (*_ALWAYS, *packages)}
    importers = [file_digest(file) for file in sorted(Path(__file__).parent.glob("*.py"))]
    asked = {"shapes": model.shapes, "dtypes": model.dtypes, "module": model.module, "batch": model.batch}
    return digest_of({"content": content, **asked, "versions": versions, "importers": importers})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages(files: Iterable[Path]) -> list[str]:
    """The installed packages that the Python files among these import by name."""
    names = {name for file in files if file.suffix == ".py" for name in _imports(file)}
    owners = metadata.packages_distributions()
    return sorted({package for name in names - sys.stdlib_module_names for package in owners.get(name, [])})


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _external_files(path: Path) -> list[Path]:
    """The files beside the model that hold weights, sorted. Only a file that mentions any costs an import of onnx."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(_EXTERNAL) < 0:
            return []
    from farm.importers.onnx_external import external_files

    files = external_files(path)
    if missing := [file for file in files if not file.is_file()]:
        fix = "put the file with the weights beside the model, as the exporter wrote it"
        raise ModelError(f"{path.name}: its external weights are missing", f"no file {missing[0]}", fix)
    return files
