"""farm's agents as boards of a lab: their names, their heartbeats, their sessions, and silence."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from lab_agents import AgentBoard, Start, agent_boards, handed_out, session_with
from lab_process import Board, Lab, lab
from lossy_network import BOARD, DESK, inside, lossy_network
from timeouts import LIMIT_S, wait_until
from tracker_processes import REQUEST, Wire

from farm.errors import LinkError
from farm.lab.entities import SharingRules
from farm.lab.lender import LabLender
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import RestoredState
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.lab_client.control_client import LabClient
from farm.rpc.errors import RemoteError
from farm.tracker.agent_messages import AgentHello
from farm.tracker.scheduler import ALIVE_S, ServerInfo

QUICK = '[lab]\nheartbeat = "1s"\n'
NOTICED_S = 30.0  # by when a frozen board is to be noticed, with the usual heartbeat


@pytest.fixture
def served() -> Iterator[Lab]:
    with lab(inventory=QUICK) as one:
        yield one


@pytest.fixture
def start(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Start]:
    with agent_boards(agents, tmp_path) as starting:
        yield starting


def boards(client: LabClient) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in client.ask("boards")["boards"]}


def becomes(client: LabClient, board: str, use: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        one = boards(client).get(board)
        return one if one and one["use"] == use else None

    return dict(wait_until(found, f"{board} is {use}"))


def lease_of(client: LabClient, **more: object) -> dict[str, Any]:
    return dict(client.ask("request", **{"kind": "pi5", "for_s": 600.0, **more})["lease"])


def events(client: LabClient, *what: str) -> list[tuple[str, str, int | None]]:
    return [
        (one["what"], one["board"], one["lease"])
        for one in client.ask("events")["events"]
        if one["what"] in what
    ]


def test_a_board_has_the_name_that_its_agent_says_and_its_state(served: Lab, start: Start) -> None:
    start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        found = wait_until(lambda: boards(client)["pi5-07"]["free_bytes"] and boards(client), "it")
        one = found["pi5-07"]
        assert one["agent"] and one["free_bytes"] > 0 and one["heard_s"] < 10
        assert one["load_1m"] is not None


@pytest.mark.skipif(not Path("/etc/machine-id").exists(), reason="there is no machine-id here")
def test_boards_of_one_system_that_nobody_has_named_are_two(served: Lab, start: Start) -> None:
    start(served.port), start(served.port)
    with served.client() as client:
        names = wait_until(lambda: len(found := boards(client)) == 2 and sorted(found), "both")
        assert names[0].startswith("pi5-") and names[1] == f"{names[0]}#2"


@pytest.mark.parametrize("name", ["../x", "", "-x", "a b", "x" * 101])
def test_a_name_that_is_none_is_refused(name: str, start: Start) -> None:
    agent = start(1, "--board", name)
    if name:
        assert agent.child.wait(LIMIT_S) == 2 and "--board" in agent.log


def test_the_inventory_names_a_board_without_an_address_by_what_its_agent_says(
    start: Start,
) -> None:
    inventory = f'{QUICK}[lab.boards.quiet-one]\nkind = "pi5"\ntags = ["fan"]\n'
    with lab(inventory=inventory) as one, one.client() as client:
        start(one.port, "--board", "quiet-one")
        assert becomes(client, "quiet-one", "free")["tags"] == ["fan"]
        start(one.port, "--board", "quiet-one", kind="pi4")
        becomes(client, "quiet-one#2", "free")


@pytest.mark.parametrize("arch", ["x86_64", "armv7", "aarch64"])
def test_the_end_of_a_lease_ends_its_session_and_its_client_is_told_why(
    arch: str, served: Lab, start: Start
) -> None:
    start(served.port, "--board", "pi5-07", arch=arch)
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        lease = lease_of(client)
        session = session_with(handed_out(served.port, lease["key"]))
        assert session.call("farm.agent.facts")
        assert becomes(client, "pi5-07", "in session")["lease"] == lease["lease"]
        client.ask("end", lease=lease["lease"])

        def told() -> str:
            try:
                session.call("farm.agent.facts")
            except (RemoteError, OSError, EOFError) as exc:
                return str(exc)
            return ""

        words = wait_until(told, "the session ends")
        assert f"the lab has ended this session: lease {lease['lease']} has ended" in words
        becomes(client, "pi5-07", "free")


@pytest.mark.parametrize("limit", ["inf", "1e308"])
def test_the_end_of_a_lease_ends_a_session_without_a_sensible_limit(
    served: Lab, start: Start, limit: str
) -> None:
    """JSON has no infinity: the lab would hang up on the agent, and never tell it."""
    start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        lease = lease_of(client)
        host, port, match_key = handed_out(served.port, lease["key"])
        session = session_with((host, port, f"{match_key} -timeout={limit}"))
        client.ask("end", lease=lease["lease"])
        becomes(client, "pi5-07", "free")
        with pytest.raises((LinkError, RemoteError)):
            session.call("farm.agent.facts")


def test_a_frozen_agent_is_silent_and_its_lease_has_another_board(
    served: Lab, start: Start
) -> None:
    frozen = start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        lease = lease_of(client)
        session = session_with(handed_out(served.port, lease["key"]))
        becomes(client, "pi5-07", "in session")
        later = lease_of(client)
        assert later["state"] == "queued"
        frozen.freeze()
        becomes(client, "pi5-07", "silent")
        told = client.ask("lease", lease=lease["lease"])["lease"]
        assert told["boards"] == ["pi5-07"] and "nothing heard" in told["lost"]["pi5-07"]
        start(served.port, "--board", "pi5-08")
        moved = wait_until(
            lambda: (
                (one := client.ask("lease", lease=lease["lease"])["lease"])["boards"] == ["pi5-08"]
                and one
            ),
            "the other board is given to the lease, before the one that waits",
        )
        assert moved["state"] == "active" and moved["lost"].keys() == {"pi5-07"}
        assert client.ask("lease", lease=later["lease"])["lease"]["state"] == "queued"
        assert session_with(handed_out(served.port, lease["key"])).call("farm.agent.facts")
        frozen.go_on()
        assert session.call("farm.agent.facts"), "who is still at the first board may go on"
        wait_until(lambda: events(client, "board-heard"), "the first board is heard")
        session.close()
        got = wait_until(
            lambda: client.ask("lease", lease=later["lease"])["lease"]["boards"], "it is lent"
        )
        assert got == ["pi5-07"]
        assert events(client, "board-silent", "lease-board-given") == [
            ("board-silent", "pi5-07", lease["lease"]),
            ("lease-board-given", "pi5-08", lease["lease"]),
        ]


def test_a_board_that_is_heard_again_before_another_is_free_stays_with_its_lease(
    served: Lab, start: Start
) -> None:
    frozen = start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        lease = lease_of(client)
        frozen.freeze()
        becomes(client, "pi5-07", "silent")
        frozen.go_on()
        becomes(client, "pi5-07", "leased")
        told = client.ask("lease", lease=lease["lease"])["lease"]
        assert told["state"] == "active" and told["lost"] == {}
        assert session_with(handed_out(served.port, lease["key"])).call("farm.agent.facts")


def test_an_implicit_lease_of_a_frozen_board_is_lost(served: Lab, start: Start) -> None:
    frozen = start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        session = session_with(handed_out(served.port, "pi5"))
        becomes(client, "pi5-07", "in session")
        frozen.freeze()
        becomes(client, "pi5-07", "silent")
        assert client.ask("leases")["leases"] == []
        frozen.go_on()
        assert session.call("farm.agent.facts")
        becomes(client, "pi5-07", "in session")


def test_sessions_are_joined_with_their_leases_after_a_restart_of_the_server(
    served: Lab, start: Start
) -> None:
    for name in ("pi5-07", "pi5-08"):
        start(served.port, "--board", name)
    with served.client() as client:
        for name in ("pi5-07", "pi5-08"):
            becomes(client, name, "free")
        lease = lease_of(client, board="pi5-07")
        held = session_with(handed_out(served.port, lease["key"]))
        alone = session_with(handed_out(served.port, "pi5"))
        for name in ("pi5-07", "pi5-08"):
            becomes(client, name, "in session")
        time.sleep(2.5)  # open sessions are kept at the next tick
    served.kill()
    assert held.call("farm.agent.facts") and alone.call("farm.agent.facts")
    served.start()
    with served.client() as client:
        found = becomes(client, "pi5-07", "in session")
        assert found["lease"] == lease["lease"]
        other = becomes(client, "pi5-08", "in session")
        assert other["owner"] == "address:127.0.0.1" and other["lease"] != lease["lease"]
        joined = wait_until(
            lambda: len(found := events(client, "session-joined")) == 2 and found, "the events"
        )
        assert sorted(joined, key=lambda one: one[1]) == [
            ("session-joined", "pi5-07", lease["lease"]),
            ("session-joined", "pi5-08", None),
        ]
        held.close(), alone.close()
        becomes(client, "pi5-07", "leased")
        becomes(client, "pi5-08", "free")


def test_a_session_that_ended_while_the_server_was_away_leaves_no_trace(
    served: Lab, start: Start
) -> None:
    start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        session = session_with(handed_out(served.port, "pi5"))
        becomes(client, "pi5-07", "in session")
    served.kill()
    session.close()
    served.start()
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        assert client.ask("leases")["leases"] == []


def test_the_board_of_a_lease_that_does_not_come_back_after_a_restart_is_replaced(
    served: Lab, start: Start
) -> None:
    agent = start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        lease = lease_of(client)
        time.sleep(2.5)
    served.kill()
    agent.kill()
    served.start()
    start(served.port, "--board", "pi5-08")
    with served.client() as client:
        wait_until(
            lambda: client.ask("lease", lease=lease["lease"])["lease"]["boards"] == ["pi5-08"],
            "another board",
        )


def register(served: Lab, board: str, boot: str, port: int) -> Wire:
    """An agent's connection."""
    wire = Wire(served.port)
    farm = {"protocol": 1, "board": board, "agent": "1", "boot": boot, "session": None}
    assert wire.ask([5, {"key": "server:pi5", "addr": [None, port], "farm": farm}]) == 0
    assert wire.ask([1]) == [0, {"farm": 1, "heartbeat_s": 1.0}]
    wire.put("pi5", f"pi5:{port}", port)
    return wire


