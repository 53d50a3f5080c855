"""How many connections one person may have to the control socket, and what is left for others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from lab_process import Lab, lab
from timeouts import wait_until

from farm.errors import DeviceError
from farm.lab.callers import MOST_OF_ONE, MOST_OF_PEOPLE
from farm.lab_client.control_client import LabClient


def as_user(served: Lab, name: str) -> LabClient:
    """A connection of the door for a user, as `farm lab door` opens it."""
    client = served.client()
    try:
        client.ask("speak-for", user=name)
    except BaseException:
        client.close()
        raise
    return client


def is_let_in(enter: Callable[[], LabClient]) -> bool:
    try:
        enter().close()
    except DeviceError:
        return False
    return True


def test_one_key_does_not_keep_others_out_nor_all_people_the_administrator() -> None:
    with contextlib.ExitStack() as held, lab() as served:
        alices = [held.enter_context(as_user(served, "alice")) for _ in range(MOST_OF_ONE)]
        with pytest.raises(DeviceError, match="no more connections") as refused:
            as_user(served, "alice")
        assert refused.value.why == f"alice has {MOST_OF_ONE} connections to the lab already"
        with as_user(served, "bob") as bob:
            assert bob.ask("hello")["you"] == "bob"
        left = MOST_OF_PEOPLE - MOST_OF_ONE
        for number in range(left):
            held.enter_context(as_user(served, f"user{number % 3}"))
        with pytest.raises(DeviceError, match="the lab has no place for you"):
            as_user(served, "bob")
        with served.client() as admin:
            assert admin.hello["admin"]
            admin.ask("expel", user="user0")
            wait_until(lambda: is_let_in(lambda: as_user(served, "bob")), "a place")
        alices.pop().close()
        wait_until(lambda: is_let_in(lambda: as_user(served, "alice")), "her place")
