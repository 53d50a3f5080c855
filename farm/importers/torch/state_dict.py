"""Import `.pth` files of weights, for a module that a `python:` function returns.

The files are written by torch.save of a state dict. The reference is torch itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from farm.errors import ModelError, did_you_mean
from farm.importers.imported_model import ImportedModel
from farm.importers.relax_postprocessing import one_line_error, suppress_output_warnings_and_logs
from farm.importers.torch import python_function
from farm.importers.torch.checks.pickle_callables import callables_in_pickle
from farm.types import Model

# Keys under which training scripts store the weights next to other state.
_NESTED = ("state_dict", "model_state_dict", "model")
_PARALLEL = "module."  # prefix that torch.nn.DataParallel adds to every name
_SHOWN = 5


def load(source: Model) -> ImportedModel:
    """Import the module that `source.module` names, with the file's weights.

    Raises ModelError for a file that holds more than weights, and for weights that do not fit the
    module: each is named.
    """
    path = Path(source.source)
    weights = _weights(path)
    assert source.module is not None

    def filled(module: torch.nn.Module) -> torch.nn.Module:
        _fill(module, weights, f"{path.name} with {source.module}")
        return module

    return python_function.import_module_from_function(source.module, source, filled)


def _weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a file by name, without DataParallel's prefix.

    Raises ModelError if the file is not a state dict.
    """
    try:
        with suppress_output_warnings_and_logs():
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:
        objects = callables_in_pickle(path)
        why = (
            f"it holds objects of {', '.join(objects)}, which are never unpickled"
            if objects
            else one_line_error(exc)
        )
        raise ModelError(
            f"{path} cannot be read as weights",
            why,
            "save them with torch.save(module.state_dict(), path)",
        ) from exc
    for key in _NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    if (
        not isinstance(loaded, Mapping)
        or not loaded
        or not all(isinstance(value, torch.Tensor) for value in loaded.values())
    ):
        why = f"it holds {_described(loaded)}"
        raise ModelError(
            f"{path} is no state dict",
            why,
            "save the weights with torch.save(module.state_dict(), path)",
        )
    names = [str(name) for name in loaded]
    cut = len(_PARALLEL) if all(name.startswith(_PARALLEL) for name in names) else 0
    return {name[cut:]: value for name, value in zip(names, loaded.values(), strict=True)}


def _described(loaded: Any) -> str:
    """Return the content that is not tensors, as text."""
    if not isinstance(loaded, Mapping):
        return f"a {type(loaded).__name__}"
    others = [
        f"{name} (a {type(value).__name__})"
        for name, value in loaded.items()
        if not isinstance(value, torch.Tensor)
    ]
    return f"besides tensors {_listed(others)}" if others else "nothing"


def _fill(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], what: str) -> None:
    """Load weights into the module; raise ModelError if names or shapes differ."""
    own = module.state_dict()
    missing, unexpected = (
        [name for name in own if name not in weights],
        [name for name in weights if name not in own],
    )
    if missing or unexpected:
        said = [f"missing are {_listed(missing)}"] if missing else []
        said += [f"unexpected are {_listed(unexpected)}"] if unexpected else []
        near = did_you_mean(unexpected[0], missing) if missing and unexpected else ""
        hint = f" ({near})" if near.startswith("did you mean") else ""
        fix = "name the function that makes the module these weights were saved from"
        raise ModelError(
            f"{what}: the weights are not the module's", "; ".join(said), f"{fix}{hint}"
        )
    shapes = [
        f"{name} is {list(weights[name].shape)} instead of {list(own[name].shape)}"
        for name in own
        if own[name].shape != weights[name].shape
    ]
    if shapes:
        raise ModelError(
            f"{what}: the weights have other shapes than the module's",
            _listed(shapes),
            "make the module with the sizes it was saved with",
        )
    try:
        module.load_state_dict(dict(weights))
    except Exception as exc:  # a module may have its own checks
        raise ModelError(
            f"{what}: the module does not take the weights",
            one_line_error(exc),
            "load_state_dict says the same",
        ) from exc


def _listed(names: list[str]) -> str:
    """Return the first names, comma-separated."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
