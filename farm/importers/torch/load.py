"""Import files of torch by their content: an exported program, TorchScript or weights.

    torch.export.save                          exported_program
    torch.jit.save                             torchscript
    torch.save of weights, with a `module`     state_dict

Pickled modules are never read, because reading a pickle can run any code. Weights are read with
torch's weights_only=True, which creates tensors only.
"""

from __future__ import annotations

import zipfile
from enum import StrEnum
from pathlib import Path

from farm.errors import ModelError
from farm.importers.archive_check import Archive
from farm.importers.imported_model import ImportedModel
from farm.importers.model_file_check import check_file
from farm.importers.torch.checks.exported_program_check import check_exported_program
from farm.importers.torch.checks.pickle_callables import SAVE, callables_in_pickle
from farm.importers.torch.checks.torchscript_check import check_torchscript
from farm.regular_files import check_not_special_file
from farm.types import Model

_WITH_MODULE = (
    "name a function that returns the module with --module pkg.mod:function (or `module` in "
    "devices.toml)"
)


class FileKind(StrEnum):
    """The kinds of content of a torch file."""

    PROGRAM = "an exported program"
    SCRIPT = "TorchScript"
    PICKLE = "a pickle"


def load(source: Model) -> ImportedModel:
    """Import a file of torch.

    Raises ModelError for a file that is missing, damaged, compiled, or a pickle of more than
    weights.
    """
    path = Path(source.source)
    kind = _kind(path, _SAVE_OR_MODULE if source.module is None else SAVE)
    check_torch_file(path, kind)
    from farm.importers.torch import exported_program, state_dict, torchscript

    if kind is FileKind.PICKLE:
        if source.module is None:
            raise _no_module(path)
        return state_dict.load(source)
    if source.module is not None:
        raise ModelError(
            f"{path.name} holds {kind.value}, and a module is named for it",
            f"{source.module} is for weights",
            "leave --module out",
        )
    return exported_program.load(source) if kind is FileKind.PROGRAM else torchscript.load(source)


def check_torch_file(path: Path, kind: FileKind) -> None:
    """Raise ModelError for a file that could do more than compute when it is read or run.

    The check runs before torch is imported.
    """
    if kind is FileKind.PROGRAM:
        check_exported_program(path)
    elif kind is FileKind.SCRIPT:
        check_torchscript(path)


_SAVE_OR_MODULE = f"{SAVE}; or, where it holds weights, {_WITH_MODULE}"


def _begins(path: Path) -> bytes:
    """Return the first two bytes of a file."""
    with path.open("rb") as file:
        return file.read(2)


def detect_file_kind(path: Path) -> FileKind | None:
    """Return the kind of a file by its first bytes or its archive's names; None if unknown."""
    check_not_special_file(path)
    if not zipfile.is_zipfile(path):
        old = path.suffix.lower() != ".pt2" and _begins(path) in (
            b"\x80\x02",
            b"\x80\x03",
            b"\x80\x04",
        )
        return FileKind.PICKLE if old else None  # torch.save before 1.6
    names = _names(path)
    folded = [name.partition("/")[2] for name in names]
    if (
        any(name.startswith("models/") for name in folded)
        or "serialized_exported_program.json" in names
    ):
        return FileKind.PROGRAM
    if any(name.startswith("code/") for name in folded):
        return FileKind.SCRIPT
    return FileKind.PICKLE if "data.pkl" in folded else None


def _names(path: Path) -> list[str]:
    """Return the names in a zip archive."""
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _kind(path: Path, fix: str) -> FileKind:
    """Return the kind of a file; raise ModelError if farm does not read it."""
    check_file(path)
    if zipfile.is_zipfile(path):
        Archive(path).close()
    if kind := detect_file_kind(path):
        return kind
    if not zipfile.is_zipfile(path):
        raise ModelError(
            f"{path} is not a file of torch",
            "it is no zip archive: it may be cut off or of another format",
            fix,
        )
    why = "it is a zip archive without a program in it"
    if any(name.partition("/")[2].startswith("data/aotinductor/") for name in _names(path)):
        why = "it is an AOTInductor package: compiled code for one machine, without the program"
    raise ModelError(f"{path} holds no model", why, fix)


def _no_module(path: Path) -> ModelError:
    """Return the ModelError for a pickle without a module: of weights or of other objects."""
    if objects := callables_in_pickle(path):
        why = (
            f"it holds objects of {', '.join(objects)}: reading a pickle can run any code, so it "
            "is never unpickled"
        )
        fix = (
            f"{SAVE}; or save its weights, torch.save(module.state_dict(), 'model.pth'), and "
            f"{_WITH_MODULE}"
        )
        return ModelError(f"{path} is a pickled module, or holds one", why, fix)
    return ModelError(f"{path} holds weights alone", "weights alone are no model", _WITH_MODULE)
