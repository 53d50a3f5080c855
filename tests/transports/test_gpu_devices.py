"""A device with a GPU profile says at once what it lacks, before anything is built or sent."""

from __future__ import annotations

import pytest

from farm import transports
from farm.config import profiles
from farm.errors import DeviceError
from farm.types import Device

SHIPPED = profiles.shipped()


def device(profile: str, url: str) -> Device:
    return Device("gpu0", profiles.made(profile, SHIPPED[profile]), url)


def test_a_machine_without_nvidia_s_driver_is_a_device_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(transports, "_NVIDIA_DRIVER", tmp_path / "version")
    state = transports.state(device("cuda-sm90", "local:"))
    assert (state.word, state.usable) == ("without a GPU", False)
    assert "no NVIDIA driver" in state.why
    assert "x86" in state.fix


@pytest.mark.parametrize(("profile", "url"), [("cuda-sm90", "rpc://127.0.0.1:9"), ("jetson-orin-nano", "ssh://nobody@127.0.0.1:9")])
def test_a_device_whose_gpu_cannot_be_used_yet_says_so_without_being_asked(profile, url, tmp_path):
    state = transports.state(device(profile, url))
    assert (state.word, state.usable) == ("not supported", False)
    assert f"--profile {profile}" in state.fix
    with pytest.raises(DeviceError, match="gpu0 is not supported") as caught, transports.open(device(profile, url), None, tmp_path, 1):
        pass
    assert "CPUs" in caught.value.why
