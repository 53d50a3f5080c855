"""farm tune over a lab: as many boards of a kind as are free, which others get in their turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_agents import registered, uses
from lab_door import Door, door
from onnx_models import graph, node, save
from timeouts import LIMIT_S, wait_until

MINUTES = 0.15


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with door(tmp_path_factory.mktemp("door")) as one:
        one.add("alice")
        (one.sshd.home / ".ssh" / "config").write_text(f"IdentityFile {one.key_of('alice')}\n")
        with registered(one.lab, 2):
            yield one


@pytest.fixture
def tune(served: Door, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts farm tune, of a model of one convolution, on a device at the door."""
    weights = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype("float32") / 12
    conv = node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    shapes = ({"x": [1, 16, 28, 28]}, {"y": [1, 32, 28, 28]})
    save(tmp_path / "net.onnx", graph([conv], *shapes, {"w": weights}))
    url = f"{served.sshd.url.replace('ssh', 'lab', 1)}/x86"
    (tmp_path / "devices.toml").write_text(
        f'[devices.one]\nprofile = "x86"\nurl = "{url}"\n'
        'options = { class = "batch", threads = 1 }\n'
    )
    environment = {**os.environ, "HOME": str(served.sshd.home), "FARM_DATA": str(tmp_path / "data")}
    environment |= {"FARM_CACHE": str(tmp_path / "cache"), "SSH_AUTH_SOCK": ""}

    def start(minutes: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "farm", "tune", "--device", "one", "net.onnx", "--json"]
        return subprocess.Popen(
            [*command, "--minutes", str(minutes)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def result(running: subprocess.Popen[str]) -> Any:
    out, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0, err
    return json.loads(out)


def test_it_takes_the_boards_that_are_free_and_gives_them_back(
    served: Door, tune: Callable[..., subprocess.Popen[str]]
) -> None:
    found = result(tune(2 * MINUTES))  # on a busy machine, a board needs half of that
    assert set(found["boards"]) == {"one-1", "one-2"}
    assert sum(found["boards"].values()) >= 2
    assert any(kernel["tried"] > 1 for kernel in found["kernels"])
    with served.lab.client() as client:
        assert uses(client) == ["free", "free"], "they are back before it has ended"
        ended = client.ask("leases", ended=True)["leases"]
    assert {(one["owner"], one["class"]) for one in ended} == {("alice", "batch")}
    assert {one["state"] for one in ended} == {"released"}
    assert len({board for one in ended for board in one["boards"]}) == 2


def test_who_waits_has_a_board_between_two_batches_and_the_search_ends_in_time(
    served: Door, tune: Callable[..., subprocess.Popen[str]]
) -> None:
    """One board stays with somebody else: what waits for it holds nothing up."""
    running = tune(2 * MINUTES)
    with served.lab.client() as client:
        wait_until(lambda: uses(client).count("in session"), "it measures")
        other = client.ask("request", kind="x86", for_s=600.0)["lease"]["lease"]
        wait_until(
            lambda: client.ask("lease", lease=other)["lease"]["state"] == "active",
            "the turn of who waits",
        )
        found = result(running)
        assert any(kernel["tried"] > 1 for kernel in found["kernels"])
        client.ask("end", lease=other)
        wait_until(lambda: uses(client) == ["free", "free"], "all is given back")
