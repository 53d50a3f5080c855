"""The lab's REST interface and its stream of events, over real sockets."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - another user may not be able to read it
import getpass
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
from lab_http import Events, Paged, paged
from lab_process import Board
from timeouts import wait_until
from tracker_processes import PUT, Wire

from farm.errors import UsageError
from farm.lab_page.connections import HEAD_S, MOST_CONNECTIONS_OF_ONE
from farm.lab_page.event_stream import MOST_STREAMS_OF_ONE
from farm.views.schema import schema

SHORT = '[lab]\n[lab.classes.interactive]\nlongest = "1h"\n'
ME = getpass.getuser()
WISH = {"kind": "pi5", "for_s": 600}
MALLORY = 65534  # another user of this machine
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
NASTY = "pi5<script>alert(1)</script>/../\x1b[31m?"


@pytest.fixture
def served() -> Iterator[Paged]:
    with paged(inventory=SHORT) as one:
        yield one


def checked(body: dict[str, Any], name: str) -> dict[str, Any]:
    assert body["schema"] == f"farm/{name}/1"
    jsonschema.validate(body, schema(name))
    return body


def test_what_is_there_can_be_read_by_anyone_on_this_machine_and_fits_its_schema(
    served: Paged,
) -> None:
    board, other = Board(served.lab.port), Board(served.lab.port, "pi4", 9091)
    held = served.ask("POST", "/api/1/leases", WISH, unix=True)
    waits = served.ask("POST", "/api/1/leases", WISH, unix=True)
    assert (held.status, waits.status) == (201, 201)
    lease, waiting = (checked(one.json, "lab_lease")["lease"] for one in (held, waits))
    assert (lease["state"], lease["boards"], lease["owner"], waiting["state"]) == (
        "active",
        [board.name],
        ME,
        "queued",
    )
    boards = checked(served.get("/api/1/boards").json, "lab_boards")["boards"]
    assert [(one["name"], one["use"], one["owner"]) for one in boards] == [
        (other.name, "free", ""),
        (board.name, "leased", ME),
    ]
    assert [one["name"] for one in served.get("/api/1/boards?kind=pi4").json["boards"]] == [
        other.name
    ]
    assert (
        checked(served.get(f"/api/1/boards/{quote(board.name)}").json, "lab_board")["board"][
            "lease"
        ]
        == lease["lease"]
    )
    assert [
        one["lease"] for one in checked(served.get("/api/1/leases").json, "lab_leases")["leases"]
    ] == [lease["lease"], waiting["lease"]]
    [queued] = checked(served.get("/api/1/queue").json, "lab_leases")["leases"]
    assert (queued["lease"], queued["queue"]["place"]) == (waiting["lease"], 1)
    events = checked(served.get("/api/1/events?since=1").json, "lab_events")["events"]
    assert [one["number"] for one in events] == list(range(2, 2 + len(events)))
    assert "lease-granted" in {one["what"] for one in events}
    one = checked(served.get(f"/api/1/leases/{lease['lease']}").json, "lab_lease")
    assert "key" in lease and "key" not in one["lease"]  # whoever has the key can use the board
    assert served.get("/api/1/schemas/lab_lease").json == schema("lab_lease")
    assert served.get("/healthz").text == "ok\n"


def test_a_lease_is_extended_and_ended_by_its_owner(served: Paged) -> None:
    board = Board(served.lab.port)
    number = served.ask("POST", "/api/1/leases", WISH, unix=True).json["lease"]["lease"]
    before = served.get(f"/api/1/leases/{number}").json["lease"]["ends_at"]
    extended = served.ask("PATCH", f"/api/1/leases/{number}", {"by_s": 60}, unix=True)
    assert checked(extended.json, "lab_lease")["lease"]["ends_at"] == pytest.approx(before + 60)
    assert (
        served.ask("PATCH", f"/api/1/leases/{number}", {"heartbeat": True}, unix=True).status == 200
    )
    too_long = served.ask("PATCH", f"/api/1/leases/{number}", {"by_s": 7200}, unix=True)
    assert (
        too_long.status == 400
        and checked(too_long.json, "error")["error"]["why"] == "its longest is 1h"
    )
    ended = served.ask("DELETE", f"/api/1/leases/{number}", unix=True)
    assert ended.json["lease"]["state"] == "released"
    assert served.get(f"/api/1/boards/{quote(board.name)}").json["board"]["use"] == "free"
    again = served.ask("DELETE", f"/api/1/leases/{number}", unix=True)
    assert (again.status, again.json["error"]["kind"]) == (409, "DeviceError")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "what"),
    [
        ("GET", "/api/1/boards/pi9", None, 404, "there is no board 'pi9'"),
        ("GET", "/api/1/leases/99", None, 404, "there is no lease 99"),
        ("DELETE", "/api/1/leases/99", None, 404, "there is no lease 99"),
        ("GET", "/api/1/leases/x", None, 404, "the lab does not answer this"),
        ("GET", "/api/1/events?since=x", None, 400, "?since= is wrong"),
        ("GET", "/api/1/schemas/labs", None, 404, "there is no schema 'labs'"),
        ("POST", "/api/1/boards", None, 405, "the lab does not answer this"),
        ("POST", "/api/1/leases", {"kind": "pi6", "for_s": 60}, 400, "no board is of kind 'pi6'"),
        (
            "POST",
            "/api/1/leases",
            {"kind": "pi5", "for_s": "long"},
            400,
            "the field 'for_s' of the request is wrong",
        ),
        (
            "POST",
            "/api/1/leases",
            {"kind": "pi5", "for_s": 1e9},
            400,
            "the field 'for_s' of the request is wrong",
        ),
        ("POST", "/api/1/leases", "[1]", 400, "a change is asked for by a JSON object"),
        ("POST", "/api/1/leases", "[" * 60_000, 400, "a change is asked for in JSON"),
        ("POST", "/api/1/leases", "x" * 70_000, 413, "the lab does not answer this"),
        ("PATCH", "/api/1/leases/1", {"by": 5}, 400, "a change of a lease has one field"),
    ],
)
def test_bad_input_is_answered_with_what_why_and_fix(
    served: Paged, method: str, path: str, body: Any, status: int, what: str
) -> None:
    Board(served.lab.port)
    answer = served.ask(method, path, body, unix=True)
    error = checked(answer.json, "error")["error"]
    assert (answer.status, error["what"]) == (status, what)
    assert error["why"] and error["fix"]


def test_nothing_is_changed_for_who_is_not_known(served: Paged) -> None:
    Board(served.lab.port)
    refused = served.ask("POST", "/api/1/leases", WISH)
    assert (
        refused.status == 403
        and refused.json["error"]["fix"] == "open the page with: farm lab page"
    )
    assert served.get("/api/1/leases").json["leases"] == []
    served.enter()
    assert served.ask("POST", "/api/1/leases", WISH).status == 201
    served.cookie = served.cookie[:-1] + "x"
    assert served.ask("DELETE", "/api/1/leases/1").status == 403


def test_a_link_is_good_once(served: Paged) -> None:
    link = served.link().removeprefix(served.url)
    first, second = served.get(link), served.get(link)
    assert (first.status, second.status) == (303, 403)
    assert (
        "HttpOnly" in first.headers["set-cookie"]
        and "SameSite=Strict" in first.headers["set-cookie"]
    )
    assert second.json["error"]["what"] == "this link is used up"


def ask_as_another_user(served: Paged, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """The status and the text of the answer to another user of this machine, with our cookie."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    os.seteuid(MALLORY)
    try:
        connection.connect()
    finally:
        os.seteuid(0)
    with contextlib.closing(connection):
        connection.request(
            method,
            path,
            json.dumps(body),
            {"Cookie": served.cookie, "Content-Type": "application/json"},
        )
        found = connection.getresponse()
        return found.status, found.read().decode()


