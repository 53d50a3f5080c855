"""Files of torch, `.pt2`, `.pt` and `.pth`, by what is in them: an exported program, TorchScript, or weights. Never a pickled module.

    torch.export.save                          exported_program
    torch.jit.save                             torchscript
    torch.save of weights, with a `module`     state_dict

A pickle can run any code when it is read. Weights are read with torch's weights_only=True, which makes tensors and nothing else.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from farm.errors import ModelError
from farm.importers.files import check_file
from farm.importers.imported import Imported
from farm.types import Model

SAVE = "save an exported program instead: torch.export.save(torch.export.export(module.eval(), (example,)), 'model.pt2')"
_WITH_MODULE = "name a function that returns the module with --module pkg.mod:function (or `module` in devices.toml)"
_PROGRAM, _SCRIPT, _PICKLE = "an exported program", "TorchScript", "a pickle"


def load(source: Model) -> Imported:
    """Import what the file holds. Raises ModelError for what is missing, damaged, compiled, or a pickle of more than weights."""
    from farm.importers import exported_program, state_dict, torchscript

    path = Path(source.source)
    kind = _kind(path, _SAVE_OR_MODULE if source.module is None else SAVE)
    if kind == _PICKLE:
        if source.module is None:
            raise _no_module(path)
        return state_dict.load(source)
    if source.module is not None:
        raise ModelError(f"{path.name} holds {kind}, and a module is named for it", f"{source.module} is for weights", "leave --module out")
    return exported_program.load(source) if kind == _PROGRAM else torchscript.load(source)


_SAVE_OR_MODULE = f"{SAVE}; or, where it holds weights, {_WITH_MODULE}"


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(2)


def _kind(path: Path, fix: str) -> str:
    check_file(path)
    if not zipfile.is_zipfile(path):
        if path.suffix.lower() != ".pt2" and _begins(path) in (b"\x80\x02", b"\x80\x03", b"\x80\x04"):
            return _PICKLE  # torch.save before 1.6
        raise ModelError(f"{path} is not a file of torch", "it is no zip archive: it may be cut off or of another format", fix)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    folded = [name.partition("/")[2] for name in names]
    if any(name.startswith("models/") for name in folded) or "serialized_exported_program.json" in names:
        return _PROGRAM
    if any(name.startswith("code/") for name in folded):
        return _SCRIPT
    if "data.pkl" in folded:
        return _PICKLE
    why = "it is a zip archive without a program in it"
    if any(name.startswith("data/aotinductor/") for name in folded):
        why = "it is an AOTInductor package: compiled code for one machine, without the program"
    raise ModelError(f"{path} holds no model", why, fix)


def _no_module(path: Path) -> ModelError:
    if objects := pickled_objects(path):
        why = f"it holds objects of {', '.join(objects)}: reading a pickle can run any code, so it is never unpickled"
        fix = f"{SAVE}; or save its weights, torch.save(module.state_dict(), 'model.pth'), and {_WITH_MODULE}"
        return ModelError(f"{path} is a pickled module, or holds one", why, fix)
    return ModelError(f"{path} holds weights alone", "weights alone are no model", _WITH_MODULE)


def pickled_objects(path: Path) -> list[str]:
    """The names of the classes and functions that reading the pickle would call, besides those of weights; nothing is called."""
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # an old or damaged pickle, which torch's reader of weights has better words for
        return []
