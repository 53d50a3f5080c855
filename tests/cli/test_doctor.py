"""farm doctor names the first layer that does not hold."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from farm_running import DIGITS, Done, Farm
from ssh_server import SshServer

SSH_LAYERS = [
    *("name", "TCP", "host key", "login", "architecture", "space", "agent binary", "agent version", "RPC handshake", "answer"),
    *("governor", "temperature", "throttling flags"),
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
    assert [(one["layer"], one["holds"]) for one in layers(done)] == [(layer, True) for layer in SSH_LAYERS]
    assert "digits is right" in next(one["detail"] for one in layers(done) if one["layer"] == "answer")
    assert os.uname().machine in next(one["detail"] for one in layers(done) if one["layer"] == "architecture")
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
    assert_first_fault(doctor(farm, "local:", "rasp3b"), "this machine", "the profile rasp3b is for armv7")


def test_this_machine_is_checked_without_a_device(farm: Farm) -> None:
    done = farm.run("doctor")
    assert done.code == 0, done.out + done.err
    assert [line.split(":")[0].split()[-1] for line in done.out.splitlines()[1:] if line[2] in "✓!"] == [
        *("python", "packages", "cache", "toolchain", "emulators")
    ]


def test_a_cache_that_cannot_be_written_is_found(farm: Farm) -> None:
    farm.cache = farm.folder / "file"
    farm.cache.write_text("")
    done = farm.run("doctor", "--json")
    cache = next(one for one in layers(done, "this machine") if one["layer"] == "cache")
    assert str(farm.cache) in cache["error"]["what"]
    assert "FARM_CACHE" in cache["error"]["fix"]
    assert done.code == 1
