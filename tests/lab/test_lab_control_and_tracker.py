"""The lab's server as its people and TVM's clients meet it: over its two sockets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked_commands
import jsonschema
import pytest
from lab_process import Board, Lab, lab
from timeouts import LIMIT_S, wait_until
from tracker_processes import MAGIC, PING, REQUEST, Wire

from farm.errors import DeviceError, LinkError, UsageError
from farm.lab.relay.sessions import LeaseSessionSource, ProxiedBoards
from farm.lab.relay.tracker import RelayTracker
from farm.lab_client.control_client import ANSWER_S, LabClient
from farm.transports.lab import transport
from farm.transports.lab.reach_lab import LocalLab
from farm.types import Device, Profile
from farm.views.schema import schema

SHORT = '[lab]\ntracker_class = "batch"\n[lab.classes.interactive]\nlongest = "1h"\nboards = 2\n'
_LEFT_S = 100.0  # what is left behind stays longer


@pytest.fixture
def served() -> Iterator[Lab]:
    with lab(inventory=SHORT) as one:
        yield one


def use(client: LabClient, board: str) -> str:
    return str(next(one["use"] for one in client.ask("boards")["boards"] if one["name"] == board))


def asking(client: LabClient, **more: object) -> dict[str, object]:
    return dict(client.ask("request", **{"kind": "pi5", "for_s": 600.0, **more})["lease"])


def test_a_lease_keeps_its_board_from_others_and_gives_it_to_who_has_its_key(served: Lab) -> None:
    board, stranger, ours = Board(served.port), Wire(served.port), Wire(served.port)
    with served.client() as client:
        lease = asking(client)
        assert (lease["state"], lease["boards"]) == ("active", [board.name])
        stranger.send([REQUEST, "pi5", "", 1])
        assert ours.ask([REQUEST, lease["key"], "", 1]) == [0, ["127.0.0.1", 9090, board.match_key]]
        assert use(client, board.name) == "in session" and not stranger.has_answer(0.3)
        board.offer()
        assert use(client, board.name) == "leased" and not stranger.has_answer(0.3)
        client.ask("end", lease=lease["lease"])
        assert json.loads(stranger.answer()) == [0, ["127.0.0.1", 9090, board.match_key]]
        [implicit] = client.ask("leases")["leases"]
        assert (implicit["owner"], implicit["implicit"], implicit["boards"]) == (
            "address:127.0.0.1",
            True,
            [board.name],
        )
        board.offer()
        assert client.ask("leases")["leases"] == []


def test_a_request_with_the_key_of_an_ended_lease_is_refused_with_the_reason(served: Lab) -> None:
    Board(served.port)
    ours, waiting = Wire(served.port), Wire(served.port)
    with served.client() as client:
        lease = asking(client)
        assert ours.ask([REQUEST, lease["key"], "", 1])[0] == 0
        waiting.send(
            [REQUEST, lease["key"], "", 1]
        )  # for another session of the one board, which is in use
        client.ask("end", lease=lease["lease"])
        assert json.loads(waiting.answer()) == [-1, f"lease {lease['lease']} was released"]
        assert ours.ask([REQUEST, lease["key"], "", 1]) == [
            -1,
            f"lease {lease['lease']} was released",
        ]


def test_a_stranger_does_not_replace_a_board_that_is_in_a_session(served: Lab) -> None:
    board, client, stranger = (
        Board(served.port),
        Wire(served.port),
        Wire(served.port, origin="127.0.0.2"),
    )
    assert client.ask([REQUEST, "pi5", "", 1])[1][2] == board.match_key
    stranger.register("pi5", 9090)
    stranger.put("pi5", "pi5:evil", 9090, host="127.0.0.1")
    with served.client() as people:
        assert [one["boards"] for one in people.ask("leases")["leases"]] == [[board.name]]
        assert use(people, board.name) == "in session" and use(people, f"{board.name}#2") == "free"
        stranger.close()
        wait_until(lambda: len(people.ask("boards")["boards"]) == 1, "the stranger is gone")


def test_an_offer_of_another_kind_under_the_same_match_key_is_another_board(served: Lab) -> None:
    board, client = Board(served.port), Wire(served.port)
    board.wire.put("pi4", board.match_key, 9090)
    with served.client() as people:
        assert [one["name"] for one in people.ask("boards")["boards"]] == ["pi4@127.0.0.1:9090"]
    assert client.ask([REQUEST, "pi4", "", 1]) == [0, ["127.0.0.1", 9090, board.match_key]]


def test_what_cannot_be_is_refused_in_three_lines(served: Lab) -> None:
    board = Board(served.port)
    with served.client() as client:
        for more, words in [
            ({"kind": "pi6"}, r"no board is of kind 'pi6'\nwhy: did you mean 'pi5'\?"),
            ({"for_s": 7200.0}, "2h is too long"),
            ({"count": 3}, "3 boards are too many"),
            ({"board": "pi5@nowhere"}, "there is no board 'pi5@nowhere'"),
            ({"class": "vip"}, "there is no class 'vip'"),
            ({"for_s": "1h"}, "the field 'for_s' of the request is wrong"),
            ({"labels": {"a": 1}}, "the field 'labels' of the request is wrong"),
        ]:
            with pytest.raises(UsageError, match=words) as caught:
                asking(client, **more)  # type: ignore[arg-type]
            assert all(caught.value.parts())
        lease = asking(client)
        client.ask("end", lease=lease["lease"])
        with pytest.raises(DeviceError, match="has ended\nwhy: released"):
            client.ask("heartbeat", lease=lease["lease"])
        with pytest.raises(UsageError, match="there is no lease 99"):
            client.ask("end", lease=99)
        assert use(client, board.name) == "free"


@pytest.mark.parametrize(
    "line", [b"x\n", b"[]\n", b"{}\n", b'{"do": "rm"}\n', b"[" * 60000 + b"\n", b"\xff\n"]
)
def test_a_line_that_is_no_request_is_answered_and_hurts_nobody(line: bytes, served: Lab) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(LIMIT_S)
        raw.connect(str(served.socket))
        raw.sendall(line)
        assert "error" in json.loads(raw.makefile().readline())
    with served.client() as client:
        assert client.ask("boards") == {"boards": []}


def test_half_a_line_and_one_without_an_end_cost_the_others_nothing(served: Lab) -> None:
    half, endless = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    for one in (half, endless):
        one.connect(str(served.socket))
    half.sendall(b'{"do": "bo')
    endless.settimeout(LIMIT_S)
    with pytest.raises(OSError):
        while True:
            endless.sendall(b"x" * 65536)
    with served.client() as client:
        assert client.ask("boards") == {"boards": []}
    half.close(), endless.close()


SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")  # which other users can run, too
END_LEASE = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(b'{"do": "end", "lease": 1}\\n')
print(connection.makefile().readline())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not SYSTEM_PYTHON,
    reason="needs root and a Python of the system, to be another user",
)
@pytest.mark.parametrize(
    ("people", "words"), [("owner", "Permission denied"), ("everyone", "lease 1 is not yours")]
)
def test_another_user_reaches_the_socket_only_if_told_and_ends_only_what_is_theirs(
    people: str, words: str
) -> None:
    with lab(inventory=f'[lab]\npeople = "{people}"\n') as one, one.client() as client:
        Board(one.port)
        asking(client)
        for folder in (one.folder, one.folder / "lab"):
            folder.chmod(0o755)
        command = [str(SYSTEM_PYTHON), "-c", END_LEASE, str(one.socket)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            user="nobody",
            group="nogroup",
            extra_groups=[],
            cwd="/",
        )
        assert words in done.stdout + done.stderr
        assert client.ask("lease", lease=1)["lease"]["state"] == "active"


def test_the_socket_and_the_record_are_private(served: Lab) -> None:
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (served.folder / "lab").iterdir()
    }
    assert set(modes.values()) == {0o600} and {"lab.sock", "lab.sqlite"} <= set(modes)


def test_a_killed_server_goes_on_with_its_leases_its_queue_and_its_events(served: Lab) -> None:
    board = Board(served.port)
    with served.client() as client:
        held, first, second = asking(client), asking(client), asking(client)
        events = client.ask("events")["events"]
    served.kill()
    with pytest.raises(LinkError, match="there is no lab server"):
        served.client()
    served.start()
    again = Board(served.port)
    with served.client() as client:
        leases = client.ask("leases")["leases"]
        assert [(one["lease"], one["state"]) for one in leases] == [
            (held["lease"], "active"),
            (first["lease"], "queued"),
            (second["lease"], "queued"),
        ]
        assert [one["queue"]["place"] for one in leases[1:]] == [1, 2]
        assert client.ask("events")["events"][: len(events)] == events
        assert Wire(served.port).ask([REQUEST, held["key"], "", 1]) == [
            0,
            ["127.0.0.1", 9090, again.match_key],
        ]
        client.ask("end", lease=held["lease"])
        again.offer()
        assert client.ask("lease", lease=first["lease"])["lease"]["boards"] == [board.name]


def test_who_follows_the_events_resumes_without_a_gap(served: Lab) -> None:
    Board(served.port)
    seen: list[int] = []

    def follow(until: int) -> None:
        with served.client() as reader:
            for event in reader.follow(seen[-1] if seen else 0):
                seen.append(event["number"])
                if len(seen) >= until:
                    return

    with served.client() as client:
        for round_ in range(3):
            thread = threading.Thread(target=follow, args=(4 * (round_ + 1),))
            thread.start()
            for _ in range(5):
                client.ask("end", lease=asking(client)["lease"])
            thread.join(LIMIT_S)
    assert seen == list(range(1, 13))


def test_who_follows_the_events_of_a_quiet_lab_waits_for_the_next_without_a_limit() -> None:
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as pool, theirs:

        def serve() -> None:
            with theirs.makefile("rb") as requests:
                requests.readline()
                theirs.sendall(b'{"ok": {"protocol": 1}}\n')
                requests.readline()
                theirs.sendall(b'{"event": {"number": 8}}\n')

        served = pool.submit(serve)
        with LabClient(Path("lab.sock"), ours) as client:
            assert ours.gettimeout() == ANSWER_S
            assert next(client.follow(7)) == {"number": 8}
            assert ours.gettimeout() is None
        served.result()


def test_a_lease_ends_by_itself_without_heartbeats(served: Lab) -> None:
    Board(served.port)
    with served.client() as client:
        lease = asking(client, heartbeat_s=1.0)
        waiting = asking(client)
        assert waiting["state"] == "queued"
        found = wait_until(
            lambda: client.ask("wait", lease=waiting["lease"])["lease"]["boards"], "the board"
        )
        assert found == lease["boards"]
        assert client.ask("lease", lease=lease["lease"])["lease"]["state"] == "abandoned"


def test_sigterm_ends_the_server_cleanly(served: Lab) -> None:
    assert served.child
    with served.client() as client:
        Board(served.port)
        lease = asking(client)
        served.child.send_signal(signal.SIGTERM)
        assert served.child.wait(LIMIT_S) == 0
    assert not served.socket.exists() and "Traceback" not in served.said
    served.start()
    with served.client() as client:
        assert client.ask("lease", lease=lease["lease"])["lease"]["state"] == "active"


def test_a_second_server_of_the_same_folder_is_refused(served: Lab) -> None:
    done = served.farm("serve", "--port", "0")
    assert done.returncode == 2 and "a lab server runs already" in done.stderr
    assert served.client().ask("boards") == {"boards": []}


def test_run_gives_a_program_a_tracker_of_its_own_and_gives_the_board_back(served: Lab) -> None:
    first, second = Board(served.port, at=9090), Board(served.port, at=9091)
    program = (
        "import os, sys; sys.path[:0] = sys.argv[1:]; from tracker_processes import Wire; wire = "
        "Wire(int(os.environ['TVM_TRACKER_PORT']));"
        "print(os.environ['FARM_LAB_BOARDS'], wire.summary()['queue_info'], wire.ask([4, 'pi4', "
        "'', 1])); sys.exit(3)"
    )
    done = served.farm(
        "run", "pi5", "--board", second.name, "--", sys.executable, "-c", program, *sys.path
    )
    assert done.returncode == 3, done.stderr
    assert f"{second.name} {{'pi5': {{'free': 1, 'pending': 0}}}}" in done.stdout
    assert "[-1, \"the lease is for the kind 'pi5'\"]" in done.stdout
    with served.client() as client:
        assert client.ask("leases")["leases"] == [] and use(client, first.name) == "free"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_the_tracker_of_a_lease_hangs_up_on_another_user() -> None:
    """Whoever it answers has the boards of the lease, on which they can run anything."""
    leased = LeaseSessionSource(LocalLab(Path("/nowhere")), 1, "pi5", 1)
    with ProxiedBoards(leased, print) as boards, RelayTracker(boards) as relay:
        assert Wire(relay.port).ask([PING]) == 0
        os.seteuid(65534)
        try:
            stranger = Wire(relay.port, greet=False)
        finally:
            os.seteuid(0)
        stranger.socket.sendall(MAGIC)
        with pytest.raises(ConnectionError):
            stranger.exactly(1)


@pytest.mark.parametrize(
    "answer", [b"[" * 100_000, b'{"ok": 7}', b'{"ok": {"protocol": "1"}}', b"\xff", b"7"]
)
def test_what_answers_as_no_lab_server_does_is_one_error(answer: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lab.sock"
    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(str(path))
        server.listen()

        def answering() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer + b"\n")

        done = pool.submit(answering)
        with pytest.raises(DeviceError, match=r"not understood|speaks version"):
            LabClient(path)
        done.result()


@pytest.mark.parametrize(
    "boards",
    [
        None,
        [{"name": 1}],
        [{"name": "a", "kind": "pi5", "tags": [[]], "use": "free", "lease": None}],
        [{"name": "a", "kind": "pi5", "tags": [], "use": "free"}],
        ["a"],
    ],
)
def test_a_lab_that_lists_what_are_no_boards_is_offline_and_not_the_end_of_a_command(
    boards: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_LAB", str(tmp_path / "lab.sock"))
    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(str(tmp_path / "lab.sock"))
        server.listen()

        def answering() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as requests:
                for _ in requests:
                    answer = {"ok": {"protocol": 1, "boards": boards}}
                    connection.sendall(json.dumps(answer).encode() + b"\n")

        done = pool.submit(answering)
        there = transport.probe_state(Device("lent", Profile("x86", {}, ""), "lab:pi5"))
        assert not there.usable and "not understood" in there.why
        done.result()


@pytest.mark.parametrize(
    ("number", "state"),
    [(signal.SIGINT, "released"), (signal.SIGTERM, "released"), (signal.SIGKILL, "abandoned")],
)
def test_run_that_is_stopped_gives_its_board_back(
    number: signal.Signals, state: str, served: Lab
) -> None:
    Board(served.port)
    heartbeat = "2s" if number == signal.SIGKILL else "60s"
    runner = served.started("run", "pi5", "--heartbeat", heartbeat, "--", "sleep", "1000")
    with served.client() as client:
        wait_until(
            lambda: [one for one in client.ask("leases")["leases"] if one["state"] == "active"],
            "the lease",
        )
        time.sleep(0.5)  # the program has begun, or will: either way the board is to come back
        runner.send_signal(number)
        runner.wait(LIMIT_S)
        assert wait_until(lambda: client.ask("lease", lease=1)["lease"]["ended_at"], "the end")
        assert client.ask("lease", lease=1)["lease"]["state"] == state


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_that_is_stopped_in_the_queue_leaves_it(number: signal.Signals, served: Lab) -> None:
    """At once: its lease would have got the next board, for nobody."""
    Board(served.port)
    with served.client() as client:
        asking(client)
        runner = served.started("run", "pi5", "--", "true")
        wait_until(
            lambda: [one for one in client.ask("leases")["leases"] if one["state"] == "queued"],
            "the queue",
        )
        runner.send_signal(number)
        runner.wait(LIMIT_S)
        assert client.ask("lease", lease=2)["lease"]["state"] == "cancelled"


# farm, stopped as its request is answered, while it does not know the lease's number yet
STOPPED_AS_IT_ASKS = """
import signal
from farm.lab_client.control_client import LabClient
ask = LabClient.ask
def stopped(self, do, **fields):
    answer = ask(self, do, **fields)
    if do == "request":
        signal.raise_signal(signal.SIGINT)
    return answer
