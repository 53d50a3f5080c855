"""Build a prepared model for a profile: a library, its parameters and metadata, in the store.

A build's digest depends on the tuning records that apply to it, and only a build tells which
workloads it looks records up for. So the store has two levels:

    base = digest of model, target, linker, compiler, TVM and toolchain   (fingerprint.py)
      |
      v
    workloads/BASE/workloads.json: the CPU model, and the workloads that the build looked up
      |
      +-- the records for these workloads, of those known now      (store/tuning_records.py)
      v
    digest = base, if no record applies; else the digest of base and of the choices recorded
      |
      v
    artifacts/DIGEST: library.so, parameters, graph.json, metadata.json   (artifact.py)

A build is found if both folders are there. If the first is missing, the model is built, and both
are published. A new record for another workload finds the same build; one for a workload of the
model leads to another digest, which is built next to the one before.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.compiler import parameter_files
from farm.compiler.artifact import GRAPH, KIND, LIBRARY, METADATA, PARAMETERS, load_artifact
from farm.compiler.build_digests import (
    build_inputs_digest_without_records,
    compiler_package_versions,
)
from farm.errors import BuildError, FarmError
from farm.processes.workers import TaskContext
from farm.store import (
    ArchiveError,
    Store,
    TuningRecordStore,
    Upstream,
    digest_of_parts,
    file_digest,
)
from farm.time_ledger import add_block_duration
from farm.types import Artifact, Kernel, PreparedModel, Profile, Progress, Stage, TuningRecord

if TYPE_CHECKING:
    import numpy as np

    from farm.compiler.lower import LoweredModule

OBJECTS = "objects"
_OBJECT = re.compile(r"[\w-][\w.-]*\.o", re.ASCII)
_ELF_TYPE = 16  # where an ELF file has its type; 1 is relocatable
RawChoices = Mapping[str, Mapping[str, object]]  # by workload, as records have them
Generator = Callable[..., "GenerationResult"]
# Kept by the digest of a build without records: the CPU model, and the workloads that it looked up.
ASKED, WORKLOADS = "workloads", "workloads.json"


def find_or_build_model(
    context: TaskContext,
    prepared: PreparedModel,
    profile: Profile,
    cache: Path,
    records: TuningRecordStore | None = None,
    upstream: Upstream | None = None,
    generator: Generator | None = None,
) -> Artifact:
    """Return the artifact of a model for a profile: from the store, or built and published there.

    Only the records for the profile's CPU model and for workloads of this model affect the build.
    The first build stores the keys of these workloads, so the digest depends on their records and
    on no others. `upstream` is where others' builds are fetched from. `generator` replaces
    `generate_model_code`, for example to run it in a sandbox; the files that it leaves are trusted
    for their content only. Raises BuildError.
    """
    store, base = Store(cache, upstream), build_inputs_digest_without_records(prepared, profile)
    if found := _find(store, base, prepared, profile, records):
        return found
    every = {core: records.choices(core) for core in records.cores()} if records else {}
    with store.scratch() as scratch:
        made = scratch / "made"
        made.mkdir()
        generated: GenerationResult = (generator or generate_model_code)(
            context, prepared, profile, every, cache, made
        )
        _keep_workloads(store, base, generated)
        digest = _digest_with(base, every.get(generated.core, {}), generated.record_keys)
        if not store.find(KIND, digest):
            with store.publish(KIND, digest) as folder:
                _finish(folder, prepared, profile, digest, generated, made)
    kept = store.find(KIND, digest)
    assert kept is not None, "published, and not there"
    return _named(load_artifact(kept, cached=False), prepared, profile)


def publish_build_from_import_check(
    prepared: PreparedModel, host: Profile, store: Store, generated: GenerationResult, made: Path
) -> None:
    """Keep the code that the check of an import generated, as the model's build for this machine.

    `made` is the folder with its files. It is kept for this model only: the process that made it
    has read the model's file, and may have been taken over by it. Raises BuildError.
    """
    digest = _digest_of_check(build_inputs_digest_without_records(prepared, host), prepared)
    if store.find(KIND, digest):
        return
    _keep_workloads(store, digest, generated)
    with store.publish(KIND, digest) as folder:
        _finish(folder, prepared, host, digest, generated, made)


def build_reuses_import_check_code(profile: Profile, host: Profile) -> bool:
    """Return whether the check of an import generates the code of a build for a profile."""
    ours, theirs = ((one.target, one.linker, one.memory_mb) for one in (profile, host))
    return ours == theirs


def _digest_of_check(base: str, prepared: PreparedModel) -> str:
    return digest_of_parts(base, "generated by the check of", prepared.digest)


def _keep_workloads(store: Store, base: str, generated: GenerationResult) -> None:
    if not store.find(ASKED, base):
        with store.publish(ASKED, base) as folder:
            (folder / WORKLOADS).write_text(
                json.dumps(
                    {"core": generated.core, "workloads": list(generated.record_keys)}, indent=1
                )
            )


def find_stored_build(
    prepared: PreparedModel, profile: Profile, cache: Path, records: TuningRecordStore | None = None
) -> Artifact | None:
    """Return the artifact of a model for a profile from the store; None if it has to be built."""
    return _find(
        Store(cache),
        build_inputs_digest_without_records(prepared, profile),
        prepared,
        profile,
        records,
    )


def _find(
    store: Store,
    base: str,
    prepared: PreparedModel,
    profile: Profile,
    records: TuningRecordStore | None,
) -> Artifact | None:
    """Return an artifact from the store; `base` is its digest without tuning records."""
    if found := _folder_of(store, base, records):
        return _named(load_artifact(found, cached=True), prepared, profile)
    if prepared.built and (found := _folder_of(store, _digest_of_check(base, prepared), records)):
        return _named(load_artifact(found, cached=prepared.cached), prepared, profile)
    return None


def _folder_of(store: Store, base: str, records: TuningRecordStore | None) -> Path | None:
    if not (asked := store.find(ASKED, base)):
        return None
    content = json.loads((asked / WORKLOADS).read_text())
    choices = records.choices(content["core"]) if records else {}
    return store.find(KIND, _digest_with(base, choices, content["workloads"]))


def build_inputs_digest_with_records(
    asked: Path, base: str, records: Iterable[TuningRecord]
) -> str:
    """Return the digest of a build with tuning records, from the folder with its workloads.

    `base` is its digest without records. Raises ArchiveError if the folder holds something else.
    """
    try:
        content = json.loads((asked / WORKLOADS).read_text())
        core, workloads = content["core"], content["workloads"]
        if not isinstance(core, str) or not all(isinstance(one, str) for one in workloads):
            raise TypeError("not a list of names")
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ArchiveError(f"its list of workloads cannot be read: {exc}") from exc
    return _digest_with(
        base, {one.workload: one.choice for one in records if one.core == core}, workloads
    )


def check_artifact_folder(folder: Path, digest: str) -> None:
    """Check a folder that another machine has built against its own metadata.

    Raises ArchiveError if it is not a build of this digest whose files have their digests.
    """
    try:
        made = load_artifact(folder, cached=True)
        parts = file_digest(made.library), digest_of_parts(*sorted(made.parameters.iterdir()))
        right = (made.digest, made.library_digest, made.parameters_digest) == (digest, *parts)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ArchiveError(f"it is not a build: {exc}") from exc
    if not right:
        raise ArchiveError("its files are not those that its metadata name")


def _digest_with(base: str, choices: RawChoices, workloads: Iterable[str]) -> str:
    applying = {key: choices[key] for key in workloads if key in choices}
    return digest_of_parts(base, applying) if applying else base


def _named(artifact: Artifact, prepared: PreparedModel, profile: Profile) -> Artifact:
    """Return the artifact under the requested names.

    Profiles with the same target share a build, and so do models that differ only in names.
    """
    return replace(
        artifact,
        model=prepared.model,
        profile=profile.name,
        inputs=prepared.inputs,
        outputs=prepared.outputs,
    )


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What the generation of a build's code returns besides files.

    `core` is the key of the target's CPU model, and `record_keys` are the keys of the workloads
    that a record can change. `objects` are the names of the object files, in the order of linking.
    `target` is the profile's target with the CPU of this machine, where it is `native`.
    """

    core: str
    record_keys: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    objects: tuple[str, ...]
    target: dict[str, object]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class ModuleCode:
    """The code of a module, as files, and its module as lowered in this process."""

    generated: GenerationResult
    lowered: LoweredModule


