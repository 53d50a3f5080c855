"""The known name that is meant, also where strangers have chosen the names."""

from __future__ import annotations

import difflib
import random
import string

import pytest

from farm.errors import closest_name, did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("pi6", ["pi4", "x86"], "pi4"),
        ("hrose", ["cat", "horse"], "horse"),
        ("resnet-18", ["resnet18", "resnet50"], "resnet18"),
        ("sensor", ["pi4", "x86"], None),
        ("", ["pi4"], None),
        ("pi4", [], None),
        ("board-0777x", [f"board-{number:04d}" for number in range(2000)], "board-0777"),
    ],
)
def test_the_most_similar_name_is_meant(name: str, known: list[str], meant: str | None) -> None:
    assert closest_name(name, known) == meant


def test_of_very_many_names_some_are_shown() -> None:
    shown = did_you_mean("x", (f"board-{number:04d}" for number in range(5000)))
    assert shown.startswith("known: board-0000, ") and shown.endswith(" and 4900 more")


def test_names_that_are_slow_to_compare_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """difflib takes 25 ms for two of these names, and the server of a lab waits for it."""
    compared: list[int] = []

    class Counting(difflib.SequenceMatcher[str]):
        def ratio(self) -> float:
            compared.append(len(self.a) * len(self.b))
            return super().ratio()

    def shuffled() -> str:
        return "".join(chance.sample(string.ascii_lowercase * 4, 104))

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    chance = random.Random(1)
    closest_name(shuffled(), [shuffled() for _ in range(500)])
    assert len(compared) <= 4 and max(compared) <= 1600
