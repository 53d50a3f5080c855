"""A device with a GPU's profile says at once what it lacks, as far as that is known before it is
asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from farm import transports
from farm.config import profiles
from farm.errors import DeviceError
from farm.executor.session_gpu import can_gpu_run_architecture
from farm.transports import gpu_preflight
from farm.types import Device

SHIPPED = profiles.built_in_profile_tables()


def device(profile: str, url: str) -> Device:
    return Device("gpu0", profiles.profile_from_table(profile, SHIPPED[profile]), url)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose loader finds no driver; the folder of LD_LIBRARY_PATH."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(gpu_preflight, "_CACHE", tmp_path / "ld.so.cache")
    monkeypatch.setattr(gpu_preflight, "_FOLDERS", ())
    return tmp_path


def test_a_machine_without_nvidia_s_driver_is_a_device_without_a_gpu(
    no_driver: Path, tmp_path: Path
) -> None:
    state = transports.probe_state(device("cuda-sm90", "local:"))
    assert (state.word, state.usable) == ("without a GPU", False)
    assert "libcuda.so.1" in state.why and "nvidia-smi" in state.fix and "x86" in state.fix
    with (
        pytest.raises(DeviceError, match="gpu0 is without a GPU"),
        transports.open(device("cuda-sm90", "local:"), None, tmp_path, 1),
    ):
        pass


def test_the_driver_of_a_board_elsewhere_is_not_that_of_this_machine(no_driver: Path) -> None:
    assert gpu_preflight.unusable_gpu_state(device("cuda-sm90", "ssh://box")) is None
    assert gpu_preflight.unusable_gpu_state(device("x86-v3", "local:")) is None


@pytest.mark.parametrize("where", ["libcuda.so.1", "ld.so.cache"])
def test_a_driver_is_found_where_the_loader_looks(no_driver: Path, where: str) -> None:
    (no_driver / where).write_bytes(b"\0libcuda.so.1\0")
    assert transports.probe_state(device("cuda-sm90", "local:")).usable


@pytest.mark.parametrize(
    ("profile", "url", "word", "why"),
    [
        ("mali", "ssh://nobody@127.0.0.1:9", "not supported", "opencl"),
        ("jetson-nano", "ssh://nobody@127.0.0.1:9", "not supported", "CUDA 13"),
        ("jetson-orin-nano", "qemu:", "without a GPU", "qemu"),
    ],
)
def test_what_no_agent_can_run_says_so_without_being_asked(
    profile: str, url: str, word: str, why: str
) -> None:
    state = transports.probe_state(device(profile, url))
    assert (state.word, state.usable) == (word, False)
    assert why in state.why and "CPU profile" in state.fix


@pytest.mark.parametrize(
    ("built_for", "architecture", "does"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90a", "sm_90", True),
        ("sm_100", "sm_103", True),
        ("sm_100a", "sm_103", False),
        ("sm_100f", "sm_103", True),
        ("sm_103f", "sm_100", False),
        ("sm_100f", "sm_120", False),
    ],
)
def test_machine_code_runs_on_its_generation_as_far_as_it_was_known(
    built_for: str, architecture: str, does: bool
) -> None:
    assert can_gpu_run_architecture(built_for, architecture) is does
