"""Who gets which board: against a model that keeps plain lists, and case by case. No socket, no
clock.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.tracker import scheduler as scheduling
from farm.tracker.scheduler import (
    Grant,
    KeyQueue,
    Offer,
    ServerInfo,
    TooManyError,
    TrackerScheduler,
)

KEYS = ("pi4", "pi5")


def connected(*peers: int) -> TrackerScheduler:
    scheduler = TrackerScheduler()
    for peer in peers:
        scheduler.connect(peer, "10.0.0.1", 0.0)
    return scheduler


def offer(peer: int, match_key: str, key: str = "pi4") -> Offer:
    return Offer(peer, key, "10.0.0.1", 9090, match_key)


class AgainstLists(RuleBasedStateMachine):
    """The scheduler beside two lists of each key: offers by age, requests by priority and age."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = TrackerScheduler()
        self.now = 0.0
        self.peers: list[int] = []
        self.offers: list[Offer] = []
        self.requests: list[tuple[float, int, int, str]] = []  # -priority, number, peer, key
        self.counter = 0

    def expected(self) -> list[Grant]:
        grants = []
        for request in sorted(self.requests):
            if found := next((one for one in self.offers if one.key == request[3]), None):
                self.offers.remove(found)
                self.requests.remove(request)
                grants.append(Grant(request[2], found))
        return grants

    @rule()
    def connect(self) -> None:
        self.counter += 1
        self.peers.append(self.counter)
        self.scheduler.connect(self.counter, "10.0.0.1", self.now)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def put(self, data: st.DataObject, key: str) -> None:
        self.counter += 1
        made = offer(data.draw(st.sampled_from(self.peers)), str(self.counter), key)
        self.offers.append(made)
        assert self.scheduler.offer(made.peer, made, self.now) == self.expected()

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), key=st.sampled_from(KEYS), priority=st.sampled_from([-1.0, 0.0, 1.0]))
    def ask(self, data: st.DataObject, key: str, priority: float) -> None:
        peer = data.draw(st.sampled_from(self.peers))
        waiting, grants = self.scheduler.request(peer, key, priority, self.now)
        self.requests.append((-priority, waiting.number, peer, key))
        assert grants == self.expected()

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(self.peers))
        self.peers.remove(peer)
        self.offers = [one for one in self.offers if one.peer != peer]
        self.requests = [one for one in self.requests if one[2] != peer]
        self.scheduler.disconnect(peer)

    @invariant()
    def agrees(self) -> None:
        queues = self.scheduler.summary(self.now).queues
        for key in KEYS:
            count = KeyQueue(
                sum(one.key == key for one in self.offers),
                sum(one[3] == key for one in self.requests),
            )
            assert queues.get(key, KeyQueue(0, 0)) == count
        for peer in self.peers:
            assert self.scheduler.open_match_keys(peer) == [
                one.match_key for one in self.offers if one.peer == peer
            ]


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_offer_that_is_withdrawn_or_given_is_held_nowhere() -> None:
    scheduler = connected(1, 2)
    scheduler.register(1, ServerInfo("server:pi4", "10.0.0.1", 9090))
    for number in range(300):
        scheduler.offer(1, offer(1, f"pi4:{number}"), 0.0)
        _, grants = scheduler.request(2, "pi4", 1.0, 0.0)
        assert [grant.offer.match_key for grant in grants] == [f"pi4:{number}"]
    assert scheduler.open_match_keys(1) == []
    assert scheduler.summary(0.0).queues["pi4"] == KeyQueue(0, 0)


def test_a_board_that_is_silent_is_passed_over_and_lent_once_it_speaks() -> None:
    scheduler = connected(1, 2, 3)
    for board in (1, 2):
        scheduler.register(board, ServerInfo("server:pi4", "10.0.0.1", 9000 + board))
        scheduler.offer(board, offer(board, f"pi4:{board}"), 0.0)
    assert scheduler.heard(2, 9.0, True) == []
    _, grants = scheduler.request(3, "pi4", 1.0, 12.0)
    assert [grant.offer.peer for grant in grants] == [2]
    _, grants = scheduler.request(3, "pi4", 1.0, 12.0)
    assert grants == [] and scheduler.summary(12.0).queues["pi4"] == KeyQueue(0, 1)
    assert scheduler.heard(1, 13.0, True) == [Grant(3, offer(1, "pi4:1"))]


