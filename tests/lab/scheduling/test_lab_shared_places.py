"""How people share places: connections, streams, links and sessions."""

from __future__ import annotations

from farm.lab.shared_places import SharedPlaces


def places(most: int, most_of_one: int) -> tuple[SharedPlaces[str], list[str]]:
    dropped: list[str] = []
    return SharedPlaces[str](most, most_of_one, dropped.append), dropped


def test_a_person_loses_their_own_oldest_idle_one() -> None:
    shared, dropped = places(10, 3)
    assert all(shared.take(item, "ann") for item in ("a", "b", "c"))
    shared.mark("a", busy=True)
    assert shared.take("d", "ann") and dropped == ["b"]
    shared.mark("c", busy=True)
    shared.mark("d", busy=True)
    assert not shared.take("e", "ann"), "all are busy"
    shared.mark("d", busy=False)
    assert shared.take("e", "ann") and dropped == ["b", "d"]


def test_what_became_idle_last_is_lost_last() -> None:
    shared, dropped = places(10, 3)
    assert all(shared.take(item, "ann") for item in ("a", "b", "c"))
    for item, busy in (("a", True), ("b", True), ("b", False), ("a", False)):
        shared.mark(item, busy=busy)
    assert all(shared.take(item, "ann", busy=True) for item in ("d", "e", "f"))
    assert dropped == ["c", "b", "a"]


def test_whoever_has_the_most_gives_one_to_those_who_have_fewer() -> None:
    shared, dropped = places(4, 3)
    assert all(shared.take(item, "ann", busy=True) for item in ("a", "b", "c"))
    assert shared.take("d", "bob") and not dropped
    assert shared.take("e", "eve") and dropped == ["a"]
    assert not shared.take("f", "bob"), "nobody has more than he would have"
    shared.leave("a")
    shared.leave("e")
    assert shared.take("f", "bob")


def test_users_without_an_account_are_one_person() -> None:
    shared, dropped = places(100, 2)
    for number in range(5):
        assert shared.take(f"{number}", f"uid-{100_000 + number}")
    assert dropped == ["0", "1", "2"]
