"""What passes between a client of TVM's own and a board: requests one way, answers the other."""

from __future__ import annotations

import struct

import pytest
from hostile_board import ATTACKS, MESSAGES, packet

from farm.rpc.answer_filter import AnswerError
from farm.rpc.filtered_session import FilteredSession
from farm.rpc.handshake import DUPLICATE, MAGIC, MISMATCH, MOST_KEY_BYTES

GREETING = struct.pack("<ii", MAGIC, 10) + b"server:x86"
REQUEST = packet(struct.pack("<ii", 9, 1) + struct.pack("<iQ", 8, 1) + b"f")  # GET_GLOBAL_FUNC
ANSWER = packet(struct.pack("<iiiQ", 4, 1, 4, 4096))  # RETURN, one value: a handle


def passed(passage: FilteredSession, data: bytes, size: int) -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(part for piece in pieces for part in passage.from_board(piece))


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_a_session_passes_as_it_is_in_pieces_of_any_size(size: int) -> None:
    passage = FilteredSession()
    assert passed(passage, GREETING, size) == GREETING
    for _ in range(3):
        asked = [passage.from_client(bytes([byte])) for byte in REQUEST]
        assert b"".join(asked) == REQUEST
        assert passed(passage, ANSWER, size) == ANSWER


def test_a_greeting_and_an_answer_may_come_at_once() -> None:
    passage = FilteredSession()
    passage.from_client(REQUEST)
    assert passed(passage, GREETING + ANSWER, 1000) == GREETING + ANSWER


def test_a_server_without_a_name_is_one() -> None:
    nameless = struct.pack("<ii", MAGIC, 0)
    assert passed(FilteredSession(), nameless, 1000) == nameless


@pytest.mark.parametrize("mode", sorted(set(ATTACKS) - {"silent"}))
def test_nothing_of_an_attack_passes(mode: str) -> None:
    passage = FilteredSession()
    assert passed(passage, GREETING, 1000) == GREETING
    passage.from_client(REQUEST)
    heard = []
    with pytest.raises(AnswerError):
        for part in passage.from_board(ATTACKS[mode]("/nowhere")):
            heard.append(part)
    assert b"".join(heard) in (b"", ATTACKS[mode]("/nowhere")[: len(ATTACKS[mode]("")) // 2])


def test_an_error_of_the_board_passes_whatever_its_text() -> None:
    passage = FilteredSession()
    passed(passage, GREETING, 1000)
    passage.from_client(REQUEST)
    assert passed(passage, MESSAGES["escapes"](""), 7) == MESSAGES["escapes"]("")


@pytest.mark.parametrize("code", [MISMATCH, DUPLICATE])
def test_a_client_hears_that_its_key_is_refused_and_nothing_after_it(code: int) -> None:
    passage, heard = FilteredSession(), []
    with pytest.raises(AnswerError):
        for part in passage.from_board(struct.pack("<i", code) + b"more"):
            heard.append(part)
    assert heard == [struct.pack("<i", code)]


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH",
        struct.pack("<ii", MAGIC, -1),
        struct.pack("<ii", MAGIC, MOST_KEY_BYTES + 1),
    ],
)
def test_what_greets_otherwise_is_cut_off(greeting: bytes) -> None:
    with pytest.raises(AnswerError):
        passed(FilteredSession(), greeting, 1000)


def test_a_client_that_sends_no_requests_is_cut_off() -> None:
    with pytest.raises(AnswerError):
        FilteredSession().from_client(struct.pack("<Qi", 2, 3))
