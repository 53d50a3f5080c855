"""A model is made once for all devices of a kind, and what keeps it from being made is told of each."""

from __future__ import annotations

from this_machine import HOST

from farm import zoo
from farm.errors import ModelError
from farm.pipeline.single import fits
from farm.pipeline.tasks import crew_of
from farm.store import Store
from farm.types import Device, Model


def test_devices_of_a_profile_share_what_is_made_and_a_models_mistake_is_told_of_each(tmp_path):
    store, notes = Store(tmp_path), []
    boards = [Device(name, HOST, "rpc://127.0.0.1:9") for name in "ab"]
    with crew_of(store) as crew:
        made = fits(crew, zoo.digits(), boards, HOST, store, notes.append)
        assert made["a"] is made["b"] and made["a"].artifact.library.is_file()
        (tmp_path / "none.onnx").write_text("no model")
        broken = fits(crew, Model("none", str(tmp_path / "none.onnx")), boards, HOST, store, notes.append)
    assert broken["a"] is broken["b"] and isinstance(broken["a"], ModelError)
