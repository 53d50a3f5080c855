"""Kernels without a rule of farm's own: what MetaSchedule proposes is right, is kept by what the
kernel computes, and is applied.
"""

from __future__ import annotations

import numpy as np
import pytest
from handmade_records import record
from relax_models import HOST, lowered, module, runner, target
from target_profiles import ARM32, ARM64, X86
from tvm import relax, te, tirx

from farm.compiler.build import find_or_build_model
from farm.compiler.cpu.kernel_config import ScheduleTrace, decode_recorded_configs
from farm.compiler.cpu.traces.metaschedule_traces import workload_key
from farm.compiler.lower import lower_module
from farm.compiler.tuning import metaschedule_search
from farm.compiler.tuning.batch_build import build_variant_batch, cpu_model_key_and_tuning_tasks
from farm.compiler.tuning.metaschedule_search import predict_scores
from farm.store import TuningRecordStore, read_records_file, write_records_file
from farm.types import ProposalRequest

numbers = np.random.default_rng(4)
X = {"x": numbers.standard_normal((1, 8, 4, 6, 6)).astype("float32")}
W = {"w": numbers.standard_normal((8, 2, 3, 3, 3)).astype("float32")}
KEY = "group_conv3d_ncdhw 1x8x4x6x6 float32 #168dd5357589"


def volumes(emit, x, w):
    """A convolution of volumes in groups, for which there is no rule, and one more kernel
    without.
    """
    return emit(
        relax.op.nn.max_pool3d(
            emit(relax.op.nn.relu(emit(relax.op.nn.conv3d(x, w, padding=1, groups=4)))),
            2,
            strides=2,
        )
    )


@pytest.fixture
def records(tmp_path):
    return TuningRecordStore(tmp_path / "records.sqlite")


def asked(count: int, *tried, seed: int = 1) -> ProposalRequest:
    return ProposalRequest(count, tuple(tried), frozenset(one.words for one, _ in tried), seed)


def convolution(found):
    return next(task for task in found if task.workload.startswith("group_conv3d"))


def test_a_kernel_has_one_key_whatever_its_model_calls_things_and_on_every_machine():
    [first] = [key for key in lowered(X, volumes, W).record_keys if "conv3d" in key]
    [other] = [
        key
        for key in lowered({"image": X["x"]}, volumes, {"filters": W["w"]}).record_keys
        if "conv3d" in key
    ]
    assert first == other == KEY
    image, table = (np.zeros(shape, "float32") for shape in ((1, 8, 9, 9), (3, 5)))
    [early] = lowered(
        {"x": image}, lambda emit, x: emit(relax.op.max(emit(relax.op.nn.relu(x)), 1))
    ).record_keys

    def after_others(emit, t, x):
        more = emit(relax.op.add(emit(relax.op.permute_dims(t)), relax.const(1.0)))
        return [emit(relax.op.max(emit(relax.op.nn.relu(x)), 1)), more]

    assert lowered({"t": table, "x": image}, after_others).record_keys == [early]


def test_kernels_that_look_up_by_values_or_have_open_extents_or_no_sum_are_not_searched():
    open_batch = {"x": relax.TensorType((tirx.Var("batch", "int64"), 8, 9, 9, 9), "float32")}
    ids, table, step = te.placeholder((4,), "int64"), te.placeholder((8, 9)), te.reduce_axis((0, 4))
    looked_up = te.compute((9,), lambda j: te.sum(table[ids[step], j], step))
    plain = te.compute((9,), lambda j: te.sum(table[step, j], step))
    assert (
        workload_key(te.create_prim_func([ids, table, looked_up]))
        == ""
        != workload_key(te.create_prim_func([table, plain]))
    )
    for inputs, body in [
        (open_batch, lambda emit, x: emit(relax.op.nn.max_pool3d(x, 2))),
        ({"x": np.zeros((9, 8), "float32")}, lambda emit, x: emit(relax.op.permute_dims(x))),
    ]:
        assert lowered(inputs, body).record_keys == []


