"""How ~/.ssh/config says a board is reached."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from farm.errors import DeviceError
from farm.transports.ssh import connect
from farm.transports.ssh.config import Hop, resolve_hops

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
    (hop,) = resolve_hops("ssh://pi", config)
    assert (hop.host, hop.port, hop.user, hop.key_name) == (
        "192.168.7.2",
        2222,
        "pi",
        "[192.168.7.2]:2222",
    )
    assert hop.identities == (Path("~/.ssh/board_192.168.7.2").expanduser(),)
    assert hop.identities_only


def test_the_url_goes_before_the_configuration(config: Path) -> None:
    (hop,) = resolve_hops("ssh://root@pi:22", config)
    assert (hop.place, hop.key_name) == ("root@192.168.7.2:22", "192.168.7.2")


def test_without_a_configuration_the_user_is_ours(tmp_path: Path) -> None:
    (hop,) = resolve_hops("ssh://board.local", tmp_path / "none")
    assert hop.place == f"{getpass.getuser()}@board.local:22"
    assert hop.known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()
    assert not hop.identities


def test_an_address_of_version_6_is_understood(tmp_path: Path) -> None:
    (hop,) = resolve_hops("ssh://pi@[fe80::1]:2222", tmp_path / "none")
    assert (hop.host, hop.port, hop.key_name) == ("fe80::1", 2222, "[fe80::1]:2222")


def test_jump_hosts_come_first_each_with_its_own_settings(config: Path) -> None:
    hops = resolve_hops("ssh://inner", config)
    assert [hop.place for hop in hops] == [
        "somebody@gate.example.org:22",
        "other@second:2200",
        "somebody@10.0.0.5:22",
    ]
    assert hops[-1].key_name == "the-board"
    assert hops[-1].known_hosts[:2] == (Path("~/known").expanduser(), Path("/etc/known"))
    assert hops[0].known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()


def test_a_jump_host_that_is_its_own_is_refused(config: Path) -> None:
    with pytest.raises(DeviceError, match="more than 8 jump hosts"):
        resolve_hops("ssh://loop", config)


def test_a_command_that_leads_there_is_known_with_its_tokens(config: Path) -> None:
    (hop,) = resolve_hops("ssh://commanded:2200", config)
    assert hop.command == "nc commanded 2200"


def one(tmp_path: Path, text: str, url: str = "ssh://board") -> Hop:
    """The only hop that a configuration gives."""
    path = tmp_path / "config"
    path.write_text(text)
    (hop,) = resolve_hops(url, path)
    return hop


def test_the_names_of_key_files_may_have_tokens(tmp_path: Path) -> None:
    hop = one(
        tmp_path,
        "Host board\n HostName 10.0.0.5\n IdentityFile %d/keys/%r@%h\n IdentityFile ~/%n-%p\n",
        "ssh://pi@board:2222",
    )
    assert hop.identities == (Path.home() / "keys/pi@10.0.0.5", Path.home() / "board-2222")


def test_where_the_agent_is_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER", "/run/other")
    said = [
        "",
        "IdentityAgent ~/%r.sock",
        "IdentityAgent $OTHER",
        "IdentityAgent ${OTHER}",
        "IdentityAgent none",
        "IdentityAgent SSH_AUTH_SOCK",
    ]
    found = [one(tmp_path, text, "ssh://pi@board").agent for text in said]
    assert found == [
        Path("/run/agent"),
        Path.home() / "pi.sock",
        Path("/run/other"),
        Path("/run/other"),
        None,
        Path("/run/agent"),
    ]
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert one(tmp_path, "").agent is None


def test_ways_to_log_in_can_be_switched_off(tmp_path: Path) -> None:
    hop = one(
        tmp_path, "PasswordAuthentication no\nKbdInteractiveAuthentication no\nBatchMode yes\n"
    )
    assert hop.without == {"password", "keyboard-interactive"}
    assert hop.asks_nothing
    assert one(tmp_path, "PubkeyAuthentication no\n").without == {"publickey"}
    assert one(tmp_path, "ChallengeResponseAuthentication no\n").without == {"keyboard-interactive"}
    hop = one(tmp_path, "")
    assert not hop.without and not hop.asks_nothing and not hop.identities_only


def test_how_long_and_from_where_to_connect_can_be_said(tmp_path: Path) -> None:
    hop = one(tmp_path, "ConnectTimeout 3\nBindAddress 127.0.0.2\nAddressFamily inet\n")
    assert (hop.connect_timeout_s, hop.bind_address, hop.family) == (3.0, "127.0.0.2", "inet")


@pytest.mark.parametrize("nowhere", ["/dev/null", "none"])
def test_host_keys_are_looked_up_even_where_the_configuration_knows_no_file(
    tmp_path: Path, nowhere: str
) -> None:
    hop = one(tmp_path, f"UserKnownHostsFile {nowhere}\nStrictHostKeyChecking no\n")
    assert hop.known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()


def test_host_keys_that_the_system_knows_come_after_the_users(tmp_path: Path) -> None:
    named = one(tmp_path, "UserKnownHostsFile ~/known\nGlobalKnownHostsFile /etc/a /etc/b\n")
    assert named.known_hosts == (Path.home() / "known", Path("/etc/a"), Path("/etc/b"))
    usual = [*(Path.home() / ".ssh" / name for name in ("known_hosts", "known_hosts2"))]
    usual += [Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2")]
    assert one(tmp_path, "").known_hosts == tuple(usual)
    assert one(tmp_path, "GlobalKnownHostsFile none\n").known_hosts == tuple(usual[:2])


def test_match_holds_for_its_user_only(tmp_path: Path) -> None:
    text = "Match host board user root\n Port 2222\nMatch originalhost board\n Port 2223\n"
    assert one(tmp_path, text, "ssh://root@board").port == 2222
    assert one(tmp_path, text, "ssh://pi@board").port == 2223


def test_a_command_that_decides_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        one(tmp_path, 'Match exec "true"\n Port 2222\n')
    assert "Match exec" in caught.value.why


def test_files_are_included_in_their_places(tmp_path: Path) -> None:
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d" / "1").write_text("User first\nHost board\n Port 2222\n")
    (tmp_path / "more.d" / "2").write_text("Host board\n Port 2223\n")
    (tmp_path / "inner").write_text("HostName 10.0.0.5\n")
    text = (
        f"Include more.d/* {tmp_path}/missing\nUser second\nHost board\n Include inner\n "
        f"HostKeyAlias the-board\nHost *\n HostName other\n"
    )
    hop = one(tmp_path, text)
    assert (hop.place, hop.key_name) == ("first@10.0.0.5:2222", "the-board")
    assert one(tmp_path, text, "ssh://another").place == "first@other:22"


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="included by itself"):
        one(tmp_path, "Include config\n")


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host x\n    Port nine\n")
    with pytest.raises(DeviceError, match=str(path)):
        resolve_hops("ssh://x", path)


def test_a_configuration_that_another_user_could_have_written_runs_no_command(
    config: Path, tmp_path: Path
) -> None:
    config.chmod(0o666)
    with pytest.raises(DeviceError, match="another user could have written") as caught:
        resolve_hops("ssh://commanded", config)
    assert f"every user may write to {config}" in caught.value.why
    config.chmod(0o644)
    (tmp_path / "more").write_text("Host pi\n    ProxyCommand touch PWNED\n")
    (tmp_path / "more").chmod(0o666)
    config.write_text("Include more\n")
    with pytest.raises(DeviceError, match="another user could have written"):
        resolve_hops("ssh://pi", config)


@pytest.mark.parametrize(
    "name",
    [
        "$(touch${IFS}PWNED)@board",
        "a;touch@board",
        "-oProxyCommand@board",
        "a`b`@board",
        "a'b@board",
        "-v",
    ],
)
def test_a_name_that_is_more_than_that_to_a_shell_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeviceError, match="names nothing that can be reached"):
        one(tmp_path, "Host *\n ProxyCommand nc %r %h\n", f"ssh://{name}")
    with pytest.raises(DeviceError, match="names nothing that can be reached"):
        one(tmp_path, f"Host board\n ProxyJump {name}\n")


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("b,a", ("b", "a")),
        ("none,b*", ("b", "b2")),
        ("+none", ("a", "b", "b2", "c")),
        ("-b*", ("a", "c")),
        ("^c,b", ("c", "b", "a", "b2")),
    ],
)
def test_a_list_of_algorithms_adds_removes_and_puts_first(
    config: Path, wanted: str, chosen: tuple[str, ...]
) -> None:
    (hop,) = resolve_hops("ssh://pi", config)
    offered = ("a", "b", "b2", "c")
    assert connect._chosen("ciphers", wanted, offered, hop) == chosen
    for nothing in ("none", "-*"):
        with pytest.raises(DeviceError, match="algorithms that farm has not"):
            connect._chosen("ciphers", nothing, offered, hop)
