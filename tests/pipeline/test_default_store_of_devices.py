"""Where a device on this machine keeps its deployments if it names no store."""

from __future__ import annotations

from pathlib import Path

from farm.pipeline.worker_tasks import device_with_default_store
from farm.types import Device, Profile


def test_only_a_device_of_this_machine_without_a_store_gets_one(tmp_path: Path):
    profile = Profile("x86", {"kind": "llvm"}, "")
    local, own = (
        Device("host", profile, "local:", options=options)
        for options in ({"threads": 2}, {"store": "/var/lib/models"})
    )
    assert device_with_default_store(local, tmp_path).options == {
        "threads": 2,
        "store": str(tmp_path / "devices" / "host"),
    }
    assert device_with_default_store(own, tmp_path) == own
    board = Device("pi", profile, "rpc://10.0.0.7:9090")
    assert device_with_default_store(board, tmp_path) == board
