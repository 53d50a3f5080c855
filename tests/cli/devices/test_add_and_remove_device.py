"""farm add and farm remove: a board that answers right is in devices.toml afterwards, any other is
not.
"""

from __future__ import annotations

import re
import signal
import tomllib
from typing import Any

import pytest
from farm_processes import HOST, Farm
from rpc_servers import farm_agent, farm_tracker, tvm_server
from ssh_board_checks import assert_nothing_is_left
from ssh_server import SshServer

OWN = """# Boards of ours
[devices.other]  # the old one
profile = "rasp3b"
url = "qemu:"

# --- how we measure
[bench]
count = 5
"""


def written(farm: Farm) -> dict[str, Any]:
    return tomllib.loads((farm.folder / "devices.toml").read_text())


def test_a_board_by_ssh_is_found_out_proved_and_written_into_a_new_file(
    farm: Farm, server: SshServer
) -> None:
    (farm.folder / "devices.toml").unlink()
    done = farm.run(
        "add",
        "mine",
        server.url,
        "-t",
        "lab",
        "-o",
        "threads=1",
        "-o",
        f"store={server.folder}/kept here",
    )
    assert done.code == 0, done.err
    assert "digits is right" in done.out
    assert "next: farm bench --device mine" in done.err
    device = written(farm)["devices"]["mine"]
    assert device["url"] == server.url and device["tags"] == ["lab"]
    assert device["options"] == {"threads": 1, "store": f"{server.folder}/kept here"}
    if device["profile"] == "mine":  # an old CPU
        assert written(farm)["profiles"]["mine"]["inherits"] == "x86-v3"
    else:
        assert device["profile"] in ("x86-v3", "x86-v4")
    again = farm.run("deploy", "--device", "mine", "digits", "--json")
    assert again.json["runs"][0]["samples"]["agreement"]["right"] is True
    assert_nothing_is_left(farm, server)


def test_a_file_that_is_there_keeps_its_comments_order_and_permissions(
    farm: Farm, server: SshServer
) -> None:
    file = farm.folder / "devices.toml"
    file.write_text(OWN)
    file.chmod(0o600)
    done = farm.run("add", "mine", server.url, "--json")
    assert done.code == 0, done.err
    assert done.json["written"] is True and done.json["file"] == str(file)
    assert done.json["toml"] in file.read_text()
    assert file.read_text().replace(f"{done.json['toml']}\n", "", 1) == OWN
    assert file.stat().st_mode & 0o777 == 0o600
    assert [layer["layer"] for layer in done.json["layers"] if not layer["holds"]] == []
    removed = farm.run("remove", "mine", "--json")
    assert removed.json["tables"][0] == "devices.mine"
    assert file.read_text() == OWN
    assert_nothing_is_left(farm, server)


def test_a_dry_run_writes_nothing_on_either_side(farm: Farm, server: SshServer) -> None:
    before = (farm.folder / "devices.toml").read_text()
    done = farm.run("add", "mine", server.url, "--dry-run")
    assert done.code == 0, done.err
    assert "would be written" in done.out and "[devices.mine]" in done.out
    assert (farm.folder / "devices.toml").read_text() == before
    assert not server.kept.exists()
    assert_nothing_is_left(farm, server)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["b", f"ssh://nobody@{HOST}:1"], 5, "b"),
        (["b", "{board}", "--profile", "rk3399"], 5, "profile|architecture|kind of board"),
        (["b", "qemu:", "--profile", "cuda-sm90"], 5, "GPU"),
    ],
    ids=["nobody is there", "another kind of board", "a GPU that cannot be emulated"],
)
def test_a_board_that_does_not_work_is_not_written(
    farm: Farm, server: SshServer, words: list[str], code: int, says: str
) -> None:
    before = (farm.folder / "devices.toml").read_text()
    done = farm.run("add", *(word.format(board=server.url) for word in words))
    assert done.code == code, done.err
    assert re.search(says, done.out + done.err)
    assert (farm.folder / "devices.toml").read_text() == before
    assert_nothing_is_left(farm, server)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["pi3", "qemu:", "--profile", "rasp3b"], "there is a device 'pi3' already"),
        (["-q", "b d", "local:"], "'b d' is no name for a device"),
        (["pi4"], "the url is missing"),
        (["pi4", "shh://pi4"], "is no url of a device"),
        (["pi4", "qemu:"], "an emulated board is of any kind"),
        (["pi4", "qemu:", "--profile", "rasp3"], "unknown profile 'rasp3'"),
        (["pi4", "local:", "-o", "thread=2"], "the device 'pi4' cannot be as you say"),
        (["pi4", "local:", "-o", "threads"], "is no option"),
    ],
)
def test_a_mistake_is_told_before_the_board_is_asked(
    farm: Farm, words: list[str], error: str
) -> None:
    done = farm.run("add", *words)
    assert done.code == 2
    assert error in done.error["error"]
    assert done.error["fix"]


