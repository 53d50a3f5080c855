"""farm tune and farm records on this machine: records are found, kept through death and Ctrl-C,
used by later builds, and carried.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm_processes import DEVICES, HOST, Farm
from onnx_models import graph, node, save
from rpc_servers import farm_agent, farm_tracker
from timeouts import wait_until

from farm.checked_model_import import prepare_model
from farm.commands.measure.tune import search_result_text
from farm.errors import WrongAnswer
from farm.pipeline.tuning.loop import TuningState
from farm.pipeline.tuning.tune import tune_model
from farm.pipeline.worker_tasks import measure_builds_interleaved_task
from farm.processes.workers import TaskContext
from farm.store import Store, TuningRecordStore
from farm.types import Device, Model, OutputErrorLimits, Profile, TuningRecord

numbers = np.random.default_rng(0)
BUDGETS = (0.1, 0.3, 0.6, 1.2, 2.4)  # minutes: on a busy machine, little is found in a short time


def write_model(path: Path) -> None:
    """Two convolutions whose kernels take long enough to be timed."""
    weights = {
        "w": (numbers.standard_normal((32, 16, 3, 3)) / 12).astype("float32"),
        "v": numbers.standard_normal((48, 32, 1, 1)).astype("float32"),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["y"]),
    ]
    save(path, graph(nodes, {"x": [1, 16, 28, 28]}, {"y": [1, 48, 28, 28]}, weights))


@pytest.fixture
def tuning(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Farm]:
    """A farm in which only this machine's agent is built."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "agents").symlink_to(agents("x86_64").parents[1])
    farm = Farm(tmp_path, tmp_path / "cache", uuid.uuid4().hex)
    farm.configure(DEVICES)
    write_model(tmp_path / "net.onnx")
    yield farm
    farm.end()


def kept(farm: Farm) -> list[dict[str, object]]:
    return farm.run("records", "--json").json["records"]


def forget(farm: Farm, search: dict[str, Any]) -> None:
    """Remove what a search has found that is to be made again, longer."""
    assert len(kept(farm)) == search["records"]
    if search["records"]:
        assert farm.run("records", "remove", "--core", search["core"]).code == 0


def test_a_search_keeps_records_that_the_next_build_uses_and_that_can_be_carried(
    tuning: Farm,
) -> None:
    for (
        minutes
    ) in BUDGETS:  # and a model may be measured slower by chance: then the records are put back
        done = tuning.run(
            "tune", "--device", "host", "net.onnx", "--minutes", str(minutes), "--json"
        )
        assert done.code == 0, done.err
        if done.json["records"] and done.json["boards"]["host-1"] >= 2:
            break
        forget(tuning, done.json)
    assert done.json["records"] >= 1 and done.json["boards"]["host-1"] >= 2
    assert all(kernel["tried"] >= 1 for kernel in done.json["kernels"])
    assert (
        "faster" in done.json["verdict"]
        or "no" in done.json["verdict"]
        or "slower" in done.json["verdict"]
    )
    found = kept(tuning)
    assert len(found) == done.json["records"]
    assert {record["core"] for record in found} == {done.json["core"]}
    made = tuning.run("compile", "net.onnx", "--json").json
    recorded = {kernel["workload"] for kernel in made["kernels"] if kernel["recorded"]}
    assert recorded == {record["workload"] for record in found}
    assert made["digest"] == done.json["after"] != done.json["before"]
    assert tuning.run("records", "export", "out.jsonl").code == 0
    assert (
        tuning.run("records", "remove", "--core", found[0]["core"]).out
        == f"{len(found)} records removed\n"
    )
    assert tuning.run("compile", "net.onnx", "--json").json["digest"] == done.json["before"]
    assert tuning.run("records", "import", "out.jsonl").out.startswith(
        f"{len(found)} new, 0 faster"
    )
    assert kept(tuning) == found
    (tuning.folder / "out.jsonl").write_text("{\n")
    assert "line 1" in tuning.run("records", "import", "out.jsonl").error["error"]
    tuning.assert_nothing_is_left()


def test_a_kernel_without_a_rule_is_searched_and_later_builds_use_what_was_found(
    tuning: Farm,
) -> None:
    pool = node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3, 3], strides=[2, 2, 2], pads=[1] * 6)
    save(
        tuning.folder / "pool.onnx",
        graph([pool], {"x": [1, 32, 16, 28, 28]}, {"y": [1, 32, 8, 14, 14]}, {}),
    )
    tuning.configure('[devices.host]\nprofile = "x86"\nurl = "local:"\noptions = { threads = 1 }\n')
    assert [
        kernel["rule"] for kernel in tuning.run("compile", "pool.onnx", "--json").json["kernels"]
    ] == ["general"]
    for minutes in BUDGETS:
        done = tuning.run(
            "tune", "--device", "host", "pool.onnx", "--minutes", str(minutes), "--json"
        )
        assert done.code == 0, done.err
        [kernel] = done.json["kernels"]
        if done.json["records"] and kernel["choice"]["method"] != "general" and kernel["tried"] > 1:
            break
        forget(tuning, done.json)
    assert (
        kernel["workload"].startswith("pool_max 1x32x8x14x14 float32 #")
        and kernel["tried"] > 1
        and kernel["candidates"] is None
    )
    made = tuning.run("compile", "pool.onnx", "--json").json
    assert [(kernel["rule"], kernel["recorded"]) for kernel in made["kernels"]] == [
        ("metaschedule", True)
    ]
    assert made["digest"] == done.json["after"]
    assert "steps" in tuning.run("records").out
    assert tuning.run("deploy", "pool.onnx", "--device", "host").code == 0
    tuning.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_ctrl_c_and_agents_that_die_or_freeze_lose_no_records(
    tuning: Farm, number: signal.Signals
) -> None:
    running = tuning.start("tune", "--device", "host", "net.onnx", "--minutes", "30")
    running.says(r"[2-9] of \d+ tried")
    signalled: set[int] = set()

    def is_noticed() -> bool:
        """Signal each agent once: the first may be that of a session that is over by now."""
        for pid in set(tuning.processes_like("farm-agent|agents/")) - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            signalled.add(pid)
        return bool(re.search(r"host: .*; trying again", running.said))

    wait_until(lambda: is_noticed() or signalled, "an agent")
    before = kept(tuning)  # after the signal: the search is over soon where nothing stops it
    assert before
    wait_until(lambda: is_noticed() or running.child.poll() is not None, "another attempt")
    running.says(r"host: .*; trying again")
    running.says(r"1\d of \d+ tried")
    running.send(signal.SIGINT)
    done = running.end()
    assert done.code == 130
    assert "records kept: farm records" in done.err
    assert {record["workload"] for record in before} <= {
        record["workload"] for record in kept(tuning)
    }
    tuning.assert_nothing_is_left()


