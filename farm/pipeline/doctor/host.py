"""Check what farm needs of this machine.

Python, packages, cache, toolchain, emulators, sandbox, and the shared cache if there is one.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from farm import sandbox
from farm.errors import BuildError, FarmError
from farm.pipeline.doctor.board import Finding
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import SharedCacheClient, Store

_LINK_S = 120.0
_ROOM_BYTES = 2 << 30  # free space for the cache: zig's libraries, agents, a few models
_SOURCE = "int farm(int x) { return x + 1; }\n"
_EMULATORS = ("qemu-arm", "qemu-aarch64")


def examine_host(store: Store) -> list[Finding]:
    """Return the finding of each check. The checks are independent: all of them run."""
    checks: dict[str, Callable[[], Finding]] = {
        "python": _python,
        "packages": _packages,
        "cache": lambda: _cache(store),
        "toolchain": _toolchain,
        "emulators": _emulators,
        "sandbox": _sandbox,
    }
    if isinstance(shared := store.upstream, SharedCacheClient):
        checks["shared cache"] = lambda: _shared_cache(shared)
    found = []
    for layer, check in checks.items():
        try:
            found.append(check())
        except FarmError as error:
            found.append(Finding(layer, failure=error))
    return found


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        raise FarmError("farm does not run on this Python", detail, "use Python 3.11 to 3.14")
    return Finding("python", detail)


def _packages() -> Finding:
    """Check the packages that farm pins to an exact version."""
    try:
        requirements = importlib.metadata.requires("tvm-farm") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "packages",
            "farm itself is not installed, its pins are not known",
            advice="pip install -e . in farm's folder",
        )
    pinned = {
        found[1]: found[2]
        for line in requirements
        if (found := re.match(r"([\w-]+)==([\w.]+)", line))
    }
    wrong = {}
    for name, version in pinned.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not there"
        if installed != version:
            wrong[name] = installed
    if wrong:
        why = ", ".join(
            f"{name} is {installed}, wanted {pinned[name]}" for name, installed in wrong.items()
        )
        raise FarmError(
            "packages of other versions than farm is tested with",
            why,
            f"pip install {' '.join(f'{n}=={pinned[n]}' for n in wrong)}",
        )
    return Finding("packages", ", ".join(f"{name} {version}" for name, version in pinned.items()))


def _toolchain() -> Finding:
    """Compile and link a library for another machine."""
    with tempfile.TemporaryDirectory(prefix="farm-doctor-") as folder:
        source, library = Path(folder) / "farm.c", Path(folder) / "farm.so"
        source.write_text(_SOURCE)
        command: list[str | Path] = [
            sys.executable,
            "-P",
            "-m",
            "ziglang",
            "cc",
            "-target",
            "aarch64-linux-musl",
            "-shared",
            "-nostdlib",
            "-o",
            library,
            source,
        ]
        env = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
        fix = "pip install --force-reinstall ziglang"
        subprocesses.run_program(
            command, deadline=Deadline(_LINK_S), what="compiling for aarch64", fix=fix, env=env
        )
        if library.read_bytes()[:4] != b"\x7fELF":
            raise BuildError(
                "the toolchain makes no libraries",
                f"{library.stat().st_size} bytes that are no ELF file",
                fix,
            )
    return Finding(
        "toolchain",
        f"ziglang {importlib.metadata.version('ziglang')} compiles and links for aarch64",
    )


def _cache(store: Store) -> Finding:
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.root) as file:
            file.write(b"farm")
        free = shutil.disk_usage(store.root).free
    except OSError as exc:
        raise FarmError(
            f"the cache {store.root} cannot be written",
            str(exc),
            "keep it elsewhere: export FARM_CACHE=/path",
        ) from exc
    advice = (
        ""
        if free >= _ROOM_BYTES
        else "it will want 2 GiB; free space, or keep it elsewhere: export FARM_CACHE=/path"
    )
    return Finding("cache", f"{store.root}, {free / 2**30:.1f} GiB free", advice=advice)


def _shared_cache(shared: SharedCacheClient) -> Finding:
    shared.reach()
    return Finding(
        "shared cache",
        f"{shared.location.url} answers{', and is only read' if shared.location.read_only else ''}",
    )


def _sandbox() -> Finding:
    """Check whether this machine can confine the import of an untrusted model."""
    found = sandbox.sandbox_support()
    if not found.complete:
        advice = (
            "import .pt2 and TorchScript files on a machine with Linux 5.13 or later, or say "
            "--trust where you trust their maker"
        )
        return Finding(
            "sandbox",
            f"none, as {found.missing}: models are imported with all of your rights",
            advice=advice,
        )
    return Finding(
        "sandbox",
        (
            f"Landlock (ABI {found.landlock_abi}) and seccomp: models are imported without "
            "network and other files"
        ),
    )


def _emulators() -> Finding:
    missing = [name for name in _EMULATORS if not subprocesses.first_installed_program(name)]
    if missing:
        return Finding(
            "emulators",
            f"{', '.join(missing)} not there",
            advice="for emulated boards: sudo apt-get install qemu-user",
        )
    return Finding("emulators", ", ".join(_EMULATORS))