def test_a_board_behind_a_tunnel_that_was_started_again_takes_the_place_of_its_dead_connection(
    served: Lab,
) -> None:
    """One that is heard stays, whoever says to be it: all tunnels end at loopback."""
    first = register(served, "pi5-07", "a", 9001)
    second = register(served, "pi5-07", "a", 9002)  # another agent of the same system
    with served.client() as client:
        assert boards(client).keys() == {"pi5-07", "pi5-07#2"}
        register(served, "pi5-07", "c", 9001).close()
        assert first.ask([1]) == [0, {"farm": 1, "heartbeat_s": 1.0}]
        time.sleep(ALIVE_S + 0.5)
        third = register(served, "pi5-07", "b", 9001)
        assert first.is_closed()
        assert boards(client)["pi5-07"]["address"] == "127.0.0.1:9001"
    second.close(), third.close()


def test_a_board_behind_a_tunnel_does_not_take_the_name_of_another(served: Lab) -> None:
    """All tunnels end at loopback: that is no sign of one machine."""
    victim = register(served, "pi5-08", "a", 9008)
    with served.client() as client:
        evil = register(served, "pi5-08", "b", 9666)
        found = boards(client)
        assert found["pi5-08"]["address"] == "127.0.0.1:9008"
        assert found["pi5-08#2"]["address"] == "127.0.0.1:9666"
        assert victim.ask([1]) == [0, {"farm": 1, "heartbeat_s": 1.0}]
    victim.close(), evil.close()


