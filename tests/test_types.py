"""What the nouns say of themselves."""

from __future__ import annotations

import pytest

from farm.types import Device, Profile

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
def test_a_device_is_emulated_by_its_url_or_by_what_launches_its_agent(url: str, launcher: str, emulated: bool) -> None:
    assert Device("d", BOARD, url, options={"launcher": launcher}).emulated is emulated
