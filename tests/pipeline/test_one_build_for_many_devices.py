"""A model is made once for all devices of a kind, and what keeps it from being made is told of
each.
"""

from __future__ import annotations

from host_profile import HOST

from farm import zoo
from farm.agent.build import PREBUILT
from farm.errors import BuildError, ModelError
from farm.pipeline import operations
from farm.pipeline.operations import build_models_and_agents_for_devices
from farm.pipeline.worker_tasks import find_built_agent, open_pool
from farm.store import Store
from farm.types import Device, Model


def test_devices_of_a_profile_share_what_is_made_and_a_models_mistake_is_told_of_each(tmp_path):
    store, notes = Store(tmp_path), []
    boards = [Device(name, HOST, "rpc://127.0.0.1:9") for name in "ab"]
    with open_pool(store) as pool:
        made = build_models_and_agents_for_devices(
            pool, zoo.digits(), boards, HOST, store, notes.append
        )
        assert made["a"] is made["b"] and made["a"].artifact.library.is_file()
        (tmp_path / "none.onnx").write_text("no model")
        broken = build_models_and_agents_for_devices(
            pool, Model("none", str(tmp_path / "none.onnx")), boards, HOST, store, notes.append
        )
    assert broken["a"] is broken["b"] and isinstance(broken["a"], ModelError)


def test_an_agent_is_made_once_for_a_kind_of_board_and_what_keeps_one_out_is_told_of_each(
    tmp_path, monkeypatch
):
    asked = []

    def ensure(pool, device, store, show):
        asked.append(device.name)
        raise BuildError("compiling the agent failed", "the disk is full", "make room")

    monkeypatch.setattr(operations, "ensure_agent_executable_for_device", ensure)
    gone, here, there = (
        Device(name, HOST, url)
        for name, url in (("gone", "rpc://127.0.0.1:9"), ("here", "local:"), ("there", "local:"))
    )
    with open_pool(Store(tmp_path)) as pool:
        found = operations.ensure_agent_executables_for_devices(
            pool, [gone, here, there], Store(tmp_path), lambda _: None
        )
    assert "offline" in found["gone"].what
    assert found["here"] is found["there"] and found["here"].why == "the disk is full"
    assert asked == ["here"]


def test_an_agent_that_cannot_be_looked_for_is_told_by_the_worker_that_would_make_it(tmp_path):
    """So it is an error of the jobs that want it, not of the command."""
    assert find_built_agent("of no kind", tmp_path) is None
    (tmp_path / "digits").symlink_to(tmp_path / "digits")
    assert find_built_agent("x86_64", tmp_path / "digits") in (None, PREBUILT / "farm-agent-x86_64")
