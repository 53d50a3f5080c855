"""farm agent has a key that other users do not know, and that its user's clients find."""

from __future__ import annotations

import re
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from farm_processes import DIGITS, HOST, QUICK, Done, Farm, Running

MAGIC = 0xFF271  # kRPCMagic and kRPCSuccess of TVM's rpc_endpoint.h
MISMATCH = MAGIC + 2
SECRET = "s3cret-key"


@contextmanager
def agent(farm: Farm, *options: str) -> Iterator[tuple[Running, int]]:
    """A running `farm agent`, and its port."""
    running = farm.start("agent", "--port", "0", *options)
    running.says("listening on")
    yield running, int(re.findall(r"listening on [^\n]*:(\d+)", running.said)[-1])
    running.send(signal.SIGTERM)
    running.end()


def greeting(port: int, key: str) -> int:
    """What an agent answers to a client with a key."""
    word = f"client:{key}".encode()
    with socket.create_connection((HOST, port), timeout=10) as client:
        client.sendall(struct.pack("<ii", MAGIC, len(word)) + word)
        return int(struct.unpack("<i", client.recv(4))[0])


def deploy(farm: Farm, port: int, options: str = "") -> Done:
    board = f'[devices.board]\nprofile = "x86"\nurl = "rpc://localhost:{port}"\n'
    farm.configure(f"{board}options = {{ {options} }}\n{DIGITS}{QUICK}")
    return farm.run("deploy", "--device", "board", "digits")


def test_another_user_cannot_run_code_and_ones_own_clients_need_no_option(farm: Farm) -> None:
    with agent(farm) as (running, port):
        assert greeting(port, "") == MISMATCH
        (file,) = (farm.data / "agent-keys").iterdir()
        assert str(file) in running.said
        assert file.stat().st_mode & 0o777 == 0o600
        key = file.read_text().strip()
        assert len(key) == 48
        assert key not in running.said
        assert not [line for line in farm.processes().values() if key in line]
        done = deploy(farm, port)
        assert done.code == 0, done.err
    assert deploy(farm, port).error["error"] == "board is offline"
    farm.assert_nothing_is_left()


def test_a_key_file_is_for_clients_elsewhere_and_on_no_command_line(farm: Farm) -> None:
    file = farm.folder / "key"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    with agent(farm, "--key-file", str(file)) as (running, port):
        assert greeting(port, "") == MISMATCH
        assert "warning" not in running.said
        command = Path(f"/proc/{running.child.pid}/cmdline").read_bytes()
        assert SECRET.encode() not in command
        assert "`key_file`" in deploy(farm, port).error["fix"]
        done = deploy(farm, port, 'key_file = "key"')
        assert done.code == 0, done.err
        file.chmod(0o644)
        refused = deploy(farm, port, 'key_file = "key"')
        assert refused.code == 2 and "other users may use the key file" in refused.error["error"]
    farm.assert_nothing_is_left()


def test_a_key_on_the_command_line_works_with_a_warning_and_goes_no_further(farm: Farm) -> None:
    with agent(farm, "--key", SECRET) as (running, port):
        assert "warning: other users can see --key" in running.said
        command = Path(f"/proc/{running.child.pid}/cmdline").read_bytes()
        assert SECRET.encode() not in command, "the agent itself has it from its environment"
        assert greeting(port, SECRET) == MAGIC


def test_no_key_is_what_one_has_to_ask_for(farm: Farm) -> None:
    with agent(farm, "--no-key") as (running, port):
        assert "warning: without a key, every user" in running.said
        assert greeting(port, "") == MAGIC


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--key", "a", "--no-key"), "--key and --no-key"),
        (("--key-file", "none", "--no-key"), "--key-file and --no-key"),
        (("--key-file", "none"), "none cannot be read"),
        (("--tracker", "lab:9190", "--no-key"), "--no-key with a tracker"),
        (("--tracker", "$(x):9190", "--key", "pi"), "is no address"),
    ],
)
def test_contradictions_are_refused(farm: Farm, options: tuple[str, ...], words: str) -> None:
    done = farm.run("agent", *options)
    assert done.code == 2
    assert words in done.error["error"]