def test_an_offerer_that_asks_for_its_offers_is_a_board_of_all_its_keys() -> None:
    """TVM's proxy registers no server of its own."""
    scheduler = connected(1, 2)
    for ping in (True, False):
        scheduler.heard(1, 0.0, ping)
    for key in KEYS:
        scheduler.offer(1, offer(1, f"{key}:1", key), 0.0)
    for key in KEYS:
        assert scheduler.request(2, key, 1.0, 12.0)[1] == []
    given = [Grant(2, offer(1, f"{key}:1", key)) for key in KEYS]
    assert scheduler.heard(1, 13.0, False) == given


def test_a_server_that_connects_anew_replaces_its_own_older_connection_only() -> None:
    scheduler = connected(1, 2, 3)
    scheduler.connect(4, "10.0.0.66", 0.0)
    server = ServerInfo("server:pi4", "10.0.0.1", 9090)
    assert scheduler.register(1, server) is None
    assert scheduler.register(2, ServerInfo("server:pi4", "10.0.0.1", 9091)) is None
    assert scheduler.register(4, server) is None, "a stranger that tells the address of another"
    assert scheduler.register(3, server) == 1


def test_behind_tunnels_only_a_silent_server_is_replaced() -> None:
    """All tunnels end at loopback, and a board behind one may say that it is another."""
    scheduler = TrackerScheduler()
    for peer, now in ((1, 0.0), (2, 14.0), (3, 30.0)):
        scheduler.connect(peer, "127.0.0.1", now)
    server = ServerInfo("server:pi4", "127.0.0.1", 20007)
    assert scheduler.register(1, server) is None
    assert scheduler.register(2, server) is None, "the first was heard lately"
    scheduler.disconnect(2)
    assert scheduler.register(3, server) == 1, "the second was never registered in its place"


def test_a_request_is_refused_only_if_no_board_has_had_its_key() -> None:
    scheduler = connected(1, 2)
    early, _ = scheduler.request(2, "pi5", 1.0, 0.0)
    scheduler.offer(1, offer(1, "pi4:1"), 0.0)
    refusal = scheduler.refuse_unknown(early)
    assert (
        refusal and refusal.why == "no board has the key 'pi5'; there are: pi4 (did you mean pi4?)"
    )
    assert scheduler.refuse_unknown(early) is None
    scheduler.disconnect(1)
    later, _ = scheduler.request(2, "pi4", 1.0, 0.0)
    assert scheduler.refuse_unknown(later) is None, "its board may be rebooting"


def test_whoever_asks_for_an_unknown_key_is_shown_some_of_the_others_clean() -> None:
    scheduler = connected(1, 2)
    for number in range(23):
        scheduler.offer(1, offer(1, f"{number}", f"pi\x1b[7m{number:02}"), 0.0)
    refusal = scheduler.refuse_unknown(scheduler.request(2, "pi\x1b[7m0x", 1.0, 0.0)[0])
    assert refusal and refusal.why.isprintable()
    assert "there are: pi00, pi01, " in refusal.why
    assert "pi19 and 3 more (did you mean pi0" in refusal.why and "pi20" not in refusal.why


def test_what_one_connection_may_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_OFFERS", 3)
    monkeypatch.setattr(scheduling, "MOST_REQUESTS", 3)
    scheduler = connected(1, 2)
    for number in range(3):
        scheduler.offer(1, offer(1, str(number)), 0.0)
        scheduler.request(2, "pi5", 1.0, 0.0)
    with pytest.raises(TooManyError):
        scheduler.offer(1, offer(1, "more"), 0.0)
    with pytest.raises(TooManyError):
        scheduler.request(2, "pi5", 1.0, 0.0)
    scheduler.offer(1, offer(1, "2"), 0.0)  # again, which is no more


def test_keys_without_boards_are_forgotten_after_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_REMEMBERED", 5)
    scheduler = connected(9)
    for number in range(20):
        scheduler.connect(number + 100, "10.0.0.1", 0.0)
        scheduler.offer(number + 100, offer(number + 100, "x", f"key{number}"), 0.0)
        scheduler.disconnect(number + 100)
        waiting, _ = scheduler.request(9, f"unknown{number}", 1.0, 0.0)
        scheduler.refuse_unknown(waiting)
    assert list(scheduler.summary(0.0).queues) == [f"key{number}" for number in range(15, 20)]


def test_a_key_that_nobody_has_is_forgotten_with_whoever_asked_for_it() -> None:
    scheduler = connected(1, 2)
    scheduler.request(1, "pi5", 1.0, 0.0)
    scheduler.request(2, "pi5", 1.0, 0.0)
    scheduler.disconnect(1)
    assert scheduler.summary(0.0).queues == {"pi5": KeyQueue(0, 1)}
    scheduler.disconnect(2)
    assert scheduler.summary(0.0).queues == {}