def test_a_board_that_was_started_again_takes_the_place_of_its_dead_connection() -> None:
    now: float = 0.0
    ended: list[int] = []
    scheduler, kept = (
        LeaseScheduler(SharingRules(), (), RestoredState(), now),
        cast(LabDatabaseWriter, Kept()),
    )
    lender = LabLender(scheduler, kept, SharingRules(), (), lambda: now, lambda *_: None)

    def hang_up(peer: int, _: str) -> None:
        ended.append(peer)
        lender.disconnect(peer)

    lender.hang_up = hang_up
    for peer, boot, port in ((1, "a", 9001), (2, "a", 9002), (3, "b", 9003)):
        lender.connect(peer, "192.168.7.7", now)
        hello = AgentHello("pi5-07", "1", boot, None)
        lender.hello(peer, ServerInfo("server:pi5", "192.168.7.7", port), hello, now)
    assert ended == [1]
    assert lender.address("pi5-07") == "192.168.7.7:9003"
    assert lender.address("pi5-07#2") == "192.168.7.7:9002"


class Kept:
    """A journal that is always written."""

    def put(self, effects: object) -> None: ...

    def once_kept(self, done: Callable[[], None]) -> None:
        done()

    after = once_kept


def test_a_plain_server_gets_no_more_than_tvms_answers(served: Lab) -> None:
    board = Board(served.port)
    assert board.wire.ask([1]) == 0
    board.wire.send([101, {"session": None, "state": {}}])
    assert board.wire.is_closed()
    wait_until(lambda: "only farm's agents send" in served.said, "the operator is told")


