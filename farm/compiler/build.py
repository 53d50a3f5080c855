"""Build a prepared model for a profile: a library, its parameters and metadata, kept under the digest of all that went into them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.compiler import tensor_cache
from farm.compiler.artifact import GRAPH, KIND, LIBRARY, METADATA, PARAMETERS, load
from farm.compiler.fingerprint import artifact_digest, versions
from farm.errors import BuildError, FarmError
from farm.store import RecordStore, Store, Upstream, digest_of, file_digest
from farm.time_ledger import timed
from farm.types import Artifact, Prepared, Profile, Progress, Stage
from farm.workers import Desk

if TYPE_CHECKING:
    import numpy as np

    from farm.compiler.lower import Lowered

RawChoices = Mapping[str, Mapping[str, object]]  # by workload, as records have them
# Kept by the digest of a build without records: the CPU model, and the workloads that it looked up.
ASKED, WORKLOADS = "workloads", "workloads.json"


def build(
    desk: Desk,
    prepared: Prepared,
    profile: Profile,
    cache: Path,
    records: RecordStore | None = None,
    upstream: Upstream | None = None,
) -> Artifact:
    """Return the artifact of a model for a profile: from the store, or built and published there.

    Only the records for the profile's CPU model and for workloads of this model affect the build. The
    first build stores the keys of these workloads, so the digest depends on their records and on no
    others. `upstream` is where others' builds are fetched from. Raises BuildError.
    """
    store, base = Store(cache, upstream), artifact_digest(prepared, profile)
    if found := _find(store, base, prepared, profile, records):
        return found
    with _our_errors(prepared, profile):
        made = _lower(desk, prepared, profile, records)
    if not store.find(ASKED, base):
        with store.publish(ASKED, base) as folder:
            (folder / WORKLOADS).write_text(json.dumps({"core": made.core, "workloads": list(made.lowered.record_keys)}, indent=1))
    digest = _digest_with(base, made.choices, made.lowered.record_keys)
    if not store.find(KIND, digest):
        with store.publish(KIND, digest) as folder, _our_errors(prepared, profile):
            _write(folder, desk, prepared, profile, digest, made, store)
    kept = store.find(KIND, digest)
    assert kept is not None, "published, and not there"
    return _named(load(kept, cached=False), prepared, profile)


def kept(prepared: Prepared, profile: Profile, cache: Path, records: RecordStore | None = None) -> Artifact | None:
    """Return the artifact of a model for a profile from the store; None if it has to be built."""
    return _find(Store(cache), artifact_digest(prepared, profile), prepared, profile, records)


def _find(store: Store, base: str, prepared: Prepared, profile: Profile, records: RecordStore | None) -> Artifact | None:
    """Return an artifact from the store; `base` is its digest without tuning records."""
    if not (asked := store.find(ASKED, base)):
        return None
    content = json.loads((asked / WORKLOADS).read_text())
    choices = records.choices(content["core"]) if records else {}
    found = store.find(KIND, _digest_with(base, choices, content["workloads"]))
    return _named(load(found, cached=True), prepared, profile) if found else None


def _digest_with(base: str, choices: RawChoices, workloads: Iterable[str]) -> str:
    applying = {key: choices[key] for key in workloads if key in choices}
    return digest_of(base, applying) if applying else base


def _named(artifact: Artifact, prepared: Prepared, profile: Profile) -> Artifact:
    """Return the artifact under the requested names.

    Profiles with the same target share a build, and so do models that differ only in names.
    """
    return replace(artifact, model=prepared.model, profile=profile.name, inputs=prepared.inputs, outputs=prepared.outputs)


@dataclass(frozen=True, slots=True)
class _Made:
    """A lowered model, its target, the recorded choices it used, and the seconds of each stage."""

    target: Any
    core: str
    choices: RawChoices
    lowered: Lowered
    seconds: dict[str, float]


def _lower(desk: Desk, prepared: Prepared, profile: Profile, records: RecordStore | None) -> _Made:
    import tvm

    from farm.compiler.cpu.kernel_config import parsed
    from farm.compiler.lower import lower, resolve_target
    from farm.compiler.target.cpu_model import target_key

    seconds: dict[str, float] = {}
    desk.note(Progress(Stage.COMPILING, f"for {profile.name}: graph and schedules"))
    target = resolve_target(profile)
    core = target_key(target)
    choices = records.choices(core) if records else {}
    with timed(seconds, "read"):
        module = tvm.ir.load_json((prepared.directory / "module.json").read_text())
        weights = read_weights(prepared.directory)
    return _Made(target, core, choices, lower(module, weights, target, seconds, parsed(choices)), seconds)


def read_weights(directory: Path) -> list[np.ndarray[Any, Any]]:
    """Return the weights in the folder of a prepared model, in the order of its parameters."""
    import numpy as np

    with np.load(directory / "weights.npz") as kept:
        return [kept[name] for name in kept.files]


@contextlib.contextmanager
def _our_errors(prepared: Prepared, profile: Profile) -> Iterator[None]:
    shapes = " ".join(f"--shape {spec.name}:{','.join(map(str, spec.shape))}" for spec in prepared.inputs if spec.open)
    with compiling(prepared.model, profile, f"build it for one batch: {shapes}" if shapes else ""):
        yield


def _write(folder: Path, desk: Desk, prepared: Prepared, profile: Profile, digest: str, made: _Made, store: Store) -> None:
    from farm.compiler.codegen.executable import compiled
    from farm.compiler.codegen.kernel_libraries import export
    from farm.compiler.codegen.link import linker
    from farm.compiler.codegen.nvrtc import device_code
    from farm.compiler.execution_graph import graph_of

    lowered, seconds = made.lowered, made.seconds
    desk.note(Progress(Stage.COMPILING, f"for {profile.name}: machine code"))
    graph = graph_of(lowered.module)
    with timed(seconds, "code"), device_code(made.target, store):
        executable = compiled(lowered.module, made.target)
    with timed(seconds, "link"):
        export(executable, folder / LIBRARY, linker(profile), workspace(desk))
    with timed(seconds, "write"):
        tensor_cache.write(folder / PARAMETERS, lowered.parameters)
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
    """Return the scratch folder for linking."""
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
    """Raise BuildError for any exception of TVM in the block.

    The last line of TVM's message is the cause; the lines before it are its stack.
    """
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
