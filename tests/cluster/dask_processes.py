"""A real scheduler of Dask and its workers, as processes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from network_namespaces import Machine
from timeouts import wait_until

_START = "import sys; sys.argv[0] = 'dask'; from dask.__main__ import main; main()"
_REGISTERED = "Registered to:"
_COMES, _GOES = "Register worker addr", "Remove worker addr"  # what the scheduler says of workers


@dataclass
class DaskCluster:
    """Workers of a scheduler, and most often the scheduler; their log lies in a folder."""

    folder: Path
    address: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    machine: Machine | None = None  # where what is started next runs; None for this one

    @property
    def scheduler(self) -> subprocess.Popen[bytes]:
        return self.processes[0]

    def start(self, *words: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            environ = {**os.environ, **environment}
            prefix = self.machine.prefix if self.machine else ()
            command = [*prefix, sys.executable, "-P", "-c", _START, *map(str, words)]
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )
        self.processes.append(child)
        return child

    def worker(
        self, name: str, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a worker with a cache of its own: it shares no files with the controller."""
        options = (
            "--no-dashboard",
            "--nthreads",
            "1",
            "--name",
            name,
            "--local-directory",
            self.folder / "dask",
        )
        path = os.pathsep.join(
            filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        )
        places = {
            "PYTHONPATH": path,
            "FARM_CACHE": str(self.cache(name)),
            "FARM_DATA": str(self.folder / f"data-{name}"),
        }
        before = self.log().count(_REGISTERED)
        child = self.start(
            "worker", self.address, *options, *words, **{**places, **(environment or {})}
        )
        # A busy machine starts one later than a controller waits for the first
        wait_until(lambda: self.log().count(_REGISTERED) > before, "the worker registers")
        return child

    def cache(self, name: str) -> Path:
        return self.folder / f"cache-{name}"

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextlib.contextmanager
def dask_cluster(folder: Path, machine: Machine | None = None) -> Iterator[DaskCluster]:
    """Run a scheduler for the duration of the block; its workers end with it."""
    cluster = DaskCluster(folder, machine=machine)
    file = folder / "scheduler.json"
    host = machine.address if machine else "127.0.0.1"
    options = ("--host", host, "--port", "0", "--no-dashboard", "--scheduler-file", file)
    cluster.start("scheduler", *options)
    try:
        wait_until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler's file")
        cluster.address = json.loads(file.read_text())["address"]
        yield cluster
    finally:
        _end(cluster)


@contextlib.contextmanager
def cluster_of(scheduler: DaskCluster, folder: Path) -> Iterator[DaskCluster]:
    """A cluster without workers whose scheduler outlives the block, for the next one."""
    (folder / "log").touch()
    cluster = DaskCluster(folder, scheduler.address)
    try:
        yield cluster
    finally:
        _end(cluster)
        wait_until(
            lambda: scheduler.log().count(_COMES) == scheduler.log().count(_GOES),
            "the scheduler has no workers",
        )


def _end(cluster: DaskCluster) -> None:
    for child in reversed(cluster.processes):
        below = (
            [] if child.poll() is not None else psutil.Process(child.pid).children(recursive=True)
        )
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
