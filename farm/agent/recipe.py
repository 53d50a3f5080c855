"""How the device agent is compiled: targets, flags, sources, and the digest of all of them.

The sources are farm's C++ files and those of TVM's runtime, which the TVM wheels contain. The
compiler is zig's, which contains the C and C++ libraries as sources. Headers that the wheels leave
out, and TVM's thread pool, are replaced by farm's own in tvm_stand_ins/.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm import __version__
from farm.errors import BuildError

GPU = "-cuda"  # suffix of the name of an agent that can also run code for NVIDIA GPUs
ARCHITECTURES: tuple[str, ...] = ("x86_64", "aarch64", "armv7", "riscv64")
AGENTS: tuple[str, ...] = (*ARCHITECTURES, f"x86_64{GPU}", f"aarch64{GPU}")
HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"

# The oldest CPU of each architecture: any x86-64; any ARMv8; ARMv7 with NEON and hard float (no
# integer division: Cortex-A9 has none); RV64GC.
_TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("-target", "x86_64-linux-musl"),
    "aarch64": ("-target", "aarch64-linux-musl"),
    "armv7": ("-target", "arm-linux-musleabihf", "-mcpu=generic+v7a+vfp3+neon"),
    "riscv64": ("-target", "riscv64-linux-musl"),
    # NVIDIA's driver is a glibc library, which a static program cannot load. glibc 2.28 is that of
    # RHEL 8; Ubuntu and JetPack have newer ones.
    f"x86_64{GPU}": ("-target", "x86_64-linux-gnu.2.28"),
    f"aarch64{GPU}": ("-target", "aarch64-linux-gnu.2.28"),
}
# zig builds its libraries with these flags, so that every call must have them. Without -g0 it adds
# debug information.
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
# Both link the C++ library statically
_STATIC, _DYNAMIC = ("-static",), ("-ldl", "-lpthread", "-lm")

# The part of TVM's runtime, and of its FFI, that a device needs: no disco, no GPU, no RPC client,
# and no sockets but farm's own.
_TVM_SOURCES = (
    *(
        "const_loader_module",
        "cpu_device_api",
        "device_api",
        "file_utils",
        "logging",
        "module",
        "static_library",
        "tensor",
    ),
    *("thread_pool", "threading_backend", "timer", "workspace_pool", "memory/memory_manager"),
    *(
        "rpc/rpc_channel",
        "rpc/rpc_device_api",
        "rpc/rpc_endpoint",
        "rpc/rpc_event_impl",
        "rpc/rpc_local_session",
    ),
    *("rpc/rpc_module", "rpc/rpc_session"),
    *("vm/vm", "vm/executable", "vm/bytecode", "vm/builtin", "vm/tensor_cache_support"),
)
_FFI_SOURCES = (
    *(
        "backtrace",
        "object",
        "error",
        "function",
        "tensor",
        "dtype",
        "container",
        "init_once",
        "custom_allocator",
    ),
    *(
        "extra/json_parser",
        "extra/json_writer",
        "extra/module",
        "extra/library_module",
        "extra/library_module_system_lib",
    ),
    *("extra/env_context", "extra/env_c_api"),
)


@dataclass(frozen=True, slots=True)
class CompilerCall:
    """A compiler call, and its share of the time of a build without any cache.

    `output` is the file that it makes, if other builds can reuse it;
    `executable_build_inputs_digest` identifies the content of that file.
    """

    name: str
    command: tuple[str | Path, ...]
    share: float
    output: Path | None = None
    digest: str = ""


def executable_build_inputs_digest(arch: str) -> str:
    """Return the digest of all that decides the executable: sources, flags, versions.

    It has 64 hexadecimal digits. Raises BuildError for an unknown architecture.
    """
    settings = _compiler_settings(arch)
    return _digest_of([*settings, _link_flags(arch), __version__], _own_sources(arch))


def runtime_build_inputs_digest(arch: str) -> str:
    """Return the digest of all that decides the object of TVM's runtime, as 64 hexadecimal digits.

    It does not change with farm's own sources.
    """
    return _digest_of(
        _compiler_settings(arch),
        sorted(path for path in (HERE / "tvm_stand_ins").rglob("*") if path.is_file()),
    )


def _compiler_settings(arch: str) -> list[object]:
    versions = [_distribution(name).version for name in ("apache-tvm", "apache-tvm-ffi", "ziglang")]
    return [_target(arch), _COMMON_FLAGS, _COMPILE_FLAGS, _TVM_SOURCES, _FFI_SOURCES, versions]


def _digest_of(settings: Sequence[object], sources: Iterable[Path]) -> str:
    total = hashlib.sha256(json.dumps(settings).encode())
    for path in sources:
        total.update(f"\0{path.relative_to(HERE).as_posix()}\0".encode() + path.read_bytes())
    return total.hexdigest()


def compile_steps(arch: str, scratch: Path) -> tuple[list[CompilerCall], CompilerCall, Path]:
    """Return the calls that may run in parallel, the link after them, and the executable's path.

    The executable is made in the folder `scratch`. zig builds its libraries at the first link for a
    target, which takes longer than compiling farm's own code. Linking an empty program in parallel
    therefore saves time.
    """
    (scratch / "empty.cc").write_text(
        "#include <iostream>\nint main() { std::cout << std::endl; }\n"
    )
    (scratch / "agent.cc").write_text(
        _includes(
            path for path in _own_sources(arch) if path.suffix == ".cc" and SOURCES in path.parents
        )
    )
    zig = (sys.executable, "-P", "-m", "ziglang", "c++", *zig_flags(arch))
    compiler = (*zig, *common_compiler_flags(scratch))
    objects = (scratch / "tvm.o", scratch / "agent.o")
    executable = scratch / "farm-agent"
    link = _link_flags(arch)
    together = [
        CompilerCall(
            "C++ library", (*zig, scratch / "empty.cc", *link, "-o", scratch / "empty"), 0.62
        ),
        CompilerCall(
            "TVM's runtime",
            (*compiler, "-w", "-c", write_runtime_unity_source(scratch), "-o", objects[0]),
            0.3,
            objects[0],
            runtime_build_inputs_digest(arch),
        ),
        CompilerCall(
            "agent",
            (*compiler, "-iquote", SOURCES, "-Wall", "-c", scratch / "agent.cc", "-o", objects[1]),
            0.06,
        ),
    ]
    return (
        together,
        CompilerCall("linking", (*zig, *objects, *link, "-o", executable), 0.02),
        executable,
    )


def write_runtime_unity_source(scratch: Path) -> Path:
    """Write TVM's runtime as one C++ file into the folder `scratch`, and return its path.

    Compilers other than zig use it, too.
    """
    unit = scratch / "tvm.cc"
    unit.write_text(_tvm_unit(scratch))
    return unit


def copy_runtime_sources(folder: Path) -> None:
    """Copy the runtime's sources, without RPC, into an existing folder.

    The folder then needs none of the Python packages. It gets `tvm.cc`, which includes the sources,
    `src/` and `include/` of TVM, and `ffi/`. Raises BuildError if the packages contain no sources.
    """
    ffi = _package("apache-tvm-ffi", "tvm_ffi")
    paths = [
        path.relative_to(folder) for path in _copied_sources(folder) if path.parent.name != "rpc"
    ]
    shutil.copytree(ffi / "src" / "ffi", folder / "ffi" / "src" / "ffi")
    for include in (
        HERE / "tvm_stand_ins" / "include",
        _package("apache-tvm", "tvm") / "include",
        ffi / "include",
    ):
        shutil.copytree(include, folder / "include", dirs_exist_ok=True)
    (folder / "tvm.cc").write_text(
        _includes([*paths, *(Path("ffi") / "src" / "ffi" / f"{name}.cc" for name in _FFI_SOURCES)])
    )


def zig_flags(arch: str) -> tuple[str, ...]:
    """Return zig's flags for an architecture.

    zig reuses the C and C++ libraries that it has built with the same flags.
    """
    return (*_target(arch), *_COMMON_FLAGS)


def common_compiler_flags(scratch: Path) -> list[str]:
    """Return the flags with which any compiler compiles the runtime and farm's own sources."""
    return [*_COMPILE_FLAGS, *_definitions(), *_folder_flags(scratch)]


