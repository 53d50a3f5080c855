"""The connection to a board, which is to notice a dead network."""

from __future__ import annotations

import socket

import pytest

from farm.transports.rpc_client import set_tcp_keepalive_and_user_timeout

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")


def test_a_connection_to_a_board_breaks_after_20_s_of_silence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as opened,
    ):
        assert not opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        set_tcp_keepalive_and_user_timeout(opened)
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        # Who waits for an answer sends nothing: only probes notice that nobody acknowledges
        for option, value in (("KEEPIDLE", 5), ("KEEPINTVL", 5), ("KEEPCNT", 4)):
            assert opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}")) == value