def test_what_is_proposed_compiles_differs_and_gives_the_same_answer_as_a_record(
    context, kept, cache, records, tmp_path
):
    prepared = kept(X, volumes, W)
    task = convolution(cpu_model_key_and_tuning_tasks(prepared, HOST, records)[1])
    assert task.open and (task.default.words, task.chosen.words) == ("general", "general")
    first = build_variant_batch(
        context,
        prepared,
        HOST,
        [(task.workload, task.default), (task.workload, asked(4))],
        tmp_path / "first",
    )
    assert first.failed == () and len({variant.candidate.words for variant in first.variants}) == 5
    tried = [
        (variant.candidate, ratio)
        for variant, ratio in zip(first.variants, (1.0, 0.9, 0.5, 0.7, 0.6), strict=True)
    ]
    more = [(task.workload, asked(1, *tried, (tried[1][0], 0.8), seed=2))]  # enough to predict by
    second = build_variant_batch(context, prepared, HOST, more, tmp_path / "second")
    assert not {variant.candidate.words for variant in second.variants} & {
        one.words for one, _ in tried
    }
    weights = list(W.values())
    [plain] = runner(lower_module(module(X, volumes, W), weights, target(), {}))([X["x"]])
    for variant in (first.variants[1], *second.variants):
        low = lower_module(
            module(X, volumes, W),
            weights,
            target(),
            {},
            decode_recorded_configs({task.workload: variant.candidate.choice}),
        )
        [kernel] = [kernel for kernel in low.kernels if kernel.recorded]
        assert (kernel.rule, kernel.workload, kernel.choice) == (
            "metaschedule",
            task.workload,
            variant.candidate.words,
        )
        [answer] = runner(low)([X["x"]])
        np.testing.assert_allclose(answer, plain, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_a_model_calls_twice_is_one_task(kept, records):
    def twice(emit, x, w):
        made = emit(relax.op.nn.conv3d(x, w, padding=1, groups=4))
        return emit(relax.op.nn.conv3d(made, w, padding=1, groups=4))

    [task] = cpu_model_key_and_tuning_tasks(kept(X, twice, W), HOST, records)[1]
    assert task.workload.startswith("group_conv3d") and task.calls == 2


def test_the_fastest_candidates_are_the_parents_of_others(
    context, kept, records, tmp_path, monkeypatch
):
    parents = []
    pool = metaschedule_search.SearchSpace._pool

    def noted(space, count, given, taken):
        parents.append([str(one) for one in given])
        return pool(space, count, given, taken)

    monkeypatch.setattr(metaschedule_search.SearchSpace, "_pool", noted)
    prepared = kept(X, volumes, W)
    task = convolution(cpu_model_key_and_tuning_tasks(prepared, HOST, records)[1])
    first = build_variant_batch(
        context, prepared, HOST, [(task.workload, asked(5))], tmp_path / "first"
    )
    ratios = (0.9, 0.5, 1.3, 0.7, 1.1)
    tried = [(one.candidate, ratio) for one, ratio in zip(first.variants, ratios, strict=True)]
    by_speed = sorted(tried, key=lambda one: one[1])
    for name, known in (("few", tried[:3]), ("many", tried), ("sorted", by_speed[:4])):
        wanted = [(task.workload, asked(1, *known, seed=2))]
        build_variant_batch(context, prepared, HOST, wanted, tmp_path / name)
    _, few, many, fastest = parents
    assert len(few) == 3 and many == fastest and len(set(many)) == 4


def test_those_candidates_are_proposed_that_are_expected_to_take_least(
    context, kept, records, tmp_path, monkeypatch
):
    expectations = []

    def expected(*given):
        expectations.append((given, predict_scores(*given)))
        return expectations[-1][1]

    monkeypatch.setattr(metaschedule_search, "predict_scores", expected)
    chosen = []
    proposed = metaschedule_search.SearchSpace.proposed

    def noted(space, count, tried, taken):
        found = proposed(space, count, tried, taken)
        if expectations:
            (known, ratios, _), _ = expectations[-1]
            features = np.stack([space._features(steps) for steps in found])
            chosen.extend(predict_scores(known, ratios, features))
        return found

    monkeypatch.setattr(metaschedule_search.SearchSpace, "proposed", noted)
    prepared = kept(X, volumes, W)
    task = convolution(cpu_model_key_and_tuning_tasks(prepared, HOST, records)[1])
    first = build_variant_batch(
        context, prepared, HOST, [(task.workload, asked(6))], tmp_path / "first"
    )
    tried = [(one.candidate, 1 + 0.2 * place) for place, one in enumerate(first.variants)]
    more = [(task.workload, asked(2, *tried, seed=2))]
    build_variant_batch(context, prepared, HOST, more, tmp_path / "second")
    [(_, scores)] = expectations
    assert len(scores) == 12 and len(chosen) == 2
    assert max(chosen) <= np.median(scores)


def test_a_record_is_carried_and_applied_and_for_its_core_only(
    context, kept, cache, records, tmp_path
):
    prepared = kept(X, volumes, W)
    task = convolution(cpu_model_key_and_tuning_tasks(prepared, X86, records)[1])
    batch = build_variant_batch(
        context, prepared, X86, [(task.workload, asked(1))], tmp_path / "batch"
    )
    [variant] = batch.variants
    before = {
        profile.name: find_or_build_model(context, prepared, profile, cache, records).digest
        for profile in (X86, ARM64)
    }
    write_records_file(
        tmp_path / "out.jsonl", [record(X86, task.workload, variant.candidate.choice)]
    )
    records.merge(read_records_file(tmp_path / "out.jsonl"))
    made = find_or_build_model(context, prepared, X86, cache, records)
    assert [kernel.rule for kernel in made.kernels if kernel.recorded] == [
        "metaschedule"
    ] and made.digest != before["x86"]
    assert find_or_build_model(context, prepared, X86, cache, records).cached
    assert find_or_build_model(context, prepared, ARM64, cache, records).digest == before["arm64"]
    assert (
        convolution(cpu_model_key_and_tuning_tasks(prepared, X86, records)[1]).chosen
        == variant.candidate
    )


@pytest.mark.parametrize(
    "trace", [[[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []], [], ["x"]]
)
def test_a_record_that_does_not_apply_is_left_out_and_said(trace):
    [key] = [key for key in lowered(X, volumes, W).record_keys if "conv3d" in key]
    low = lower_module(
        module(X, volumes, W),
        list(W.values()),
        target(),
        {},
        {key: ScheduleTrace(str(trace).replace("'", '"'))},
    )
    [kernel] = [kernel for kernel in low.kernels if "conv3d" in kernel.name]
    assert (kernel.rule, kernel.recorded) == ("general", False) and kernel.note.startswith(
        "its record does not apply"
    )
    [answer] = runner(low)([X["x"]])
    np.testing.assert_allclose(answer, runner(lowered(X, volumes, W))([X["x"]])[0])


@pytest.mark.parametrize("profile", [ARM64, ARM32], ids=lambda profile: profile.name)
def test_boards_of_other_kinds_have_proposals_that_compile(
    context, kept, records, tmp_path, profile
):
    prepared = kept(X, volumes, W)
    task = convolution(cpu_model_key_and_tuning_tasks(prepared, profile, records)[1])
    batch = build_variant_batch(
        context, prepared, profile, [(task.workload, asked(2))], tmp_path / "batch"
    )
    assert (len(batch.variants), batch.failed) == (2, ())


def test_what_is_like_something_measured_is_expected_to_take_as_long():
    known = numbers.uniform(size=(40, 5))
    wanted = numbers.uniform(size=(20, 5))
    expected = predict_scores(known, 3 * known[:, 0] - known[:, 1], wanted)
    assert np.corrcoef(expected, 3 * wanted[:, 0] - wanted[:, 1])[0, 1] > 0.9
    assert np.isfinite(predict_scores(np.ones((4, 3)), np.arange(4.0), np.ones((2, 3)))).all()
