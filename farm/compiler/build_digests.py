"""Compute the digests that name builds in the store.

Of sources, versions, the CPU and the model.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from farm.store import digest_of_parts, source_digest
from farm.types import PreparedModel, Profile

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang")
# types/layer_variable_names.py decides the names of a build's variables.
_SOURCES = ("compiler", "kernels", "types/layer_variable_names.py")


def build_inputs_digest_without_records(prepared: PreparedModel, profile: Profile) -> str:
    """Return the digest of all that a build without tuning records depends on.

    It covers the module, the weights, the target, the linker and its version, the sources of this
    compiler, and TVM's version.
    """
    target: dict[str, object] = {**profile.target, "linker": list(profile.linker)}
    if "native" in json.dumps(target):
        target["this_cpu"] = host_cpu_description()
    if profile.memory_mb is not None:
        target["memory_mb"] = profile.memory_mb
    if profile.target.get("kind") == "cuda":
        target["compiler"] = nvrtc_version()
    module = prepared.directory / "module.json"
    weights = prepared.directory / "weights.npz"
    return digest_of_parts(
        module, weights, target, compiler_sources_digest(), compiler_package_versions()
    )


@lru_cache
def compiler_sources_digest() -> str:
    """Return the digest of all sources that decide what a build looks like."""
    return source_digest(_SOURCES)


@lru_cache
def compiler_package_versions() -> Mapping[str, str]:
    """Return the versions of the packages that decide what the code looks like."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


@lru_cache
def nvrtc_version() -> str:
    """Return the version of the compiler of CUDA code; "" if it is not installed."""
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return ""


@lru_cache
def host_cpu_description() -> str:
    """Return the model and the features of this machine's CPU, without asking LLVM."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = (
        *("model name", "model\t", "cpu family", "flags"),
        *("Features", "CPU part", "CPU implementer"),
    )
    return "\n".join(line for line in lines if line.startswith(wanted))