@as_root
def test_a_cookie_that_another_user_got_from_the_browser_is_not_theirs(served: Paged) -> None:
    Board(served.lab.port)
    served.enter()
    assert ask_as_another_user(served, "POST", "/api/1/leases", WISH)[0] == 403
    assert f"You are {ME}" not in ask_as_another_user(served, "GET", "/")[1]
    assert served.get("/api/1/leases").json["leases"] == []
    assert served.ask("POST", "/api/1/leases", WISH).status == 201
    assert f"You are {ME}" in served.get("/").text


@as_root
def test_a_link_that_another_user_saw_is_not_theirs_and_stays_good(served: Paged) -> None:
    link = served.link().removeprefix(served.url)
    status, text = ask_as_another_user(served, "GET", link)
    error = json.loads(text)["error"]
    assert (status, error["what"]) == (403, "this link is somebody else's") and ME in error["why"]
    assert served.get(link).status == 303


def test_connections_that_say_nothing_keep_neither_boards_nor_the_labs_people_out(
    served: Paged,
) -> None:
    with contextlib.ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            for _ in range(MOST_CONNECTIONS_OF_ONE + 1)
        ]
        assert hung_up_on(silent[0]), "the oldest idle one goes first"
        Board(served.lab.port)
        assert len(served.ask("GET", "/api/1/boards", unix=True).json["boards"]) == 1
        assert reached(served)


