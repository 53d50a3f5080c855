"""Notices of a lab: what is told, once, by a webhook and by a command; and what is forgotten."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_process import Board, lab
from timeouts import wait_until

from farm.errors import ConfigError
from farm.lab.care.notices import FLAPPING_S, Notice, Notifier, notice_environment
from farm.lab.entities import (
    Caller,
    Event,
    InventoryBoard,
    Lease,
    LeaseRequest,
    LeaseState,
    NoticeChannels,
    ReservationRequest,
    SharingRules,
)
from farm.lab.lab_toml import read_settings
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import RestoredState, SchedulerChanges
from farm.lab.storage.lab_database import EndedSession, LabDatabase, LabDatabaseBatch

DAY_S = 86400.0
# A command that adds what it was told to a file.
TOLD = "import os, sys; open(sys.argv[1], 'a').write(os.environ['FARM_NOTICE'] + '\\n')"


class Told:
    """A notifier in time of its own, and the words that its command was told."""

    def __init__(self, folder: Path) -> None:
        self.file, self.now, self.said = folder / "told", 1000.0, list[str]()
        boards = [InventoryBoard("pi5-07", "pi5", "")]
        self.scheduler = LeaseScheduler(SharingRules(), boards)
        ways = NoticeChannels(command=(sys.executable, "-I", "-c", TOLD, str(self.file)))
        self.notifier = Notifier(self.scheduler, ways, boards, lambda: self.now, self.said.append)

    def happen(self, what: str, detail: str = "", board: str = "pi5-07") -> None:
        self.notifier.note([], [Event(1, self.now, what, "farm", None, board, detail)])

    def words(self, count: int) -> list[str]:
        def there() -> list[str]:
            self.notifier.tick()
            lines = self.file.read_text().splitlines() if self.file.exists() else []
            return lines if len(lines) >= count else []

        return list(wait_until(there, f"{count} notices"))


@pytest.fixture
def told(tmp_path: Path) -> Told:
    one = Told(tmp_path)
    one.scheduler.board_idle("pi5-07", "pi5", one.now)
    one.notifier.tick()
    return one


def test_a_board_that_is_bad_and_back_is_told_once_each_and_its_flapping_together(
    told: Told,
) -> None:
    told.happen("board-good")  # as every board at first
    told.happen("board-bad", "wrong: digits")
    assert told.words(1) == ["the board pi5-07 is bad: wrong: digits"]
    told.happen("board-probation")
    told.happen("board-bad", "silent")
    told.happen("board-good")
    told.now += FLAPPING_S
    assert told.words(2)[1:] == [
        "the board pi5-07 is back, in probation; then is bad: silent; then is good again "
        "(3 changes in 10m)"
    ]
    told.happen("board-needs-hands", "3 recoveries failed")
    assert told.words(3)[2] == "the board pi5-07 needs hands: 3 recoveries failed"


def test_a_kind_without_boards_a_lost_board_and_a_lease_that_ends_soon_are_told_once(
    told: Told,
) -> None:
    lease = told.scheduler.request(LeaseRequest("ann", "pi5", 3600.0), "key", told.now)
    told.now += 3100.0
    told.scheduler.board_silent("pi5-07", "nothing heard for 25 s", told.now)
    told.notifier.note([told.scheduler.lease(lease.number)], [])
    told.notifier.note([told.scheduler.lease(lease.number)], [])
    for _ in range(3):
        told.notifier.tick()
    assert sorted(told.words(3)) == [
        "lease 1 of ann (pi5-07) ends in 8m20s",
        "lease 1 of ann has lost pi5-07: nothing heard for 25 s",
        "no board of kind pi5 is left",
    ]


def test_the_end_of_a_lease_is_told_again_if_it_was_moved_and_that_of_a_short_one_is_not(
    told: Told,
) -> None:
    told.scheduler.board_idle("pi5-08", "pi5", told.now)
    lease = told.scheduler.request(LeaseRequest("ann", "pi5", 3600.0), "key", told.now)
    told.scheduler.request(LeaseRequest("bob", "pi5", 1200.0), "short", told.now + 2400.0)
    told.now += 2999.0
    told.notifier.tick()
    told.now += 1.0
    assert told.words(1) == ["lease 1 of ann (pi5-07) ends in 10m"]
    told.scheduler.extend(lease.number, Caller("ann"), 1200.0, told.now)
    told.notifier.tick()
    told.now += 1260.0
    assert told.words(2)[1:] == ["lease 1 of ann (pi5-07) ends in 9m"]


def reserving(told: Told, in_s: float, for_s: float = 600.0, count: int = 1) -> int:
    request = ReservationRequest("bob", "pi5", told.now + in_s, for_s, count=count)
    return told.scheduler.reserve(request, "key", told.now).number


def pass_on(told: Told) -> None:
    """Tell the notifier what has happened in the scheduler, as the lab does once it is kept."""
    effects = told.scheduler.take()
    told.notifier.note([*effects.leases.values()], effects.events)


def test_a_reservation_that_begins_soon_is_told_once_with_the_boards_it_lacks(told: Told) -> None:
    reserving(told, 3600.0)
    reserving(told, 1000.0)  # who reserves so late knows
    pass_on(told)
    told.now += 3010.0
    told.scheduler.bar("pi5-07", "a new fan", False, "", told.now)
    for _ in range(3):
        told.notifier.tick()
    assert [one for one in told.words(2) if "reservation" in one] == [
        "reservation 1 of bob (1 pi5) begins in 9m50s; "
        "1 of its 1 boards are missing as things stand"
    ]


def test_a_reservation_that_began_with_too_few_boards_or_has_lapsed_is_told(told: Told) -> None:
    told.scheduler.board_idle("pi5-08", "pi5", told.now)
    reserving(told, 60.0, 1200.0, count=2)
    pass_on(told)
    told.scheduler.board_gone("pi5-08", told.now)
    told.now += 61.0
    told.scheduler.tick(told.now)
    pass_on(told)
    assert told.words(1) == ["reservation 1 of bob (2 pi5) began with 1 of its 2 boards"]
    told.now += 601.0
    told.scheduler.tick(told.now)
    pass_on(told)
    assert told.words(2)[1:] == ["reservation 1 of bob (2 pi5) has lapsed: not picked up for 600 s"]
    reserving(told, 60.0)
    pass_on(told)
    told.scheduler.board_gone("pi5-07", told.now)
    for seconds in (61.0, 600.0):
        told.now += seconds
        told.scheduler.tick(told.now)
        pass_on(told)
    assert [one for one in told.words(4)[2:] if "reservation" in one] == [
        "reservation 2 of bob (1 pi5) has lapsed: 1 of pi5 wanted, 0 connected"
    ]


def test_a_reservation_that_an_administrator_cancels_is_told_and_its_owner_is_not_told_of_his(
    told: Told,
) -> None:
    mine, other = reserving(told, 3600.0), reserving(told, 7200.0)
    pass_on(told)
    told.scheduler.cancel_reservation(mine, Caller("bob"), told.now)
    told.scheduler.cancel_reservation(other, Caller("root", admin=True), told.now, "a new fan")
    pass_on(told)
    assert told.words(1) == [f"reservation {other} of bob (1 pi5) was cancelled by root: a new fan"]


def test_a_command_that_fails_is_tried_three_times_and_the_operator_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"open({str(tmp_path / 'tries')!r}, 'a').write('x'); raise SystemExit('no chat today')"
    ways = NoticeChannels(command=(sys.executable, "-I", "-c", script))
    notifier = Notifier(LeaseScheduler(SharingRules()), ways, (), time.time, said.append)
    notifier.down(90.0)

    def ended() -> bool:
        notifier.tick()
        return bool(said)

    wait_until(ended, "the operator is told")
    assert said == ["a notice was not told by the command: no chat today"]
    assert (tmp_path / "tries").read_text() == "xxx"


def test_what_a_command_leaves_running_ends_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process of its group ignores SIGTERM, one has a session of its own."""
    said: list[str] = []
    left, away = tmp_path / "left", tmp_path / "away"
    script = f"""
(trap '' TERM; echo $BASHPID > {left}.$$; exec sleep 1000) &
setsid sh -c 'echo $$ > {away}.'$$'; exec sleep 1000' &
until [ -s {left}.$$ ] && [ -s {away}.$$ ]; do sleep 0.01; done
echo no chat today; exit 3"""
    ways = NoticeChannels(command=("bash", "-c", script))
    notifier = Notifier(LeaseScheduler(SharingRules()), ways, (), time.time, said.append)
    notifier.down(90.0)
    waits: list[float | None] = []
    join = threading.Thread.join

    def noted_join(thread: threading.Thread, timeout: float | None = None) -> None:
        waits.append(timeout)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted_join)

    def ended() -> bool:
        notifier.tick()
        return bool(said)

    try:
        wait_until(ended, "the operator is told")
        assert said == ["a notice was not told by the command: no chat today"]
        assert waits == [0], "in seconds"
        assert len(pids(left)) == len(pids(away)) == 3
        wait_until(lambda: not any(map(is_running, pids(left))), "all of its group have ended")
    finally:
        for pid in (*pids(left), *pids(away)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids(begin: Path) -> list[int]:
    return [int(one.read_text()) for one in begin.parent.glob(f"{begin.name}.*")]


def is_running(pid: int) -> bool:
    """Whether a process has not ended; where nobody reaps, one that has stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_of_what_a_command_writes_the_end_is_kept_and_nothing_on_disk() -> None:
    said = []
    inventory = """
[lab]
notify = { command = "sh -c 'yes | head -c 50000000; echo; du -sm $FARM_DATA; exit 3'" }
[lab.boards.pi5-07]
kind = "pi5"
address = "127.0.0.1:9090"
power = { cycle = "sh -c 'yes | head -c 50000000; echo; du -sm $FARM_DATA; exit 3'" }
"""
    with lab(inventory=inventory) as one, one.client() as client:
        board = Board(one.port)
        wait_until(lambda: client.ask("boards")["boards"][0]["use"] == "free", "it is there")
        client.ask("power", board="pi5-07")

        def told() -> bool:
            said[:] = re.findall(r"was not told by the command: (\d+)", one.said)
            return bool(said)

        wait_until(told, "the operator is told that the notice was not")
        [event] = [
            event
            for event in client.ask("events", since=0)["events"]
            if "the power hook failed" in event["detail"]
        ]
        sizes = [*said, *re.findall(r"the power hook failed: (\d+)", event["detail"])]
        assert len(sizes) == 2 and all(int(megabytes) < 40 for megabytes in sizes)
        assert board


def test_boards_that_anybody_may_offer_are_told_ten_times_an_hour(tmp_path: Path) -> None:
    told = Told(tmp_path)
    for number in range(50):
        told.happen("board-bad", board=f"stranger-{number}")
    told.happen("board-bad", "wrong: digits")
    assert told.words(11)[-1] == "the board pi5-07 is bad: wrong: digits"
    told.now += 3601.0
    told.happen("board-bad", board="stranger-50")
    assert told.words(12)[-1] == "the board stranger-50 is bad"


def test_within_the_hour_nobody_is_told_more_of_boards_that_anybody_may_offer(
    tmp_path: Path,
) -> None:
    told = Told(tmp_path)
    for number in range(10):
        told.happen("board-bad", board=f"stranger-{number}")
    told.now += 3500.0
    told.happen("board-bad", board="stranger-10")
    told.happen("board-bad", "wrong: digits")
    assert told.words(11)[-1] == "the board pi5-07 is bad: wrong: digits"


def test_the_end_of_a_kind_is_told_if_it_is_of_the_lab_or_had_a_lease(tmp_path: Path) -> None:
    told = Told(tmp_path)
    for board, kind in (("mine", "pi5"), ("stranger", "<!channel>"), ("lent", "pi4")):
        told.scheduler.board_came(board, kind, 0.0)
        told.scheduler.board_idle(board, kind, 0.0)
    lease = told.scheduler.request(LeaseRequest("alice", "pi4", 60.0), "key", told.now)
    told.notifier.note([lease], [])
    told.notifier.tick()
    for board in ("mine", "stranger", "lent"):
        told.scheduler.board_gone(board, 1.0)
    assert sorted(told.words(2)) == ["no board of kind pi4 is left", "no board of kind pi5 is left"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no board of kind <!channel> is left", "no board of kind &lt;!channel&gt; is left"),
        ("@here: [log in](https://evil.example)", "@ here: [log in] (https: //evil.example)"),
        ("pi5@10.0.0.7:9090 is bad & hot", "pi5@10.0.0.7:9090 is bad &amp; hot"),
    ],
)
def test_words_of_strangers_mention_nobody_in_a_chat(said: str, shown: str) -> None:
    assert (
        json.loads(notice_environment(Notice("board", said))["FARM_NOTICE_JSON"])["text"] == shown
    )


def command_lines_with(text: str) -> list[str]:
    """The command lines of this machine that have a text in them: every user can read them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return [one for one in found if text in one]


@pytest.fixture
def chat() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A chat's webhook, and what it was sent."""
    sent: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.append({**json.loads(body), "seen by all": command_lines_with("/hook")})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", sent
        server.shutdown()


def test_a_webhook_is_told_as_the_last_board_of_a_kind_goes(
    chat: tuple[str, list[dict[str, object]]],
) -> None:
    url, sent = chat
    table = '[lab.boards.pi5-07]\nkind = "pi5"\naddress = "127.0.0.1:9090"\n'
    with lab(inventory=f'[lab]\nnotify = {{ webhook = "{url}" }}\n{table}') as one:
        Board(one.port)
        with one.client() as client:
            wait_until(lambda: client.ask("boards")["boards"][0]["use"] == "free", "it is there")
        time.sleep(2.5)  # it is seen at the next tick
        Board._connected.pop().close()
        wait_until(lambda: sent, "the webhook is told")
    assert sent[0] == {
        "text": "no board of kind pi5 is left",
        "kind": "kind-empty",
        "owner": "",
        "board": "",
        "lease": None,
        "seen by all": [],
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('notify = "https://chat.example"', "webhook = "),
        ('notify = { webhook = "file:///etc/passwd" }', "a url that begins with https"),
        ('notify = { mail = "a@b" }', "webhook = "),
        ('keep = "1h"', "a day or more"),
    ],
)
def test_a_broken_setting_is_named_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(f"[lab]\n{line}\n")
    with pytest.raises(ConfigError) as failed:
        read_settings(tmp_path / "lab.toml")
    assert "lab.toml:2:" in failed.value.why and words in failed.value.why


