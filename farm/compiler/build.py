"""Build a prepared model for a profile: a library, its parameters and metadata, kept under the digest of all that went into them."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from farm.clock import timed
from farm.compiler import parameters
from farm.errors import BuildError, FarmError
from farm.parallel import Desk
from farm.store import Store, digest_of, file_digest
from farm.types import Artifact, Kernel, Prepared, Profile, Progress, Stage, TensorSpec

KIND = "artifacts"
LIBRARY, PARAMETERS, METADATA, GRAPH = "library.so", "parameters", "metadata.json", "graph.json"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang")


def build(desk: Desk, prepared: Prepared, profile: Profile, cache: Path) -> Artifact:
    """The artifact of a model for a profile: from the store, or built and put there. Raises BuildError."""
    store, digest = Store(cache), artifact_digest(prepared, profile)
    if kept := store.find(KIND, digest):
        return _named(load(kept, cached=True), prepared, profile)
    with store.publish(KIND, digest) as folder:
        _build_into(folder, desk, prepared, profile, digest)
    kept = store.find(KIND, digest)
    assert kept is not None, "published, and not there"
    return _named(load(kept, cached=False), prepared, profile)


def _named(artifact: Artifact, prepared: Prepared, profile: Profile) -> Artifact:
    """Under the names asked for: profiles with one target share what was built, and so do models that differ in names only."""
    return replace(artifact, model=prepared.model, profile=profile.name, inputs=prepared.inputs, outputs=prepared.outputs)


def load(folder: Path, *, cached: bool) -> Artifact:
    """Read a kept artifact."""
    content = json.loads((folder / METADATA).read_text())
    return Artifact(
        **{
            **content,
            "library": folder / LIBRARY,
            "parameters": folder / PARAMETERS,
            "inputs": specs(content["inputs"]),
            "outputs": specs(content["outputs"]),
            "kernels": tuple(Kernel(**kernel) for kernel in content["kernels"]),
            "cached": cached,
        }
    )


def specs(content: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    """Tensor specifications as read from JSON."""
    return tuple(TensorSpec(spec["name"], tuple(spec["shape"]), spec["dtype"]) for spec in content)


def artifact_digest(prepared: Prepared, profile: Profile) -> str:
    """What distinguishes one build from another: module, weights, target, linker, this compiler's own source, TVM, the linker's version."""
    target: dict[str, object] = {**profile.target, "linker": list(profile.linker)}
    if "native" in json.dumps(target):
        target["this_cpu"] = this_cpu()
    module = prepared.directory / "module.json"
    return digest_of(module, prepared.directory / "weights.npz", target, compiler_digest(), versions())


@lru_cache
def compiler_digest() -> str:
    """The digest of this package's source."""
    return digest_of(*sorted(Path(__file__).parent.glob("*.py")))


@lru_cache
def versions() -> Mapping[str, str]:
    """Versions of the packages that decide what the code looks like."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


@lru_cache
def this_cpu() -> str:
    """What tells this machine's CPU from another: its model and features, without asking LLVM."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "model\t", "cpu family", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(line for line in lines if line.startswith(wanted))


def _build_into(folder: Path, desk: Desk, prepared: Prepared, profile: Profile, digest: str) -> None:
    import numpy as np
    import tvm

    from farm.compiler.graph import graph_of
    from farm.compiler.link import linker
    from farm.compiler.lower import lower, resolve_target

    seconds: dict[str, float] = {}
    desk.note(Progress(Stage.COMPILING, f"for {profile.name}: graph and schedules"))
    try:
        target = resolve_target(profile)
        with timed(seconds, "read"):
            module = tvm.ir.load_json((prepared.directory / "module.json").read_text())
            with np.load(prepared.directory / "weights.npz") as kept:
                weights = [kept[name] for name in kept.files]
        lowered = lower(module, weights, target, seconds)
        graph = graph_of(lowered.module)
        desk.note(Progress(Stage.COMPILING, f"for {profile.name}: machine code"))
        with timed(seconds, "code"):
            executable = tvm.compile(lowered.module, target=target)
        with timed(seconds, "link"):
            executable.export_library(str(folder / LIBRARY), fcompile=linker(profile), workspace_dir=str(_workspace(desk)))
    except (FarmError, OSError):
        raise
    except Exception as exc:  # TVM raises whatever its passes raise
        raise compile_error(prepared.model, profile, exc) from exc
    with timed(seconds, "write"):
        parameters.write(folder / PARAMETERS, lowered.parameters)
        (folder / GRAPH).write_text(json.dumps(graph))
        metadata = {
            "model": prepared.model,
            "profile": profile.name,
            "digest": digest,
            "library_digest": file_digest(folder / LIBRARY),
            "parameters_digest": digest_of(*sorted((folder / PARAMETERS).iterdir())),
            "inputs": [asdict(spec) for spec in prepared.inputs],
            "outputs": [asdict(spec) for spec in prepared.outputs],
            "target": json.loads(json.dumps(_plain_target(profile, target))),
            "versions": versions(),
            "nbytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "kernels": [asdict(kernel) for kernel in lowered.kernels],
        }
    (folder / METADATA).write_text(json.dumps({**metadata, "seconds": seconds}, indent=1))


def _workspace(desk: Desk) -> Path:
    workspace = desk.scratch / "link"
    workspace.mkdir(exist_ok=True)
    return workspace


def _plain_target(profile: Profile, target: Any) -> dict[str, object]:
    resolved = dict(profile.target)
    if resolved.get("mcpu") == "native":
        resolved["mcpu"] = str(target.attrs["mcpu"])
    return resolved


def compile_error(model: str, profile: Profile, cause: Exception) -> BuildError:
    """TVM's last line says what; the rest is its stack."""
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    why = f"{type(cause).__name__}: {lines[-1] if lines else ''}"[:600]
    here = profile.target.get("mcpu") == "native"
    fix = "export it another way, or with another opset" if here else f"see whether it compiles for this machine: farm compile {model}"
    return BuildError(f"{model} does not compile for {profile.name}", why, fix)
