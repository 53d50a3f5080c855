"""A command that is forked from the server says, and ends as, what the program does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked_commands
import pytest
from lossy_network import inside, lossy_network
from timeouts import wait_until


def forked(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    out, err = folder / "forked.out", folder / "forked.err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        variables = {**os.environ, **environment}
        code = forked_commands.run_command(words, folder, variables, out_file, err_file)
    return code, out.read_text(), err.read_text()


def program(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "farm", *words],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--version",), 0),
        (("bench", "--help"), 0),
        (("nothing",), 2),
        (("devices", "--json", "--device", "none"), 2),
        (("history", "none"), 0),
        (("config", "--json"), 2),
    ],
)
def test_it_says_the_same_and_ends_with_the_same_code(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    own = {"FARM_DATA": str(tmp_path / "data"), "FARM_CACHE": str(tmp_path / "cache")}
    (tmp_path / "devices.toml").write_text('[devices.mine]\nprofile = "x86"\nurl = "local:"\n')
    found = forked(tmp_path, *words, **own)
    assert found == program(tmp_path, *words, **own)
    assert found[0] == code, found


def test_each_has_its_own_folder_and_environment(tmp_path: Path) -> None:
    def name(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "own.toml"
        path.write_text(f'[devices.board{number}]\nprofile = "none"\nurl = "local:"\n')
        return forked(folder, "devices", FARM_CONFIG=path.name)[2]

    with ThreadPoolExecutor(4) as pool:
        for number, said in enumerate(pool.map(name, range(8))):
            assert f"board{number}" in said, said


def test_one_that_is_stopped_says_by_which_signal(tmp_path: Path) -> None:
    environment = {**os.environ, "FARM_DATA": str(tmp_path)}
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        words = ("tracker", "--port", "0")
        running = forked_commands.start_command(words, tmp_path, environment, out, err)
    wait_until(lambda: "tracker on" in (tmp_path / "err").read_text(), "the tracker")
    assert os.getsid(running.pid) == running.pid and running.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.01)
    running.kill()
    assert running.wait() == running.poll() == -signal.SIGKILL
    running.kill()  # nothing, as it has ended


def test_variables_that_python_reads_as_it_starts_need_the_program() -> None:
    assert forked_commands.can_run({**os.environ, "FARM_CACHE": "/elsewhere"})
    assert not forked_commands.can_run({**os.environ, "PYTHONPATH": "/elsewhere"})
    assert not forked_commands.can_run({**os.environ, "LC_ALL": "C.other"})


def test_what_is_started_in_another_network_is_the_program_itself() -> None:
    with lossy_network() as network, inside(network.context):
        assert not forked_commands.can_run(os.environ)
    assert forked_commands.can_run(os.environ)
