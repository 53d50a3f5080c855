"""How the device agent is compiled: targets, flags, sources, and the digest of all that.

The sources are our C++ files and those of TVM's runtime, which lie inside the TVM wheels; the compiler is zig's, which brings C and C++
libraries along as sources. Headers that the wheels leave out are replaced by our own in shim/.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from farm import __version__
from farm.errors import BuildError

GPU = "-cuda"  # ends the name of an agent that also runs what is built for an NVIDIA GPU
ARCHITECTURES: tuple[str, ...] = ("x86_64", "aarch64", "armv7", "riscv64")
AGENTS: tuple[str, ...] = (*ARCHITECTURES, f"x86_64{GPU}", f"aarch64{GPU}")
HERE = Path(__file__).resolve().parent

# The oldest CPU of each kind: any x86-64; any ARMv8; ARMv7 with NEON and hard float (no integer division: Cortex-A9 has none); RV64GC.
_TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("-target", "x86_64-linux-musl"),
    "aarch64": ("-target", "aarch64-linux-musl"),
    "armv7": ("-target", "arm-linux-musleabihf", "-mcpu=generic+v7a+vfp3+neon"),
    "riscv64": ("-target", "riscv64-linux-musl"),
    # NVIDIA's driver is a library for glibc, which a static program cannot load. 2.28 is that of RHEL 8; Ubuntu and JetPack are newer.
    f"x86_64{GPU}": ("-target", "x86_64-linux-gnu.2.28"),
    f"aarch64{GPU}": ("-target", "aarch64-linux-gnu.2.28"),
}
# These decide how zig builds its libraries, and so go with every call. Without -g0 it adds debug information.
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
_LINK_FLAGS = ("-s", "-Wl,--gc-sections")
_STATIC, _DYNAMIC = ("-static",), ("-ldl", "-lpthread", "-lm")  # the C++ library is part of the executable in both

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
class Step:
    """A compiler call, and its share of the time of a build from nothing."""

    name: str
    command: tuple[str | Path, ...]
    share: float


def digest(arch: str) -> str:
    """What decides the executable, as 64 hexadecimal digits: sources, flags, versions. Raises BuildError for an unknown architecture."""
    settings = [_target(arch), _COMMON_FLAGS, _COMPILE_FLAGS, _link_flags(arch), _TVM_SOURCES, _FFI_SOURCES, __version__]
    versions = [_distribution(name).version for name in ("apache-tvm", "apache-tvm-ffi", "ziglang")]
    found = hashlib.sha256(json.dumps([settings, versions]).encode())
    for path in _own_sources(arch):
        found.update(f"\0{path.relative_to(HERE).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def steps(arch: str, scratch: Path) -> tuple[list[Step], Step, Path]:
    """The calls that may run side by side, the link that comes after them, and the executable that it makes in the folder `scratch`.

    zig builds its libraries at the first link for a target, which takes longer than our own code does: hence the link of an empty program.
    """
    (scratch / "empty.cc").write_text("#include <iostream>\nint main() { std::cout << std::endl; }\n")
    (scratch / "agent.cc").write_text(_includes(path for path in _own_sources(arch) if path.suffix == ".cc"))
    zig = (sys.executable, "-m", "ziglang", "c++", *zig_flags(arch))
    compiler = (*zig, *flags(scratch))
    objects = (scratch / "tvm.o", scratch / "agent.o")
    executable = scratch / "farm-agent"
    link = _link_flags(arch)
    together = [
        Step("C++ library", (*zig, scratch / "empty.cc", *link, "-o", scratch / "empty"), 0.62),
        Step("TVM's runtime", (*compiler, "-w", "-c", runtime_unit(scratch), "-o", objects[0]), 0.3),
        Step("agent", (*compiler, "-Wall", "-c", scratch / "agent.cc", "-o", objects[1]), 0.06),
    ]
    return together, Step("linking", (*zig, *objects, *link, "-o", executable), 0.02), executable


def runtime_unit(scratch: Path) -> Path:
    """TVM's runtime as one C++ file in the folder `scratch`, for another compiler than zig."""
    unit = scratch / "tvm.cc"
    unit.write_text(_tvm_unit(scratch))
    return unit


