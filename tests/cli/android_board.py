"""An Android board that is this machine: the stand-in for adbd, with a real adb server and client
of its own beside it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from timeouts import wait_until

ADBD = Path(__file__).with_name("adbd_stand_in.py")
PROPERTIES = {
    "ro.product.manufacturer": "Stand-in",
    "ro.product.model": "Board One",
    "ro.product.device": "board_one",
    "ro.soc.manufacturer": "QTI",
    "ro.soc.model": "SM8350",
    "ro.board.platform": "lahaina",
    "ro.build.version.release": "13",
    "ro.build.version.sdk": "33",
    "ro.product.cpu.abi": "arm64-v8a",
}
BATTERY = """Current Battery Service state:
  AC powered: false
  USB powered: {usb}
  Wireless powered: false
  status: {status}
  level: {level}
  scale: 100
  temperature: 284
"""


@dataclass
class AdbServer:
    """A real adb server on a port of its own; `env` is what leads a client to it."""

    folder: Path
    port: int

    @property
    def home(self) -> Path:
        return self.folder / "adb-home"

    @property
    def env(self) -> dict[str, str]:
        # Without the last one, the server tries the ports of Android's emulators on this machine.
        return {
            "HOME": str(self.home),
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "5553",
        }

    def adb(
        self, *words: str | Path, given: bytes | Path = b"", check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the real client to its end."""
        command = ["adb", *map(str, words)]
        content = given.read_bytes() if isinstance(given, Path) else given
        return subprocess.run(
            command,
            input=content,
            capture_output=True,
            env={**os.environ, **self.env},
            check=check,
            timeout=60,
        )

    def start(self) -> None:
        self.adb("start-server")

    def kill(self) -> None:
        """End the server of this port, if there is one."""
        self.adb("kill-server", check=False)

    def is_up(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1),
        ):
            return True
        return False


@dataclass
class AndroidBoard:
    """The board. Every process of it carries `mark` in its environment."""

    server: AdbServer
    name: str
    mark: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] = field(init=False)

    @property
    def folder(self) -> Path:
        return self.server.folder / self.name

    @property
    def temporary(self) -> Path:
        """What stands for /data/local/tmp."""
        return self.folder / "data/local/tmp"

    @property
    def kept(self) -> Path:
        """The folder that farm has on the board."""
        return self.temporary / "farm"

    @property
    def programs(self) -> Path:
        """Programs of the board's own, the first of its PATH."""
        return self.folder / "system/bin"

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{(self.folder / 'port').read_text()}"

    @property
    def url(self) -> str:
        return f"adb:{self.serial}"

    def agents(self) -> list[Path]:
        return sorted(self.kept.glob("agents/*/farm-agent"))

    def says(self, program: str, text: str) -> None:
        """Give the board a program that prints a text by its first two arguments: `text` is a
        shell's case branches, or plain words.
        """
        self.programs.mkdir(parents=True, exist_ok=True)
        body = (
            f'case "$*" in\n{text}\nesac\n'
            if ")" in text.partition("\n")[0]
            else f"cat <<'END'\n{text}\nEND\n"
        )
        (self.programs / program).write_text(f"#!/bin/sh\n{body}")
        (self.programs / program).chmod(0o755)

    def properties(self, **changed: str) -> None:
        """Set what getprop says; `ro.product.model` is ro_product_model here."""
        told = {**PROPERTIES, **{name.replace("_", "."): value for name, value in changed.items()}}
        branches = "\n".join(f"{name}) echo '{value}';;" for name, value in told.items())
        self.says("getprop", branches)

    def power(
        self,
        *,
        level: int = 80,
        usb: bool = True,
        saver: bool = False,
        awake: bool = True,
        thermal: int = 0,
    ) -> None:
        """Set what the board's services say of its battery, its screen and its heat."""
        battery = BATTERY.format(
            usb="true" if usb else "false", level=level, status=2 if usb else 3
        )
        wakefulness, state = ("Awake", "ON") if awake else ("Asleep", "OFF")
        self.says(
            "dumpsys",
            f"battery) cat <<'END'\n{battery}END\n;;\n"
            f"power) echo '  mWakefulness={wakefulness}'; echo 'Display Power: state={state}';;\n"
            f"thermalservice) echo 'Thermal Status: {thermal}';;",
        )
        self.says("settings", f"'get global low_power') echo {int(saver)};;")

    def start(self) -> None:
        """Plug it in: start the daemon and have the server connect to it."""
        port = self.folder / "port"
        port.unlink(missing_ok=True)
        path = f"{self.programs}:{os.environ['PATH']}"
        own = {
            "PATH": path,
            "HOME": "/",
            "TMPDIR": str(self.temporary),
            "FARM_TEST": self.mark,
            **self.environment,
        }
        with (self.folder / "adbd.log").open("ab") as log:
            command = [sys.executable, ADBD, port, *self.options]
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own
            )
        wait_until(lambda: port.exists() or self.child.poll() is not None, "the port of adbd")
        assert port.exists(), (self.folder / "adbd.log").read_text()

    @contextlib.contextmanager
    def disk(self, options: str) -> Iterator[Path]:
        """A small disk of its own in the place of /data/local/tmp."""
        if os.getuid():
            pytest.skip("only root may mount a disk")
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.temporary], check=True)
        try:
            yield self.temporary
        finally:
            subprocess.run(["umount", "--lazy", self.temporary], check=True)

    def connect(self) -> None:
        self.server.adb(
            "connect", self.serial, check=False
        )  # it says "failed" of a device that has to be authorized
        wait_until(
            lambda: self.serial.encode() in self.server.adb("devices").stdout,
            "the device in the list",
        )
        if not self.options:
            wait_until(
                lambda: f"{self.serial}\tdevice".encode() in self.server.adb("devices").stdout,
                "the device",
            )

    def unplug(self) -> None:
        """End the daemon, and with it every connection, at once."""
        self.child.kill()
        self.child.wait()


@contextlib.contextmanager
def adb_server(folder: Path) -> Iterator[AdbServer]:
    """A server for as long as the block lasts. Skips where there is no adb."""
    if not shutil.which("adb"):
        pytest.skip("adb is not installed: sudo apt-get install adb")
    server = start_server(folder)
    try:
        yield server
    finally:
        server.kill()


def start_server(folder: Path, tries: int = 5) -> AdbServer:
    """Start a server on a free port. adb cannot choose one itself: what was free may be taken when
    it begins, so more than one is tried.
    """
    for _ in range(tries):
        with socket.create_server(("127.0.0.1", 0)) as free:
            server = AdbServer(folder, free.getsockname()[1])
        server.home.mkdir(parents=True, exist_ok=True)
        done = server.adb("start-server", check=False)
        if done.returncode == 0:
            return server
    pytest.fail(
        f"adb start-server ended with {done.returncode}: {done.stderr.decode(errors='replace')}"
    )


@contextlib.contextmanager
def android_board(
    server: AdbServer,
    mark: str,
    name: str = "board",
    options: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[AndroidBoard]:
    """A board for as long as the block lasts, connected to the server."""
    board = AndroidBoard(server, name, mark, options, environment or {})
    board.temporary.mkdir(parents=True)
    board.properties()
    board.power()
    board.start()
    try:
        board.connect()
        yield board
    finally:
        board.unplug()
