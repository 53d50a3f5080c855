"""The code that the check of an import generates is the model's build for this machine, and no
other model's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from host_profile import HOST
from onnx_models import graph, node, save

from farm.compiler.build import (
    build_reuses_import_check_code,
    find_or_build_model,
    find_stored_build,
)
from farm.compiler.build_digests import build_inputs_digest_without_records
from farm.compiler.lower import resolve_target
from farm.compiler.target.cpu_model import cpu_model_of, tuning_target_key
from farm.errors import WrongAnswer
from farm.pipeline.operations import compile_model
from farm.pipeline.worker_tasks import build_model_task, find_build_task, prepare_model_task
from farm.store import Store, TuningRecordStore
from farm.types import LIMITS, Artifact, Model, Profile, TuningRecord

NODES = [
    node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
    node("Relu", ["a"], ["b"]),
    node("GlobalAveragePool", ["b"], ["c"]),
    node("Flatten", ["c"], ["d"]),
    node("MatMul", ["d", "m"], ["y"]),
]
numbers = np.random.default_rng(11)
WEIGHTS = {
    "w": numbers.standard_normal((16, 3, 3, 3)).astype("float32"),
    "m": numbers.standard_normal((16, 10)).astype("float32"),
}


def saved(path: Path, batch: int | str = 1) -> Path:
    return save(path, graph(NODES, {"x": [batch, 3, 12, 12]}, {"y": [batch, 10]}, weights=WEIGHTS))


def files(artifact: Artifact) -> dict[str, bytes]:
    folder = artifact.library.parent
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "metadata.json"
    }


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize("trust", [True, False])
def test_the_code_of_the_check_is_the_build_byte_for_byte(batch, trust, tmp_path, context, cache):
    model = Model("net", str(saved(tmp_path / "net.onnx", batch)), trust=trust)
    prepared = prepare_model_task(context, model, HOST, Store(cache), (HOST,))
    shared = find_build_task(context, prepared, HOST, cache)
    assert shared is not None and not shared.cached, "made by this command"
    again = prepare_model_task(context, model, HOST, Store(cache), (HOST,))
    assert again.cached and build_model_task(context, model, again, HOST, Store(cache)).cached
    elsewhere = Store(tmp_path / "elsewhere")
    apart = build_model_task(
        context, model, prepare_model_task(context, model, HOST, elsewhere), HOST, elsewhere
    )
    assert (shared.target, shared.kernels) == (apart.target, apart.kernels)
    assert shared.library.parent == cache / "artifacts" / shared.digest
    assert files(shared) == files(apart)


def test_the_code_of_the_check_is_kept_only_for_whoever_asks_for_this_machine(
    tmp_path, context, cache
):
    model = Model("net", str(saved(tmp_path / "net.onnx")))
    other = Profile(
        "v3",
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"},
        "x86_64-linux-gnu",
    )
    prepared = prepare_model_task(context, model, HOST, Store(cache), (other,))
    assert (
        not prepared.built
        and find_stored_build(prepared, HOST, cache) is None
        and not (cache / "artifacts").exists()
    )
    assert find_or_build_model(context, prepared, HOST, cache).library.is_file()


def test_the_code_of_the_check_is_that_of_the_same_target_linker_and_memory():
    twin = replace(HOST, name="twin", description="words")
    assert build_reuses_import_check_code(twin, HOST)
    for other in (
        replace(HOST, target={**HOST.target, "mcpu": "x86-64-v3"}),
        replace(HOST, linker=("gcc",)),
        replace(HOST, memory_mb=64),
    ):
        assert not build_reuses_import_check_code(other, HOST)


def test_another_file_with_the_same_operators_and_weights_gets_a_build_of_its_own(
    tmp_path, context, cache
):
    """Whoever reads a file may be taken over by it: what it leaves as code is not for other
    files.
    """
    hostile = Model("net", str(saved(tmp_path / "net.onnx")))
    first = prepare_model_task(context, hostile, HOST, Store(cache), (HOST,))
    same = saved(tmp_path / "same.onnx")
    same.write_bytes(same.read_bytes() + b"\x12\x01x")  # protobuf: the name of whoever produced it
    prepared = prepare_model_task(context, Model("net", str(same)), HOST, Store(cache))
    assert build_inputs_digest_without_records(
        prepared, HOST
    ) == build_inputs_digest_without_records(first, HOST)
    assert find_stored_build(replace(prepared, built=True), HOST, cache) is None


def test_a_record_that_changes_the_code_of_the_check_leads_to_a_build(tmp_path, context, cache):
    model = Model("net", str(saved(tmp_path / "net.onnx")))
    records = TuningRecordStore(tmp_path / "records.sqlite")
    prepared = prepare_model_task(context, model, HOST, Store(cache), (HOST,))
    shared = find_stored_build(prepared, HOST, cache, records)
    assert shared is not None
    key = next(kernel.workload for kernel in shared.kernels if kernel.workload)
    target = resolve_target(HOST)
    core = tuning_target_key(target)
    choice = {"method": "direct", "tile": [1, 1, cpu_model_of(target).lanes], "order": "pixels"}
    records.keep(
        TuningRecord(core, key, choice, 1e-6, 2e-6, 9, "2026-01-02T03:04:05+00:00", "here", core, 1)
    )
    assert find_stored_build(prepared, HOST, cache, records) is None
    built = find_or_build_model(context, prepared, HOST, cache, records)
    assert built.digest != shared.digest and any(kernel.recorded for kernel in built.kernels)
    assert find_stored_build(prepared, HOST, cache) == replace(shared, cached=False)


def test_a_compilation_for_this_machine_generates_code_once(tmp_path, cache):
    model = Model("net", str(saved(tmp_path / "net.onnx")))
    _, artifact = compile_model(model, HOST, host=HOST, store=Store(cache), show=lambda _: None)
    assert not artifact.cached and "read" not in artifact.seconds, (
        "only a build reads the stored module"
    )
    assert artifact.seconds["code"] > 0 and [
        path.name for path in (cache / "artifacts").iterdir()
    ] == [artifact.digest]


def test_a_wrong_answer_leaves_no_build(tmp_path, context, cache):
    strict = {name: replace(limits, max_abs=-1.0) for name, limits in LIMITS.items()}
    model = Model("net", str(saved(tmp_path / "net.onnx")), limits=strict)
    with pytest.raises(WrongAnswer):
        prepare_model_task(context, model, HOST, Store(cache), (HOST,))
    assert not (cache / "artifacts").exists() and not (cache / "models").exists()
