"""What torch would unpickle when it loads an exported program is refused."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from farm.importers.torch.exported_program import _no_unpickling

FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("before", [None, "0"])
def test_an_object_in_the_weights_is_not_unpickled(before, tmp_path, monkeypatch):
    """torch.export.load asks for everything if tensors alone cannot be loaded."""
    monkeypatch.delenv(FORCED, raising=False)
    if before is not None:
        monkeypatch.setenv(FORCED, before)
    made, file = tmp_path / "made", tmp_path / "weights.pt"
    torch.save(Hostile(made), file)
    with _no_unpickling(), pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=False)
    assert not made.exists()
    assert os.environ.get(FORCED) == before
    torch.load(file, weights_only=False)
    assert made.is_dir(), "the file does it where nothing forbids it"