def copy_runtime(folder: Path) -> None:
    """Put the runtime's sources less those of RPC into an existing folder, so that it needs none of the packages: `tvm.cc`, which includes
    them, `src/` and `include/` of TVM, and `ffi/`. Raises BuildError when the packages carry no sources."""
    ffi = _package("apache-tvm-ffi", "tvm_ffi")
    paths = [path.relative_to(folder) for path in _copied_sources(folder) if path.parent.name != "rpc"]
    shutil.copytree(ffi / "src" / "ffi", folder / "ffi" / "src" / "ffi")
    for include in (HERE / "shim" / "include", _package("apache-tvm", "tvm") / "include", ffi / "include"):
        shutil.copytree(include, folder / "include", dirs_exist_ok=True)
    (folder / "tvm.cc").write_text(_includes([*paths, *(Path("ffi") / "src" / "ffi" / f"{name}.cc" for name in _FFI_SOURCES)]))


def zig_flags(arch: str) -> tuple[str, ...]:
    """What zig wants for an architecture: with the same flags, it takes the C and C++ libraries that it has built."""
    return (*_target(arch), *_COMMON_FLAGS)


def flags(scratch: Path) -> list[str]:
    """What that file and our own sources want of any compiler."""
    return [*_COMPILE_FLAGS, *_definitions(), *_folder_flags(scratch)]


def _target(arch: str) -> tuple[str, ...]:
    if arch not in _TARGETS:
        raise BuildError(f"there is no agent for {arch!r}", "", f"use one of: {', '.join(AGENTS)}")
    return _TARGETS[arch]


def _link_flags(arch: str) -> tuple[str, ...]:
    return (*_LINK_FLAGS, *(_DYNAMIC if arch.endswith(GPU) else _STATIC))


def _own_sources(arch: str) -> list[Path]:
    """Our C++ files and headers, in a fixed order: those in cuda/ where there may be a GPU, else those in cpu/."""
    folders = [HERE.glob("*"), (HERE / ("cuda" if arch.endswith(GPU) else "cpu")).glob("*"), (HERE / "shim").rglob("*")]
    return sorted(path for folder in folders for path in folder if path.suffix in (".cc", ".h"))


def _includes(paths: Iterable[Path]) -> str:
    return "".join(f'#include "{path.as_posix()}"\n' for path in paths)


def _tvm_unit(scratch: Path) -> str:
    """TVM's runtime as one translation unit."""
    ffi = _package("apache-tvm-ffi", "tvm_ffi")
    return _includes(_copied_sources(scratch) + [ffi / "src" / "ffi" / f"{name}.cc" for name in _FFI_SOURCES])


def _copied_sources(folder: Path) -> list[Path]:
    """The sources of TVM's runtime, copied into `folder`/src. They include "../../support/x.h": our stand-ins are put where that leads."""
    sources = folder / "src"
    runtime = _package("apache-tvm", "tvm") / "src" / "runtime"
    shutil.copytree(runtime, sources / "runtime", ignore=shutil.ignore_patterns("extra", "cuda", "hexagon"))
    shutil.copytree(HERE / "shim" / "src" / "support", sources / "support")
    return [sources / "runtime" / f"{name}.cc" for name in _TVM_SOURCES]


def _folder_flags(scratch: Path) -> list[str]:
    tvm, ffi = _package("apache-tvm", "tvm"), _package("apache-tvm-ffi", "tvm_ffi")
    sources = scratch / "src"
    foreign = [tvm / "include", ffi / "include", sources, sources / "runtime" / "rpc", ffi / "src" / "ffi" / "extra"]
    flags = ["-isystem", str(HERE / "shim" / "include")] + [word for folder in foreign for word in ("-isystem", str(folder))]
    # This machine's folders and its user's name do not belong into the executable.
    return flags + [f"-ffile-prefix-map={folder}=." for folder in (scratch, HERE, tvm.parent, ffi.parent)]


def _definitions() -> list[str]:
    return [f'-DFARM_VERSION="{__version__}"', f'-DFARM_TVM_VERSION="{_distribution("apache-tvm").version}"']


def _package(distribution: str, package: str) -> Path:
    path = Path(str(_distribution(distribution).locate_file(package))).resolve()
    if not (path / "src").is_dir():
        why = f"{path / 'src'} is missing"
        raise BuildError(f"the {distribution} package carries no sources", why, f"pip install --force-reinstall {distribution}")
    return path


@functools.cache
def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as exc:
        raise BuildError(f"{name} is not installed", "the agent is made with it", f"pip install {name}") from exc
