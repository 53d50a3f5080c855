"""A lab under load whose server is killed again and again, with the boards as witnesses of who has
them.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab_process import Lab
from tracker_processes import PENDING, REQUEST, Wire

from farm.errors import FarmError, LinkError
from farm.lab_client.control_client import LabClient, connect

KIND = "pi5"
_SERVING_S = 60.0
_BROKEN = (OSError, ConnectionError, json.JSONDecodeError)


@dataclass
class Found:
    """What the boards and the people saw. All but the first four are to be 0."""

    kills: int = 0
    leases: int = 0  # that were acknowledged
    sessions: int = 0
    slowest_start_s: float = 0.0
    lent_twice: int = 0
    lost: int = 0  # acknowledged and not known after a restart, or known otherwise
    came_back: int = 0  # acknowledged as ended, and in force again
    events_lost: int = 0
    crashed: list[str] = field(default_factory=list)  # clients and servers that failed otherwise

    @property
    def wrong(self) -> int:
        return self.lent_twice + self.lost + self.came_back + self.events_lost + len(self.crashed)


class Witness:
    """Who has which board, by the word of those who were told so."""

    def __init__(self) -> None:
        self.found = Found()
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.held: dict[str, int] = {}  # board to lease
        self.ended: set[int] = set()
        self.granted: set[int] = set()

    def hold(self, lease: dict[str, Any]) -> None:
        with self.lock:
            self.found.leases += 1
            self.granted.add(lease["lease"])
            for board in lease["boards"]:
                self.found.lent_twice += board in self.held
                self.held[board] = lease["lease"]

    def let_go(self, lease: dict[str, Any]) -> None:
        with self.lock:
            for board in lease["boards"]:
                self.held.pop(board, None)


class SimulatedBoard(threading.Thread):
    """A board that offers itself only while it has no session, as TVM's servers do."""

    def __init__(self, lab: Lab, witness: Witness, at: int) -> None:
        super().__init__(daemon=True)
        self.lab, self.witness, self.at = lab, witness, at
        self.board = f"{KIND}@127.0.0.1:{at}"
        self.match_key = ""
        self.idle = threading.Event()
        self.idle.set()

    def run(self) -> None:
        while not self.witness.stop.is_set():
            wire = None
            with contextlib.suppress(*_BROKEN):
                wire = Wire(self.lab.port)
                wire.register(KIND, self.at)
                while not self.witness.stop.is_set():
                    self._offer(wire)
            if wire:
                wire.close()
            time.sleep(0.02)

    def _offer(self, wire: Wire) -> None:
        self.idle.wait()
        mine = f"{KIND}:{secrets.token_hex(4)}"
        with self.witness.lock:
            self.match_key = mine
        wire.put(KIND, mine, self.at)
        missed = 0
        while self.match_key == mine and not self.witness.stop.is_set():
            time.sleep(0.05)
            missed = missed + 1 if mine not in wire.ask([PENDING]) else 0
            if missed > 20:  # its client never came
                return

    def session(self, match_key: str, lease: int | None) -> bool:
        """Have a session; return whether the match key still opened one."""
        with self.witness.lock:
            if match_key != self.match_key:
                return False
            holder = self.witness.held.get(self.board)
            self.witness.found.lent_twice += (
                holder is not None and holder != lease
            ) or not self.idle.is_set()
            self.witness.found.sessions += 1
            self.idle.clear()
            self.match_key = ""
        time.sleep(random.random() * 0.02)
        self.idle.set()
        return True


