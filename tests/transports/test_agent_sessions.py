"""Sessions with a real agent on this machine: what they hold, and how they end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from timeouts import LIMIT_S, wait_until

from farm import transports
from farm.config import load_fleet
from farm.errors import DeviceError, LinkError
from farm.processes.cancellation import Cancellation


@pytest.fixture
def open_one(agents: Callable[[str], Path], tmp_path: Path) -> Callable[[], object]:
    file = tmp_path / "devices.toml"
    file.write_text('[devices.host]\nprofile = "x86"\nurl = "local:"\n')
    device = load_fleet(file).devices["host"]
    return lambda: transports.open(device, agents("x86_64"), tmp_path, 60)


def test_a_session_ends_in_good_order(open_one: Callable, tmp_path: Path) -> None:
    with open_one() as link:
        (tmp_path / "sent").write_bytes(b"1234")
        link.session.upload(tmp_path / "sent", "there")
        assert link.call("tvm.rpc.server.download", "there") == b"1234"
        assert "agent" in link.facts()
    assert "died" not in (tmp_path / "agent.log").read_text()
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]


def test_objects_of_the_agent_are_given_back_within_the_session(open_one: Callable) -> None:
    """A session with many samples must not fill the board's memory with their tensors."""
    with open_one() as link:
        peak = "memory_peak_bytes"
        for _ in range(2):
            link.session.tensor(np.ones(1 << 22, "float32")).numpy()
        before = int(link.facts()[peak])
        for number in range(20):
            array = np.arange(number, number + (1 << 22), dtype="float32")
            assert (link.session.tensor(array).numpy() == array).all()
        assert int(link.facts()[peak]) - before < 3 * array.nbytes


def test_a_session_can_be_cut_by_another_thread(open_one: Callable) -> None:
    """As when the deadline of its work is over."""
    work = Cancellation()
    with pytest.raises(LinkError), work.in_this_thread(), open_one() as link:
        assert link.facts()
        cutter = threading.Timer(0.2, work.cancel)
        cutter.start()
        try:
            while True:
                link.facts()
        finally:
            cutter.join()


def test_an_agent_ends_a_session_by_itself_when_its_time_is_up(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also where nobody is there any more to end it from outside."""
    (tmp_path / "devices.toml").write_text('[devices.host]\nprofile = "x86"\nurl = "local:"\n')
    device = load_fleet(tmp_path / "devices.toml").devices["host"]

    def is_over() -> bool:
        return "END_TIME_UP" in (tmp_path / "agent.log").read_text()

    with (
        contextlib.suppress(DeviceError),
        transports.open(device, agents("x86_64"), tmp_path, 1),
    ):
        wait_until(is_over, "the end of its time", LIMIT_S / 10)
    assert is_over()


def test_no_tvm_is_imported_to_drive_a_device(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "devices.toml").write_text('[devices.host]\nprofile = "x86"\nurl = "local:"\n')
    program = """
import sys
from pathlib import Path
from farm import executor, transports
from farm.config import load_fleet
device = load_fleet(Path("devices.toml")).devices["host"]
with transports.open(device, Path(sys.argv[1]), Path(), 60) as link:
    assert link.facts()
print("tvm" in sys.modules, "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, agents("x86_64")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


def test_an_error_in_the_block_is_what_is_told(open_one: Callable) -> None:
    with pytest.raises(DeviceError, match="what happened"), open_one():
        raise DeviceError("what happened")