def test_a_lease_that_nobody_picks_up_lapses(start: Start) -> None:
    with lab(inventory='[lab]\npickup = "2s"\n') as one, one.client() as client:
        Board(one.port)
        held, waiting = lease_of(client), lease_of(client)
        client.ask("end", lease=held["lease"])
        with one.client() as other:
            wait_until(
                lambda: (
                    [
                        event["lease"]
                        for event in other.ask("events")["events"]
                        if event["what"] == "lease-lapsed"
                    ]
                    == [waiting["lease"]]
                ),
                "it lapses",
            )
            assert boards(other)["pi5@127.0.0.1:9090"]["use"] == "free"


def test_agents_that_freeze_are_noticed_within_30_s_in_sessions_and_idle(start: Start) -> None:
    with lab() as one, one.client() as client:
        idle, busy = (start(one.port, "--board", name) for name in ("idle", "busy"))
        for name in ("idle", "busy"):
            becomes(client, name, "free")
        mine = lease_of(client, board="busy")
        waits = lease_of(client, board="idle")
        session = session_with(handed_out(one.port, mine["key"]))
        becomes(client, "busy", "in session")
        time.sleep(1.0)
        frozen_at = time.monotonic()
        idle.freeze(), busy.freeze()

        def noticed() -> bool:
            found = events(client, "board-silent")
            return {board for _, board, _ in found} == {"idle", "busy"}

        wait_until(noticed, "both are silent")
        assert time.monotonic() - frozen_at < NOTICED_S
        for lease in (mine, waits):
            assert client.ask("lease", lease=lease["lease"])["lease"]["lost"]
        busy.go_on(), idle.go_on()
        assert session.call("farm.agent.facts")


def test_a_cable_that_is_pulled_is_noticed_within_30_s(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    with lossy_network() as network, contextlib.ExitStack() as held:
        with inside(network.context):
            one = held.enter_context(lab("--host", DESK, "--open-to-network"))
            client = held.enter_context(one.client())
        with inside(network.board):
            start = held.enter_context(agent_boards(agents, tmp_path))
            options = ("--host", BOARD, "--open-to-network", "--board")
            start(one.port, *options, "pi5-07", host=DESK)
        with inside(network.context):
            becomes(client, "pi5-07", "free")
            lease = lease_of(client)
            session_with(handed_out(one.port, lease["key"], DESK))
            becomes(client, "pi5-07", "in session")
            start(one.port, "--board", "pi5-08", host=DESK)
            becomes(client, "pi5-08", "free")
            cut_at = time.monotonic()
            network.be(cut=True)
            moved = wait_until(
                lambda: (
                    (found := client.ask("lease", lease=lease["lease"])["lease"])["boards"]
                    == ["pi5-08"]
                    and found
                ),
                "another board is given",
            )
            assert time.monotonic() - cut_at < NOTICED_S
            assert moved["lost"].keys() == {"pi5-07"}


def test_how_a_session_has_ended_is_told(served: Lab, start: Start) -> None:
    agent: AgentBoard = start(served.port, "--board", "pi5-07")
    with served.client() as client:
        becomes(client, "pi5-07", "free")
        session = session_with(handed_out(served.port, "pi5"))
        becomes(client, "pi5-07", "in session")
        [child] = [
            int(word)
            for word in Path(f"/proc/{agent.child.pid}/task/{agent.child.pid}/children")
            .read_text()
            .split()
        ]
        os.kill(child, signal.SIGSEGV)
        becomes(client, "pi5-07", "free")
        with contextlib.suppress(Exception):
            session.close()
        assert "died of Segmentation fault" in agent.log
        wire = Wire(served.port)
        assert wire.ask([REQUEST, "pi5", "", 1])[0] == 0
