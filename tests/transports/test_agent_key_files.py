"""The key of an agent is told to the user's clients while it lives, and to nobody else."""

from __future__ import annotations

import fcntl
import io
import os
import sys
from pathlib import Path

import pytest

from farm.errors import DeviceError, UsageError
from farm.transports.agent.keys import find_local_agent, read_key, reuse_or_create_key

PORT = 9


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def hold(address: str, *, fresh: bool = False) -> tuple[int, str]:
    """The descriptor by which an agent would hold its key, and the key."""
    before = open_descriptors()
    key, path = reuse_or_create_key(address, PORT, fresh=fresh)
    assert path.stat().st_mode & 0o777 == 0o600
    (descriptor,) = open_descriptors() - before
    assert os.get_inheritable(descriptor), "it is held by what this process becomes"
    return descriptor, key


def open_descriptors() -> set[int]:
    return {number for number in range(256) if is_open(number)}


def is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def test_a_key_is_found_while_its_agent_lives_and_not_after(data: Path) -> None:
    descriptor, key = hold("127.0.0.1")
    found = find_local_agent("127.0.0.1", PORT)
    assert found is not None and (found.address, found.key) == ("127.0.0.1", key)
    assert key not in repr(found)
    os.close(descriptor)
    assert find_local_agent("127.0.0.1", PORT) is None, "somebody else may listen there now"


def test_a_client_goes_to_the_address_of_the_agent_and_not_to_another_of_that_name() -> None:
    """Another user may listen at [::1], which localhost may mean first."""
    descriptor, _ = hold("127.0.0.1")
    found = find_local_agent("localhost", PORT)
    assert found is not None and found.address == "127.0.0.1"
    assert find_local_agent("::1", PORT) is None
    assert find_local_agent("127.0.0.2", PORT) is None
    os.close(descriptor)
    descriptor, _ = hold("0.0.0.0")
    assert find_local_agent("127.0.0.2", PORT) is not None
    assert find_local_agent("::1", PORT) is None
    os.close(descriptor)
    descriptor, key = hold("::")
    found = find_local_agent("127.0.0.2", PORT)
    assert found is not None and (found.address, found.key) == ("127.0.0.2", key)
    os.close(descriptor)


def test_no_key_is_told_to_another_machine() -> None:
    descriptor, _ = hold("0.0.0.0")
    assert find_local_agent("192.0.2.1", PORT) is None
    os.close(descriptor)


def test_an_agent_that_is_started_again_keeps_its_key_unless_it_is_to_be_fresh() -> None:
    keys = []
    for fresh in (False, False, True):
        descriptor, key = hold("127.0.0.1", fresh=fresh)
        os.close(descriptor)
        keys.append(key)
    assert keys[0] == keys[1] != keys[2]


def test_two_agents_do_not_hold_one_key() -> None:
    descriptor, _ = hold("127.0.0.1")
    with pytest.raises(DeviceError, match="cannot listen"):
        reuse_or_create_key("127.0.0.1", PORT, fresh=False)
    os.close(descriptor)


@pytest.mark.parametrize("text", ["lab-1\n", "FARM_AGENT_KEY=lab-1\n", 'FARM_AGENT_KEY="lab-1"\n'])
def test_a_key_is_the_first_line_of_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    """Or of standard input."""
    file = tmp_path / "key"
    file.write_text(text + "more\n")
    file.chmod(0o600)
    assert read_key(file) == "lab-1"
    with file.open() as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream.buffer))
        assert read_key(None) == "lab-1"


@pytest.mark.parametrize("text", ["", "two words", 'a"b', "a\\b", "é"])
def test_a_file_without_a_key_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(UsageError, match="there is no key") as caught:
        read_key(file)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o622])
def test_a_key_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text("lab")
    file.chmod(mode)
    with pytest.raises(UsageError, match="other users may use the key file") as caught:
        read_key(file)
    assert f"{mode:04o}" in caught.value.why
