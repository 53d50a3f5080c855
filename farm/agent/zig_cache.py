"""Let each zig of one version reuse what another has compiled, whatever Python it belongs to.

zig keeps the C and C++ libraries that it compiles, under the path, inode and time of each source.
These differ in each virtual environment, so a new one would compile the same libraries again: for
each architecture 80 s of processor time. Here all environments compile sources in the cache.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["zig_environment"]


def zig_environment(zig_cache: Path) -> dict[str, str]:
    """Return the environment variables with which zig uses a cache and the sources in it.

    The first call with a version of zig puts the sources there: hard links, or a copy (240 MB) if
    the cache is on another file system. Raises OSError if they cannot be written.
    """
    kept = zig_cache / f"lib-{importlib.metadata.version('ziglang')}"
    if not kept.exists():
        zig_cache.mkdir(parents=True, exist_ok=True)
        _keep(_installed_sources(), kept)
    return {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LIB_DIR": str(kept)}


def _installed_sources() -> Path:
    return Path(str(importlib.metadata.distribution("ziglang").locate_file("ziglang/lib")))


def _keep(sources: Path, kept: Path) -> None:
    """Link or copy a folder to `kept`, which is always whole or absent."""
    with tempfile.TemporaryDirectory(prefix=f"{kept.name}-", dir=kept.parent) as scratch:
        part = shutil.copytree(sources, Path(scratch) / "lib", copy_function=_link_or_copy)
        try:
            part.rename(kept)
        except OSError:
            if not kept.exists():  # else another process was quicker
                raise


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or another owner's file
        shutil.copy2(source, target)
