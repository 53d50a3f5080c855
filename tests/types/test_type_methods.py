"""What the nouns say of themselves."""

from __future__ import annotations

import pytest

from farm.types import (
    Device,
    Profile,
    Run,
    Verdict,
    is_lease_key,
    layer_variable_names,
    new_lease_key,
)

BOARD = Profile("board", {"kind": "llvm"}, "aarch64-linux-gnu", agent="aarch64")


@pytest.mark.parametrize(
    ("url", "launcher", "emulated"),
    [
        ("qemu:", "", True),
        ("ssh://pi@board", "qemu-aarch64", True),
        ("ssh://pi@board", "nice /usr/bin/qemu-aarch64 -cpu max", True),
        ("ssh://pi@board", "taskset -c 4-5", False),
        ("local:", "", False),
    ],
)
def test_a_device_is_emulated_by_its_url_or_by_what_launches_its_agent(
    url: str, launcher: str, emulated: bool
) -> None:
    assert Device("d", BOARD, url, options={"launcher": launcher}).emulated is emulated


@pytest.mark.parametrize(
    ("url", "here", "gets_agent"),
    [
        ("local:", True, True),
        ("qemu:", True, True),
        ("ssh://pi@board", False, True),
        ("adb:", False, True),
        ("exec:box", False, True),
        ("rpc://board:9090", False, False),
        ("tracker://lab:9190/pi5", False, False),
        ("lab:pi5", False, False),
    ],
)
def test_an_agent_runs_on_this_machine_or_is_brought_to_the_device_or_is_there(
    url: str, here: bool, gets_agent: bool
) -> None:
    device = Device("d", BOARD, url)
    assert (device.on_this_machine, device.gets_agent) == (here, gets_agent)


def test_a_run_is_good_if_it_has_the_right_answer_and_emulated_by_its_url_or_its_verdict() -> None:
    runs = [
        Run("1", "d", "net", "x86", url, "2026-07-01T12:00:00+00:00", verdict, "")
        for verdict in Verdict
        for url in ("local:", "qemu:")
    ]
    right = {"RIGHT", "STABLE", "NOISY", "THROTTLED", "EMULATED"}
    assert {run.verdict.value for run in runs if run.good} == right
    assert {(run.verdict.value, run.url) for run in runs if not run.emulated} == {
        (verdict.value, "local:") for verdict in Verdict if verdict is not Verdict.EMULATED
    }


@pytest.mark.parametrize("layer", ["/features/features.6/Conv", "a_b", "_x2f", "conv [é]"])
def test_a_variable_tells_its_layer_by_a_name_that_c_allows_behind_the_number(layer):
    name = layer_variable_names.layer_variable_name(12, layer)
    assert layer_variable_names.layer_name_of_variable(name) == layer
    assert (
        name.partition(":")[0] == "layer12"
        and name.partition(":")[2].isascii()
        and name.partition(":")[2].isidentifier()
    )


def test_a_variable_without_a_layer_tells_none():
    assert [
        layer_variable_names.layer_name_of_variable(name) for name in ("lv", "layers:x", "lv1:x")
    ] == [
        "",
        "",
        "",
    ]


def test_a_lease_key_is_known_by_its_form_and_no_two_are_equal() -> None:
    keys = {new_lease_key() for _ in range(100)}
    assert len(keys) == 100 and all(map(is_lease_key, keys))
    key = min(keys)
    assert not any(map(is_lease_key, ("", "pi5", "lease-", key.upper(), key + "0", key + "\n")))
