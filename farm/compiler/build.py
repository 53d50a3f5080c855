"""Build a prepared model for a profile: a library, its parameters and metadata, kept under the digest of all that went into them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.clock import timed
from farm.compiler import parameters
from farm.errors import BuildError, FarmError
from farm.parallel import Desk
from farm.store import RecordStore, Store, digest_of, file_digest
from farm.types import Artifact, Kernel, Prepared, Profile, Progress, Stage, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from farm.compiler.lower import Lowered

RawChoices = Mapping[str, Mapping[str, object]]  # by workload, as records have them
KIND = "artifacts"
ASKED, WORKLOADS = "workloads", "workloads.json"  # by the digest of a build without records: its core, and what it asked a choice for
LIBRARY, PARAMETERS, METADATA, GRAPH = "library.so", "parameters", "metadata.json", "graph.json"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang")


def build(desk: Desk, prepared: Prepared, profile: Profile, cache: Path, records: RecordStore | None = None) -> Artifact:
    """The artifact of a model for a profile: from the store, or built and put there. Raises BuildError.

    Of `records` those count that are for the profile's core and for one of the model's workloads. Which these are the first build finds
    out, and keeps: so the digest changes with them, and with no others.
    """
    store, base = Store(cache), artifact_digest(prepared, profile)
    if asked := store.find(ASKED, base):
        content = json.loads((asked / WORKLOADS).read_text())
        choices = records.choices(content["core"]) if records else {}
        if kept := store.find(KIND, _digest_with(base, choices, content["workloads"])):
            return _named(load(kept, cached=True), prepared, profile)
    with _our_errors(prepared, profile):
        made = _lower(desk, prepared, profile, records)
    if not asked:
        with store.publish(ASKED, base) as folder:
            (folder / WORKLOADS).write_text(json.dumps({"core": made.core, "workloads": list(made.lowered.asked)}, indent=1))
    digest = _digest_with(base, made.choices, made.lowered.asked)
    if not store.find(KIND, digest):
        with store.publish(KIND, digest) as folder, _our_errors(prepared, profile):
            _write(folder, desk, prepared, profile, digest, made, store)
    kept = store.find(KIND, digest)
    assert kept is not None, "published, and not there"
    return _named(load(kept, cached=False), prepared, profile)


def _digest_with(base: str, choices: RawChoices, workloads: Iterable[str]) -> str:
    applying = {key: choices[key] for key in workloads if key in choices}
    return digest_of(base, applying) if applying else base


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
    return tuple(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in content)


def artifact_digest(prepared: Prepared, profile: Profile) -> str:
    """What distinguishes one build from another: module, weights, target, linker, this compiler's own source, TVM, the linker's version."""
    target: dict[str, object] = {**profile.target, "linker": list(profile.linker)}
    if "native" in json.dumps(target):
        target["this_cpu"] = this_cpu()
    if profile.target.get("kind") == "cuda":
        target["compiler"] = cuda_version()
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
def cuda_version() -> str:
    """The version of the compiler of CUDA code; empty where it is not installed."""
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return ""


@lru_cache
def this_cpu() -> str:
    """What tells this machine's CPU from another: its model and features, without asking LLVM."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "model\t", "cpu family", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(line for line in lines if line.startswith(wanted))


@dataclass(frozen=True, slots=True)
class _Made:
    """A lowered model, what it was lowered for and by which recorded choices, and the seconds that took by part."""

    target: Any
    core: str
    choices: RawChoices
    lowered: Lowered
    seconds: dict[str, float]


def _lower(desk: Desk, prepared: Prepared, profile: Profile, records: RecordStore | None) -> _Made:
    import tvm

    from farm.compiler.choices import parsed
    from farm.compiler.core import core_key
    from farm.compiler.lower import lower, resolve_target

    seconds: dict[str, float] = {}
    desk.note(Progress(Stage.COMPILING, f"for {profile.name}: graph and schedules"))
    target = resolve_target(profile)
    core = core_key(target)
    choices = records.choices(core) if records else {}
    with timed(seconds, "read"):
        module = tvm.ir.load_json((prepared.directory / "module.json").read_text())
        weights = read_weights(prepared.directory)
    return _Made(target, core, choices, lower(module, weights, target, seconds, parsed(choices)), seconds)


def read_weights(directory: Path) -> list[np.ndarray[Any, Any]]:
    """The weights of a prepared model, by its folder, in the order of its parameters."""
    import numpy as np

    with np.load(directory / "weights.npz") as kept:
        return [kept[name] for name in kept.files]


@contextlib.contextmanager
def _our_errors(prepared: Prepared, profile: Profile) -> Iterator[None]:
    shapes = " ".join(f"--shape {spec.name}:{','.join(map(str, spec.shape))}" for spec in prepared.inputs if spec.open)
    with compiling(prepared.model, profile, f"build it for one batch: {shapes}" if shapes else ""):
        yield


def _write(folder: Path, desk: Desk, prepared: Prepared, profile: Profile, digest: str, made: _Made, store: Store) -> None:
    from farm.compiler.code import compiled
    from farm.compiler.cuda import device_code
    from farm.compiler.graph import graph_of
    from farm.compiler.link import linker

    lowered, seconds = made.lowered, made.seconds
    desk.note(Progress(Stage.COMPILING, f"for {profile.name}: machine code"))
    graph = graph_of(lowered.module)
    with timed(seconds, "code"), device_code(made.target, store):
        executable = compiled(lowered.module, made.target)
    with timed(seconds, "link"):
        executable.export_library(str(folder / LIBRARY), fcompile=linker(profile), workspace_dir=str(workspace(desk)))
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
            "target": json.loads(json.dumps(_plain_target(profile, made.target))),
            "versions": versions(),
            "nbytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "kernels": [asdict(kernel) for kernel in lowered.kernels],
        }
    (folder / METADATA).write_text(json.dumps({**metadata, "seconds": seconds}, indent=1))


def workspace(desk: Desk) -> Path:
    folder = desk.scratch / "link"
    folder.mkdir(exist_ok=True)
    return folder


def _plain_target(profile: Profile, target: Any) -> dict[str, object]:
    resolved = dict(profile.target)
    if resolved.get("mcpu") == "native":
        resolved["mcpu"] = str(target.attrs["mcpu"])
    return resolved


@contextlib.contextmanager
def compiling(model: str, profile: Profile, fix: str = "") -> Iterator[None]:
    """A BuildError of what TVM raises, which is whatever its passes raise: its last line says what; the rest is its stack."""
    try:
        yield
    except (FarmError, OSError):
        raise
    except Exception as exc:
        lines = [line for line in str(exc).strip().splitlines() if line.strip()]
        why = f"{type(exc).__name__}: {lines[-1] if lines else ''}"[:600]
        here = profile.target.get("mcpu") == "native"
        usual = "export it another way, or with another opset" if here else f"see whether it builds for this machine: farm compile {model}"
        raise BuildError(f"{model} does not compile for {profile.name}", why, fix or usual) from exc
