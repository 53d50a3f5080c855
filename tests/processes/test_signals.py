"""Signals: when they are heard, and by whom. Each in a process of its own, for a process has one
disposition of its signals.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from timeouts import LIMIT_S, wait_until

from farm.processes import subprocesses
from farm.processes.deadline import Deadline

BEGIN = """import os, signal, time
from farm.processes import signals
signals.raise_stopped_on_signals()
me = os.getpid()
"""


def run(script: str) -> list[str]:
    return subprocesses.run_program(
        [sys.executable, "-c", BEGIN + script], deadline=Deadline(LIMIT_S), what="the script"
    ).split("\n")[:-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_raises_where_the_program_is(number: signal.Signals) -> None:
    script = f"""
try:
    os.kill(me, {number})
    time.sleep(60)
except signals.Stopped as stopped:
    print(stopped.exit_code)
"""
    assert run(script) == [str(128 + number)]


def test_nothing_that_handles_errors_swallows_it() -> None:
    script = """
try:
    try:
        os.kill(me, signal.SIGINT)
        time.sleep(60)
    except Exception:
        print("swallowed")
except signals.Stopped:
    print("heard")
"""
    assert run(script) == ["heard"]


def test_in_a_deferred_block_it_waits_for_the_next_check() -> None:
    script = """
try:
    with signals.defer_signals():
        os.kill(me, signal.SIGTERM)
        print("goes on")
        with signals.defer_signals():
            print("and on")
        signals.raise_if_stopped()
        print("not here")
except signals.Stopped:
    print("stopped")
"""
    assert run(script) == ["goes on", "and on", "stopped"]


def test_at_the_end_of_a_deferred_block_it_is_heard() -> None:
    script = """
try:
    with signals.defer_signals():
        os.kill(me, signal.SIGINT)
    print("not here")
except signals.Stopped:
    print("stopped")
"""
    assert run(script) == ["stopped"]


def test_the_second_signal_does_not_disturb_the_cleaning_up() -> None:
    script = """
try:
    os.kill(me, signal.SIGINT)
    time.sleep(60)
except signals.Stopped:
    os.kill(me, signal.SIGINT)
    os.kill(me, signal.SIGTERM)
    print("cleaned up")
"""
    assert run(script) == ["cleaned up"]


def test_an_ignored_signal_stays_ignored() -> None:
    script = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nsignals.raise_stopped_on_signals()\n"
        "os.kill(me, signal.SIGHUP)\nprint('lives')"
    )
    assert run(script) == ["lives"]


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_reaper_ends_what_a_killed_process_has_left(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from farm.processes import subprocesses
reaper = subprocesses.ProcessGroupWatchdog()
log = Path({str(tmp_path / "log")!r})
known = subprocesses.start_program(["sleep", "600"], log=log, own_group=True)
gone = subprocesses.start_program(["sleep", "600"], log=log, own_group=True)
reaper.track(known)
reaper.track(gone)
reaper.untrack(gone)
print(known.pid, gone.pid, flush=True)
os.kill(me, signal.SIGKILL)
"""
    log = tmp_path / "out"
    child = subprocesses.start_program([sys.executable, "-c", BEGIN + script], log=log)
    child.wait(LIMIT_S)
    known, forgotten = map(int, log.read_text().split())
    try:
        wait_until(lambda: not alive(known), "the end of what it has left")
        assert alive(forgotten)
    finally:
        os.kill(forgotten, signal.SIGKILL)


def test_a_loop_that_is_in_a_callback_ends_too() -> None:
    script = """
import asyncio
loop = asyncio.new_event_loop()
signals.stop_loop_on_signal(loop)
def callback():
    os.kill(me, signal.SIGTERM)
    time.sleep(0.1)
    print("goes on")
loop.call_soon(callback)
try:
    loop.run_forever()
    signals.raise_if_stopped()
except signals.Stopped as stopped:
    print(stopped.exit_code)
"""
    assert run(script) == ["goes on", "143"]


def test_a_deferred_block_that_hangs_is_left_in_the_end() -> None:
    script = """
signals._PATIENCE_S = 0.3
try:
    with signals.defer_signals():
        os.kill(me, signal.SIGTERM)
        print("goes on")
        time.sleep(60)
        print("to its end")
except signals.Stopped as stopped:
    print(stopped.exit_code)
"""
    assert run(script) == ["goes on", "143"]


def test_the_limit_of_a_deferred_block_does_not_disturb_the_cleaning_up() -> None:
    script = """
signals._PATIENCE_S = 0.3
try:
    with signals.defer_signals():
        os.kill(me, signal.SIGTERM)
        signals.raise_if_stopped()
except signals.Stopped:
    time.sleep(0.6)
    print("cleaned up")
"""
    assert run(script) == ["cleaned up"]
