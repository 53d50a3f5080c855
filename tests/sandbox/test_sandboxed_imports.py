"""Models of every format are imported in the sandbox; what is a program or the user's own code is
treated as such.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from host_profile import HOST
from onnx_models import graph, node, save

from farm import sandbox
from farm.compiler.codegen.link import _zig, fcompile_for_profile
from farm.compiler.diagnostics.reference_steps import (
    ReferenceStep,
    ReferenceSteps,
    ReferenceValues,
    tensor_value_file,
)
from farm.config import load_fleet, profiles
from farm.errors import BuildError, FarmError, ModelError, UsageError
from farm.importers.onnx.external_data_files import external_files
from farm.pipeline import accuracy, build_feasibility, layer_bisect, quantize, worker_tasks
from farm.pipeline.sandboxed_tasks import model_needs_no_sandbox, run_sandboxed_if_untrusted
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.quantize.recipe import QuantizedModelRecipe
from farm.quantize.recipe import _packed as packed
from farm.quantize.recipe import read_recipe as read_recipe
from farm.sandbox.restricted_program import restricted_command
from farm.store import Store
from farm.types import BuildWithAgent, Candidate, Device, Model, QuantizeSettings

TFLITE = Path(__file__).parents[1] / "data" / "small-float.tflite"
LIMITS = {"memory_bytes": 4 << 30, "file_bytes": 1 << 20}
NONE = sandbox.SandboxSupport(0, True, "the kernel does not offer Landlock")
needs_sandbox = pytest.mark.skipif(
    not sandbox.sandbox_support().complete, reason=sandbox.sandbox_support().missing or "never"
)

needs_nvrtc = pytest.mark.skipif(
    not importlib.util.find_spec("nvidia"), reason="there is no NVRTC: pip install 'tvm-farm[cuda]'"
)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.dense(x))


def net() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(1, 8),)


@pytest.fixture
def context(tmp_path: Path) -> TaskContext:
    (tmp_path / "scratch").mkdir()
    return TaskContext(tmp_path / "scratch")


def onnx_file(folder: Path) -> Path:
    nodes, weights = [node("MatMul", ["x", "w"], ["y"])], {"w": np.eye(8, dtype="float32")}
    return save(folder / "net.onnx", graph(nodes, {"x": [1, 8]}, {"y": [1, 8]}, weights=weights))


def onnx_with_external_data(folder: Path) -> Path:
    path = folder / "external.onnx"
    onnx.save(
        onnx.load(onnx_file(folder)),
        path,
        save_as_external_data=True,
        location="net.weights",
        size_threshold=0,
    )
    return path


def exported_program(folder: Path) -> Path:
    module, example = net()
    torch.export.save(torch.export.export(module.eval(), example), folder / "net.pt2")
    return folder / "net.pt2"


def torchscript(folder: Path) -> Path:
    module, example = net()
    torch.jit.trace(module.eval(), example).save(folder / "net.pt")
    return folder / "net.pt"


def state_dict(folder: Path) -> Path:
    torch.save(net()[0].state_dict(), folder / "net.pth")
    return folder / "net.pth"


def where(_: TaskContext) -> int:
    return os.getpid()


@needs_sandbox
@pytest.mark.parametrize(
    "make", [onnx_file, onnx_with_external_data, exported_program, torchscript, lambda _: TFLITE]
)
def test_a_file_is_imported_and_checked_in_the_sandbox(
    make: Callable[[Path], Path], tmp_path: Path, context: TaskContext
) -> None:
    model = Model("net", str(make(tmp_path)))
    prepared = worker_tasks.prepare_model_task(context, model, HOST, Store(tmp_path / "cache"))
    assert prepared.check.right
    assert worker_tasks.prepare_model_task(
        context, model, HOST, Store(tmp_path / "cache")
    ) == replace(prepared, cached=True)
    assert run_sandboxed_if_untrusted(context, model, where) != os.getpid()


def text_of(_: TaskContext, *paths: Path) -> list[str]:
    return [path.read_text() for path in paths]


@needs_sandbox
def test_a_model_reads_what_its_user_names_for_it(tmp_path: Path, context: TaskContext) -> None:
    labels, samples, calibration, other = (
        tmp_path / name for name in ("labels", "samples", "calibration", "other")
    )
    for path in (labels, samples, calibration, other):
        path.write_text(path.name)
    named = {"labels": labels, "dataset": samples, "calibration_data": calibration}
    model = Model("net", str(onnx_file(tmp_path)), **named)  # type: ignore[arg-type]
    read = partial(run_sandboxed_if_untrusted, context, model, text_of)
    assert read(*named.values()) == ["labels", "samples", "calibration"]
    with pytest.raises(ModelError, match="PermissionError"):
        read(other)


@pytest.mark.parametrize("make", [state_dict, None])
def test_the_users_own_code_is_not_confined(
    make: Callable[[Path], Path] | None, tmp_path: Path, context: TaskContext
) -> None:
    function = f"python:{__name__}:net"
    model = Model("net", str(make(tmp_path)), module=function) if make else Model("net", function)
    assert worker_tasks.prepare_model_task(
        context, model, HOST, Store(tmp_path / "cache")
    ).check.right
    assert run_sandboxed_if_untrusted(context, model, where) == os.getpid()


@needs_sandbox
def test_a_model_reads_no_file_that_it_does_not_own(tmp_path: Path, context: TaskContext) -> None:
    model = Model("net", str(onnx_file(tmp_path)))
    (tmp_path / "beside").write_text("secret")
    with pytest.raises(ModelError, match="PermissionError") as raised:
        run_sandboxed_if_untrusted(context, model, read, tmp_path / "beside")
    assert raised.value.what.startswith("importing net:")
    assert run_sandboxed_if_untrusted(context, model, read, Path(model.source))
    assert (
        run_sandboxed_if_untrusted(context, replace(model, trust=True), read, tmp_path / "beside")
        == b"secret"
    )


def read(_: TaskContext, path: Path) -> bytes:
    return path.read_bytes()


def entries(context: TaskContext, model: Model, cache: Path) -> dict[str, Callable[[], Any]]:
    """All that imports a model."""
    return {
        "compile, deploy, bench, tune, export, profile, run": lambda: (
            worker_tasks.prepare_model_task(context, model, HOST, Store(cache))
        ),
        "check": lambda: build_feasibility.predict_build_task(context, model, HOST, cache),
        "quantize": lambda: quantize.quantize_to_recipe_task(
            context, model, HOST, cache, cache / "net.int8"
        ),
        "bisect": lambda: layer_bisect.source_layers_and_reference_outputs_task(
            context, model, None, {}, cache
        ),  # type: ignore[arg-type]
        "accuracy": lambda: accuracy.classify_with_reference_task(
            context, model, (cache, model, None, ()), cache, 1.0
        ),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("entry", entries(TaskContext(Path()), Model("", ""), Path()))
def test_without_a_sandbox_a_program_is_refused_by_every_command(
    entry: str, tmp_path: Path, context: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "sandbox_support", lambda: NONE)
    (tmp_path / "net.pt2").write_bytes(b"not looked at")
    with pytest.raises(ModelError, match="cannot confine it") as raised:
        entries(context, Model("net", str(tmp_path / "net.pt2")), tmp_path / "cache")[entry]()
    assert raised.value.why == NONE.missing
    assert "--trust" in raised.value.fix


@pytest.mark.parametrize(
    "named",
    [{"source": "python:planted:net"}, {"source": "net.pth", "module": "python:planted:net"}],
)
@pytest.mark.parametrize(
    "entry",
    [name for name in entries(TaskContext(Path()), Model("", ""), Path()) if name != "quantize"],
)
def test_code_that_a_file_of_scales_names_runs_only_if_it_is_trusted(
    named: dict[str, str],
    entry: str,
    tmp_path: Path,
    context: TaskContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever names `python:` chooses what runs; here the author of a file would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("planted.py").write_text("from pathlib import Path\nPath('PWNED').touch()\n")
    empty = {
        "shapes": {},
        "dtypes": {},
        "module": None,
        "weights": "",
        "quantize": {"dtype": "float16"},
        "data": "",
        "tensors": [],
    }
    recipe = {"schema": "farm/float16/1", "example": packed({}), **empty, **named}
    Path("net.float16").write_text(json.dumps(recipe))
    model = Model("net", str(tmp_path / "net.float16"))
    with pytest.raises(ModelError, match=r"net\.float16 names code") as raised:
        entries(context, model, tmp_path / "cache")[entry]()
    assert "--trust" in raised.value.fix and not Path("PWNED").exists()


def test_a_hostile_model_does_not_choose_what_its_recipe_names(
    tmp_path: Path, context: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model("net", str(onnx_file(tmp_path)), quantize=QuantizeSettings(dtype="float16"))
    made = QuantizedModelRecipe(
        source="python:planted:net",
        module="python:planted:net",
        settings=QuantizeSettings(dtype="float16"),
        weights="",
        data="",
        shapes={},
        dtypes={},
        values={},
        names=(),
        scales=(),
        example={},
    )
    monkeypatch.setattr(quantize, "run_sandboxed_if_untrusted", lambda *_, **__: (None, made))
    quantize.quantize_to_recipe_task(
        context, model, HOST, tmp_path / "cache", tmp_path / "net.float16"
    )
    written = read_recipe(tmp_path / "net.float16")
    assert (written.source, written.module) == (model.source, None)


def test_without_a_sandbox_data_is_imported_and_it_is_said(
    tmp_path: Path, context: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "sandbox_support", lambda: NONE)
    notes: list[Any] = []
    monkeypatch.setattr(context, "note", notes.append)
    model = Model("net", str(onnx_file(tmp_path)))
    assert run_sandboxed_if_untrusted(context, model, where) == os.getpid()
    assert [note.note for note in notes] == [f"without a sandbox: {NONE.missing}"]


def test_a_program_runs_in_no_other_engine_unless_it_is_trusted(tmp_path: Path) -> None:
    from farm.pipeline.other_engines import check_engines_usable
    from farm.types import Device, Job, MeasurementSettings

    def job(model: Model) -> Job:
        return Job(Device("host", HOST, "local:"), model, MeasurementSettings())

    program, data = Model("net", "/net.pt2"), Model("net", "/net.onnx")
    assert [
        model_needs_no_sandbox(one) for one in (program, replace(program, trust=True), data)
    ] == [
        False,
        True,
        True,
    ]
    check_engines_usable(("torch",), [job(data)])
    with pytest.raises(UsageError, match="outside of the sandbox"):
        check_engines_usable(("torch",), [job(program)])


def test_devices_toml_can_trust_a_model(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"x")
    (tmp_path / "devices.toml").write_text(
        '[models.a]\nsource = "net.onnx"\ntrust = true\n[models.b]\nsource = "net.onnx"\n'
    )
    models = load_fleet(tmp_path / "devices.toml").models
    assert (models["a"].trust, models["b"].trust) == (True, False)


def test_the_files_of_external_data_are_found_wherever_they_are_named(tmp_path: Path) -> None:
    def outside(name: str) -> onnx.TensorProto:
        tensor = onnx.TensorProto(
            name=name, data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL
        )
        for key, value in (("offset", "0"), ("location", name)):
            tensor.external_data.add(key=key, value=value)
        return tensor

    inner = onnx.GraphProto(name="inner", initializer=[outside("in a branch")])
    attributes = [
        onnx.AttributeProto(name="t", type=4, t=outside("in an attribute")),
        onnx.AttributeProto(name="ts", type=9, tensors=[outside("in a list")]),
        onnx.AttributeProto(name="g", type=5, g=inner),
    ]
    function = onnx.FunctionProto(
        name="f",
        node=[
            onnx.NodeProto(attribute=[onnx.AttributeProto(name="t", t=outside("in a function"))])
        ],
    )
    body = onnx.GraphProto(
        name="g", node=[onnx.NodeProto(attribute=attributes)], initializer=[outside("a weight")]
    )
    content = onnx.ModelProto(ir_version=8, graph=body, functions=[function]).SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    named = ["a weight", "in a branch", "in a function", "in a list", "in an attribute"]
    assert external_files(path) == [tmp_path / name for name in named]
    path.write_bytes(content[:-5])
    assert external_files(path) == []
    path.write_bytes(b"location" * 100)
    assert external_files(path) == []


@needs_sandbox
def test_data_beside_the_model_is_read_and_data_elsewhere_is_not(
    tmp_path: Path, context: TaskContext
) -> None:
    (tmp_path / "model").mkdir()
    path = onnx_with_external_data(tmp_path / "model")
    (tmp_path / "model" / "net.weights").rename(tmp_path / "elsewhere")
    path.write_bytes(path.read_bytes().replace(b"net.weights", b"../elsewher"))
    (tmp_path / "elsewhere").rename(tmp_path / "elsewher")
    with pytest.raises(ModelError, match="external weights are not in its folder"):
        worker_tasks.prepare_model_task(
            context, Model("net", str(path)), HOST, Store(tmp_path / "cache")
        )
    (tmp_path / "whole").mkdir()
    whole = onnx_with_external_data(tmp_path / "whole")
    with pytest.raises(ModelError, match="PermissionError"):
        run_sandboxed_if_untrusted(context, Model("net", str(whole)), read, tmp_path / "elsewher")


def module_that_writes(path: Path) -> str:
    """Return a module as a model that has taken over its import could leave it, as JSON.

    Its kernel is of constants, so the compiler runs it to fold it, and it calls the C library.
    """
    import tvm
    from tvm import relax, te, tirx

    float_type = relax.TensorType((1, 8), "float32")
    source = te.placeholder((1, 8), "float32", "source")
    made = te.extern(
        (1, 8),
        [source],
        lambda *_: tirx.Evaluate(tirx.call_extern("int32", "creat", str(path), 0o600)),
        dtype="float32",
    )
    builder = relax.BlockBuilder()
    kernel = builder.add_func(
        te.create_prim_func([source, made]).with_attr("global_symbol", "kernel"), "kernel"
    )
    x = relax.Var("x", float_type)
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            constant = builder.emit(
                relax.call_tir(kernel, (relax.const(np.zeros((1, 8), "float32")),), float_type)
            )
            result = builder.emit_output(relax.op.add(x, constant))
        builder.emit_func_output(result)
    return str(tvm.ir.save_json(builder.finalize()))


@needs_sandbox
def test_what_a_hostile_import_leaves_is_compiled_in_the_sandbox(
    tmp_path: Path, context: TaskContext
) -> None:
    """The attack works on a build of a trusted model, which shows that it is one."""
    store = Store(tmp_path / "cache")
    model = Model("net", str(onnx_file(tmp_path)))
    prepared = worker_tasks.prepare_model_task(context, model, HOST, store)
    assert worker_tasks.build_model_task(context, model, prepared, HOST, store).library.is_file()
    planted = tmp_path / "PWNED"
    (prepared.directory / "module.json").write_text(module_that_writes(planted))
    np.savez(prepared.directory / "weights.npz")
    with contextlib.suppress(FarmError):
        worker_tasks.build_model_task(context, model, prepared, HOST, store)
    assert not planted.exists()
    with contextlib.suppress(FarmError):
        worker_tasks.build_model_task(
            context, replace(model, trust=True), prepared, HOST, Store(tmp_path / "another")
        )
    assert planted.exists()


@needs_sandbox
@needs_nvrtc
def test_code_for_gpus_is_compiled_in_the_sandbox_as_outside(
    tmp_path: Path, context: TaskContext
) -> None:
    profile = profiles.profile_from_table(
        "cuda-sm90", profiles.built_in_profile_tables()["cuda-sm90"]
    )
    model, store = Model("net", str(onnx_file(tmp_path))), Store(tmp_path / "cache")
    prepared = worker_tasks.prepare_model_task(context, model, HOST, store)
    first = worker_tasks.build_model_task(context, model, prepared, profile, store)
    second = worker_tasks.build_model_task(
        context, replace(model, trust=True), prepared, profile, Store(tmp_path / "another")
    )
    assert first.library.read_bytes() == second.library.read_bytes()


@needs_sandbox
@needs_nvrtc
def test_what_a_hostile_import_leaves_is_compiled_for_gpus_in_the_sandbox(
    tmp_path: Path, context: TaskContext
) -> None:
    profile = profiles.profile_from_table(
        "cuda-sm90", profiles.built_in_profile_tables()["cuda-sm90"]
    )
    model, planted, store = (
        Model("net", str(onnx_file(tmp_path))),
        tmp_path / "PWNED",
        Store(tmp_path / "cache"),
    )
    prepared = hijacked(model, planted, store, context)
    with contextlib.suppress(FarmError):
        worker_tasks.build_model_task(context, model, prepared, profile, store)
    assert not planted.exists()
    with contextlib.suppress(FarmError):
        worker_tasks.build_model_task(
            context, replace(model, trust=True), prepared, profile, Store(tmp_path / "another")
        )
    assert planted.exists()


def hijacked(model: Model, planted: Path, store: Store, context: TaskContext) -> Any:
    """Return a prepared model whose module creates a file when a constant of it is folded."""
    prepared = worker_tasks.prepare_model_task(context, model, HOST, store)
    (prepared.directory / "module.json").write_text(module_that_writes(planted))
    np.savez(prepared.directory / "weights.npz")
    return prepared


def tuning_entries(
    context: TaskContext, model: Model, prepared: Any, folder: Path
) -> dict[str, Callable[[], Any]]:
    """All that `farm tune` does with an import besides builds."""
    wanted = (("dense", Candidate({}, "", 0.0)),)
    return {
        "tasks": lambda: worker_tasks.find_tuning_tasks_task(context, model, prepared, HOST),
        "batch": lambda: worker_tasks.build_variant_batch_task(
            context, model, prepared, HOST, wanted, folder
        ),
    }


@needs_sandbox
@pytest.mark.parametrize("entry", ["tasks", "batch"])
def test_what_a_model_has_left_of_itself_is_tuned_in_the_sandbox(
    entry: str, tmp_path: Path, context: TaskContext
) -> None:
    model, planted = Model("net", str(onnx_file(tmp_path))), tmp_path / "PWNED"
    prepared = hijacked(model, planted, Store(tmp_path / "cache"), context)
    with contextlib.suppress(FarmError, KeyError):
        tuning_entries(context, model, prepared, tmp_path / "first")[entry]()
    assert not planted.exists()
    with contextlib.suppress(FarmError, KeyError):
        tuning_entries(context, replace(model, trust=True), prepared, tmp_path / "second")[entry]()
    assert planted.exists()


@needs_sandbox
def test_the_reference_of_a_bisection_is_computed_in_the_sandbox(
    tmp_path: Path, context: TaskContext
) -> None:
    store, model, planted = (
        Store(tmp_path / "cache"),
        Model("net", str(onnx_file(tmp_path))),
        tmp_path / "PWNED",
    )
    prepared = worker_tasks.prepare_model_task(context, model, HOST, store)
    fitted = BuildWithAgent(
        model, prepared, worker_tasks.build_model_task(context, model, prepared, HOST, store), None
    )
    (prepared.directory / "module.json").write_text(module_that_writes(planted))
    np.savez(prepared.directory / "weights.npz")
    device = Device("host", HOST, "local:")
    for one in (model, replace(model, trust=True)):
        with pytest.raises(BuildError, match="is not of this model"):
            layer_bisect.compare_kernels_task(context, one, device, fitted, None, None, 60.0)
        assert planted.exists() == one.trust


@pytest.mark.parametrize(
    "spoil", ["link", "short", "long", "folder", "pipe", "missing", "objects", "negative", "huge"]
)
def test_values_of_a_reference_are_read_only_if_they_are_what_its_steps_say(
    spoil: str, tmp_path: Path
) -> None:
    dtype = {"objects": "O"}.get(spoil, "float32")
    shape = {"negative": (-2, -4), "huge": (1 << 62, 8)}.get(spoil, (2, 4))
    path, values = tensor_value_file(tmp_path, 7), np.arange(8, dtype="float32")
    path.write_bytes(values.tobytes())
    reference = ReferenceValues(
        "net",
        ReferenceSteps((ReferenceStep("kernel", (), ((7, (2, 4), "float32"),)),), (), {}, {}),
        tmp_path,
        {},
    )
    np.testing.assert_array_equal(reference.value(7), values.reshape(2, 4))
    reference = ReferenceValues(
        "net",
        ReferenceSteps((ReferenceStep("kernel", (), ((7, shape, dtype),)),), (), {}, {}),
        tmp_path,
        {},
    )
    if spoil in ("short", "long"):
        path.write_bytes(values.tobytes()[:-1] if spoil == "short" else values.tobytes() + b"x")
    elif spoil in ("link", "folder", "pipe", "missing"):
        path.rename(tmp_path / "elsewhere")
        {
            "link": lambda: path.symlink_to("elsewhere"),
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
        }.get(spoil, lambda: None)()
    with pytest.raises(BuildError):
        reference.value(7)


@needs_sandbox
def test_a_model_is_tuned_in_the_sandbox_as_outside(tmp_path: Path, context: TaskContext) -> None:
    model = Model("net", str(onnx_file(tmp_path)))
    prepared = worker_tasks.prepare_model_task(context, model, HOST, Store(tmp_path / "cache"))
    core, tasks = worker_tasks.find_tuning_tasks_task(context, model, prepared, HOST)
    trusted = replace(model, trust=True)
    assert (core, tasks) == worker_tasks.find_tuning_tasks_task(context, trusted, prepared, HOST)
    wanted = tuple(
        (task.workload, candidate) for task in tasks for candidate in task.candidates[:2]
    )
    first, second = (
        worker_tasks.build_variant_batch_task(
            context, one, prepared, HOST, wanted, tmp_path / str(one.trust)
        )
        for one in (model, trusted)
    )
    assert wanted and first.variants == second.variants and first.failed == second.failed == ()
    assert first.library.read_bytes() == second.library.read_bytes()
    assert first.arrays.is_file()


def leave(
    _: TaskContext,
    prepared: Any,
    profile: Any,
    records: Any,
    cache: Path,
    folder: Path,
    names: tuple[str, ...],
) -> Any:
    """Leave a build whose process was taken over."""
    from farm.compiler import build

    generated = build.generate_model_code(_, prepared, profile, records, cache, folder)
    return replace(generated, objects=(*generated.objects, *names))


@pytest.mark.parametrize(
    "name", ["--version", "../../../module.o", "/etc/passwd", "missing.o", "-T.o/x", "a\n.o"]
)
def test_a_build_that_was_taken_over_names_no_other_files_to_the_linker(
    name: str, tmp_path: Path, context: TaskContext
) -> None:
    from farm.compiler.build import find_or_build_model

    store = Store(tmp_path / "cache")
    prepared = worker_tasks.prepare_model_task(
        context, Model("net", str(onnx_file(tmp_path)), trust=True), HOST, store
    )
    with pytest.raises(BuildError, match="left other files"):
        find_or_build_model(
            context, prepared, HOST, store.root, generator=partial(leave, names=(name,))
        )
    assert not (store.root / "artifacts").exists()


def leave_file(
    _: TaskContext,
    prepared: Any,
    profile: Any,
    records: Any,
    cache: Path,
    folder: Path,
    content: bytes,
) -> Any:
    """Leave a file of this content among the object files."""
    from farm.compiler import build

    generated = build.generate_model_code(_, prepared, profile, records, cache, folder)
    (folder / build.OBJECTS / "other.o").write_bytes(content)
    return replace(generated, objects=(*generated.objects, "other.o"))


@pytest.mark.parametrize(
    "content",
    [
        b"INPUT(/etc/passwd)",
        b"INCLUDE /etc/shadow",
        b"BC\xc0\xde" + bytes(60),
        b"!<arch>\n",
        b"",
        b"\x7fELF",
    ],
)
def test_a_build_that_was_taken_over_gives_the_linker_machine_code_only(
    content: bytes, tmp_path: Path, context: TaskContext
) -> None:
    from farm.compiler.build import find_or_build_model

    store = Store(tmp_path / "cache")
    prepared = worker_tasks.prepare_model_task(
        context, Model("net", str(onnx_file(tmp_path)), trust=True), HOST, store
    )
    with pytest.raises(BuildError, match="left other files"):
        find_or_build_model(
            context, prepared, HOST, store.root, generator=partial(leave_file, content=content)
        )
    assert not (store.root / "artifacts").exists()


@pytest.fixture
def object_file(tmp_path: Path) -> Path:
    """An object file in a folder of its own."""
    made = tmp_path / "secrets" / "secret.o"
    made.parent.mkdir()
    (source := tmp_path / "secret.c").write_text('const char secret[] = "the key";')
    zig = [sys.executable, "-m", "ziglang", "cc", "-c", str(source), "-o", str(made)]
    subprocesses.run_program(zig, deadline=Deadline(120), what="compiling")
    return made


def test_the_linker_reads_the_files_that_it_is_given(tmp_path: Path, object_file: Path) -> None:
    library = tmp_path / "out" / "net.so"
    library.parent.mkdir()
    fcompile_for_profile(HOST)(str(library), [str(object_file)])
    assert b"the key" in library.read_bytes()


@needs_sandbox
@pytest.mark.parametrize("script", ["INPUT({secret})", "INCLUDE {secret}", "GROUP({secret})"])
def test_the_linker_reads_no_other_files_whatever_an_object_file_says(
    script: str, tmp_path: Path, object_file: Path
) -> None:
    library = tmp_path / "out" / "net.so"
    library.parent.mkdir()
    (file := tmp_path / "module.o").write_text(script.format(secret=object_file))
    with pytest.raises(BuildError, match="Permission denied"):
        fcompile_for_profile(HOST)(str(library), [str(file)])
    assert not library.exists()


@needs_sandbox
def test_the_linker_writes_into_the_folder_of_its_output_only(
    tmp_path: Path, object_file: Path
) -> None:
    (tmp_path / "out").mkdir()
    command = [_zig(), "ld.lld", "-shared", "-o", str(tmp_path / "elsewhere.so"), str(object_file)]
    with (
        restricted_command(command, [object_file], [tmp_path / "out"], **LIMITS) as start,
        pytest.raises(BuildError, match="Permission denied"),
    ):
        subprocesses.run_program(
            start.command, deadline=Deadline(60), what="linking", pass_fds=[start.descriptor]
        )
    assert not (tmp_path / "elsewhere.so").exists()


@needs_sandbox
def test_an_object_file_is_not_unpacked_to_many_times_its_size(tmp_path: Path) -> None:
    packer = zlib.compressobj()
    header = struct.pack("<IIQQ", 1, 0, 256 << 20, 1)  # Elf64_Chdr: ELFCOMPRESS_ZLIB, size
    packed = header + packer.compress(bytes(256 << 20)) + packer.flush()
    (tmp_path / "packed").write_bytes(packed)
    (source := tmp_path / "bomb.s").write_text(
        f'.section .bomb,"",%progbits\n.incbin "{tmp_path / "packed"}"\n'
    )
    zig = [sys.executable, "-m", "ziglang", "cc", "-c", str(source), "-o", str(tmp_path / "0.o")]
    subprocesses.run_program(zig, deadline=Deadline(120), what="assembling")
    content = bytearray((tmp_path / "0.o").read_bytes())
    (sections,), (count,) = (
        struct.unpack_from("<Q", content, 40),
        struct.unpack_from("<H", content, 60),
    )
    for at in range(sections, sections + 64 * count, 64):
        if struct.unpack_from("<Q", content, at + 32) == (len(packed),):
            struct.pack_into("<Q", content, at + 8, 1 << 11)  # SHF_COMPRESSED
    (tmp_path / "0.o").write_bytes(content)
    (library := tmp_path / "out" / "net.so").parent.mkdir()
    with pytest.raises(BuildError, match="linking"):
        fcompile_for_profile(HOST)(str(library), [str(tmp_path / "0.o")])
    assert not library.exists()


@needs_sandbox
def test_a_restricted_program_is_the_only_one_that_can_be_started(tmp_path: Path) -> None:
    with restricted_command([_zig(), "version"], [], [tmp_path], **LIMITS) as start:
        assert re.fullmatch(
            r"[\d.]+\s*",
            subprocesses.run_program(
                start.command, deadline=Deadline(60), what="zig", pass_fds=[start.descriptor]
            ),
        )
        other = [*start.command[:-2], "/bin/true"]
        with pytest.raises(BuildError, match="Permission denied"):
            subprocesses.run_program(
                other, deadline=Deadline(60), what="true", pass_fds=[start.descriptor]
            )
