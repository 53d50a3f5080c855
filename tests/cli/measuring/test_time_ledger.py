"""Every run's ledger adds up to its wall time, over every kind of transport, and little of a
measurement is spent on the way.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from farm_processes import HOST, Done, Farm
from rpc_servers import configure, farm_agent
from ssh_server import SshServer

UNACCOUNTED = 0.02


def assert_adds_up(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    samples: dict[str, Any] = run["samples"]
    known, wall = sum(samples["ledger"].values()), samples["wall_s"]
    assert (1 - UNACCOUNTED) * wall <= known <= wall * 1.001, (known / wall, samples["ledger"])
    assert all(seconds >= 0 for seconds in samples["ledger"].values()), samples["ledger"]
    assert samples["memory_peak_bytes"] > 1 << 20
    return samples


def test_on_this_machine(farm: Farm) -> None:
    assert_adds_up(farm.run("bench", "--device", "host", "digits", "--json"))


def test_with_a_build_from_nothing(fresh: Farm) -> None:
    assert (
        assert_adds_up(fresh.run("bench", "--device", "host", "digits", "--json"))["ledger"][
            "build"
        ]
        > 0
    )
    [metadata] = (fresh.cache / "artifacts").glob("*/metadata.json")
    seconds = json.loads(metadata.read_text())["seconds"]
    assert seconds["code"] > 0 and "read" not in seconds, (
        "the check's code is the build, which reads no stored module"
    )


@pytest.mark.parametrize("device", ["pi3", "rk3399"])
def test_on_an_emulated_board(farm: Farm, emulators: None, device: str) -> None:
    assert_adds_up(farm.run("bench", "--device", device, "digits", "--json"))


def test_by_rpc(farm: Farm) -> None:
    with farm_agent(farm) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        assert_adds_up(farm.run("bench", "--device", "board", "digits", "--json"))


def test_by_ssh(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    assert_adds_up(farm.run("bench", "--device", "board", "digits", "--json"))


def test_models_that_take_turns_are_a_run_each_whose_ledger_has_all_rounds(farm: Farm) -> None:
    done = farm.run(
        "bench",
        "--device",
        "host",
        "digits",
        "--threads",
        "1,2",
        "--rounds",
        "2",
        "--count",
        "7",
        "--json",
    )
    assert done.code == 0, done.err
    assert done.err.count("connecting") >= 4, "two sessions each"
    for run in done.json["runs"]:
        samples = run["samples"]
        assert len(samples["seconds"]) >= 7 and samples["total"] == 20
        assert sum(samples["ledger"].values()) == pytest.approx(samples["wall_s"], rel=UNACCOUNTED)