def compare_reversed(context: Any, device: Any, builds: tuple[Any, Any], *more: Any) -> Any:
    """In a worker: what was before is measured as what is after."""
    return measure_builds_interleaved_task(context, device, builds[::-1], *more)


def compare_wrong(context: Any, device: Any, builds: tuple[Any, Any], *more: Any) -> Any:
    """In a worker: what is after is held to a limit that no answer keeps."""
    strict = dataclasses.replace(builds[1], limits=OutputErrorLimits(min_cosine=2.0))
    return measure_builds_interleaved_task(context, device, (builds[0], strict), *more)


@pytest.mark.parametrize("compared", [compare_reversed, compare_wrong], ids=["slower", "wrong"])
def test_where_the_model_is_slower_or_wrong_as_a_whole_the_records_are_as_they_were(
    tuning: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: Any
) -> None:
    """The search begins with a record of a slow tile, and finds faster ones; the two builds are
    then measured the other way round, or the
    answer of the second is called wrong."""
    from farm.compiler.tuning import batch_build

    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))  # workers have it too
    store, records = Store(tuning.cache), TuningRecordStore.of_user()
    profile = Profile(
        "x86",
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "native"},
        "x86_64-linux-gnu",
        agent="x86_64",
    )
    model = Model("net", str(tmp_path / "net.onnx"))
    (tmp_path / "worker").mkdir()
    core, tasks = batch_build.cpu_model_key_and_tuning_tasks(
        prepare_model(TaskContext(tmp_path / "worker"), model, profile, tuning.cache),
        profile,
        records,
    )
    hardest = max(tasks, key=lambda task: task.default.predicted)
    slow = hardest.candidates[-1].choice
    monkeypatch.setattr("farm.pipeline.tuning.tune.measure_builds_interleaved_task", compared)
    shown: list[TuningState] = []
    host = Device("host", profile, "local:")
    for minutes in BUDGETS:
        for cpu in ("another CPU", core, "x: a third"):  # theirs must stay as they are, too
            records.keep(
                TuningRecord(
                    cpu, hardest.workload, slow, 1.0, 1.0, 9, "2026-01-01T00:00:00+00:00", "there"
                )
            )
        before = records.records()
        try:
            tuned = tune_model(
                model,
                [host],
                host=profile,
                store=store,
                records=records,
                minutes=minutes,
                show=lambda *now: shown.append(now[0]),
            )
        except WrongAnswer as error:
            assert (
                compared is compare_wrong and "the build after answers wrong on host" in error.what
            )
            break
        if tuned.slower:
            assert (
                compared is compare_reversed
                and "the records are as they were before" in search_result_text(tuned)
            )
            break
    else:
        pytest.fail("nothing was found")
    assert any(kernel.recorded for kernel in shown[-1].search.kernels) and shown[-1].kept == 0
    assert records.records() == before


def test_a_device_behind_a_tracker_stands_for_all_boards_of_its_key(tuning: Farm) -> None:
    with farm_tracker(tuning) as port:
        options = ("--tracker", f"{HOST}:{port}", "--key", "board")
        with farm_agent(tuning, *options), farm_agent(tuning, *options):
            tuning.configure(
                f'[devices.lab]\nprofile = "x86"\nurl = "tracker://{HOST}:{port}/board"\n'
            )
            for minutes in BUDGETS:  # the second may be slow to begin
                done = tuning.run(
                    "tune", "--device", "lab", "net.onnx", "--minutes", str(minutes), "--json"
                )
                assert done.code == 0, done.err
                assert list(done.json["boards"]) == ["lab-1", "lab-2"]
                if all(done.json["boards"].values()):
                    break
    assert all(batches >= 1 for batches in done.json["boards"].values())


def test_what_cannot_be_tuned_is_said_at_once(tuning: Farm) -> None:
    assert "emulated" in tuning.run("tune", "--device", "pi3", "net.onnx").error["error"]
    assert (
        "one profile"
        in tuning.run("tune", "--device", "pi3", "--device", "host", "net.onnx").error["error"]
    )
    assert tuning.run("records").err == "no records: farm tune --device NAME MODEL\n"
    assert json.loads(tuning.run("records", "--json").out)["schema"] == "farm/records/1"
