"""What the nouns say of themselves."""

from __future__ import annotations

import pytest

from farm.types import Device, Profile, is_lease_key, layer_variable_names, new_lease_key

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
