"""The limits that a run is judged by again, and the store of a device on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import timed

from farm.config import load_fleet
from farm.pipeline.compare import _limits
from farm.pipeline.worker_tasks import device_with_default_store
from farm.types import Device, Profile

CONFIG = """
[devices.host]
profile = "x86"
url = "local:"

[models.net]
source = "net.onnx"
limits = { max_abs = 0.25 }

[models."net.exact"]
source = "exact.onnx"
limits = { max_abs = 1e-9 }
"""


@pytest.mark.parametrize(
    ("model", "max_abs"), [("net", 0.25), ("net.int8", 0.25), ("net.exact", 1e-9), ("int8", None)]
)
def test_a_quantized_model_has_the_limits_of_its_float_model(model, max_abs, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(CONFIG)
    for file in ("net.onnx", "exact.onnx"):
        (tmp_path / file).touch()
    fleet = load_fleet(path)
    limits = _limits(timed("host", model, 1), fleet)
    if max_abs is None:
        assert limits == fleet.limits
    else:
        assert {one.max_abs for one in limits.values()} == {max_abs}


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