def test_what_is_old_is_removed_and_numbers_are_not_used_again(tmp_path: Path) -> None:
    journal = LabDatabase(tmp_path / "lab.sqlite")
    journal.open()
    request = LeaseRequest("ann", "pi5", 60.0)

    def lease(number: int, at: float, ended_at: float | None) -> Lease:
        state = LeaseState.RELEASED if ended_at else LeaseState.ACTIVE
        return Lease(
            number, request, f"k{number}", at, state, at, at + 60, ended_at, boards=(f"b{number}",)
        )

    effects = SchedulerChanges(
        {n: lease(n, n * DAY_S, n * DAY_S + 60.0 if n != 2 else None) for n in range(1, 8)},
        events=[Event(n, n * DAY_S, "board-came", board="b") for n in range(1, 8)],
    )
    batch = LabDatabaseBatch()
    batch.add(effects)
    batch.sessions += [
        EndedSession("b", "pi5", "ann", n * DAY_S, n * DAY_S + 1) for n in range(1, 8)
    ]
    journal.write(batch)
    removed = 0
    while count := journal.prune(5.5 * DAY_S):
        removed += count
    assert removed == 4 + 5 + 5, "five of each, but for the lease that goes on"
    past: RestoredState = LabDatabase(tmp_path / "lab.sqlite").open()
    assert [one.number for one in past.leases] == [2]
    assert [one.number for one in past.ended] == [6, 7]
    assert (past.next_lease, past.next_event) == (8, 8)
    journal = LabDatabase(tmp_path / "lab.sqlite")
    journal.open()
    assert [one.number for one in journal.events(0, 100)] == [6, 7]
    assert journal.oldest_event() == 6
    assert {one.lease for one in journal.stretches(0.0, 100)} >= {2, 6, 7}
    while journal.prune(1e9):
        pass
    assert [one.number for one in journal.events(0, 100)] == [7]
    assert journal.open().next_event == 8
