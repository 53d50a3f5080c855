"""The parts of tools/bench-gpu: this machine's GPU, an agent on loopback, PyTorch's times, a kernel that hangs, a client that vanishes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from farm.executor.gpu import open_gpu  # noqa: E402
from farm.transports import gpu_driver  # noqa: E402
from farm.types import Device  # noqa: E402

_MAJOR, _MINOR = 75, 76  # CUdevice_attribute, of cuda.h
_START_S, _COMMAND_S, _TORCH_S = 1800.0, 3600.0, 1800.0
_RUNNING_S = 2.0  # until the kernel is surely on the GPU
_ENDLESS = 1 << 40  # dependent additions: an hour and more
_LIBRARY = "spin.so"


def machine(gpu: int) -> dict[str, Any]:
    """What nvidia-smi and the driver say. Raises OSError where there is no such GPU."""
    code = (
        f"import ctypes; d = ctypes.CDLL('{gpu_driver.LIBRARY}'); v = [ctypes.c_int() for _ in range(3)]; "
        f"e = [d.cuInit(0), d.cuDeviceGetAttribute(ctypes.byref(v[0]), {_MAJOR}, {gpu}), "
        f"d.cuDeviceGetAttribute(ctypes.byref(v[1]), {_MINOR}, {gpu}), d.cuDriverGetVersion(ctypes.byref(v[2]))]; "
        "print(max(e), *(x.value for x in v))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    )
    error, major, minor, version = map(int, done.stdout.split() or (-1, 0, 0, 0))
    if error:
        raise OSError(f"the driver has no GPU {gpu}: error {error} {done.stderr.strip()[-200:]}")
    with contextlib.suppress(FileNotFoundError):
        smi = subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
        return {"gpu": gpu, "architecture": f"sm_{major}{minor}", "cuda": version / 1000, "nvidia-smi": smi}
    return {"gpu": gpu, "architecture": f"sm_{major}{minor}", "cuda": version / 1000, "nvidia-smi": "not installed"}


def farm(config: Path, *words: str) -> str:
    """What a command of farm prints. Raises CalledProcessError, with what it said on stderr before."""
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
    log = folder / "agent.log"
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


def repeated(inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Example inputs, so many of them along the first axis."""
    return tuple(one.repeat(batch, *[1] * (one.dim() - 1)) for one in inputs)


def torch_times(name: str, batch: int) -> dict[str, Any]:
    """Milliseconds by CUDA events of PyTorch, eager and compiled, TF32 off, in a process of its own; `missing` says why there are none."""
    command = [sys.executable, __file__, name, str(batch)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "tools", timeout=_TORCH_S)
    except subprocess.TimeoutExpired:
        return {"missing": f"no end after {_TORCH_S:.0f} s"}
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["?"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _time_torch(name: str, batch: int) -> dict[str, Any]:
    import models
    import torch

    if not torch.cuda.is_available():
        return {"missing": f"torch {torch.__version__} has no CUDA here: pip install torch, in another environment"}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    network, inputs = models.build(name)
    network, given = network.cuda().eval(), tuple(one.cuda() for one in repeated(inputs, batch))

    def median_ms(run: Any) -> float:
        with torch.inference_mode():
            for _ in range(20):
                run(*given)
            times = []
            for _ in range(100):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                run(*given)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
        return sorted(times)[len(times) // 2]

    found = {"version": torch.__version__, "eager": median_ms(network)}
    try:
        found["compiled"] = median_ms(torch.compile(network, mode="max-autotune"))
    except Exception as exc:  # no compiler, or a graph that it does not take: the eager time stands
        found["not compiled"] = str(exc)[:300]
    return found


def endless(device: Device, folder: Path) -> Path:
    """A library whose function `spin`, from 32 floats to 32 floats, does not end while anybody waits."""
    from tvm import IRModule, te

    from farm.compiler import gpu
    from farm.compiler.code import compiled
    from farm.compiler.cuda import device_code
    from farm.compiler.link import linker
    from farm.compiler.lower import resolve_target
    from farm.store import Store, cache_root

    given, turn = te.placeholder((32,), "float32", "given"), te.reduce_axis((0, te.const(_ENDLESS, "int64")), "turn")
    total = te.compute((32,), lambda lane: te.sum(given[lane], axis=turn), name="total")
    target = resolve_target(device.profile)
    function, _ = gpu.schedule_one("spin", te.create_prim_func([given, total]).with_attr("global_symbol", "spin"), target)
    with device_code(target, Store(cache_root())):
        module = IRModule({"spin": function.with_attr("global_symbol", "spin")})
        compiled(module, target).export_library(str(folder / _LIBRARY), fcompile=linker(device.profile), workspace_dir=str(folder))
    return folder / _LIBRARY


def spin(device: Device, library: Path, timeout_s: float) -> None:
    """Start the kernel on the device, and wait for it."""
    import numpy as np
    import tvm

    from farm import transports

    with tempfile.TemporaryDirectory() as scratch, transports.open(device, None, Path(scratch), timeout_s) as link:
        open_gpu(link, device)
        link.session.upload(str(library), _LIBRARY)
        there = link.session.device("cuda", device.gpu)
        one, other = tvm.runtime.tensor(np.ones(32, "float32"), device=there), tvm.runtime.empty((32,), "float32", there)
        function = link.session.load_module(_LIBRARY)["spin"]
        print("spinning", flush=True)
        function(one, other)
        there.sync()


def hang(device: Device, folder: Path, deadline_s: float) -> float:
    """Seconds from the end of the hanging session's time until the GPU has served another one."""
    begin = time.monotonic()
    client = _client(device, endless(device, folder), deadline_s)
    assert client.stdout is not None and client.stdout.readline(), "the kernel was not started"
    client.wait(10 * deadline_s)
    assert client.returncode, "the kernel ended"
    assert time.monotonic() - begin >= deadline_s, "the session ended early"
    return _served(device)


def vanish(device: Device, folder: Path, deadline_s: float) -> float:
    """Seconds from the killing of a client whose kernel runs until the GPU has served another session."""
    client = _client(device, endless(device, folder), 100 * deadline_s)
    assert client.stdout is not None and client.stdout.readline(), "the kernel was not started"
    time.sleep(_RUNNING_S)
    client.kill()
    client.wait()
    return _served(device)


def _client(device: Device, library: Path, timeout_s: float) -> subprocess.Popen[bytes]:
    order = library.with_suffix(".order")
    order.write_bytes(pickle.dumps((device, library, timeout_s)))
    return subprocess.Popen([sys.executable, __file__, "--spin", str(order)], stdout=subprocess.PIPE, cwd=ROOT)


def _served(device: Device) -> float:
    """Seconds until a new session has allocated on the GPU, written there and read it back."""
    import numpy as np
    import tvm

    from farm import transports

    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, transports.open(device, None, Path(scratch), 60) as link:
        open_gpu(link, device)
        sent = np.arange(1024, dtype="float32")
        assert (tvm.runtime.tensor(sent, device=link.session.device("cuda", device.gpu)).numpy() == sent).all(), (
            "it gives back other numbers"
        )
    return time.monotonic() - begin


def main() -> None:
    if sys.argv[1] == "--spin":
        spin(*pickle.loads(Path(sys.argv[2]).read_bytes()))
    else:
        print(json.dumps(_time_torch(sys.argv[1], int(sys.argv[2]))))


if __name__ == "__main__":
    main()