def generate_model_code(
    context: TaskContext,
    prepared: PreparedModel,
    profile: Profile,
    records: Mapping[str, RawChoices],
    cache: Path,
    folder: Path,
) -> GenerationResult:
    """Generate the code of a prepared model: object files, parameters and graph in a folder.

    `records` are the recorded choices by CPU model. Starts no program, if the stub of the driver of
    GPUs is in the store or a driver is installed. Raises
    BuildError.
    """
    import tvm

    seconds: dict[str, float] = {}
    with _our_errors(prepared, profile):
        with add_block_duration(seconds, "read"):
            module = tvm.ir.load_json((prepared.directory / "module.json").read_text())
            weights = read_prepared_weights(prepared.directory)

        def note(text: str) -> None:
            context.note(Progress(Stage.COMPILING, f"for {profile.name}: {text}"))

        return generate_module_code(
            module, weights, profile, records, cache, folder, note, seconds
        ).generated


def generate_module_code(
    module: Any,
    weights: Sequence[np.ndarray[Any, Any]],
    profile: Profile,
    records: Mapping[str, RawChoices],
    cache: Path,
    folder: Path,
    note: Callable[[str], None],
    seconds: dict[str, float],
) -> ModuleCode:
    """Generate a module's code into a folder, as `generate_model_code` does.

    Adds the seconds of each stage to `seconds`. Raises whatever TVM's passes raise.
    """
    from farm.compiler.codegen.executable import compile_executable
    from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
    from farm.compiler.codegen.nvrtc import use_nvrtc_for_cuda
    from farm.compiler.codegen.parallel_codegen import export_shared_library
    from farm.compiler.cpu.kernel_config import decode_recorded_configs
    from farm.compiler.execution_graph import describe_execution_graph
    from farm.compiler.lower import lower_module, resolve_target
    from farm.compiler.target.cpu_model import tuning_target_key

    objects: list[str] = []
    workspace = folder / OBJECTS
    workspace.mkdir()
    note("graph and schedules")
    target = resolve_target(profile)
    core = tuning_target_key(target)
    choices = decode_recorded_configs(records.get(core, {}))
    lowered = lower_module(module, weights, target, seconds, choices, profile.memory_mb)
    note("machine code")
    graph = describe_execution_graph(lowered.module)
    with add_block_duration(seconds, "code"), use_nvrtc_for_cuda(target, Store(cache)):
        executable = compile_executable(
            lowered.module, target, checks=ArgumentChecks.MARKED, workspace=workspace
        )
    with add_block_duration(seconds, "link"):  # `find_or_build_model` does the rest of it
        export_shared_library(
            executable,
            folder / LIBRARY,
            lambda _, files, **__: objects.extend(Path(file).name for file in files),
            workspace,
        )
    with add_block_duration(seconds, "write"):
        parameter_files.write_parameters(
            folder / PARAMETERS, lowered.parameters, lowered.transforms
        )
        (folder / GRAPH).write_text(json.dumps(graph))
    # TVM's texts are of a type of its own, which does not pass out of a sandbox
    told = {
        "core": core,
        "record_keys": list(lowered.record_keys),
        "kernels": list(map(asdict, lowered.kernels)),
        "target": _plain_target(profile, target),
    }
    plain = json.loads(json.dumps(told))
    kernels = tuple(Kernel(**kernel) for kernel in plain["kernels"])
    generated = GenerationResult(
        plain["core"],
        tuple(plain["record_keys"]),
        kernels,
        tuple(objects),
        plain["target"],
        seconds,
    )
    return ModuleCode(generated, lowered)