def test_half_a_request_is_not_waited_for(served: Paged) -> None:
    with (
        socket.create_connection(("127.0.0.1", served.port)) as slow,
        socket.create_connection(("127.0.0.1", served.port)) as again,
    ):
        again.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        again.settimeout(30)
        assert again.recv(4096).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        for one in (slow, again):
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 8 * HEAD_S:  # a byte now and then does not help
                slow.sendall(b"x")
                time.sleep(0.2)
        assert hung_up_on(slow) and hung_up_on(again)
        assert time.monotonic() - began < 8 * HEAD_S


def test_a_body_that_does_not_come_is_not_waited_for(served: Paged) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as slow:
        slow.sendall(b"POST /leases HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nk")
        slow.settimeout(60)
        assert slow.recv(4096).startswith(b"HTTP/1.1 408")


@as_root
def test_another_user_who_holds_all_they_can_keeps_nobody_from_the_page(served: Paged) -> None:
    """250 streams and 300 half requests of another user locked everybody out."""
    stream = b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    place = "127.0.0.1", served.port
    with contextlib.ExitStack() as held:
        os.seteuid(MALLORY)
        try:
            for number in range(550):
                one = held.enter_context(socket.create_connection(place))
                with contextlib.suppress(OSError):
                    one.sendall(stream if number < 250 else b"GET / HTTP/1.1\r\nHost: 127")
        finally:
            os.seteuid(0)
        for _ in range(3):
            assert served.get("/").status == 200
        ours = Events(served.port, "/api/1/stream")
        served.enter()
        Board(served.lab.port)
        assert served.ask("POST", "/api/1/leases", WISH).status == 201
        assert ours.next()["event"] in ("board", "lease")


def test_one_person_has_so_many_streams(served: Paged) -> None:
    held = [Events(served.port, "/api/1/stream") for _ in range(MOST_STREAMS_OF_ONE)]
    refused = served.get("/api/1/stream")
    assert refused.json["error"]["what"] == "too many streams are open"
    held.pop().close()
    wait_until(lambda: is_streamed(served), "a place")


def is_streamed(served: Paged) -> bool:
    try:
        Events(served.port, "/api/1/stream").close()
    except AssertionError:
        return False
    return True


def hung_up_on(one: socket.socket) -> bool:
    one.settimeout(30)
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


@as_root
def test_a_thousand_links_of_one_person_leave_those_of_others(served: Paged) -> None:
    link, first = served.link().removeprefix(served.url), served.link()
    served.cookie = ""
    with served.lab.client() as door:
        door.ask("speak-for", user="mallory")
        for _ in range(1001):
            door.ask("page")
    assert served.get(link).status == 303
    for _ in range(10):
        served.link()
    assert served.get(first.removeprefix(served.url)).status == 403, "one's own oldest one goes"


def reached(served: Paged) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return served.get("/healthz").status == 200
    return False


def test_a_page_of_elsewhere_cannot_have_a_browser_ask_for_a_change(served: Paged) -> None:
    Board(served.lab.port)
    served.enter()
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{served.port + 1}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert served.ask("POST", "/api/1/leases", WISH, **headers).status == 403
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ):
        assert served.ask("POST", "/api/1/leases", WISH, Content_Type=kind).status == 400
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert served.ask("POST", "/leases", "kind=pi5&count=1&for=1h&class=ci", **form).status == 403
    assert (
        served.ask("POST", "/leases", "kind=pi5&count=1&for=1h&class=ci&token=x", **form).status
        == 403
    )
    assert served.get("/api/1/leases").json["leases"] == []
    assert (
        served.ask(
            "POST", "/api/1/leases", WISH, Origin=served.url, Sec_Fetch_Site="same-origin"
        ).status
        == 201
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "127.0.0.1:x",
    ],
)
def test_a_name_that_was_made_to_point_here_is_not_answered(served: Paged, host: str) -> None:
    answer = served.get("/api/1/boards", Host=host)
    assert answer.status in (400, 403)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:9180"])
def test_a_tunnel_is_answered_under_a_loopback_name(served: Paged, host: str) -> None:
    assert served.get("/api/1/boards", Host=host).status == 200


