"""Reservations as people meet them: by commands, the control socket and REST of a real server."""

from __future__ import annotations

import getpass
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jsonschema
import pytest
from lab_http import paged
from lab_process import Board, Lab, lab
from timeouts import wait_until
from tracker_processes import PENDING, REQUEST, Wire

from farm.errors import UsageError
from farm.lab_client.control_client import LabClient
from farm.views.schema import schema

ME = getpass.getuser()
SOON_S, LONG_S = 10.0, 3600.0
SHORT = '[lab]\n[lab.classes.interactive]\nlongest = "1h"\n[lab.reservations]\npickup = "2s"\n'


@pytest.fixture
def served() -> Iterator[Lab]:
    with lab() as one:
        yield one


def reserving(client: LabClient, in_s: float, for_s: float = 600.0, **more: Any) -> Any:
    wanted = {"kind": "pi5", "in_s": in_s, "for_s": for_s, **more}
    return client.ask("reserve", **wanted)["reservation"]


def found(client: LabClient, number: int) -> Any:
    shown = client.ask("reservations")["reservations"]
    return next((one for one in shown if one["reservation"] == number), None)


def lease(client: LabClient, number: int) -> Any:
    return client.ask("lease", lease=number)["lease"]


def asking(client: LabClient, for_s: float) -> Any:
    return client.ask("request", kind="pi5", for_s=for_s)["lease"]


