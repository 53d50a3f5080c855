"""How much one person may have the lab keep."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import pytest
from lab_process import Board, lab

from farm.errors import UnavailableError, UsageError
from farm.lab.change_budget import ChangeBudget
from farm.lab_client.control_client import LabClient

WISH = {"kind": "pi5", "for_s": 600, "count": 9}


@dataclasses.dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def spent(budget: ChangeBudget, name: str) -> int:
    """How many changes a person has left, all of which are asked for."""
    for count in range(10_000):
        try:
            budget.spend(name)
        except UnavailableError:
            return count
    raise AssertionError("there is no end")


def test_each_person_has_so_many_changes_a_minute_and_some_at_once() -> None:
    clock = Clock()
    budget = ChangeBudget(60, clock)
    assert (spent(budget, "ann"), spent(budget, "bob")) == (120, 120)
    with pytest.raises(UnavailableError, match="too much at once") as refused:
        budget.spend("ann")
    assert refused.value.parts()[1:] == (
        "ann may ask for 60 leases, reservations and extensions in a minute",
        "try again in 1 s",
    )
    clock.now += 30
    assert spent(budget, "ann") == 30
    clock.now += 1e6
    assert spent(budget, "ann") == 120
    assert (spent(budget, "uid-100001"), spent(budget, "uid-100002")) == (120, 0)


def test_without_a_limit_there_is_none() -> None:
    budget = ChangeBudget(0)
    for _ in range(1000):
        budget.spend("ann")


def test_one_person_does_not_fill_the_labs_disk_nor_keep_others_from_leases() -> None:
    """Leases that are asked for and ended wrote 83 GB a day."""
    with lab(inventory="[lab]\nchanges = 6\n") as served, contextlib.ExitStack() as held:
        board = Board(served.port)

        def person(name: str) -> LabClient:
            client = held.enter_context(served.client())
            client.ask("speak-for", user=name)
            return client

        mallory, bob, count = person("mallory"), person("bob"), 0
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="this is too much at once"):
            while count < 1000:
                lease = mallory.ask("request", **WISH)["lease"]["lease"]
                count += 1
                mallory.ask("end", lease=lease)
        assert 12 <= count <= 13 + (time.monotonic() - began) / 10
        for wanted in ({"do": "reserve", "in_s": 600}, {"do": "request"}):
            do = wanted.pop("do")
            with pytest.raises(UnavailableError, match="this is too much at once"):
                mallory.ask(str(do), kind="pi5", for_s=60, **wanted)
        assert mallory.ask("leases")["leases"] == []
        got = bob.ask("request", kind="pi5", for_s=60)["lease"]
        assert got["boards"] == [board.name]
        with served.client() as admin:
            for _ in range(100):
                admin.ask("end", lease=admin.ask("request", **WISH)["lease"]["lease"])


def test_labels_are_limited_in_all() -> None:
    with lab() as served, served.client() as client:
        Board(served.port)
        client.ask("request", **WISH, labels={f"l{number}": "v" * 150 for number in range(20)})
        for labels in ({f"{number}" * 200: "v" * 200 for number in range(10)}, {"a": "é" * 700}):
            with pytest.raises(UsageError, match="'labels' of the request is wrong"):
                client.ask("request", **WISH, labels=labels)
