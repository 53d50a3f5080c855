"""What is done once per model, before any build: import it, ask the reference engine, and check our host build against it.

A model is kept as module.json (its operators), weights.npz, reference.npz (example inputs and the reference's outputs) and prepared.json.
Builds and boards start from there, so neither onnx nor torch is needed after this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import data, importers, stats
from farm.clock import timed
from farm.compiler.build import compile_error, specs, versions
from farm.errors import FarmError, ModelError, WrongAnswer
from farm.parallel import Desk
from farm.store import Store, digest_of
from farm.types import Agreement, Model, Prepared, Profile, Progress, Stage

if TYPE_CHECKING:
    import numpy as np

    from farm.importers import Imported

    Array = np.ndarray[Any, Any]

KIND = "models"
_FORMAT = "3"  # of what is kept; a change makes every kept model stale
_EVERY_SAMPLES = 100


def prepare(desk: Desk, model: Model, host: Profile, cache: Path) -> Prepared:
    """The prepared model: from the store, or made and put there. `host` is the profile of this machine.

    Raises ModelError for a model that cannot be imported, WrongAnswer when our build of it does not agree with the reference.
    """
    store = Store(cache)
    if (digest := _digest(model, cache)) and (kept := store.find(KIND, digest)):
        return load(model, kept, cached=True)
    desk.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    seconds: dict[str, float] = {}
    with timed(seconds, "import"):
        imported = importers.load(model, cache)
    digest = _digest(model, cache)
    if digest is None:
        raise ModelError(f"{model.name} changed while it was read", model.source, "run the command again")
    with store.publish(KIND, digest) as folder:
        _prepare_into(folder, desk, model, imported, host, digest, seconds)
    kept = store.find(KIND, digest)
    assert kept is not None, "published, and not there"
    return load(model, kept, cached=False)


def load(model: Model, folder: Path, *, cached: bool) -> Prepared:
    """Read a kept model."""
    content = json.loads((folder / "prepared.json").read_text())
    return Prepared(
        **{
            **content,
            "model": model.name,
            "directory": folder,
            "inputs": specs(content["inputs"]),
            "outputs": specs(content["outputs"]),
            "check": Agreement(**content["check"]),
            "cached": cached,
        }
    )


def reference(prepared: Prepared) -> tuple[dict[str, Array], list[Array]]:
    """Example inputs by name, and what the reference engine makes of them."""
    import numpy as np

    with np.load(prepared.directory / "reference.npz") as kept:
        inputs = {spec.name: kept[f"input:{spec.name}"] for spec in prepared.inputs}
        return inputs, [kept[f"output:{index}"] for index in range(len(prepared.outputs))]


def _digest(model: Model, cache: Path) -> str | None:
    fingerprint = importers.fingerprint(model, cache)
    if fingerprint is None:
        return None
    try:
        return digest_of(_FORMAT, fingerprint, data.digest(model.dataset) if model.dataset else "", versions())
    except OSError as exc:
        raise ModelError(
            f"{model.name}: its data set cannot be read", f"{exc.strerror}: {model.dataset}", "correct `dataset` in devices.toml"
        ) from exc


def _prepare_into(
    folder: Path, desk: Desk, model: Model, imported: Imported, host: Profile, digest: str, seconds: dict[str, float]
) -> None:
    import numpy as np
    import tvm

    desk.note(Progress(Stage.IMPORTING, f"asking {imported.engine}"))
    with timed(seconds, "reference"):
        outputs = imported.reference(imported.example)
        correct, total = _reference_accuracy(desk, model, imported)
    desk.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    with timed(seconds, "check"):
        answers = _run_here(model, imported, host)
    precision = _precision(imported.module)
    check = stats.agreement(answers, outputs, model.limits[precision])
    if not check.right:
        raise WrongAnswer(
            f"{model.name}: what TVM makes of it is not what {imported.engine} makes of it",
            f"{_difference(imported, answers, outputs, check)}, on this machine: no board is to blame",
            "export the model another way (ONNX instead of torch.export, or the other way round), or another opset",
        )
    (folder / "module.json").write_text(tvm.ir.save_json(imported.module))
    np.savez(folder / "weights.npz", *imported.weights)
    named: dict[str, Array] = {f"input:{name}": value for name, value in imported.example.items()}
    named.update({f"output:{index}": value for index, value in enumerate(outputs)})
    np.savez(folder / "reference.npz", **named)  # type: ignore[arg-type]
    content = {
        "digest": digest,
        "inputs": [asdict(spec) for spec in imported.inputs],
        "outputs": [asdict(spec) for spec in imported.outputs],
        "engine": imported.engine,
        "check": asdict(check),
        "precision": precision,
        "reference_correct": correct,
        "reference_total": total,
        "seconds": seconds,
    }
    (folder / "prepared.json").write_text(json.dumps(content, indent=1))


def _precision(module: Any) -> str:
    """What a model computes in, where that is least precise: a name of `types.LIMITS`."""
    from tvm import relax

    from farm.compiler.integers import is_quantized

    dtypes: set[str] = set()
    relax.analysis.post_order_visit(module["main"], lambda node: dtypes.add(str(getattr(node.ty, "dtype", ""))))
    if is_quantized(module):
        return "int8"
    return "float32" if dtypes.isdisjoint(("float16", "bfloat16")) else "float16"


def _difference(imported: Imported, ours: Sequence[Array], theirs: Sequence[Array], check: Agreement) -> str:
    for spec, one, other in zip(imported.outputs, ours, theirs, strict=True):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"output {spec.name!r} is {one.dtype} {list(one.shape)} instead of {other.dtype} {list(other.shape)}"
    return check.why or f"largest difference {check.max_abs:.3g}, signal to noise {check.snr_db:.1f} dB"


def _reference_accuracy(desk: Desk, model: Model, imported: Imported) -> tuple[int | None, int | None]:
    if model.dataset is None:
        return None, None
    samples, correct = data.labelled(model.dataset, model, imported.inputs, imported.outputs), 0
    for sample in samples.read():
        correct += int(imported.reference(sample.inputs)[0].argmax() == sample.label)
        if sample.index % _EVERY_SAMPLES == 0:
            desk.note(Progress(Stage.IMPORTING, f"{imported.engine} on {len(samples)} labelled samples", sample.index / len(samples)))
    return correct, len(samples)


def _run_here(model: Model, imported: Imported, host: Profile) -> list[Array]:
    """Our own build of the model, in this process."""
    import tvm
    from tvm import relax

    from farm.compiler.lower import lower, resolve_target

    try:
        target = resolve_target(host)
        lowered = lower(imported.module, imported.weights, target, {})
        machine = relax.VirtualMachine(tvm.compile(lowered.module, target=target), tvm.cpu())
        arguments = [tvm.runtime.tensor(imported.example[spec.name]) for spec in imported.inputs]
        if lowered.parameters:
            arguments.append([tvm.runtime.tensor(parameter) for parameter in lowered.parameters])
        return flat(machine["main"](*arguments))
    except FarmError:
        raise
    except Exception as exc:  # TVM raises whatever its passes raise
        raise compile_error(model.name, host, exc) from exc


def flat(result: Any) -> list[Array]:
    """The arrays of a tensor or of nested tuples of tensors, in order."""
    if isinstance(result, Sequence) or type(result).__name__ in ("Array", "ShapeTuple"):
        return [array for part in result for array in flat(part)]
    return [result.numpy()]
