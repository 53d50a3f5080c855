"""A model is made once for all devices of a kind, and what keeps it from being made is told of
each.
"""

from __future__ import annotations

import socket

from accepting import accepting
from host_profile import HOST
from timeouts import LIMIT_S

from farm import zoo
from farm.agent.build import PREBUILT
from farm.errors import BuildError, ModelError
from farm.pipeline import operations, run_jobs
from farm.pipeline.operations import build_models_and_agents_for_devices
from farm.pipeline.worker_tasks import find_built_agent, open_pool
from farm.processes.deadline import Deadline
from farm.store import RunStore, Store
from farm.types import Device, MeasurementSettings, Model


def test_devices_of_a_profile_share_what_is_made_and_a_models_mistake_is_told_of_each(
    tmp_path, monkeypatch
):
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
    monkeypatch.setattr(run_jobs, "MOST_THREADS", 1)
    assert run_where_nobody_greets(store, tmp_path) == ["FAILED", "FAILED"]


def run_where_nobody_greets(store, folder):
    """The verdicts of jobs on devices whose servers hang up, each of which waits for a thread."""
    limit = Deadline(LIMIT_S / 5)

    def tick():
        assert not limit.expired, "no job begins any more"

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        accepting(listener, socket.socket.close),
    ):
        boards = [
            Device(name, HOST, f"rpc://127.0.0.1:{listener.getsockname()[1]}") for name in "ab"
        ]
        done = run_jobs.execute_jobs(
            run_jobs.expand_jobs(boards, [zoo.digits()], MeasurementSettings.once()),
            host=HOST,
            store=store,
            keep=RunStore(folder / "runs.sqlite"),
            slots=1,
            show=lambda _: None,
            tick=tick,
        )
    return [run.verdict.value for run in done.runs]


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
