"""Calls of an agent's own functions, as the tests write them: [global function, arguments...]; see
agent_clients.call_all.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agent_processes import Agent, client

Call = list[Any]

UPLOAD, DOWNLOAD, LIST = (
    "tvm.rpc.server.upload",
    "tvm.rpc.server.download",
    "tvm.rpc.server.listdir",
)
WORKPATH, REMOVE_FILE, LOAD = (
    "tvm.rpc.server.workpath",
    "tvm.rpc.server.remove",
    "tvm.rpc.server.load_module",
)
HAS, BEGIN, WRITE, FINISH = (
    "farm.store.has",
    "farm.store.begin",
    "farm.store.write",
    "farm.store.finish",
)
LINK, USAGE = "farm.store.link", "farm.store.usage"
INSTALL, DEPLOYED, OPEN = "farm.deploy.install", "farm.deploy.list", "farm.deploy.open"
ROLLBACK, REMOVE = "farm.deploy.rollback", "farm.deploy.remove"


def digest(size: int) -> str:
    """Of a file of so many zeros."""
    return hashlib.sha256(bytes(size)).hexdigest()


def put(size: int) -> list[Call]:
    """The calls that keep a file of so many zeros."""
    return [
        [BEGIN, digest(size), size],
        [WRITE, digest(size), 0, {"zeros": size}],
        [FINISH, digest(size)],
    ]


def in_sessions(agent: Agent, *wanted: list[Call]) -> list[list[Any]]:
    """The results of the calls of several sessions, one session after the other."""
    results: list[list[Any]] = client("call_sessions", port=agent.port, sessions=list(wanted))
    return results


def in_session(agent: Agent, *calls: Call) -> list[Any]:
    """The results of calls in one session."""
    return in_sessions(agent, list(calls))[0]
