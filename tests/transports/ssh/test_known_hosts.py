"""Which lines of a known_hosts file are for a host, as ssh reads them."""

from __future__ import annotations

import base64
from pathlib import Path

import paramiko
import pytest
from paramiko.hostkeys import HostKeys

from farm.transports.ssh.config import Hop
from farm.transports.ssh.known_hosts import is_revoked, known_keys

KEY = paramiko.ECDSAKey.generate()
OTHER = paramiko.ECDSAKey.generate()
LINE = f"{KEY.get_name()} {KEY.get_base64()}"
HASHED = HostKeys.hash_host("pi3.lab", salt=base64.b64encode(bytes(20)).decode())


def hop(tmp_path: Path, content: str, name: str = "pi3.lab") -> Hop:
    file = tmp_path / "known_hosts"
    file.write_text(content)
    return Hop("10.0.0.5", 22, "pi", name, (tmp_path / "none", file))


@pytest.mark.parametrize(
    "hosts",
    ["pi3.lab", "PI3.lab", "other,pi3.lab", "*.lab", "pi?.lab", "*.lab,!pi4.lab", HASHED],
)
def test_a_line_for_the_host_has_its_key(tmp_path: Path, hosts: str) -> None:
    assert list(known_keys(hop(tmp_path, f"# boards\n{hosts} {LINE}\n"))) == [KEY]


@pytest.mark.parametrize(
    "hosts",
    ["pi4.lab", "*.lab,!pi3.lab", "!pi?.lab,*", "!pi3.lab", "[pi3.lab]:2222", "@cert-authority *"],
)
def test_a_line_for_other_hosts_has_none(tmp_path: Path, hosts: str) -> None:
    assert list(known_keys(hop(tmp_path, f"{hosts} {LINE}\n"))) == []


def test_a_host_at_another_port_is_another_host(tmp_path: Path) -> None:
    there = "[pi3.lab]:2222"
    assert list(known_keys(hop(tmp_path, f"{there} {LINE}\n", there))) == [KEY]
    assert list(known_keys(hop(tmp_path, f"pi3.lab {LINE}\n", there))) == []


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    content = f"pi3.lab ssh-rsa AAAA\npi3.lab\npi3.lab {KEY.get_name()} ?\npi3.lab {LINE}"
    assert list(known_keys(hop(tmp_path, content))) == [KEY]


def test_a_revoked_key_is_revoked_for_every_host(tmp_path: Path) -> None:
    assert is_revoked(hop(tmp_path, f"@revoked other {LINE}\n"), KEY)
    assert not is_revoked(hop(tmp_path, f"pi3.lab {LINE}\n"), KEY)
    assert not is_revoked(hop(tmp_path, f"@revoked pi3.lab {LINE}\n"), OTHER)