def wait_with(boards: Iterable[Board], condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition is true, while boards speak as TVM's servers do."""

    def look() -> Any:
        for board in boards:
            board.wire.ask([PENDING])
        return condition()

    return wait_until(look, what)


def as_user(one: Lab, name: str) -> LabClient:
    client = one.client()
    client.ask("speak-for", user=name)
    return client


def test_reserved_boards_are_there_at_their_time_for_who_reserved_them(served: Lab) -> None:
    there = [Board(served.port, at=port) for port in (9090, 9091)]
    boards = {board.name for board in there}
    with served.client() as client:
        made = reserving(client, SOON_S, 60.0, count=2)
        assert (made["state"], made["owner"], made["missing"]) == ("planned", ME, 0)
        waiting = asking(client, 600.0)
        assert waiting["queue"]["reason"].startswith(f"reserved for {ME} from ")
        assert waiting["queue"]["surely_by"] == pytest.approx(made["until"])
        short = asking(client, 1.0)
        assert short["state"] == "active"
        number = wait_with(
            there, lambda: found(client, made["reservation"])["lease"], "the reservation's lease"
        )
        wait_with(there, lambda: lease(client, number)["state"] == "active", "its boards")
        held = lease(client, number)
        assert set(held["boards"]) == boards
        assert (held["ends_at"], held["reservation"]) == (made["until"], made["reservation"])
        words = ("run", "pi5", "--reservation", str(made["reservation"]), "--")
        ran = served.farm(*words, "sh", "-c", "echo $FARM_LAB_LEASE $FARM_LAB_BOARDS")
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split()[0] == str(number) and set(ran.stdout.split()[1:]) == boards
        assert lease(client, number)["state"] == "active", "for further programs"
        client.ask("end", lease=number)
        assert lease(client, waiting["lease"])["state"] == "active"
        said = [one["what"] for one in client.ask("events", since=0)["events"]]
        assert said.index("reservation-made") < said.index("reservation-began")


def test_reserved_boards_that_nobody_asks_for_go_to_others() -> None:
    with lab(inventory=SHORT) as served:
        board = Board(served.port)
        with served.client() as client:
            made = reserving(as_user(served, "alice"), 2.0)
            waiting = asking(client, 60.0 * 30)
            wait_with(
                [board],
                lambda: lease(client, waiting["lease"])["state"] == "active",
                "the board of alice",
            )
            assert found(client, made["reservation"]) is None
            said = client.ask("events", since=0)["events"]
            [lapsed] = [one for one in said if one["what"] == "reservation-lapsed"]
            assert lapsed["who"] == "alice" and "not picked up for 2 s" in lapsed["detail"]


def test_a_client_of_tvms_gets_no_board_that_is_reserved_too_soon(served: Lab) -> None:
    board, stranger = Board(served.port), Wire(served.port)
    with served.client() as client:
        made = reserving(client, LONG_S)
        stranger.send([REQUEST, "pi5", "", 1])
        assert not stranger.has_answer(0.5)
        [waiting] = client.ask("leases")["leases"]
        assert waiting["queue"]["reason"].startswith(f"reserved for {ME}")
        client.ask("cancel", reservation=made["reservation"])
        assert json.loads(stranger.answer()) == [0, ["127.0.0.1", 9090, board.match_key]]


def test_what_was_reserved_is_so_after_the_server_was_killed(served: Lab) -> None:
    Board(served.port)
    with served.client() as client:
        soon, later = reserving(client, SOON_S), reserving(client, 2 * LONG_S, nonce="x")
    served.kill()
    served.start()
    board = Board(served.port)
    with served.client() as client:
        assert found(client, later["reservation"]) == later
        assert reserving(client, 2 * LONG_S, nonce="x") == later
        number = wait_with(
            [board], lambda: found(client, soon["reservation"])["lease"], "the reservation's lease"
        )
        wait_with([board], lambda: lease(client, number)["state"] == "active", "its board")


def test_a_reservation_whose_time_came_while_there_was_no_server_begins(served: Lab) -> None:
    Board(served.port)
    with served.client() as client:
        made = reserving(client, 0.5)
        served.kill()
    time.sleep(1.0)  # its time comes
    served.start()
    board = Board(served.port)
    with served.client() as client:
        wait_until(lambda: (found(client, made["reservation"]) or {}).get("lease"), "its lease")
        number = found(client, made["reservation"])["lease"]
        wait_until(lambda: lease(client, number)["boards"] == [board.name], "its board")
        assert lease(client, number)["ends_at"] == made["until"]


def test_others_cancel_nothing_and_an_administrator_says_why(served: Lab) -> None:
    Board(served.port)
    alice, bob = as_user(served, "alice"), as_user(served, "bob")
    made = reserving(alice, LONG_S)["reservation"]
    with pytest.raises(UsageError, match=rf"reservation {made} is not yours"):
        bob.ask("cancel", reservation=made, why="I want it")
    refused = served.farm("cancel", str(made))
    assert refused.returncode == 2 and "says why" in refused.stderr
    done = served.farm("cancel", str(made), "--because", "a new fan", "--json")
    body = json.loads(done.stdout)
    jsonschema.validate(body, schema("lab_reservation"))
    assert (body["reservation"]["state"], body["reservation"]["why"]) == ("cancelled", "a new fan")
    reserving(alice, LONG_S)
    with served.client() as client:
        client.ask("expel", user="alice")
        assert client.ask("reservations")["reservations"] == []


def test_the_commands_reserve_list_and_cancel(served: Lab) -> None:
    for port in (9090, 9091):
        Board(served.port, at=port)
    made = served.farm("reserve", "pi5", "--count", "2", "--from", "+3h", "--for", "90m")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("reservation 1: 2 pi5 from ")
    listed = json.loads(served.farm("reservations", "--json").stdout)
    jsonschema.validate(listed, schema("lab_reservations"))
    [one] = listed["reservations"]
    assert (one["count"], one["until"] - one["starts_at"]) == (2, pytest.approx(5400.0))
    assert "2 pi5" in served.farm("reservations").stdout
    cancelled = served.farm("cancel", "1")
    assert cancelled.stdout == "reservation 1: cancelled\n"
    nothing = served.farm("reservations")
    assert (nothing.stdout, nothing.stderr) == ("", "nothing is reserved\n")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("reserve pi5 --from noon", "error: 'noon' is no time"),
        ("reserve pi5 --from 2020-01-01T10:00", "error: 2020-01-01 10:00 is past"),
        ("reserve pi5 --from +1h --for 3h", "error: 3h is too long for a lease of class"),
        ("reserve pi5 --from +1h --count 3", "error: 3 boards of kind pi5 cannot be reserved"),
        ("reserve pi5 --from +90m --count 2", "error: 2 boards of kind pi5 cannot be had then"),
        ("reserve pi6 --from +1h", "error: no board is of kind 'pi6'"),
        ("cancel 99", "error: there is no reservation 99"),
        ("lease pi5 --reservation 1", "error: reservation 1 has not begun"),
        ("lease pi5 --reservation 99", "error: there is no reservation 99"),
        ("extend 1 90m", "error: lease 1 cannot be extended so far"),
    ],
)
def test_what_cannot_be_is_an_error_of_three_lines(taken: Lab, words: str, what: str) -> None:
    refused = taken.farm(*words.split())
    assert refused.returncode == 2
    lines = refused.stderr.splitlines()
    assert lines[0].startswith(what), refused.stderr
    assert [line.partition(":")[0] for line in lines] == ["error", "why", "fix"]


