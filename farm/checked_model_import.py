"""Import a model once, run its reference engine, and check our host build against the reference.

A model is stored as module.json (its operators), weights.npz, reference.npz (example inputs and the
reference's outputs) and prepared.json. Builds and boards start from these files, so neither onnx
nor torch is needed after this.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import data, importers, quantize, stats
from farm.compiler import host_run
from farm.compiler.artifact import specs_from_json
from farm.compiler.build import (
    GenerationResult,
    generate_module_code,
    publish_build_from_import_check,
    tvm_errors_as_build_errors,
)
from farm.compiler.build_digests import compiler_package_versions, compiler_sources_digest
from farm.compiler.import_check_linker import ImportCheckLinker
from farm.errors import BuildError, ModelError, WrongAnswer
from farm.importers.imported_model import example_inputs, fix_input_shapes
from farm.importers.onnx.reference.stable_example import is_stable
from farm.processes.workers import TaskContext
from farm.sandbox.array_files import read_arrays
from farm.sandbox.field_types import find_mistyped_field
from farm.store import Store, Upstream, digest_of_parts
from farm.time_ledger import add_block_duration
from farm.types import (
    LIMITS,
    Agreement,
    Model,
    OutputErrorLimits,
    PreparedModel,
    Profile,
    Progress,
    Stage,
)

if TYPE_CHECKING:
    import numpy as np

    from farm.importers import ImportedModel
    from farm.quantize.calibration import Note

    Array = np.ndarray[Any, Any]

KIND = "models"
MODULE, WEIGHTS, REFERENCE, PREPARED = (
    "module.json",
    "weights.npz",
    "reference.npz",
    "prepared.json",
)
FILES = (MODULE, WEIGHTS, REFERENCE, PREPARED)
_FORMAT = "5"  # version of the stored files; a change invalidates every stored model
_EVERY_SAMPLES = 100
BUILD = "build"  # folder of the code that the check generated
Maker = Callable[[TaskContext, Model, Profile, Path, Path, bool], GenerationResult | None]
_MOST_BYTES = 16 << 20  # of prepared.json
_MOST_AXES = 32
_NUMBERS = re.compile(
    r"bool|u?int(4|8|16|32|64)|b?float(16|32|64)|float8_\w{1,16}|complex(64|128)", re.ASCII
)
# How much more error than a change of the inputs' last bit the rounding of all layers may make. Of
# a network of 40 layers it is 10 to 25 dB.
_ROUNDING_OF_LAYERS_DB = 30.0
# A change of the inputs' last bit is 130 to 140 dB; an ill-conditioned model leaves less.
_ILL_CONDITIONED_BELOW_DB = 100.0
_SELECTIONS = ("topk", "TopK", "TOPK_V2")  # operators of torch, ONNX, TFLite; values come first
_ANOTHER_BATCH = 3  # a second batch size at which a model with an open batch is checked


def prepare_model(
    context: TaskContext,
    model: Model,
    host: Profile,
    cache: Path,
    maker: Maker | None = None,
    upstream: Upstream | None = None,
    *,
    keep_build: bool = False,
) -> PreparedModel:
    """Return the prepared model from the store, or prepare and store it.

    `host` is the profile of this machine. `maker` replaces `import_and_check_into_folder`, for
    example to run it in a sandbox; the files that it leaves are trusted for their content only.
    `upstream` is where others' prepared models are fetched from. With `keep_build`, the code that
    the check generates becomes the model's build for `host`. Raises ModelError if the model cannot
    be imported, and WrongAnswer if our build of it does not agree with the reference.
    """
    store = Store(cache, upstream)
    before = prepared_model_digest(model, cache)
    if before and (kept := store.find(KIND, before)):
        return load_prepared_model(model.name, kept, cached=True)
    context.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    with store.scratch() as scratch:
        for made in (scratch / "first", scratch / "second"):
            made.mkdir()
            linked = linked_folder(made)
            linked.mkdir()
            helped = context.with_helper(ImportCheckLinker(host, made / BUILD, linked))
            generated = (maker or import_and_check_into_folder)(
                helped, model, host, cache, made, keep_build
            )
            found = prepared_model_digest(model, cache)
            if found is not None and before in (None, found):
                break
            before = found  # a `python:` source may read other files than its last record names
        else:
            raise ModelError(
                f"{model.name} changed while it was read", model.source, "run the command again"
            )
        with store.publish(KIND, found) as folder:
            for name in FILES:
                _moved(made / name, folder / name)
        kept = store.find(KIND, found)
        assert kept is not None, "published, and not there"
        prepared = load_prepared_model(model.name, kept, cached=False)
        if generated:
            publish_build_from_import_check(prepared, host, store, generated, made / BUILD)
    return prepared


def find_prepared_model(model: Model, cache: Path) -> PreparedModel | None:
    """Return the prepared model from the store; None if it has to be imported.

    Nothing is imported for this. Raises ModelError if a file of the model cannot be read.
    """
    found = prepared_model_digest(model, cache)
    folder = found and Store(cache).find(KIND, found)
    return load_prepared_model(model.name, folder, cached=True) if folder else None


def linked_folder(made: Path) -> Path:
    """Return the folder of the libraries that are linked of the code in the folder `made`."""
    return made.with_suffix(".linked")


def import_and_check_into_folder(
    context: TaskContext,
    model: Model,
    host: Profile,
    cache: Path,
    folder: Path,
    keep_build: bool = False,
) -> GenerationResult | None:
    """Import a model, check it, and write FILES into a folder.

    If a model with an open batch cannot be built, or answers wrong, it is imported again with its
    example shapes, which have a batch of 1. With `keep_build`, the code is written to the folder
    BUILD in it, linked by the context's helper, an ImportCheckLinker, and its description returned.
    """
    seconds: dict[str, float] = {}

    def note(text: str, fraction: float | None) -> None:
        context.note(Progress(Stage.IMPORTING, text, fraction))

    with add_block_duration(seconds, "import"):
        imported = import_and_quantize(model, cache, host, note)
    try:
        return _prepare_into(folder, context, model, imported, host, seconds, keep_build)
    except (BuildError, ModelError, WrongAnswer) as error:
        if not imported.open:
            raise
        context.note(Progress(Stage.IMPORTING, "again, for a batch of 1"))
        with add_block_duration(seconds, "import"):
            fixed = import_and_quantize(fix_input_shapes(model, imported.inputs), cache, host, note)
        shutil.rmtree(folder / BUILD, ignore_errors=True)
        fixed = replace(fixed, fixed=f"{error.what}: {error.why}")
        return _prepare_into(folder, context, model, fixed, host, seconds, keep_build)


def import_and_quantize(model: Model, cache: Path, host: Profile, note: Note) -> ImportedModel:
    """Import a model and, if it asks for that, quantize it. `host` is the profile of this machine.

    Raises ModelError if it cannot be imported or quantized.
    """
    imported = importers.import_model(quantize.float_model(model), cache)
    return (
        quantize.quantize_imported(model, imported, host, note)
        if quantize.is_quantized_by_farm(model)
        else imported
    )


def _moved(source: Path, target: Path) -> None:
    """Move a file that a sandboxed process may have made; refuse links and special files."""
    if source.is_symlink() or not source.is_file():
        raise ModelError(
            f"{source.name} was not made",
            "the process that imported the model left no such file",
            "run the command again",
        )
    source.rename(target)


def load_prepared_model(name: str, folder: Path, *, cached: bool) -> PreparedModel:
    """Read a stored model under the name `name`.

    Raises ModelError if its file is not what `import_and_check_into_folder` writes: a sandboxed
    process made it.
    """
    try:
        if (size := (folder / PREPARED).stat().st_size) > _MOST_BYTES:
            raise ValueError(f"it has {size} bytes")
        content = json.loads((folder / PREPARED).read_text())
        prepared = PreparedModel(
            **{
                **content,
                "model": name,
                "digest": folder.name,
                "directory": folder,
                "inputs": specs_from_json(content["inputs"]),
                "outputs": specs_from_json(content["outputs"]),
                "check": Agreement(**content["check"]),
                "cached": cached,
            }
        )
        if wrong := _wrong(prepared):
            raise ValueError(f"its {wrong} is none")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as exc:
        why, fix = f"{type(exc).__name__}: {exc}"[:600], f"rm -r {shlex.quote(str(folder))}"
        raise ModelError(f"{name}: {PREPARED} is damaged", why, fix) from exc
    return prepared


def _wrong(prepared: PreparedModel) -> str:
    """Return a field of a prepared model with a value that no model has; "" if there is none."""
    for part in (prepared, prepared.check, *prepared.inputs, *prepared.outputs):
        if name := find_mistyped_field(part):
            return name
    for spec in (*prepared.inputs, *prepared.outputs):
        if (
            not _NUMBERS.fullmatch(spec.dtype)
            or any(extent < 0 for extent in spec.shape)
            or len(spec.shape) > _MOST_AXES
        ):
            return "dtype or shape"
    return "" if prepared.precision in LIMITS else "precision"


def read_reference_inputs_and_outputs(
    prepared: PreparedModel,
) -> tuple[dict[str, Array], list[Array]]:
    """Return example inputs by name, and the reference engine's outputs for them.

    Raises ModelError if the file is not what `import_and_check_into_folder` writes.
    """
    kept = read_arrays(prepared.directory / REFERENCE)
    wanted = [f"input:{spec.name}" for spec in prepared.inputs]
    wanted += [f"output:{index}" for index in range(len(prepared.outputs))]
    if missing := [name for name in wanted if name not in kept]:
        fix = f"rm -r {shlex.quote(str(prepared.directory))}"
        raise ModelError(
            f"{prepared.model}: {REFERENCE} is damaged", f"it lacks {', '.join(missing)}"[:600], fix
        )
    values = [kept[name] for name in wanted]
    inputs = {spec.name: value for spec, value in zip(prepared.inputs, values, strict=False)}
    return inputs, values[len(prepared.inputs) :]


def prepared_model_digest(model: Model, cache: Path) -> str | None:
    """Return the digest of everything that the prepared model depends on.

    Returns None if only importing the model can tell. Raises ModelError if the data set cannot be
    read.
    """
    fingerprint = quantize.quantized_import_fingerprint(model, cache)
    if fingerprint is None:
        return None
    try:
        dataset = (
            [data.data_set_digest(model.dataset), asdict(model.preprocess), model.labels or ""]
            if model.dataset
            else []
        )
        judged = {name: asdict(limits) for name, limits in model.limits.items()}
        return digest_of_parts(
            _FORMAT,
            fingerprint,
            *dataset,
            judged,
            compiler_sources_digest(),
            compiler_package_versions(),
        )
    except OSError as exc:
        raise ModelError(
            f"{model.name}: its data set cannot be read",
            f"{exc.strerror}: {exc.filename}",
            "correct `dataset` or `labels` in devices.toml",
        ) from exc


def _prepare_into(
    folder: Path,
    context: TaskContext,
    model: Model,
    imported: ImportedModel,
    host: Profile,
    seconds: dict[str, float],
    keep_build: bool,
) -> GenerationResult | None:
    """Run the reference engine and our build, compare them, and write FILES into a folder.

    With `keep_build`, the code of our build is written there, too, and its description returned.
    """
    import numpy as np
    import tvm

    context.note(Progress(Stage.IMPORTING, f"asking {imported.engine}"))
    with add_block_duration(seconds, "reference"):
        examples = [imported.example, *([_of_another_batch(imported)] if imported.open else [])]
        expected = [imported.reference(example) for example in examples]
    context.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    (folder / MODULE).write_text(tvm.ir.save_json(imported.module))
    generated: GenerationResult | None = None
    with add_block_duration(seconds, "check"):
        if keep_build:
            generated, answers = _build_and_run(context, model, imported, host, examples, folder)
        else:
            answers = _run_here(model, imported, host, examples)
    if generated:
        seconds["check"] -= sum(generated.seconds.values())  # which are those of the build
    precision = lowest_precision(imported.module)
    checks = [
        _checked(model, imported, *answers_and_example, model.limits[precision])
        for answers_and_example in zip(answers, expected, examples, strict=True)
    ]
    with add_block_duration(seconds, "reference"):  # last, because it may take long
        correct, total = _reference_accuracy(context, model, imported)
    np.savez(folder / WEIGHTS, *imported.weights)
    named: dict[str, Array] = {f"input:{name}": value for name, value in imported.example.items()}
    named.update({f"output:{index}": value for index, value in enumerate(expected[0])})
    np.savez(folder / REFERENCE, **named)  # type: ignore[arg-type]
    content = {
        "inputs": [asdict(spec) for spec in imported.inputs],
        "outputs": [asdict(spec) for spec in imported.outputs],
        "engine": imported.engine,
        "check": asdict(min(checks, key=lambda check: check.snr_db)),
        "fixed": imported.fixed,
        "precision": precision,
        "reference_correct": correct,
        "reference_total": total,
        "seconds": seconds,
        "built": generated is not None,
    }
    (folder / PREPARED).write_text(json.dumps(content, indent=1))
    return generated


def _of_another_batch(imported: ImportedModel) -> dict[str, Array]:
    """Return an example with a batch size that no other extent of the model is likely to have."""
    specs = [
        replace(spec, shape=(_ANOTHER_BATCH, *spec.shape[1:]))
        for spec in imported.inputs
        if spec.open
    ]
    return {**imported.example, **example_inputs(specs)}


def _checked(
    model: Model,
    imported: ImportedModel,
    ours: Sequence[Array],
    theirs: Sequence[Array],
    example: Mapping[str, Array],
    limits: OutputErrorLimits,
) -> Agreement:
    """Return the agreement of our answers with the reference's.

    Raises WrongAnswer if it is beyond the limits, or ModelError if the model is ill-conditioned: if
    no two engines can agree within the limits.
    """
    check = stats.compare_outputs_with_reference(ours, theirs, limits)
    if not check.right and quantize.is_quantized_by_farm(model):
        dtype = quantize.quantize_settings(model).dtype
        tries = (
            "try --calibration minmax or percentile, scales for each channel, or more samples of "
            "what it will be fed"
        )
        raise WrongAnswer(
            f"{model.name}: quantized to {dtype}, its answer is too far from the float model's",
            _difference(imported, ours, theirs, check),
            tries
            if dtype == "int8"
            else "use the float model, or widen its `limits` where that is right for you",
        )
    if not check.right:
        difference = _difference(imported, ours, theirs, check)
        _refuse_unstable_selection(model, imported, theirs, example, limits, difference)
        _refuse_ill_conditioned_model(model, imported, theirs, example, check, limits)
        raise WrongAnswer(
            f"{model.name}: what TVM makes of it is not what {imported.engine} makes of it",
            f"{difference}, on this machine: no board is to blame",
            (
                "export the model another way (ONNX instead of torch.export, or the other way "
                "round), or another opset; or widen its `limits`"
            ),
        )
    return check


def _refuse_unstable_selection(
    model: Model,
    imported: ImportedModel,
    theirs: Sequence[Array],
    example: Mapping[str, Array],
    limits: OutputErrorLimits,
    difference: str,
) -> None:
    """Raise ModelError if rounding decides what a model selects.

    So it is if the reference's answer has equal scores, or changes with a little noise, or if the
    model takes the largest of equal numbers within. `difference` says how our answer differs.
    """
    why = ""
    if imported.data_dependent:
        if stats.has_tied_rows(theirs, limits.max_abs or 0.0):
            why = f"the answer of {imported.engine} has scores that are equal but for rounding"
        elif not is_stable(example, imported.reference):
            why = f"the answer of {imported.engine} is another if the inputs change by a millionth"
    elif place := _tied_selection(imported, example):
        why = f"{place} takes the largest of scores that are equal but for rounding"
    if not why:
        return
    raise ModelError(
        f"{model.name} is ill-conditioned: rounding decides what it selects",
        f"{why}; farm's differs from it: {difference}",
        "use trained weights, and inputs of the model's range",
    )


def _tied_selection(imported: ImportedModel, example: Mapping[str, Array]) -> str:
    """Return the place of an operator that selects among tied numbers; "" if there is none.

    Engines take them in different orders. Such are the scores of all candidates of a detector with
    random weights.
    """
    for place, operator, values in imported.layers(example) if imported.layers else ():
        if operator in _SELECTIONS and stats.has_tied_numbers(values):
            return f"{operator} ({place})"
    return ""


def _refuse_ill_conditioned_model(
    model: Model,
    imported: ImportedModel,
    theirs: Sequence[Array],
    example: Mapping[str, Array],
    check: Agreement,
    limits: OutputErrorLimits,
) -> None:
    """Raise ModelError if the model is ill-conditioned: if rounding explains our answer's error.

    The reference answers again to inputs that differ in their last bit. Its own error is the
    measure, less an allowance for the rounding of the model's layers.
    """
    own = min(
        stats.compare_outputs_with_reference(imported.reference(changed), theirs, limits).snr_db
        for changed in stats.inputs_changed_in_the_last_bit(example)
    )
    # Numbers that are not finite have no ratio: a comparison with NaN is false.
    if not (own <= _ILL_CONDITIONED_BELOW_DB and check.snr_db >= own - _ROUNDING_OF_LAYERS_DB):
        return
    raise ModelError(
        f"{model.name} is ill-conditioned: it magnifies rounding, and no two engines agree",
        f"two answers of {imported.engine} to inputs that differ in the last bit agree to "
        f"{own:.1f} dB; farm's answer agrees with its to {check.snr_db:.1f} dB",
        "use trained weights, and inputs of the model's range; or widen its `limits` where that is "
        "right for you",
    )


def lowest_precision(module: Any) -> str:
    """Return the lowest precision that a model computes in: a name in `types.LIMITS`."""
    from tvm import relax

    from farm.compiler.graph.quantization.qdq_to_float import has_qdq

    if has_qdq(module):
        return "int8"
    dtypes: set[str] = set()
    relax.analysis.post_order_visit(
        module["main"], lambda node: dtypes.add(str(getattr(node.ty, "dtype", "")))
    )
    return "float32" if dtypes.isdisjoint(("float16", "bfloat16")) else "float16"


def _difference(
    imported: ImportedModel, ours: Sequence[Array], theirs: Sequence[Array], check: Agreement
) -> str:
    """Describe how our answer differs from the reference's."""
    for spec, one, other in zip(imported.outputs, ours, theirs, strict=True):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return (
                f"output {spec.name!r} is {one.dtype} {list(one.shape)} instead of {other.dtype} "
                f"{list(other.shape)}"
            )
    return (
        check.why
        or f"largest difference {check.max_abs:.3g}, signal to noise {check.snr_db:.1f} dB"
    )


