"""farm doctor names the first layer that does not hold."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from farm_processes import DIGITS, Done, Farm
from ssh_server import SshServer

from farm.errors import FarmError
from farm.pipeline.doctor import host
from farm.pipeline.doctor.checks import _of_gpu, condition_findings
from farm.store import Store

SSH_LAYERS = [
    *(
        "name",
        "TCP",
        "host key",
        "login",
        "architecture",
        "space",
        "agent binary",
        "agent version",
        "RPC handshake",
        "answer",
    ),
    *("governor", "temperature", "throttling flags", "clock"),
]


def doctor(farm: Farm, url: str, profile: str = "x86") -> Done:
    farm.configure(f'[devices.board]\nprofile = "{profile}"\nurl = "{url}"\n{DIGITS}')
    return farm.run("doctor", "--device", "board", "--json")


def layers(done: Done, name: str = "board") -> list[dict[str, Any]]:
    return next(one["layers"] for one in done.json["examined"] if one["name"] == name)


def assert_first_fault(done: Done, layer: str, words: str, code: int = 5) -> None:
    found = layers(done)
    assert [one["layer"] for one in found if not one["holds"]] == [layer]
    assert found[-1]["layer"] == layer, "nothing above it was tried"
    error = found[-1]["error"]
    assert words in error["what"] + error["why"], error
    assert error["fix"]
    assert done.code == code


def test_a_board_that_is_well_is_well_on_every_layer(farm: Farm, server: SshServer) -> None:
    done = doctor(farm, server.url)
    assert done.code == 0, done.out + done.err
    assert [(one["layer"], one["holds"]) for one in layers(done)] == [
        (layer, True) for layer in SSH_LAYERS
    ]
    assert "digits is right" in next(
        one["detail"] for one in layers(done) if one["layer"] == "answer"
    )
    assert os.uname().machine in next(
        one["detail"] for one in layers(done) if one["layer"] == "architecture"
    )
    farm.assert_nothing_is_left()


def test_a_host_without_an_address(farm: Farm) -> None:
    assert_first_fault(doctor(farm, "ssh://board.invalid"), "name", "has no address")


@pytest.mark.parametrize("scheme", ["ssh", "rpc"])
def test_a_port_where_nobody_listens(farm: Farm, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    assert_first_fault(doctor(farm, f"{scheme}://127.0.0.1:{port}"), "TCP", "Connection refused")


def test_an_unknown_host_key(farm: Farm, server: SshServer) -> None:
    server.known_hosts.unlink()
    assert_first_fault(doctor(farm, server.url), "host key", "is not known")


def test_a_login_that_is_refused(farm: Farm, server: SshServer) -> None:
    (server.folder / "authorized_keys").write_text("")
    assert_first_fault(doctor(farm, server.url), "login", "refuses the login")


def test_a_profile_for_another_kind_of_board(farm: Farm, server: SshServer) -> None:
    assert_first_fault(doctor(farm, server.url, "rasp3b"), "architecture", "another kind of board")


def test_a_device_that_cannot_be_on_this_machine(farm: Farm) -> None:
    assert_first_fault(
        doctor(farm, "local:", "rasp3b"), "this machine", "the profile rasp3b is for armv7"
    )


def test_this_machine_is_checked_without_a_device(farm: Farm) -> None:
    done = farm.run("doctor")
    assert done.code == 0, done.out + done.err
    assert [
        line.split(":")[0].split()[-1] for line in done.out.splitlines()[1:] if line[2] in "✓!"
    ] == [*("python", "packages", "cache", "toolchain", "emulators", "sandbox")]


def test_a_package_of_another_version_and_a_cache_without_room_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["numpy==0.1", "no-such-package==1.0", f"pytest=={pytest.__version__}", "rich>=0.1"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    with pytest.raises(FarmError, match="packages of other versions") as caught:
        host._packages()
    version = importlib.metadata.version("numpy")
    assert caught.value.why == (
        f"numpy is {version}, wanted 0.1, no-such-package is not there, wanted 1.0"
    )
    assert caught.value.fix == "pip install numpy==0.1 no-such-package==1.0"
    assert host._cache(Store(tmp_path)).advice == ""
    monkeypatch.setattr(host, "_ROOM_BYTES", 1 << 62)
    assert "FARM_CACHE" in host._cache(Store(tmp_path)).advice


def test_a_cache_that_cannot_be_written_is_found(farm: Farm) -> None:
    farm.cache = farm.folder / "file"
    farm.cache.write_text("")
    done = farm.run("doctor", "--json")
    cache = next(one for one in layers(done, "this machine") if one["layer"] == "cache")
    assert str(farm.cache) in cache["error"]["what"]
    assert "FARM_CACHE" in cache["error"]["fix"]
    assert done.code == 1


@pytest.mark.parametrize("folder", ["/sys", "/proc"])
def test_a_cache_in_a_folder_that_takes_no_files_is_found(farm: Farm, folder: str) -> None:
    farm.cache = Path(folder)
    done = farm.run("doctor", "--json")
    found = {one["layer"]: one for one in layers(done, "this machine")}
    assert not found["cache"]["holds"]
    assert found["cache"]["error"]["what"] == f"the cache {folder} cannot be written"
    assert found["toolchain"]["holds"], "it needs no cache"
    assert done.code == 1


def test_what_makes_figures_worthless_is_advised_with_its_cure() -> None:
    well = {
        "governor": "performance",
        "temperatures_c": '{"cpu": 48.2}',
        "throttled": "0",
        "time_s": "1.0",
    }
    assert [finding.advice for finding in condition_findings(well, -0.3)] == [""] * 4
    ill = {
        "governor": "powersave",
        "temperatures_c": '{"cpu": 81.0, "gpu": 60.0}',
        "throttled": "327681",
        "time_s": "1.0",
    }
    found = {finding.layer: finding for finding in condition_findings(ill, -7200.0)}
    assert "echo performance" in found["governor"].advice
    assert "cool it" in found["temperature"].advice
    assert (
        found["throttling flags"].detail == "0x50001"
        and "better supply" in found["throttling flags"].advice
    )
    assert (
        found["clock"].detail == "7200.0 s behind ours"
        and "timedatectl set-ntp" in found["clock"].advice
    )
    ahead = {finding.layer: finding for finding in condition_findings(ill, 7200.0)}["clock"]
    assert ahead.detail == "7200.0 s ahead of ours" and ahead.advice == found["clock"].advice
    silent = list(condition_findings({}, 0.0))
    assert [(one.layer, one.detail) for one in silent] == [
        ("governor", "it has none"),
        ("temperature", "it does not tell"),
        ("throttling flags", "it has none"),
    ]
    assert [one.advice for one in silent] == [""] * 3


@pytest.mark.parametrize(
    ("facts", "layer", "detail", "advice"),
    [
        (
            {"battery_percent": "42", "external_power": "false", "battery_saver": "false"},
            "battery",
            "42 %, not on external power",
            "plug it in",
        ),
        (
            {"battery_percent": "42", "external_power": "true", "battery_saver": "false"},
            "battery",
            "42 %, on external power",
            "",
        ),
        (
            {"battery_percent": "42", "external_power": "false", "battery_saver": "true"},
            "battery",
            "42 %, not on external power, its saver is on",
            "switch its battery saver off",
        ),
        ({"battery_saver": "false"}, "battery", "its saver is off", ""),
        ({"screen_on": "false"}, "screen", "off", "svc power stayon true"),
        ({"screen_on": "true"}, "screen", "on", ""),
        ({"thermal_status": "2"}, "thermal status", "2", "cool it"),
        (
            {"gpu_slowed_by": '["its heat", "its power cap"]'},
            "GPU clocks",
            "its heat, its power cap",
            "power limit",
        ),
    ],
)
def test_what_slows_a_phone_or_a_gpu_is_advised_with_its_cure(
    facts: dict[str, str], layer: str, detail: str, advice: str
) -> None:
    [found] = [one for one in condition_findings(facts, 0.0) if one.layer == layer]
    assert found.detail == detail
    assert advice in found.advice and bool(advice) == bool(found.advice)


def test_a_gpu_is_told_with_its_driver_its_memory_and_its_power() -> None:
    facts = {
        "gpu_driver": "580.65",
        "gpu_cuda": "13.0",
        "gpu_memory_free_bytes": str(3 << 29),
        "gpu_memory_total_bytes": str(80 << 30),
        "gpu_power_w": "71.6",
    }
    assert list(_of_gpu(facts)) == ["driver 580.65", "CUDA 13.0", "1.5 of 80.0 GiB free", "72 W"]
    assert list(_of_gpu({"gpu_cuda": "13.0"})) == ["CUDA 13.0"]


def test_a_phone_that_is_cool_has_no_thermal_status_to_tell() -> None:
    layers = [finding.layer for finding in condition_findings({"thermal_status": "0"}, 0.0)]
    assert layers == ["governor", "temperature", "throttling flags"]


def test_several_devices_are_examined_and_each_has_a_fault_of_its_own(
    farm: Farm, server: SshServer
) -> None:
    tables = {
        "good": ("x86", server.url),
        "bad": ("rasp3b", server.url),
        "off": ("x86", "rpc://127.0.0.1:1"),
    }
    text = "".join(
        f'[devices.{name}]\nprofile = "{profile}"\nurl = "{url}"\n'
        for name, (profile, url) in tables.items()
    )
    farm.configure(text + DIGITS)
    done = farm.run("doctor", "--all", "--json")
    assert done.code == 1
    faults = {
        name: [one["layer"] for one in layers(done, name) if not one["holds"]] for name in tables
    }
    assert faults == {"good": [], "bad": ["architecture"], "off": ["TCP"]}