@pytest.fixture
def taken() -> Iterator[Lab]:
    """A lab of two boards, both reserved from in an hour on; one is leased until then."""
    with lab(inventory='[lab]\n[lab.classes.batch]\nlongest = "2h"\n') as one:
        boards = [Board(one.port, at=port) for port in (9090, 9091)]
        with one.client() as client:
            asking(client, 600.0)
            reserving(client, LONG_S, LONG_S, count=2)
        yield one
        assert len(boards) == 2


def test_reservations_are_made_read_and_cancelled_over_http() -> None:
    with paged(inventory=SHORT) as served:
        Board(served.lab.port)
        wanted = {"kind": "pi5", "in_s": LONG_S, "for_s": 600, "labels": {"job": "7"}}
        made = served.ask("POST", "/api/1/reservations", wanted, unix=True)
        assert made.status == 201
        body = checked(made.json, "lab_reservation")["reservation"]
        assert (body["owner"], body["labels"], body["state"]) == (ME, {"job": "7"}, "planned")
        listed = checked(served.get("/api/1/reservations").json, "lab_reservations")
        assert listed["reservations"] == [body]
        one = served.get(f"/api/1/reservations/{body['reservation']}")
        assert checked(one.json, "lab_reservation")["reservation"] == body
        assert "Nothing is reserved" not in served.get("/").text
        at_once = {"kind": "pi5", "starts_at": body["starts_at"] + 60, "for_s": 600}
        for asked, status, what in [
            (at_once, 400, "1 board of kind pi5 cannot be had then"),
            ({**wanted, "starts_at": "14:00", "in_s": None}, 400, "the field 'starts_at'"),
            ({**wanted, "in_s": -5}, 400, "the field 'in_s'"),
        ]:
            refused = served.ask("POST", "/api/1/reservations", asked, unix=True)
            assert (refused.status, what in refused.json["error"]["what"]) == (status, True)
        unknown = served.ask("POST", "/api/1/reservations", wanted)
        assert unknown.status == 403
        gone = served.ask("DELETE", f"/api/1/reservations/{body['reservation']}", unix=True)
        assert gone.json["reservation"]["state"] == "cancelled"
        assert served.get(f"/api/1/reservations/{body['reservation']}").status == 404
        assert "Nothing is reserved" in served.get("/").text


def checked(body: dict[str, Any], name: str) -> dict[str, Any]:
    assert body["schema"] == f"farm/{name}/1"
    jsonschema.validate(body, schema(name))
    return body


def test_the_page_shows_what_is_reserved() -> None:
    with paged() as served:
        Board(served.lab.port)
        with served.lab.client() as client:
            reserving(client, LONG_S)
        text = served.get("/").text
        assert ">Reservations</h2>" in text and "1 pi5" in text and ">planned<" in text
        [bar] = re.findall(r"<title>([^<]*reservation[^<]*)</title>", served.get("/use").text)
        assert re.fullmatch(rf"{ME}, reservation 1: 1 pi5, .*\d\d:\d\d to .*\d\d:\d\d", bar)
