"""farm profile: each kernel of a model on a device, over every transport; and its trace, by the
rules of the Trace Event Format.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from farm_processes import HOST, Done, Farm, is_convolution
from rpc_servers import configure, farm_agent, farm_tracker, tvm_server
from ssh_server import SshServer

PROFILE = ("digits", "--seconds", "0.2")


def assert_is_a_profile(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    assert found["schema"] == "farm/profile/1" and found["agreement"]["right"]
    steps = found["steps"]
    assert (
        sum(map(is_convolution, steps)) == 3
        and sum("dense" in step["kernel"] for step in steps) == 1
    )
    assert all(step["seconds"] > 0 and step["nbytes"] > 0 for step in steps)
    convolutions = list(filter(is_convolution, steps))
    assert all(step["operations"] > 0 and step["gflops"] > 0 for step in convolutions)
    assert all("Relu" in step["layer"] for step in convolutions)
    assert found["kernels_s"] == pytest.approx(sum(step["seconds"] for step in steps))
    assert len(found["plain_s"]) == len(found["recorded_s"]) >= 3
    inside = found["kernels_s"] + found["runtime_s"]
    assert 0 < inside <= 1.001 * max(found["recorded_s"]), "the calls of an inference lie within it"
    if found["emulated"]:
        assert found["roof"] is None
    else:
        assert (
            found["roof"]["gflops"] > 0
            and found["roof"]["gbytes_s"] > 0
            and "measured on the device" in found["roof"]["source"]
        )
        assert all(step["roof_share"] > 0 for step in convolutions)
    return found


def test_a_profile_on_this_machine(farm: Farm) -> None:
    found = assert_is_a_profile(
        farm.run("profile", "--device", "host", *PROFILE, "--threads", "1", "--json")
    )
    assert found["threads"] == 1 and not found["emulated"]
    assert sum(found["ledger"].values()) == pytest.approx(found["wall_s"], rel=0.1)
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("device", ["pi3", "rk3399"])
def test_a_profile_on_an_emulated_board(farm: Farm, emulators: None, device: str) -> None:
    assert assert_is_a_profile(farm.run("profile", "--device", device, *PROFILE, "--json"))[
        "emulated"
    ]


def test_a_profile_by_rpc_and_through_a_tracker(farm: Farm) -> None:
    with farm_agent(farm) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        assert_is_a_profile(farm.run("profile", "--device", "board", *PROFILE, "--json"))
    with (
        farm_tracker(farm) as tracker,
        farm_agent(farm, "--tracker", f"{HOST}:{tracker}", "--key", "board"),
    ):
        configure(farm, f"tracker://{HOST}:{tracker}/board")
        assert_is_a_profile(farm.run("profile", "--device", "board", *PROFILE, "--json"))


def test_a_profile_by_ssh(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    assert_is_a_profile(farm.run("profile", "--device", "board", *PROFILE, "--json"))


def test_tvms_own_server_cannot_be_profiled_and_the_error_says_what_can(farm: Farm) -> None:
    with tvm_server(farm) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        done = farm.run("profile", "--device", "board", *PROFILE)
    assert (
        done.code == 5
        and "TVM's own RPC server" in done.error["why"]
        and "farm agent" in done.error["fix"]
    )


def test_a_table_says_what_the_kernels_add_up_to_and_the_trace_keeps_the_formats_rules(
    farm: Farm,
) -> None:
    done = farm.run("profile", "--device", "host", *PROFILE, "--trace", "trace.json", "-v")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())  # where a line is broken depends on the figures
    assert "GFLOP/s" in said and "inferences that were not recorded" in said and "roof:" in said
    assert "trace.json" in done.out and "ui.perfetto.dev" in done.out
    assert_is_a_trace(json.loads((farm.folder / "trace.json").read_text()))


def test_a_trace_that_cannot_be_written_is_an_error_of_usage(farm: Farm) -> None:
    done = farm.run("profile", "--device", "host", *PROFILE, "--trace", "nowhere/trace.json")
    assert done.code == 2 and "nowhere/trace.json" in done.error["error"]


PICOSECOND = 1e-6  # of a microsecond: what a sum of two floats is off by is less


def assert_is_a_trace(trace: dict[str, Any]) -> None:
    """Complete events nest within each other on their thread, as those who draw them want it;
    metadata names process and thread.
    """
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert {event["name"] for event in events if event["ph"] == "M"} == {
        "process_name",
        "thread_name",
    }
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))
    complete = [event for event in events if event["ph"] == "X"]
    assert all(
        math.isfinite(event["ts"]) and event["ts"] >= 0 and event["dur"] >= 0 for event in complete
    )
    assert [event["ts"] for event in complete] == sorted(event["ts"] for event in complete)
    ends: list[float] = []
    for event in complete:
        while ends and event["ts"] >= ends[-1] - PICOSECOND:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + PICOSECOND
        ends.append(end)
    kernels = [event for event in complete if event["cat"] == "kernel"]
    assert len(kernels) >= 4 and any("GFLOP/s" in event["args"] for event in kernels)