def test_a_file_that_would_not_be_used_is_not_made(farm: Farm) -> None:
    (farm.folder / "devices.toml").unlink()
    farm.folder.chmod(0o777)
    done = farm.run("add", "mine", "local:")
    assert (
        done.code == 2
        and "would not be used" in done.error["error"]
        and "every user may write" in done.error["why"]
    )
    assert not (farm.folder / "devices.toml").exists()


def test_an_add_that_is_interrupted_leaves_nothing(farm: Farm, server: SshServer) -> None:
    before = (farm.folder / "devices.toml").read_text()
    running = farm.start("add", "mine", server.url)
    running.says("adding mine")
    running.send(signal.SIGINT)
    assert running.end().code == 130
    assert (farm.folder / "devices.toml").read_text() == before
    assert_nothing_is_left(farm, server)


def test_an_agent_at_an_address_is_asked_what_it_is(farm: Farm) -> None:
    with farm_agent(farm) as port:
        done = farm.run("add", "mine", f"rpc://{HOST}:{port}", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert done.json["profile"] == "x86-v3" and "AVX-512" in done.json["notes"][0]
    assert done.json["written"] is False


def test_a_server_of_tvms_own_needs_a_profile(farm: Farm) -> None:
    with tvm_server(farm) as port:
        url = f"rpc://{HOST}:{port}"
        done = farm.run("add", "mine", url)
        assert done.code == 5
        assert "does not say what it is" in done.error["error"] and "--profile" in done.error["fix"]
        assert farm.run("add", "mine", url, "--profile", "x86").code == 0
    assert written(farm)["devices"]["mine"] == {"profile": "x86", "url": url}


def test_without_a_board_the_hosts_of_ssh_and_of_the_tracker_are_listed(
    farm: Farm, server: SshServer
) -> None:
    (server.home / ".ssh/config").write_text(
        "Host pi4 *.lab pi5\n  User pi\nHost -evil\nHost known\n"
    )
    with (
        farm_tracker(farm) as port,
        farm_agent(farm, "--tracker", f"{HOST}:{port}", "--key", "board.of-ours"),
    ):
        farm.configure(
            f'[devices.known]\nprofile = "rasp4"\nurl = "ssh://known"\n[tracker]\nport = {port}\n'
        )
        done = farm.run("add")
        found = farm.run("add", "--json").json["candidates"]
    assert done.code == 0, done.err
    assert "farm add pi4 ssh://pi4" in done.out
    of_others = [
        (one["name"], one["url"]) for one in found if one["url"] != "local:"
    ]  # a machine with a GPU
    assert of_others == [
        ("pi4", "ssh://pi4"),
        ("pi5", "ssh://pi5"),
        ("board.of-ours", f"tracker://{HOST}:{port}/board.of-ours"),
    ]


def test_a_profile_of_its_own_goes_with_the_last_device_that_uses_it(farm: Farm) -> None:
    profile = (
        '[profiles.a]\ninherits = "rasp4"\nsource = "farm add, from what the board says about its '
        'CPU"\n'
    )
    devices = "".join(f'[devices.{name}]\nprofile = "a"\nurl = "ssh://{name}"\n' for name in "ab")
    farm.configure(devices + profile)
    assert farm.run("remove", "a").code == 0
    assert set(written(farm)["profiles"]) == {"a"}
    assert farm.run("remove", "b").code == 0
    assert written(farm) == {}
    done = farm.run("remove", "c")
    assert done.code == 2 and "unknown device 'c'" in done.error["error"]
