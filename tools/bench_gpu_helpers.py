"""The parts of tools/bench-gpu: this machine's GPU, an agent on loopback, a kernel that hangs, a
client that vanishes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from farm.executor.session_gpu import use_gpu_in_session  # noqa: E402
from farm.transports import gpu_preflight  # noqa: E402
from farm.types import Device  # noqa: E402

_MAJOR, _MINOR = 75, 76  # CUdevice_attribute, of cuda.h
_START_S, _COMMAND_S = 1800.0, 3600.0
_RUNNING_S = 2.0  # after which a kernel that ends would have ended
# for the end of a session whose time is up, or whose client has gone, and for the next one
_OVER_S = 60.0
_EXPIRED, _DESERTED = (
    "its time was up",
    "its client has gone",
)  # as the agent's log says why a session is over
_ENDLESS = 1 << 40  # dependent additions: an hour and more
_LIBRARY, _LOG = "spin.so", "agent.log"


def machine(gpu: int) -> dict[str, Any]:
    """What nvidia-smi and the driver say. Raises OSError where there is no such GPU."""
    code = (
        f"import ctypes; d = ctypes.CDLL('{gpu_preflight.LIBRARY}'); v = [ctypes.c_int() for _ in "
        "range(3)]; "
        f"e = [d.cuInit(0), d.cuDeviceGetAttribute(ctypes.byref(v[0]), {_MAJOR}, {gpu}), "
        f"d.cuDeviceGetAttribute(ctypes.byref(v[1]), {_MINOR}, {gpu}), "
        "d.cuDriverGetVersion(ctypes.byref(v[2]))]; "
        "print(max(e), *(x.value for x in v))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )
    error, major, minor, version = map(int, done.stdout.split() or (-1, 0, 0, 0))
    if error:
        raise OSError(f"the driver has no GPU {gpu}: error {error} {done.stderr.strip()[-200:]}")
    with contextlib.suppress(FileNotFoundError):
        smi = subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
        return {
            "gpu": gpu,
            "architecture": f"sm_{major}{minor}",
            "cuda": version / 1000,
            "nvidia-smi": smi,
        }
    return {
        "gpu": gpu,
        "architecture": f"sm_{major}{minor}",
        "cuda": version / 1000,
        "nvidia-smi": "not installed",
    }


def farm(config: Path, *words: str) -> str:
    """What a command of farm prints. Raises CalledProcessError, with what it said on stderr
    before.
    """
    command = [sys.executable, "-m", "farm", words[0], "--config", str(config), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=_COMMAND_S)
    if done.returncode:
        print(done.stdout + done.stderr)
    done.check_returncode()
    return done.stdout


@contextlib.contextmanager
def agent(folder: Path) -> Iterator[int]:
    """The port of an agent for GPUs on this machine's loopback, which ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / _LOG
    with log.open("wb") as output:
        command = [sys.executable, "-m", "farm", "agent", "--cuda", "--port", str(port)]
        child = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    try:
        end = time.monotonic() + _START_S
        while not re.search(r"listening on", log.read_text(errors="replace")):
            if child.poll() is not None or time.monotonic() > end:
                raise OSError(f"the agent did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.2)
        yield port
    finally:
        child.terminate()
        child.wait()


def floors_ms(profile: dict[str, Any]) -> dict[str, float]:
    """The least milliseconds that an inference's arithmetic takes, and its bytes, each tensor once
    a kernel: by the roof that was measured
    beside the profile, which is that of float32 on the GPU's ordinary units."""
    roof, steps = profile["roof"], profile["steps"]
    operations, nbytes = (
        sum(step[what] or 0 for step in steps) for what in ("operations", "nbytes")
    )
    return {
        "arithmetic": 1e-6 * operations / roof["gflops"],
        "bytes": 1e-6 * nbytes / roof["gbytes_s"],
    }


def endless(device: Device, folder: Path) -> Path:
    """A library whose function `spin`, from 32 floats to 32 floats, does not end while anybody
    waits.
    """
    from tvm import IRModule, te

    from farm.compiler.codegen.executable import compile_executable
    from farm.compiler.codegen.link import fcompile_for_profile
    from farm.compiler.codegen.nvrtc import use_nvrtc_for_cuda
    from farm.compiler.gpu import schedule as gpu
    from farm.compiler.lower import resolve_target
    from farm.store import Store, user_cache_dir

    given, turn = (
        te.placeholder((32,), "float32", "given"),
        te.reduce_axis((0, te.const(_ENDLESS, "int64")), "turn"),
    )
    total = te.compute((32,), lambda lane: te.sum(given[lane], axis=turn), name="total")
    target = resolve_target(device.profile)
    function, _ = gpu.schedule_gpu_kernel(
        "spin", te.create_prim_func([given, total]).with_attr("global_symbol", "spin"), target
    )
    with use_nvrtc_for_cuda(target, Store(user_cache_dir())):
        module = IRModule({"spin": function.with_attr("global_symbol", "spin")})
        compile_executable(module, target).export_library(
            str(folder / _LIBRARY),
            fcompile=fcompile_for_profile(device.profile),
            workspace_dir=str(folder),
        )
    return folder / _LIBRARY


def spin(device: Device, library: Path, timeout_s: float) -> None:
    """Start the kernel on the device, say so by the time at which the session was begun
    (time.monotonic()), and wait for the kernel.
    """
    import numpy as np
    import tvm

    from farm import transports

    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as scratch,
        transports.open(device, None, Path(scratch), timeout_s) as link,
    ):
        use_gpu_in_session(link, device)
        link.session.upload(str(library), _LIBRARY)
        there = link.session.device("cuda", device.gpu)
        one, other = (
            tvm.runtime.tensor(np.ones(32, "float32"), device=there),
            tvm.runtime.empty((32,), "float32", there),
        )
        function = link.session.load_module(_LIBRARY)["spin"]
        function(one, other)
        print(begun, flush=True)
        there.sync()