def _target(arch: str) -> tuple[str, ...]:
    if arch not in _TARGETS:
        raise BuildError(f"there is no agent for {arch!r}", "", f"use one of: {', '.join(AGENTS)}")
    return _TARGETS[arch]


def _link_flags(arch: str) -> tuple[str, ...]:
    return (*_LINK_FLAGS, *(_DYNAMIC if arch.endswith(GPU) else _STATIC))


def _own_sources(arch: str) -> list[Path]:
    """Return farm's C++ files and headers, sorted.

    Agents with GPU support have the sources in cuda/, others those in cpu/.
    """
    left_out = HERE / "src" / "execution" / ("cpu" if arch.endswith(GPU) else "cuda")
    return sorted(
        path
        for path in HERE.rglob("*")
        if path.suffix in (".cc", ".h") and left_out not in path.parents
    )


def _includes(paths: Iterable[Path]) -> str:
    return "".join(f'#include "{path.as_posix()}"\n' for path in paths)


def _tvm_unit(scratch: Path) -> str:
    """Return TVM's runtime as the text of one translation unit."""
    ffi = _package("apache-tvm-ffi", "tvm_ffi")
    return _includes(
        _copied_sources(scratch) + [ffi / "src" / "ffi" / f"{name}.cc" for name in _FFI_SOURCES]
    )