def read_prepared_weights(directory: Path) -> list[np.ndarray[Any, Any]]:
    """Return the weights in the folder of a prepared model, in the order of its parameters."""
    import ml_dtypes
    import numpy as np

    def typed(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return bfloat16 as such: numpy's files have it as two bytes without a type."""
        return value.view(ml_dtypes.bfloat16) if value.dtype == np.dtype("V2") else value

    with np.load(directory / "weights.npz") as kept:
        return [typed(kept[name]) for name in kept.files]


@contextlib.contextmanager
def _our_errors(prepared: PreparedModel, profile: Profile) -> Iterator[None]:
    shapes = " ".join(
        f"--shape {spec.name}:{','.join(map(str, spec.shape))}"
        for spec in prepared.inputs
        if spec.open
    )
    with tvm_errors_as_build_errors(
        prepared.model, profile, f"build it for one batch: {shapes}" if shapes else ""
    ):
        yield


def _finish(
    folder: Path,
    prepared: PreparedModel,
    profile: Profile,
    digest: str,
    generated: GenerationResult,
    made: Path,
) -> None:
    """Link the object files in the folder `made`, and move the other files there into a folder."""
    seconds = dict(generated.seconds)
    objects = _check_files(prepared, generated, made)
    with add_block_duration(seconds, "link"):
        link_objects(profile, folder / LIBRARY, objects)
    with add_block_duration(seconds, "write"):
        (made / PARAMETERS).rename(folder / PARAMETERS)
        (made / GRAPH).rename(folder / GRAPH)
        metadata = {
            "model": prepared.model,
            "profile": profile.name,
            "digest": digest,
            "library_digest": file_digest(folder / LIBRARY),
            "parameters_digest": digest_of_parts(*sorted((folder / PARAMETERS).iterdir())),
            "inputs": [asdict(spec) for spec in prepared.inputs],
            "outputs": [asdict(spec) for spec in prepared.outputs],
            "target": generated.target,
            "versions": compiler_package_versions(),
            "nbytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "kernels": [asdict(kernel) for kernel in generated.kernels],
        }
    (folder / METADATA).write_text(json.dumps({**metadata, "seconds": seconds}, indent=1))


def _check_files(prepared: PreparedModel, generated: GenerationResult, made: Path) -> list[Path]:
    """Return the object files of a build, and check the others that its code generation left.

    Raises BuildError.
    """
    what = f"{prepared.model}: the process that compiled it"
    folder = made / PARAMETERS
    wanted = [folder / name for name in (parameter_files.INDEX, parameter_files.SHARD)]
    odd = (
        [path.name for path in folder.iterdir() if path not in wanted]
        if not folder.is_symlink()
        else [folder.name]
    )
    if odd:
        raise _left_others(what, odd)
    for path in (made / GRAPH, *wanted):
        require_regular_file(what, path)
    return checked_object_files(what, made, generated.objects)


def checked_object_files(what: str, made: Path, names: Sequence[str]) -> list[Path]:
    """Return the object files with these names, which a process `what` has left in a folder.

    Raises BuildError for names that lead elsewhere, links and special files.
    """
    odd = [name for name in names if not _OBJECT.fullmatch(name)]
    if odd or (made / OBJECTS).is_symlink():
        raise _left_others(what, odd or [OBJECTS])
    found = [require_regular_file(what, made / OBJECTS / name) for name in names]
    if others := [path.name for path in found if not _is_object(path)]:
        raise _left_others(what, others)
    return found


def link_objects(profile: Profile, library: Path, objects: Sequence[Path]) -> None:
    """Link object files into a library for a profile. Raises BuildError."""
    from farm.compiler.codegen.link import fcompile_for_profile

    fcompile_for_profile(profile)(str(library), [str(path) for path in objects])


def _is_object(path: Path) -> bool:
    """Return whether a linker reads a file as machine code.

    It takes scripts and LLVM's code, too.
    """
    with path.open("rb") as file:
        header = file.read(_ELF_TYPE + 2)
    return header.startswith(b"\x7fELF") and header[_ELF_TYPE:] in (b"\1\0", b"\0\1")


def require_regular_file(what: str, path: Path) -> Path:
    """Return a file that a process `what` has left.

    Raise BuildError for links and special files.
    """
    if path.is_symlink() or not path.is_file():
        raise _left_others(what, [path.name])
    return path


def _left_others(what: str, names: Sequence[str]) -> BuildError:
    return BuildError(
        f"{what} left other files than code and parameters",
        ", ".join(names)[:600],
        "run the command again",
    )


def link_scratch_folder(context: TaskContext) -> Path:
    """Return the scratch folder for linking."""
    folder = context.scratch / "link"
    folder.mkdir(exist_ok=True)
    return folder


def _plain_target(profile: Profile, target: Any) -> dict[str, object]:
    resolved = dict(profile.target)
    if resolved.get("mcpu") == "native":
        resolved["mcpu"] = str(target.attrs["mcpu"])
    return resolved


@contextlib.contextmanager
def tvm_errors_as_build_errors(model: str, profile: Profile, fix: str = "") -> Iterator[None]:
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
        usual = (
            "export it another way, or with another opset"
            if here
            else f"see whether it builds for this machine: farm compile {model}"
        )
        raise BuildError(f"{model} does not compile for {profile.name}", why, fix or usual) from exc