def hang(device: Device, folder: Path, deadline_s: float) -> float:
    """Seconds from the end of the hanging session's time until its process is gone and the GPU has
    served another one.
    """
    with _spinning(device, folder, deadline_s) as spinning:
        spinning.client.wait(10 * deadline_s)
        ended = time.monotonic()
        assert spinning.client.returncode and "ran out of time" in spinning.said, (
            f"not the deadline ended it: {spinning.said}"
        )
        assert ended - spinning.begun >= deadline_s, (
            f"the session ended {deadline_s - ended + spinning.begun:.1f} s early"
        )
        return _free_after(device, spinning, _EXPIRED)


def vanish(device: Device, folder: Path, deadline_s: float) -> float:
    """Seconds from the killing of a client whose kernel runs until its session's process is gone
    and the GPU has served another one.
    """
    with _spinning(device, folder, 100 * deadline_s) as spinning:
        spinning.client.kill()
        spinning.client.wait()
        return _free_after(device, spinning, _DESERTED)


@dataclass
class _Spinning:
    """A client whose kernel runs, what it says, when its session was begun, and the process of that
    session, of which the log tells.
    """

    client: subprocess.Popen[bytes]
    log: Path
    begun: float
    session: int
    agent_log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")[-500:]


@contextlib.contextmanager
def _spinning(device: Device, folder: Path, timeout_s: float) -> Iterator[_Spinning]:
    """The kernel is on the GPU, and does not end; the client does with the block."""
    library = endless(device, folder)
    order, log = library.with_suffix(".order"), library.with_suffix(".log")
    order.write_bytes(pickle.dumps((device, library, timeout_s)))
    with log.open("wb") as errors:
        client = subprocess.Popen(
            [sys.executable, __file__, str(order)], stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
        )
    try:
        assert client.stdout is not None
        line = client.stdout.readline()
        assert line, f"the kernel was not started: {log.read_text(errors='replace')[-500:]}"
        agent_log = folder / _LOG
        session = int(
            re.findall(r"session (\d+) begins", agent_log.read_text(errors="replace"))[-1]
        )
        time.sleep(_RUNNING_S)
        assert client.poll() is None, f"the kernel ended: {log.read_text(errors='replace')[-500:]}"
        yield _Spinning(client, log, float(line), session, agent_log)
    finally:
        client.kill()
        client.wait()


def _free_after(device: Device, spinning: _Spinning, why: str) -> float:
    """Seconds until the session's process is gone, for that reason, and a new session has been
    served.
    """
    begin, over = time.monotonic(), None
    while not over:
        assert time.monotonic() - begin < _OVER_S, (
            f"session {spinning.session} is not over {_OVER_S:.0f} s later"
        )
        time.sleep(0.05)
        over = re.search(
            rf"session {spinning.session} is over after .*",
            spinning.agent_log.read_text(errors="replace"),
        )
    assert why in over[0], f"it should have ended as {why}, but: {over[0]}"
    assert not Path(f"/proc/{spinning.session}").exists(), (
        f"process {spinning.session} of the session is still there"
    )
    assert spinning.session not in _computing(), (
        f"nvidia-smi still lists process {spinning.session} of the session"
    )
    _serve(device)
    return time.monotonic() - begin


def _computing() -> list[int]:
    """The processes that nvidia-smi sees on the GPUs: in a container, mostly none."""
    with contextlib.suppress(FileNotFoundError):
        command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        return [
            int(word)
            for word in subprocess.run(command, capture_output=True, text=True).stdout.split()
            if word.isdigit()
        ]
    return []


def _serve(device: Device) -> None:
    """A new session allocates on the GPU, writes there and reads it back."""
    import numpy as np
    import tvm

    from farm import transports

    with (
        tempfile.TemporaryDirectory() as scratch,
        transports.open(device, None, Path(scratch), _OVER_S) as link,
    ):
        use_gpu_in_session(link, device)
        sent = np.arange(1024, dtype="float32")
        back = tvm.runtime.tensor(sent, device=link.session.device("cuda", device.gpu)).numpy()
        assert (back == sent).all(), "it gives back other numbers"


def main() -> None:
    spin(*pickle.loads(Path(sys.argv[1]).read_bytes()))


if __name__ == "__main__":
    main()
