"""Whether the address that a board offers is its own."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import pytest

from farm.lab.door.board_address_check import foreign_address_reason


@dataclass
class Connection:
    """The two ends of a board's connection to the lab."""

    board: str
    lab: str = "192.168.7.1"

    def getpeername(self) -> tuple[str, int]:
        return self.board, 40000

    def getsockname(self) -> tuple[str, int]:
        return self.lab, 9190


@pytest.mark.parametrize(
    ("board", "offered"),
    [
        ("192.168.7.7", "192.168.7.7"),
        ("::ffff:192.168.7.7", "192.168.7.7"),
        ("fd00::7", "fd00:0:0::7"),
        ("fe80::7%eth0", "fe80::7"),
    ],
)
def test_where_it_connects_from_is_its_own(board: str, offered: str) -> None:
    assert foreign_address_reason(offered, 9090, Connection(board)) == ""


@pytest.mark.parametrize(
    "offered",
    ["192.168.7.8", "127.0.0.1", "::1", "192.168.7.1", "::ffff:127.0.0.1", "0.0.0.0", "127.1.1.1"],
)
def test_another_address_is_not_its_own(offered: str) -> None:
    said = foreign_address_reason(offered, 9090, Connection("192.168.7.7"))
    assert said.startswith("it connects from 192.168.7.7, and offers ")


@pytest.mark.parametrize("name", ["localhost", "pi5.lab", "", "2130706433", "127.1"])
def test_a_name_is_not_looked_up(name: str) -> None:
    assert foreign_address_reason(name, 9090, Connection("127.0.0.1", "127.0.0.1")) == (
        "the address has a name, and a board has to offer one of numbers"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.7.8"])
def test_a_board_of_the_labs_machine_offers_what_it_listens_at(host: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as lab,
        socket.create_server(("127.0.0.1", 0)) as board,
        socket.create_connection(lab.getsockname()),
    ):
        accepted, _ = lab.accept()
        said = foreign_address_reason(host, board.getsockname()[1], accepted)
        assert bool(said) == (host != "127.0.0.1")
        board.close()
        assert foreign_address_reason("127.0.0.1", 1, accepted) == (
            "what listens at port 1 there is not what offers it"
        )
        accepted.close()
        assert foreign_address_reason(host, 1, accepted) == "its connection to the lab is lost"
