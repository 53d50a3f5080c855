"""List the objects in a pickle by torch's own reader, and define the advice for such files."""

from __future__ import annotations

from pathlib import Path

SAVE = (
    "save an exported program instead: torch.export.save(torch.export.export(module.eval(), "
    "(example,)), 'model.pt2')"
)


def callables_in_pickle(path: Path) -> list[str]:
    """Return the classes and functions, besides those of weights, that a pickle would call.

    Nothing is called.
    """
    import torch

    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # torch's reader of weights reports an old or damaged pickle better
        return []
