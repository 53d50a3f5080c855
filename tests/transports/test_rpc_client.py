"""Connections that somebody else opens, and that are to notice a dead network all the same."""

from __future__ import annotations

import socket

import pytest

from farm.transports.rpc_client import noticing_silence

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")


def test_a_connection_opened_in_the_block_breaks_after_20_s_of_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as before:
        with noticing_silence():
            opened = socket.create_connection(server.getsockname())
        with opened:
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        assert not before.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
