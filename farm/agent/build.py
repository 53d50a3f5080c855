"""Build the device agent: one static executable per architecture, from our C++ and the runtime sources inside the TVM wheels.

    ensure("aarch64", cache, note, deadline) -> Path      prebuilt in the package, or built before, or built now

The compiler is zig's, which brings musl and libc++ along as sources and builds them at the first use for a target. That takes longer
than our own code does, so the two go side by side: a first link of an empty program, for the libraries, next to our two
translation units (TVM's runtime is one, the agent the other).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm import __version__, process
from farm.deadline import Deadline
from farm.errors import BuildError, DeadlineError

if TYPE_CHECKING:
    from subprocess import Popen

Note = Callable[[str, "float | None"], None]

ARCHITECTURES: tuple[str, ...] = ("x86_64", "aarch64", "armv7", "riscv64")

HERE = Path(__file__).resolve().parent
PREBUILT = HERE / "prebuilt"
_NOTE_EVERY_S = 1.0
_POLL_S = 0.05

# The oldest CPU of each kind: any x86-64; any ARMv8; ARMv7 with NEON and hard float (no integer division: Cortex-A9 has none); RV64GC.
_TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("-target", "x86_64-linux-musl"),
    "aarch64": ("-target", "aarch64-linux-musl"),
    "armv7": ("-target", "arm-linux-musleabihf", "-mcpu=generic+v7a+vfp3+neon"),
    "riscv64": ("-target", "riscv64-linux-musl"),
}
# These decide how zig builds its libraries, and so go with every call. -g0: its default is debug information.
_COMMON_FLAGS = ("-O2", "-g0", "-fPIC")
_COMPILE_FLAGS = (
    "-std=c++17",
    "-ffunction-sections",
    "-fdata-sections",
    "-fvisibility=hidden",
    "-fno-sanitize=undefined",
    "-DTVM_FFI_CMAKE_LITTLE_ENDIAN=1",
    "-DTVM_FFI_USE_LIBBACKTRACE=0",
    "-DTVM_FFI_BACKTRACE_ON_SEGFAULT=0",
)
_LINK_FLAGS = ("-static", "-s", "-Wl,--gc-sections")

# The part of TVM's runtime that a device needs, and of its FFI: no disco, no GPU, no client side of RPC, no sockets but ours.
_TVM_SOURCES = (
    *("const_loader_module", "cpu_device_api", "device_api", "file_utils", "logging", "module", "static_library", "tensor"),
    *("thread_pool", "threading_backend", "timer", "workspace_pool", "memory/memory_manager"),
    *("rpc/rpc_channel", "rpc/rpc_device_api", "rpc/rpc_endpoint", "rpc/rpc_event_impl", "rpc/rpc_local_session"),
    *("rpc/rpc_module", "rpc/rpc_session"),
    *("vm/vm", "vm/executable", "vm/bytecode", "vm/builtin", "vm/tensor_cache_support"),
)
_FFI_SOURCES = (
    *("backtrace", "object", "error", "function", "tensor", "dtype", "container", "init_once", "custom_allocator"),
    *("extra/json_parser", "extra/json_writer", "extra/module", "extra/library_module", "extra/library_module_system_lib"),
    *("extra/env_context", "extra/env_c_api"),
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A compiler call, and its share of the whole time."""

    name: str
    command: tuple[str | Path, ...]
    share: float


def ensure(arch: str, cache: Path, note: Note, deadline: Deadline) -> Path:
    """The agent's executable for an architecture. `note(text, fraction done)` is called at least every two seconds.

    Raises BuildError when the compiler fails, DeadlineError when it takes too long; nothing half-made is left in `cache`.
    """
    wanted = digest(arch)
    if prebuilt := _prebuilt(arch, wanted):
        if os.access(prebuilt, os.X_OK):
            return prebuilt
        return _keep(prebuilt, cache / "agents" / wanted / "farm-agent")
    executable = cache / "agents" / wanted / "farm-agent"
    if executable.exists():
        return executable
    executable.parent.mkdir(parents=True, exist_ok=True)
    with _alone(executable.parent / "lock", arch, note, deadline):
        if not executable.exists():
            with tempfile.TemporaryDirectory(prefix="farm-agent-") as scratch:
                _keep(build(arch, Path(scratch), cache / "zig", note, deadline), executable)
    return executable