def _reference_accuracy(
    context: TaskContext, model: Model, imported: ImportedModel
) -> tuple[int | None, int | None]:
    """Return how many labelled samples the reference classifies right, and of how many.

    Both are None if the model has no data set.
    """
    if model.dataset is None:
        return None, None
    samples, correct = (
        data.open_labelled_data_set(model.dataset, model, imported.inputs, imported.outputs),
        0,
    )
    for sample in samples.read():
        correct += int(imported.reference(sample.inputs)[0].argmax() == sample.label)
        if sample.index % _EVERY_SAMPLES == 0:
            context.note(
                Progress(
                    Stage.IMPORTING,
                    f"{imported.engine} on {len(samples)} labelled samples",
                    sample.index / len(samples),
                )
            )
    return correct, len(samples)


def _run_here(
    model: Model, imported: ImportedModel, host: Profile, examples: Sequence[Mapping[str, Array]]
) -> list[list[Array]]:
    """Run our own build of the model on each example in this process."""
    with tvm_errors_as_build_errors(model.name, host):
        run = host_run.compile_host_runner(imported.module, imported.weights, host)
        return [run([example[spec.name] for spec in imported.inputs]) for example in examples]


def _build_and_run(
    context: TaskContext,
    model: Model,
    imported: ImportedModel,
    host: Profile,
    examples: Sequence[Mapping[str, Array]],
    folder: Path,
) -> tuple[GenerationResult, list[list[Array]]]:
    """Run our own build of the model on each example, and write its code to the folder BUILD.

    It starts from the stored module, as every build does, and runs the library: TVM would generate
    the machine code a second time to run it without one.
    """
    import tvm

    (folder / BUILD).mkdir()
    with tvm_errors_as_build_errors(model.name, host):
        module = tvm.ir.load_json((folder / MODULE).read_text())
        code = generate_module_code(
            module,
            imported.weights,
            host,
            {},
            folder,
            folder / BUILD,
            lambda _: None,
            {},
        )
        library = tvm.runtime.load_module(str(context.ask_helper(code.generated.objects)))
        run = host_run.make_runner(code.lowered, library)
        return code.generated, [
            run([example[spec.name] for spec in imported.inputs]) for example in examples
        ]
