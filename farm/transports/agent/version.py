"""Check that an agent has the same protocol, farm version and TVM version as this farm.

The agent reports them in its facts. TVM's own handshake does not help: its version string has been
the same since TVM 0.8. A server of TVM's own does not report its version; a function that came with
ours shows whether it is older.
"""

from __future__ import annotations

import functools
import importlib.metadata
import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from farm import __version__
from farm.errors import DeviceError
from farm.transports.agent.answer_validation import AgentAnswerError
from farm.types import Device

PROTOCOL = 5  # version of the agent's own RPC functions
_NEW_FUNCTION = "vm.builtin.check_string_info"  # of the runtime; 0.26 does not have it
_NEW_SINCE = "0.27"


def expected_facts() -> dict[str, str]:
    """Return the facts that an agent must report: its protocol and the versions of farm and TVM."""
    return {"protocol": str(PROTOCOL), "agent": __version__, "tvm": _tvm_version()}


@functools.cache
def _tvm_version() -> str:
    return importlib.metadata.version("apache-tvm")


def check_versions(device: Device, facts: Mapping[str, Any]) -> None:
    """Raise DeviceError, with a fix, if the agent's facts name another version than this farm's.

    Raises AgentAnswerError if `facts` is not a mapping.
    """
    if not isinstance(facts, Mapping):
        raise AgentAnswerError("farm.agent.facts gives no table")
    names = {"protocol": "protocol", "agent": "farm", "tvm": "TVM"}
    wanted = expected_facts()
    wrong = [name for name in names if str(facts.get(name)) != wanted[name]]
    if wrong:
        theirs, here = (
            " and ".join(f"{names[name]} {str(one.get(name))[:100]}" for name in wrong)
            for one in (facts, wanted)
        )
        raise DeviceError(
            f"the agent of {device.name} is of another version",
            f"it has {theirs}, this farm has {here}",
            _fix(device),
        )


def describe_older_tvm_server(has_function: Callable[[str], bool]) -> str:
    """Return in words that a server of TVM's own is of an older TVM; "" if it is not.

    `has_function` returns whether the server has a global function of a name.
    """
    if has_function(_NEW_FUNCTION):
        return ""
    return (
        f"it is of a TVM before {_NEW_SINCE}, and this farm builds with {_tvm_version()}: it "
        "refuses a build with functions that it does not have"
    )


def _fix(device: Device) -> str:
    if device.gets_agent:
        return f"farm provision --device {device.name}"
    by_farm = "where farm has installed it as a service, farm provision --service again, by SSH"
    return (
        "on the board, end the agent that runs and start the one of this farm: "
        f"{agent_start_command(device)}; {by_farm}"
    )


def agent_start_command(device: Device) -> str:
    """Return the command that starts the agent on the board of a device that farm does not start.

    Those are boards at rpc://, at a tracker, and of a lab.
    """
    parts, gpu = urlsplit(device.url), " --cuda" if device.profile.on_gpu else ""
    if device.scheme == "tracker":
        return (
            f"farm agent{gpu} --tracker {parts.hostname}:{parts.port or 9190} --key "
            f"{shlex.quote(parts.path.lstrip('/'))}"
        )
    if device.scheme == "lab":
        return f"farm agent{gpu} --tracker HOST:PORT --key KIND"
    return f"farm agent{gpu} --port {parts.port or 9090}"
