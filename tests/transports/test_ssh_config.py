"""How ~/.ssh/config says a board is reached."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from farm.errors import DeviceError
from farm.transports.ssh_config import route

CONFIG = """
Host pi
    HostName 192.168.7.2
    User pi
    Port 2222
    IdentityFile ~/.ssh/board_%h
    IdentitiesOnly yes
Host inner
    HostName 10.0.0.5
    HostKeyAlias the-board
    ProxyJump gate,other@second:2200
    UserKnownHostsFile ~/known /etc/known
Host gate
    HostName gate.example.org
Host second
    ProxyJump gate
Host loop
    ProxyJump loop
Host commanded
    ProxyCommand nc %h %p
Host *
    User somebody
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(CONFIG)
    return path


def test_an_alias_is_resolved(config: Path) -> None:
    (hop,) = route("ssh://pi", config)
    assert (hop.host, hop.port, hop.user, hop.key_name) == ("192.168.7.2", 2222, "pi", "[192.168.7.2]:2222")
    assert hop.identities == (Path("~/.ssh/board_192.168.7.2").expanduser(),)
    assert hop.identities_only


def test_the_url_goes_before_the_configuration(config: Path) -> None:
    (hop,) = route("ssh://root@pi:22", config)
    assert (hop.place, hop.key_name) == ("root@192.168.7.2:22", "192.168.7.2")


def test_without_a_configuration_the_user_is_ours(tmp_path: Path) -> None:
    (hop,) = route("ssh://board.local", tmp_path / "none")
    assert hop.place == f"{getpass.getuser()}@board.local:22"
    assert hop.known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()
    assert not hop.identities


def test_an_address_of_version_6_is_understood(tmp_path: Path) -> None:
    (hop,) = route("ssh://pi@[fe80::1]:2222", tmp_path / "none")
    assert (hop.host, hop.port, hop.key_name) == ("fe80::1", 2222, "[fe80::1]:2222")


def test_jump_hosts_come_first_each_with_its_own_settings(config: Path) -> None:
    hops = route("ssh://inner", config)
    assert [hop.place for hop in hops] == ["somebody@gate.example.org:22", "other@second:2200", "somebody@10.0.0.5:22"]
    assert hops[-1].key_name == "the-board"
    assert hops[-1].known_hosts[:2] == (Path("~/known").expanduser(), Path("/etc/known"))
    assert hops[0].known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()


@pytest.mark.parametrize(
    ("url", "words"), [("ssh://loop", "more than 8 jump hosts"), ("ssh://commanded", "ProxyCommand")], ids=["loop", "command"]
)
def test_what_cannot_be_followed_is_refused(config: Path, url: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        route(url, config)


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host x\n    Port nine\n")
    with pytest.raises(DeviceError, match=str(path)):
        route("ssh://x", path)
