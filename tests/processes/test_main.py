"""How the process of a command starts and ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys

class Loud:
    def __del__(self):
        print("taken apart")

loud = Loud()
from farm import __main__ as entry
sys.argv = ["farm", *sys.argv[1:]]
import farm.cli
command = farm.cli.cli.callback
farm.cli.cli.callback = lambda: (atexit.register(print, "cleaned up"), command())
entry.main()
"""


def run(*words: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)


@pytest.mark.parametrize("own", [None, "9"])
def test_threads_of_numpy_do_not_spin_unless_the_user_says_how_long(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "OPENBLAS_THREAD_TIMEOUT"
    monkeypatch.delenv(name)
    if own:
        monkeypatch.setenv(name, own)
    last = f"import os; atexit.register(lambda: print(os.environ['{name}']))\nentry.main()"
    done = run("schema", program=PROGRAM.replace("entry.main()", last))
    assert done.stdout.splitlines()[-1] == (own or "4")


def test_a_command_cleans_up_and_then_ends_without_taking_its_modules_apart() -> None:
    done = run("schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "cleaned up"


def test_the_exit_code_of_an_error_is_kept() -> None:
    done = run("nonsense")
    assert done.returncode == 2
    assert "there is no command 'nonsense'" in done.stderr and "taken apart" not in done.stdout


def test_an_option_before_the_command_is_told_its_place() -> None:
    done = run("--config", "my.toml", "bench")
    assert done.returncode == 2
    assert "--config stands before the command" in done.stderr
    assert "fix: farm bench --config ...; farm bench --help" in done.stderr


def test_an_option_that_the_command_lacks_is_not_sent_there() -> None:
    done = run("-c", "my.toml", "bench")
    assert done.returncode == 2
    assert "No such option '-c'" in done.stderr and "farm bench -c" not in done.stderr


def test_what_farm_does_not_expect_is_left_to_python() -> None:
    done = run(
        "schema",
        program=PROGRAM.replace("entry.main()", "farm.cli.main = lambda: 1 / 0\nentry.main()"),
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr and "taken apart" in done.stdout


def test_what_was_registered_before_farm_runs_at_the_end_too() -> None:
    early = "import atexit\natexit.register(print, 'coverage is written')\n"
    done = run("schema", program=early + PROGRAM)
    assert done.returncode == 0
    assert {"cleaned up", "coverage is written"} < set(done.stdout.splitlines())
