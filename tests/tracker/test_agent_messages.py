"""What farm's agents say to a lab, as they say it on the wire."""

from __future__ import annotations

import json

import pytest

from farm.tracker.agent_messages import (
    AgentHello,
    BoardSession,
    BoardState,
    Heartbeat,
    SessionEnded,
    parse_heartbeat,
    parse_hello,
    parse_session_ended,
)
from farm.tracker.errors import ProtocolError

SESSION = {"match_key": "pi5:0.1", "since_s": 12.5, "ends_s": 30}


def test_a_hello_names_the_board_its_agent_its_boot_and_its_session() -> None:
    said = json.loads(
        json.dumps({"board": "pi5-07", "agent": "1.2.3", "boot": "b00t", "session": SESSION})
    )
    assert parse_hello(said) == AgentHello(
        "pi5-07", "1.2.3", "b00t", BoardSession("pi5:0.1", 12.5, 30.0)
    )
    assert parse_hello(None) is None


def test_a_heartbeat_has_each_number_of_the_boards_state_in_its_place() -> None:
    state = {"temperature_c": 61.5, "throttled": 5, "load_1m": 0.25, "free_bytes": 4096}
    assert parse_heartbeat({"session": None, "state": state}) == Heartbeat(
        None, BoardState(temperature_c=61.5, throttled=5, load_1m=0.25, free_bytes=4096)
    )
    assert parse_heartbeat({"session": SESSION, "state": {}}) == Heartbeat(
        BoardSession("pi5:0.1", 12.5, 30.0), BoardState()
    )


def test_the_end_of_a_session_says_how_by_which_signal_and_after_how_long() -> None:
    said = {"match_key": "pi5:0.1", "how": "signal", "signal": 11, "seconds": 3}
    assert parse_session_ended(said) == SessionEnded("pi5:0.1", "signal", 11, 3.0)


def test_what_an_agent_says_is_bounded_in_its_form_its_length_and_its_time() -> None:
    with pytest.raises(ProtocolError, match="name"):
        parse_hello({"board": "pi5/../b"})
    long = {"match_key": "k" * 1024, "since_s": 1e300}
    assert parse_hello({"board": "b", "session": long}) == AgentHello(
        "b", "", "", BoardSession("k" * 1024, 366 * 86400.0)
    )
    now = {"match_key": "k", "since_s": 0, "ends_s": 0}
    assert parse_hello({"board": "b", "session": now}) == AgentHello(
        "b", "", "", BoardSession("k", 0.0, 0.0)
    ), "it ends now, which is not without a limit"
    for name in ("load_1m", "free_bytes"):
        with pytest.raises(ProtocolError, match=name):
            parse_heartbeat({"state": {name: True}})
    with pytest.raises(ProtocolError, match="match_key"):
        parse_hello({"board": "b", "session": {**long, "match_key": "k" * 1025}})
