"""Start agents, servers and trackers, farm's own and TVM's, and configure a device that is reached
through them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import tvm_programs
from farm_processes import DIGITS, HOST, QUICK, Farm, server


def configure(farm: Farm, url: str, profile: str = "x86", options: str = "") -> None:
    farm.configure(
        f'[devices.board]\nprofile = "{profile}"\nurl = "{url}"\noptions = {{ {options} '
        f"}}\n{DIGITS}{QUICK}"
    )


def tvm_tracker(farm: Farm) -> contextlib.AbstractContextManager[int]:
    return python(
        farm,
        "tvm.exec.rpc_tracker",
        r"bind to [^:]*:(\d+)",
        "--host",
        HOST,
        "--port",
        "19190",
        "--port-end",
        "19999",
    )


def tvm_server(farm: Farm, *options: str) -> contextlib.AbstractContextManager[int]:
    return python(
        farm,
        "tvm.exec.rpc_server",
        r"bind to [^:]*:(\d+)",
        "--host",
        HOST,
        "--port",
        "19090",
        "--port-end",
        "19189",
        *options,
    )


def farm_tracker(farm: Farm) -> contextlib.AbstractContextManager[int]:
    return python(farm, "farm", r"tracker on [^:]*:(\d+)", "tracker", "--port", "0")


def farm_agent(farm: Farm, *options: str) -> contextlib.AbstractContextManager[int]:
    says = r"registered with tracker" if "--tracker" in options else r"listening on [^:]*:(\d+)"
    return python(farm, "farm", says, "agent", "--port", "0", *options)


@contextlib.contextmanager
def python(farm: Farm, module: str, says: str, *options: str) -> Iterator[int]:
    """A server, whose processes are not counted as the farm's own; gives the port that it names."""
    words = [sys.executable, "-m", module, *options]
    env = {**farm.env, "FARM_TEST": "a server"}
    if module.startswith("tvm"):
        env = tvm_programs.environment(env)
    with server(farm.folder, *words, says=says, env=env) as port:
        yield int(port) if port.isdigit() else 0
