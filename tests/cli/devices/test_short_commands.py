"""What a command on kept builds does not load and start: loading modules is most of its time."""

from __future__ import annotations

import subprocess
import sys

import pytest
from farm_processes import HOST, Farm
from rpc_servers import configure, farm_agent

# The command line in a process that says, at its end, what it has loaded and started.
PROGRAM = """
import sys
started = []
sys.addaudithook(lambda event, _: event in STARTS and started.append(event))
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
from farm import cli
sys.argv[0] = "farm"
try:
    cli.main()
finally:
    print("loaded", *sys.modules)
    print("started", *started)
"""
HEAVY = {
    *("PIL", "aiohttp", "asyncio", "distributed", "jinja2", "obstore", "onnx", "onnxruntime"),
    *("paramiko", "psycopg", "sqlalchemy", "tarfile", "torch", "tvm", "tvm_ffi"),
    *("farm.agent.build", "farm.lab", "farm.sandbox.fork_server", "farm.store.database"),
    *("farm.tracker", "farm.transports.lab", "farm.transports.ssh", "farm.types.bisect"),
    *("farm.types.profiling", "farm.types.tuning", "farm.zoo"),
}
DRAWING = {
    "rich",
    "farm.dashboard.render_job_board",
    "farm.dashboard.tuning_progress",
    "farm.views",
}


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (("deploy", "--device", "board", "digits"), HEAVY | DRAWING),
        (("bench", "--device", "board", "digits", "--quick"), HEAVY),
        (("devices", "-v"), HEAVY),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_on_what_is_there_loads_and_starts_nothing_for_other_work(
    farm: Farm, words: tuple[str, ...], unneeded: set[str]
) -> None:
    with farm_agent(farm) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        assert farm.run("deploy", "--device", "board", "digits").code == 0  # runs are kept now
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=farm.folder,
            env=farm.env,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    *_, loaded, started = done.stdout.splitlines()
    assert "farm.rpc.session" in loaded.split()
    assert unneeded.intersection(loaded.split()) == set()
    assert started == "started"