def digest(arch: str) -> str:
    """What decides the executable, as 64 hexadecimal digits: sources, flags, versions."""
    settings = [_TARGETS[_known(arch)], _COMMON_FLAGS, _COMPILE_FLAGS, _LINK_FLAGS, _TVM_SOURCES, _FFI_SOURCES, __version__]
    versions = [_distribution(name).version for name in ("apache-tvm", "apache-tvm-ffi", "ziglang")]
    found = hashlib.sha256(json.dumps([settings, versions]).encode())
    for path in _own_sources():
        found.update(f"\0{path.relative_to(HERE).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def build(arch: str, scratch: Path, zig_cache: Path, note: Note, deadline: Deadline) -> Path:
    """Build the agent in an empty folder. `zig_cache` keeps the C and C++ libraries for the next time."""
    zig_cache.mkdir(parents=True, exist_ok=True)
    env = {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LOCAL_CACHE_DIR": str(scratch / "zig")}
    (scratch / "empty.cc").write_text("#include <iostream>\nint main() { std::cout << std::endl; }\n")
    (scratch / "tvm.cc").write_text(_tvm_unit(scratch))
    (scratch / "agent.cc").write_text(_includes(path for path in _own_sources() if path.suffix == ".cc"))
    zig = (sys.executable, "-m", "ziglang", "c++", *_TARGETS[arch], *_COMMON_FLAGS)
    compiler = (*zig, *_COMPILE_FLAGS, *_definitions(), *_include_flags(scratch))
    objects = (scratch / "tvm.o", scratch / "agent.o")
    executable = scratch / "farm-agent"
    steps = [
        _Step("C++ library", (*zig, *_LINK_FLAGS, scratch / "empty.cc", "-o", scratch / "empty"), 0.62),
        _Step("TVM's runtime", (*compiler, "-w", "-c", scratch / "tvm.cc", "-o", objects[0]), 0.3),
        _Step("agent", (*compiler, "-Wall", "-c", scratch / "agent.cc", "-o", objects[1]), 0.06),
    ]
    started = time.monotonic()
    done = _run_together(arch, steps, 0.0, scratch, env, note, started, deadline)
    link = [_Step("linking", (*zig, *_LINK_FLAGS, *objects, "-o", executable), 0.02)]
    _run_together(arch, link, done, scratch, env, note, started, deadline)
    return executable


def place_in_package(arch: str, executable: Path) -> Path:
    """Copy an executable into the package, so that an installed farm compiles nothing."""
    target = _keep(executable, PREBUILT / f"farm-agent-{arch}")
    _write(target.with_name(f"{target.name}.digest"), f"{digest(arch)}\n")
    return target


def _run_together(
    arch: str,
    steps: Sequence[_Step],
    done: float,
    scratch: Path,
    env: Mapping[str, str],
    note: Note,
    started: float,
    deadline: Deadline,
) -> float:
    """Run compiler calls, as many at once as there are cores; returns the share of the time that is behind us."""
    waiting, running = list(steps), {}
    last_note = 0.0
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                step = waiting.pop(0)
                log = scratch / f"{step.name}.log"
                running[step.name] = (step, process.start(step.command, log=log, env=env), log)
            for step, child, log in list(running.values()):
                if child.poll() is not None:
                    del running[step.name]
                    _check(arch, step, child, log)
                    done += step.share
            if time.monotonic() - last_note >= _NOTE_EVERY_S:
                last_note = time.monotonic()
                note(f"compiling the {arch} agent: {', '.join(running) or 'done'} ({last_note - started:.0f} s)", min(done, 1.0))
            if deadline.expired:
                raise DeadlineError(
                    f"compiling the agent for {arch}: no end after {deadline.seconds:.0f} s",
                    "the first build for an architecture compiles the C++ library too, which takes minutes on a slow or busy machine",
                    "build it ahead: tools/build-agents " + arch,
                )
            time.sleep(_POLL_S)
    finally:
        for _, child, _ in running.values():
            process.end(child)
    return done


def _check(arch: str, step: _Step, child: Popen[bytes], log: Path) -> None:
    if child.returncode:
        why = process.last_lines(log.read_text(errors="replace")) or f"exit code {child.returncode}"
        raise BuildError(
            f"compiling the agent for {arch} failed ({step.name})", why, "check the free disk space, and the installed ziglang"
        )


@contextlib.contextmanager
def _alone(lock: Path, arch: str, note: Note, deadline: Deadline) -> Iterator[None]:
    """Hold a lock, so that two processes that want the same agent do not compile it twice."""
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                note(f"another process compiles the {arch} agent", None)
            if deadline.expired:
                raise DeadlineError(f"waiting for another process to compile the agent for {arch}: {deadline.seconds:.0f} s", str(lock))
            time.sleep(min(_NOTE_EVERY_S, deadline.remaining))
        yield


def _prebuilt(arch: str, wanted: str) -> Path | None:
    path = PREBUILT / f"farm-agent-{arch}"
    recorded = path.with_name(f"{path.name}.digest")
    if path.exists() and recorded.exists() and recorded.read_text().strip() == wanted:
        return path
    return None


def _keep(executable: Path, target: Path) -> Path:
    """Copy an executable to its place, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(executable, part)
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


def _known(arch: str) -> str:
    if arch not in _TARGETS:
        raise BuildError(f"there is no agent for {arch!r}", "", f"use one of: {', '.join(ARCHITECTURES)}")
    return arch


def _own_sources() -> list[Path]:
    """Our C++ files and headers, in a fixed order."""
    return sorted(path for path in [*HERE.glob("*"), *(HERE / "shim").rglob("*")] if path.suffix in (".cc", ".h"))


def _includes(paths: Iterator[Path]) -> str:
    return "".join(f'#include "{path.as_posix()}"\n' for path in paths)


def _tvm_unit(scratch: Path) -> str:
    """TVM's runtime as one translation unit. It includes "../../support/x.h": our stand-ins are put where that leads."""
    tvm, ffi = _package("apache-tvm", "tvm"), _package("apache-tvm-ffi", "tvm_ffi")
    sources = scratch / "src"
    shutil.copytree(tvm / "src" / "runtime", sources / "runtime", ignore=shutil.ignore_patterns("extra", "cuda", "hexagon"))
    shutil.copytree(HERE / "shim" / "src" / "support", sources / "support")
    paths = [sources / "runtime" / f"{name}.cc" for name in _TVM_SOURCES] + [ffi / "src" / "ffi" / f"{name}.cc" for name in _FFI_SOURCES]
    return _includes(iter(paths))


def _include_flags(scratch: Path) -> list[str]:
    tvm, ffi = _package("apache-tvm", "tvm"), _package("apache-tvm-ffi", "tvm_ffi")
    folders = [
        HERE / "shim" / "include",
        tvm / "include",
        ffi / "include",
        scratch / "src" / "runtime" / "rpc",
        ffi / "src" / "ffi" / "extra",
    ]
    flags = [word for folder in folders for word in ("-isystem" if folder.is_relative_to(tvm.parent) else "-I", str(folder))]
    # Neither this machine's folders nor its user's name belong into the executable.
    return [*flags, *(f"-ffile-prefix-map={folder}=." for folder in (scratch, HERE, tvm.parent, ffi.parent))]


def _definitions() -> list[str]:
    return [f'-DFARM_VERSION="{__version__}"', f'-DFARM_TVM_VERSION="{_distribution("apache-tvm").version}"']


def _package(distribution: str, package: str) -> Path:
    path = Path(str(_distribution(distribution).locate_file(package))).resolve()
    if not (path / "src").is_dir():
        raise BuildError(
            f"the {distribution} package carries no sources", f"{path / 'src'} is missing", f"pip install --force-reinstall {distribution}"
        )
    return path


@functools.cache
def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as exc:
        raise BuildError(f"{name} is not installed", "the agent is made with it", f"pip install {name}") from exc