def test_a_board_whose_kind_means_harm_is_found_under_its_name(served: Paged) -> None:
    board = Board(served.lab.port, NASTY)
    answer = served.get(f"/api/1/boards/{quote(board.name, safe='')}")
    assert answer.json["board"]["kind"] == NASTY
    assert (
        answer.headers["content-type"].startswith("application/json")
        and answer.headers["x-content-type-options"] == "nosniff"
    )


def test_no_name_that_a_stranger_chooses_takes_the_page_away(served: Paged) -> None:
    """Half a character, which JSON can hold, cannot be written as UTF-8."""
    stranger = Wire(served.lab.port)
    stranger.send([PUT, "\ud800", [9090, "a"], None])
    assert stranger.is_closed()
    board = Board(served.lab.port, NASTY)
    with served.lab.client() as client:
        for wish in ({"kind": "\udfff"}, {"kind": board.kind, "labels": {"\ud800": "x"}}):
            with pytest.raises(UsageError, match="is wrong"):
                client.ask("request", for_s=60, **wish)
    for path in ("/", "/changes?version=", "/use", "/metrics"):
        assert served.get(path, Accept="text/html").status == 200


def test_a_stream_tells_events_as_they_happen_and_resumes_without_a_gap(served: Paged) -> None:
    Board(served.lab.port)
    wait_until(lambda: len(served.get("/api/1/events").json["events"]) > 1, "the board's event")
    stream = Events(served.port, "/api/1/stream")
    numbers = [
        served.ask("POST", "/api/1/leases", WISH, unix=True).json["lease"]["lease"]
        for _ in range(3)
    ]
    first = stream.next()
    assert (first["event"], json.loads(first["data"])["what"]) == ("lease", "lease-queued")
    stream.close()
    for number in numbers:
        served.ask("DELETE", f"/api/1/leases/{number}", unix=True)
    expected = [
        one["number"] for one in served.get(f"/api/1/events?since={first['id']}").json["events"]
    ]
    again = Events(served.port, "/api/1/stream", Last_Event_ID=first["id"])
    found = [again.next() for _ in expected]
    assert (
        [int(one["id"]) for one in found]
        == expected
        == list(range(int(first["id"]) + 1, int(first["id"]) + 1 + len(expected)))
    )
    jsonschema.validate(
        {"schema": "farm/lab_events/1", "events": [json.loads(one["data"]) for one in found]},
        schema("lab_events"),
    )


def test_a_stream_resumes_after_the_server_was_killed(served: Paged) -> None:
    Board(served.lab.port)
    lease = served.ask("POST", "/api/1/leases", WISH, unix=True).json["lease"]["lease"]
    stream = Events(served.port, "/api/1/stream?since=0")
    last = [stream.next(), stream.next()][-1]["id"]
    served.lab.kill()
    with pytest.raises((EOFError, OSError)):
        while True:
            stream.next()
    served.lab.start()
    served.ask("DELETE", f"/api/1/leases/{lease}", unix=True)
    again, seen = Events(served.port, "/api/1/stream", Last_Event_ID=last), []
    while not seen or json.loads(seen[-1]["data"])["what"] != "lease-released":
        seen.append(again.next())
    assert [int(one["id"]) for one in seen] == list(range(int(last) + 1, int(last) + 1 + len(seen)))


def test_a_reader_of_numbers_that_were_lost_is_told_to_load_anew(served: Paged) -> None:
    [started] = wait_until(
        lambda: served.get("/api/1/events").json["events"], "the lab's start is recorded"
    )
    told = Events(served.port, "/api/1/stream", Last_Event_ID="1000000").next()
    assert (told["event"], told["id"]) == ("reload", str(started["number"]))


def test_readers_who_do_not_read_cost_the_others_nothing(served: Paged) -> None:
    held = []
    for _ in range(300):  # more than there may be streams
        one = socket.create_connection(("127.0.0.1", served.port))
        one.sendall(b"GET /api/1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        held.append(one)
    with contextlib.ExitStack() as closing:
        for one in held:
            closing.callback(one.close)
        started = time.monotonic()
        Board(served.lab.port)
        assert served.ask("POST", "/api/1/leases", WISH, unix=True).status == 201
        assert time.monotonic() - started < 5


def test_a_server_with_open_streams_ends_at_once(served: Paged) -> None:
    stream = Events(served.port, "/api/1/stream?since=0")
    assert served.lab.child
    served.lab.child.terminate()
    assert served.lab.child.wait(10) is not None
    with pytest.raises((EOFError, OSError, http.client.HTTPException)):
        while True:
            stream.next()