LabClient.ask = stopped
from farm.__main__ import main
main()
"""


def test_run_that_is_stopped_as_it_asks_leaves_no_lease_behind(served: Lab) -> None:
    Board(served.port)
    words = [sys.executable, "-c", STOPPED_AS_IT_ASKS, "lab", "run", "pi5", "--", "true"]
    assert subprocess.run(words, env=served.environment, timeout=LIMIT_S).returncode == 130
    with served.client() as client:
        assert client.ask("lease", lease=1)["lease"]["state"] == "released"


# farm, stopped at the worst moment: the program has started, and farm does not know its number yet
STOPPED_AT_START = """
import signal, subprocess
class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        signal.raise_signal(signal.SIGINT)
subprocess.Popen = Popen
from farm.__main__ import main
main()
"""


def test_run_that_is_stopped_as_its_program_starts_leaves_nothing_behind(served: Lab) -> None:
    Board(served.port)
    runner = subprocess.Popen(
        [sys.executable, "-c", STOPPED_AT_START, "lab", "run", "pi5", "--", "sleep", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=served.environment,
    )
    runner.communicate(timeout=_LEFT_S)  # the program has its output, too
    assert runner.returncode == 130
    with served.client() as client:
        assert client.ask("lease", lease=1)["lease"]["state"] == "released"


def test_run_ends_its_program_when_the_lease_ends(served: Lab) -> None:
    Board(served.port)
    runner = served.started("run", "pi5", "--for", "2s", "--heartbeat", "4s", "--", "sleep", "1000")
    _, said = runner.communicate(timeout=LIMIT_S)
    assert runner.returncode == 5 and "lease 1 has ended\nwhy: expired" in said


def test_a_server_whose_record_another_has_taken_over_ends_with_an_error(tmp_path: Path) -> None:
    with lab(inventory=f'[lab]\nstore = "{tmp_path}/lab.sqlite"\n') as first:
        Board(first.port)
        with first.client() as client:
            lease = asking(client)
        with lab(inventory=f'[lab]\nstore = "{tmp_path}/lab.sqlite"\n') as second:
            with first.client() as client, pytest.raises(LinkError):
                client.ask("end", lease=lease["lease"])
            assert first.child and first.child.wait(LIMIT_S) == 1
            assert (
                "another lab server has taken over" in first.said and "Traceback" not in first.said
            )
            with second.client() as client:
                assert client.ask("lease", lease=lease["lease"])["lease"]["state"] == "active", (
                    "what was not kept is not so"
                )


def test_run_outlives_a_restart_of_the_server(served: Lab) -> None:
    Board(served.port)
    done = served.folder / "done"
    program = f"while [ ! -e {done} ]; do sleep 0.1; done"
    runner = served.started("run", "pi5", "--heartbeat", "20s", "--", "sh", "-c", program)
    with served.client() as client:
        wait_until(
            lambda: [one for one in client.ask("leases")["leases"] if one["state"] == "active"],
            "the lease",
        )
    served.kill()
    served.start()
    time.sleep(6.0)  # more than the time between two heartbeats
    done.touch()
    assert runner.wait(LIMIT_S) == 0, runner.communicate()
    with served.client() as client:
        assert client.ask("lease", lease=1)["lease"]["state"] == "released"


def test_the_commands_show_what_the_server_has(served: Lab) -> None:
    assert "no board has registered yet" in served.farm("boards").stderr
    board = Board(served.port)
    leased = served.farm("lease", "pi5", "--for", "30m", "--label", "commit=1a2b")
    assert leased.stdout.startswith(
        f"lease 1: {board.name} for 30m\nTVM_TRACKER_HOST=127.0.0.1 TVM_TRACKER_PORT={served.port} "
    )
    with served.client() as client:
        assert client.ask("lease", lease=1)["lease"]["heartbeat_s"] is None, "the command has ended"
    timed_out = served.farm("lease", "pi5", "--wait", "1s")
    assert timed_out.returncode == 6 and "waiting for a pi5: 1 of 1 lent" in timed_out.stderr
    body = json.loads(served.farm("leases", "--json").stdout)
    assert body["schema"] == "farm/lab_leases/1" and body["leases"][0]["labels"] == {
        "commit": "1a2b"
    }
    assert "key" not in body["leases"][0]
    assert board.name in served.farm("boards").stdout and "active" in served.farm("leases").stdout
    assert served.farm("extend", "1", "+20m").returncode == 0
    assert "too long" in served.farm("extend", "1", "1h").stderr
    assert served.farm("end", "1").stdout == "lease 1: released\n"
    assert "lease-extended" in served.farm("events").stdout


def test_the_documents_of_json_are_as_published(served: Lab) -> None:
    Board(served.port)
    for words in (
        ["lease", "pi5"],
        ["boards"],
        ["leases"],
        ["extend", "1", "1m"],
        ["events"],
        ["end", "1"],
        ["end", "1"],
    ):
        body = json.loads(served.farm(*words, "--json").stdout)
        jsonschema.Draft202012Validator(schema(body["schema"].split("/")[1])).validate(body)
    assert body["error"]["exit_code"] == 5


def test_the_metrics_count_free_boards_and_who_waits() -> None:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    with lab("--metrics", str(port)) as one, one.client() as client:
        Board(one.port), Board(one.port, at=9091)
        for _ in range(3):
            asking(client)
        client.ask("end", lease=1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as page:
            text = page.read().decode()
    assert 'farm_tracker_boards{key="pi5"} 2' in text
    assert (
        'farm_tracker_boards_free{key="pi5"} 0' in text
        and 'farm_tracker_requests_waiting{key="pi5"} 0' in text
    )


def test_a_client_without_a_server_says_so(tmp_path: object) -> None:
    done = forked_commands.run(["lab", "boards", "--socket", f"{tmp_path}/no.sock"])
    assert done.returncode == 5 and done.stderr.count("\n") == 3 and "farm lab serve" in done.stderr
