"""What a session has given is given back before it ends: on this machine, with a real agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_until

from farm import transports
from farm.config import load
from farm.errors import DeviceError


@pytest.fixture
def open_one(agents: Callable[[str], Path], tmp_path: Path) -> Callable[[], object]:
    file = tmp_path / "devices.toml"
    file.write_text('[devices.host]\nprofile = "x86"\nurl = "local:"\n')
    device = load(file).devices["host"]
    return lambda: transports.open(device, agents("x86_64"), tmp_path, 60)


def test_a_session_ends_in_good_order_with_nothing_left_to_give_back(open_one: Callable, tmp_path: Path) -> None:
    with open_one() as link:
        (tmp_path / "sent").write_bytes(b"1234")
        link.session.upload(str(tmp_path / "sent"), "there")
        assert link.session.download("there") == b"1234"
        assert "agent" in link.call("farm.agent.facts")
        link.let_go()
        log = tmp_path / "agent.log"
        wait_until(lambda: "is over" in log.read_text(), "the end of the session")
        assert "exit code 0" in log.read_text().splitlines()[-1]
        assert not link._functions and not vars(link.session)


def test_one_session_after_another_is_ended_more_of_them_than_tvm_has_places_for(open_one: Callable) -> None:
    for _ in range(40):  # of 32
        with open_one() as link:
            assert link.call("farm.agent.facts")


def test_an_error_in_the_block_is_what_is_told(open_one: Callable) -> None:
    with pytest.raises(DeviceError, match="what happened"), open_one():
        raise DeviceError("what happened")
