"""The lab's tracker, which lends boards: TVM's tracker protocol on asyncio, in memory.

    errors         what is refused
    protocol       the messages, as types; what strangers send is checked there
    agent_messages what farm's agents and a lab say beside it
    framing        a stream of bytes to messages
    scheduler      who gets which board: pure and synchronous
    admission      how many connections there may be, and which gives way
    limited_log    what is said of peers, cleaned and limited
    peer           one connection
    server         all connections: what they ask, and what they are answered
    listening      the sockets that listen
    metrics_page   numbers for Prometheus
    run            the process: sockets, event loop, signals

It serves TVM's rpc_server, its clients, query_rpc_tracker and MetaSchedule's runner unchanged.
"""

from __future__ import annotations

from farm.tracker.listening import listen_on_first_free_port
from farm.tracker.metrics_page import format_summary_metrics
from farm.tracker.run import ListenAddresses, serve
from farm.tracker.server import TrackerServerSettings

__all__ = [
    "ListenAddresses",
    "TrackerServerSettings",
    "format_summary_metrics",
    "listen_on_first_free_port",
    "serve",
]