class Person(threading.Thread):
    """Leases boards, uses them, and gives them back; knows what was acknowledged."""

    def __init__(
        self, lab: Lab, witness: Witness, boards: dict[int, SimulatedBoard], seed: int
    ) -> None:
        super().__init__(daemon=True)
        self.lab, self.witness, self.boards, self.draw = lab, witness, boards, random.Random(seed)

    def run(self) -> None:
        try:
            while not self.witness.stop.is_set():
                self._one_lease()
        except Exception as exc:
            self.witness.found.crashed.append(repr(exc))

    def _ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Ask, again and again while the server is away."""
        while True:
            try:
                with connect(self.lab.client, _SERVING_S) as client:
                    return client.ask(do, **fields)
            except LinkError:
                if self.witness.stop.is_set():
                    raise

    def _one_lease(self) -> None:
        nonce, count = secrets.token_hex(8), self.draw.choice((1, 1, 1, 2))
        lease = self._ask("request", kind=KIND, for_s=3600.0, count=count, nonce=nonce)["lease"]
        number = lease["lease"]
        while lease["state"] == "queued":
            lease = self._ask("wait", lease=number, timeout_s=1.0)["lease"]
            if self.witness.stop.is_set():
                return
        if lease["state"] != "active":
            self.witness.found.lost += 1
            return
        self.witness.hold(lease)
        for _ in range(self.draw.randrange(3)):
            self._session(lease)
            again = self._ask("lease", lease=number)["lease"]
            self.witness.found.lost += (
                again["state"] != "active" or again["boards"] != lease["boards"]
            )
        self.witness.let_go(lease)
        with contextlib.suppress(FarmError):  # asked twice, if the answer to the first was lost
            self._ask("end", lease=number)
        if self._ask("lease", lease=number)["lease"]["state"] != "released":
            self.witness.found.lost += 1
        with self.witness.lock:
            self.witness.ended.add(number)

    def _session(self, lease: dict[str, Any]) -> None:
        offer = requested(self.lab.port, lease["key"], self.witness)
        if offer:
            self.boards[offer[1]].session(offer[2], lease["lease"])


class Stranger(threading.Thread):
    """A client of TVM's, which knows of no leases."""

    def __init__(self, lab: Lab, witness: Witness, boards: dict[int, SimulatedBoard]) -> None:
        super().__init__(daemon=True)
        self.lab, self.witness, self.boards = lab, witness, boards

    def run(self) -> None:
        while not self.witness.stop.is_set():
            if offer := requested(self.lab.port, KIND, self.witness):
                self.boards[offer[1]].session(offer[2], None)
            time.sleep(0.01)


def requested(port: int, key: str, witness: Witness) -> list[Any] | None:
    """The tracker's answer to a request, or None if it was killed meanwhile."""
    with contextlib.suppress(*_BROKEN):
        wire = Wire(port)
        try:
            wire.send([REQUEST, key, "", 1])
            while not wire.has_answer(0.2):
                if witness.stop.is_set():
                    return None
            code, value = json.loads(wire.answer())
            if code == 0:
                return list(value)
            if key != KIND:
                witness.found.crashed.append(str(value))
        finally:
            wire.close()
    return None


def hammer(
    lab: Lab,
    kills: int,
    meanwhile: Callable[[int], None] = lambda _: None,
    people: int = 6,
    boards: int = 8,
) -> Found:
    """Kill the server `kills` times at random moments under load, and start it again; say what was
    seen.
    """
    witness = Witness()
    simulated = {
        9000 + number: SimulatedBoard(lab, witness, 9000 + number) for number in range(boards)
    }
    threads: list[threading.Thread] = [*simulated.values()]
    threads += [Person(lab, witness, simulated, number) for number in range(people)]
    threads += [Stranger(lab, witness, simulated) for _ in range(3)]
    for thread in threads[:boards]:
        thread.start()
    while len(_ask_once(lab, "boards")["boards"]) < boards:
        time.sleep(0.02)
    for thread in threads[boards:]:
        thread.start()
    for number in range(kills):
        time.sleep(0.2 + random.random() * 1.3)
        lab.kill()
        witness.found.kills += 1
        meanwhile(number)
        begin = time.monotonic()
        lab.start()
        _ask_once(lab, "leases")
        witness.found.slowest_start_s = max(witness.found.slowest_start_s, time.monotonic() - begin)
    time.sleep(1.0)
    witness.stop.set()
    for thread in threads:
        thread.join(60.0)
        if thread.is_alive():
            witness.found.crashed.append(f"{type(thread).__name__} hangs")
    return _accounted(lab, witness)


def _ask_once(lab: Lab, do: str, **fields: Any) -> dict[str, Any]:
    with connect(lab.client, _SERVING_S) as client:
        return client.ask(do, **fields)


def _accounted(lab: Lab, witness: Witness) -> Found:
    """Compare what was acknowledged with what the server knows in the end, and with its events."""
    found = witness.found
    with connect(lab.client, _SERVING_S) as client:
        live = {one["lease"] for one in client.ask("leases")["leases"] if not one["implicit"]}
        events = _events(client)
    found.came_back += len(live & witness.ended)
    numbers = [event["number"] for event in events]
    found.events_lost += numbers != list(range(1, len(numbers) + 1))
    of = Counter((event["what"], event["lease"]) for event in events)
    found.events_lost += sum(
        of["lease-granted", number] != 1 or of["lease-queued", number] != 1
        for number in witness.granted
    )
    found.events_lost += sum(of["lease-released", number] != 1 for number in witness.ended)
    if "Traceback" in lab.said:
        found.crashed.append(lab.said)
    return found


def _events(client: LabClient) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while page := client.ask("events", since=events[-1]["number"] if events else 0)["events"]:
        events += page
    return events
