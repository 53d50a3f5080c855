"""farm's tracker beside TVM's: the same conversation, the same bytes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timeouts import wait_until
from tracker_processes import INFO, PENDING, PING, PUT, REQUEST, STOP, SUMMARY, Wire, tracker

PEERS = 4
KEYS = ("pi4", "jetson", "odd key")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "register",
                "put",
                "put",
                "request",
                "request",
                "pending",
                "ping",
                "summary",
                "stop",
                "leave",
            ]
        ),
        st.integers(0, PEERS - 1),
        st.sampled_from(KEYS),
        st.integers(-1, 2),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, int]]:
    """TVM's tracker and ours, the second with leases beside."""
    folder = tmp_path_factory.mktemp("trackers")
    with (
        tracker(folder, reference=True) as theirs,
        tracker(folder, "--unknown-key-s", "100000") as ours,
        tempfile.TemporaryDirectory(
            prefix="farm-lab-", dir="/tmp"
        ) as short,  # for the path of its socket
        tracker(Path(short), "--unknown-key-s", "100000", words=("lab", "serve")) as lab,
    ):
        yield theirs.port, ours.port, lab.port


class Talk:
    """A conversation of some peers with one tracker; `heard` is all that the tracker says, in its
    order.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard: list[tuple[int, Any]] = []
        self.peers: list[Wire | None] = [None] * PEERS
        self.waiting = [0] * PEERS
        self.registered: set[int] = set()
        self.control = Wire(port)
        self.offers = 0

    def step(self, action: str, number: int, key: str, priority: int) -> None:
        peer = self.peers[number] = self.peers[number] or Wire(self.port)
        direct = 1
        if action == "leave":
            direct = 0
            if not self.waiting[
                number
            ]:  # what TVM's does with a client that left while it waited is a fault of its own
                peer.close()
                self.peers[number] = None
                self.registered.discard(number)
        elif action == "request":
            direct = 0
            self.waiting[number] += 1
            peer.send([REQUEST, key, "", priority])
        elif action == "put":
            if (
                number not in self.registered
            ):  # TVM's forgets no offer of a server that has not registered
                self.step("register", number, key, priority)
            self.offers += 1
            peer.send(
                [
                    PUT,
                    key,
                    [9000 + number, f"{key}:{self.offers}"],
                    None if priority else "10.0.0.1",
                ]
            )
        elif action == "register":
            self.registered.add(number)
            peer.send([INFO, {"key": f"server:{key}", "addr": [None, 9000 + number]}])
        else:
            codes = {"pending": PENDING, "ping": PING, "summary": SUMMARY, "stop": STOP}
            peer.send([codes[action], "wrong"] if action == "stop" else [codes[action]])
        self.settle(number, direct)

    def settle(self, asked: int, direct: int) -> None:
        """Let the tracker do all that it has been asked, and hear whoever was given a board."""
        for _ in range(3):
            assert self.control.ask([PING]) == 0
        for number, peer in enumerate(self.peers):
            if peer:
                peer.send([PING])
                self.hear(peer, number, direct * (number == asked))

    def hear(self, peer: Wire, number: int, direct: int) -> None:
        """Hear so many direct answers, then that of a ping, and before it any number of boards."""
        while True:
            match json.loads(answer := peer.answer()):
                case [0, [_, _, _]]:
                    self.waiting[number] -= 1
                case [0, {"queue_info": queues, "server_info": servers}]:
                    direct -= 1
                    used = {
                        key: queue for key, queue in queues.items() if any(queue.values())
                    }  # TVM's keeps each key for ever
                    answer = json.dumps([used, sorted(servers, key=json.dumps)], sort_keys=True)
                case list(keys):
                    direct -= 1
                    answer = json.dumps(sorted(keys))  # TVM's has a set
                case _ if direct == 0:
                    return
                case _:
                    direct -= 1
            self.heard.append((number, answer))

    def serve_all(self) -> None:
        """Give a board to each client that waits."""
        while any(self.waiting):
            for key in KEYS:
                self.step("put", 0, key, 1)

    def end(self) -> None:
        for peer in (*self.peers, self.control):
            if peer:
                peer.close()


@given(STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_conversation_goes_as_with_tvms_tracker(
    ports: tuple[int, int, int], steps: list[tuple[str, int, str, int]]
) -> None:
    heard = []
    for port in ports:
        talk = Talk(port)
        try:
            for step in steps:
                talk.step(*step)
            talk.serve_all()
        finally:
            talk.end()
        heard.append(talk.heard)
        wait_until(lambda port=port: Wire(port).summary()["server_info"] == [], "all are gone")
    assert heard[0] == heard[1] == heard[2]


def test_success_is_the_text_that_the_servers_in_cpp_read_as_a_number(
    ports: tuple[int, int, int],
) -> None:
    for port in ports:
        wire = Wire(port)
        wire.send([INFO, {"key": "server:cpp", "addr": [None, "9090"]}])  # a string there, in C++
        assert wire.answer() == "0"
        wire.send_raw(b'[3, "cpp", [9090, "cpp:0.5"], null]')
        assert wire.answer() == "0"
        wire.send([REQUEST, "cpp", "", 1])
        assert wire.answer() == '[0, ["127.0.0.1", 9090, "cpp:0.5"]]'
        wire.close()


def test_a_board_is_found_where_it_says_to_be(ports: tuple[int, int, int]) -> None:
    """But not in a lab, whose boards say only where they listen on their own machine."""
    for port in ports[:2]:
        wire = Wire(port)
        assert wire.ask([INFO, {"key": "server:far", "addr": ["192.0.2.7", 9090]}]) == 0
        (told,) = wire.ask([SUMMARY])[1]["server_info"]
        assert (told["key"], told["addr"]) == ("server:far", ["192.0.2.7", 9090])
        assert wire.ask([PUT, "far", [9091, "far:1"], "192.0.2.8"]) == 0
        assert wire.ask([REQUEST, "far", "", 1]) == [0, ["192.0.2.8", 9091, "far:1"]]
        wire.close()