def _copied_sources(folder: Path) -> list[Path]:
    """Copy the sources of TVM's runtime into `folder`/src, and return their paths.

    farm's replacements are copied over them: TVM's thread pool, and the headers that the wheels
    leave out, which the sources include as "../../support/x.h".
    """
    sources = folder / "src"
    runtime = _package("apache-tvm", "tvm") / "src" / "runtime"
    shutil.copytree(
        runtime, sources / "runtime", ignore=shutil.ignore_patterns("extra", "cuda", "hexagon")
    )
    shutil.copytree(HERE / "tvm_stand_ins" / "src", sources, dirs_exist_ok=True)
    return [sources / "runtime" / f"{name}.cc" for name in _TVM_SOURCES]


def _folder_flags(scratch: Path) -> list[str]:
    tvm, ffi = _package("apache-tvm", "tvm"), _package("apache-tvm-ffi", "tvm_ffi")
    sources = scratch / "src"
    foreign = [
        tvm / "include",
        ffi / "include",
        sources,
        sources / "runtime" / "rpc",
        ffi / "src" / "ffi" / "extra",
    ]
    flags = ["-isystem", str(HERE / "tvm_stand_ins" / "include")] + [
        word for folder in foreign for word in ("-isystem", str(folder))
    ]
    # Keep this machine's folders and its user's name out of the executable.
    return flags + [
        f"-ffile-prefix-map={folder}=." for folder in (scratch, HERE, tvm.parent, ffi.parent)
    ]


def _definitions() -> list[str]:
    return [
        f'-DFARM_VERSION="{__version__}"',
        f'-DFARM_TVM_VERSION="{_distribution("apache-tvm").version}"',
    ]


def _package(distribution: str, package: str) -> Path:
    path = Path(str(_distribution(distribution).locate_file(package))).resolve()
    if not (path / "src").is_dir():
        why = f"{path / 'src'} is missing"
        raise BuildError(
            f"the {distribution} package carries no sources",
            why,
            f"pip install --force-reinstall {distribution}",
        )
    return path


@functools.cache
def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as exc:
        raise BuildError(
            f"{name} is not installed", "the agent is made with it", f"pip install {name}"
        ) from exc
