"""Models of every format are imported in the sandbox; what is a program or the user's own code is treated as such."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx_models import graph, node, save
from this_machine import HOST

from farm import sandbox
from farm.config import load
from farm.errors import BuildError, FarmError, ModelError, UsageError
from farm.importers.onnx.external_data import external_files
from farm.pipeline import accuracy, bisect, check, quantize, worker_tasks
from farm.pipeline.confinement import confined, may_run_here
from farm.quantize.recipe import Recipe
from farm.quantize.recipe import _packed as packed
from farm.quantize.recipe import read as read_recipe
from farm.store import Store
from farm.types import Model, Quantize
from farm.workers import Desk

TFLITE = Path(__file__).parents[1] / "data" / "small-float.tflite"
NONE = sandbox.Support(0, True, "the kernel does not offer Landlock")
needs_sandbox = pytest.mark.skipif(not sandbox.support().complete, reason=sandbox.support().missing or "never")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.dense(x))


def net() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(1, 8),)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "scratch").mkdir()
    return Desk(tmp_path / "scratch")


def onnx_file(folder: Path) -> Path:
    nodes, weights = [node("MatMul", ["x", "w"], ["y"])], {"w": np.eye(8, dtype="float32")}
    return save(folder / "net.onnx", graph(nodes, {"x": [1, 8]}, {"y": [1, 8]}, weights=weights))


def onnx_with_external_data(folder: Path) -> Path:
    path = folder / "external.onnx"
    onnx.save(onnx.load(onnx_file(folder)), path, save_as_external_data=True, location="net.weights", size_threshold=0)
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


def where(_: Desk) -> int:
    return os.getpid()


@needs_sandbox
@pytest.mark.parametrize("make", [onnx_file, onnx_with_external_data, exported_program, torchscript, lambda _: TFLITE])
def test_a_file_is_imported_and_checked_in_the_sandbox(make: Callable[[Path], Path], tmp_path: Path, desk: Desk) -> None:
    model = Model("net", str(make(tmp_path)))
    prepared = worker_tasks.prepare_task(desk, model, HOST, Store(tmp_path / "cache"))
    assert prepared.check.right
    assert worker_tasks.prepare_task(desk, model, HOST, Store(tmp_path / "cache")) == replace(prepared, cached=True)
    assert confined(desk, model, where) != os.getpid()


@pytest.mark.parametrize("make", [state_dict, None])
def test_the_users_own_code_is_not_confined(make: Callable[[Path], Path] | None, tmp_path: Path, desk: Desk) -> None:
    function = f"python:{__name__}:net"
    model = Model("net", str(make(tmp_path)), module=function) if make else Model("net", function)
    assert worker_tasks.prepare_task(desk, model, HOST, Store(tmp_path / "cache")).check.right
    assert confined(desk, model, where) == os.getpid()


@needs_sandbox
def test_a_model_reads_no_file_that_it_does_not_own(tmp_path: Path, desk: Desk) -> None:
    model = Model("net", str(onnx_file(tmp_path)))
    (tmp_path / "beside").write_text("secret")
    with pytest.raises(ModelError, match="PermissionError") as raised:
        confined(desk, model, read, tmp_path / "beside")
    assert raised.value.what.startswith("importing net:")
    assert confined(desk, model, read, Path(model.source))
    assert confined(desk, replace(model, trust=True), read, tmp_path / "beside") == b"secret"


def read(_: Desk, path: Path) -> bytes:
    return path.read_bytes()


def entries(desk: Desk, model: Model, cache: Path) -> dict[str, Callable[[], Any]]:
    """All that imports a model."""
    return {
        "compile, deploy, bench, tune, export, profile, run": lambda: worker_tasks.prepare_task(desk, model, HOST, Store(cache)),
        "check": lambda: check.check_task(desk, model, HOST, cache),
        "quantize": lambda: quantize.quantize_task(desk, model, HOST, cache, cache / "net.int8"),
        "bisect": lambda: bisect.layers_task(desk, model, None, {}, cache),  # type: ignore[arg-type]
        "accuracy": lambda: accuracy.reference_task(desk, model, (cache, model, None, ()), cache, 1.0),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("entry", entries(Desk(Path()), Model("", ""), Path()))
def test_without_a_sandbox_a_program_is_refused_by_every_command(
    entry: str, tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "support", lambda: NONE)
    (tmp_path / "net.pt2").write_bytes(b"not looked at")
    with pytest.raises(ModelError, match="cannot confine it") as raised:
        entries(desk, Model("net", str(tmp_path / "net.pt2")), tmp_path / "cache")[entry]()
    assert raised.value.why == NONE.missing
    assert "--trust" in raised.value.fix


@pytest.mark.parametrize("named", [{"source": "python:planted:net"}, {"source": "net.pth", "module": "python:planted:net"}])
@pytest.mark.parametrize("entry", [name for name in entries(Desk(Path()), Model("", ""), Path()) if name != "quantize"])
def test_code_that_a_file_of_scales_names_runs_only_if_it_is_trusted(
    named: dict[str, str], entry: str, tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names `python:` chooses what runs; here the author of a file would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("planted.py").write_text("from pathlib import Path\nPath('PWNED').touch()\n")
    empty = {"shapes": {}, "dtypes": {}, "module": None, "weights": "", "quantize": {"dtype": "float16"}, "data": "", "tensors": []}
    recipe = {"schema": "farm/float16/1", "example": packed({}), **empty, **named}
    Path("net.float16").write_text(json.dumps(recipe))
    model = Model("net", str(tmp_path / "net.float16"))
    with pytest.raises(ModelError, match=r"net\.float16 names code") as raised:
        entries(desk, model, tmp_path / "cache")[entry]()
    assert "--trust" in raised.value.fix and not Path("PWNED").exists()


def test_a_hostile_model_does_not_choose_what_its_recipe_names(tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model("net", str(onnx_file(tmp_path)), quantize=Quantize(dtype="float16"))
    made = Recipe(
        source="python:planted:net",
        module="python:planted:net",
        settings=Quantize(dtype="float16"),
        weights="",
        data="",
        shapes={},
        dtypes={},
        values={},
        names=(),
        scales=(),
        example={},
    )
    monkeypatch.setattr(quantize, "confined", lambda *_, **__: (None, made))
    quantize.quantize_task(desk, model, HOST, tmp_path / "cache", tmp_path / "net.float16")
    written = read_recipe(tmp_path / "net.float16")
    assert (written.source, written.module) == (model.source, None)


def test_without_a_sandbox_data_is_imported_and_it_is_said(tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "support", lambda: NONE)
    notes: list[Any] = []
    monkeypatch.setattr(desk, "note", notes.append)
    model = Model("net", str(onnx_file(tmp_path)))
    assert confined(desk, model, where) == os.getpid()
    assert [note.note for note in notes] == [f"without a sandbox: {NONE.missing}"]


def test_a_program_runs_in_no_other_engine_unless_it_is_trusted(tmp_path: Path) -> None:
    from farm.pipeline.other_engines import check_rivals
    from farm.types import Device, Job, Plan

    def job(model: Model) -> Job:
        return Job(Device("host", HOST, "local:"), model, Plan())

    program, data = Model("net", "/net.pt2"), Model("net", "/net.onnx")
    assert [may_run_here(one) for one in (program, replace(program, trust=True), data)] == [False, True, True]
    check_rivals(("torch",), [job(data)])
    with pytest.raises(UsageError, match="outside of the sandbox"):
        check_rivals(("torch",), [job(program)])


def test_devices_toml_can_trust_a_model(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"x")
    (tmp_path / "devices.toml").write_text('[models.a]\nsource = "net.onnx"\ntrust = true\n[models.b]\nsource = "net.onnx"\n')
    models = load(tmp_path / "devices.toml").models
    assert (models["a"].trust, models["b"].trust) == (True, False)


def test_the_files_of_external_data_are_found_wherever_they_are_named(tmp_path: Path) -> None:
    def outside(name: str) -> onnx.TensorProto:
        tensor = onnx.TensorProto(name=name, data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("offset", "0"), ("location", name)):
            tensor.external_data.add(key=key, value=value)
        return tensor

    inner = onnx.GraphProto(name="inner", initializer=[outside("in a branch")])
    attributes = [
        onnx.AttributeProto(name="t", type=4, t=outside("in an attribute")),
        onnx.AttributeProto(name="ts", type=9, tensors=[outside("in a list")]),
        onnx.AttributeProto(name="g", type=5, g=inner),
    ]
    function = onnx.FunctionProto(name="f", node=[onnx.NodeProto(attribute=[onnx.AttributeProto(name="t", t=outside("in a function"))])])
    body = onnx.GraphProto(name="g", node=[onnx.NodeProto(attribute=attributes)], initializer=[outside("a weight")])
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
def test_data_beside_the_model_is_read_and_data_elsewhere_is_not(tmp_path: Path, desk: Desk) -> None:
    (tmp_path / "model").mkdir()
    path = onnx_with_external_data(tmp_path / "model")
    (tmp_path / "model" / "net.weights").rename(tmp_path / "elsewhere")
    path.write_bytes(path.read_bytes().replace(b"net.weights", b"../elsewher"))
    (tmp_path / "elsewhere").rename(tmp_path / "elsewher")
    with pytest.raises(FarmError):
        worker_tasks.prepare_task(desk, Model("net", str(path)), HOST, Store(tmp_path / "cache"))
    with pytest.raises(ModelError, match="PermissionError"):
        confined(desk, Model("net", str(path)), read, tmp_path / "elsewher")


def module_that_writes(path: Path) -> str:
    """Return a module as a model that has taken over its import could leave it, as JSON.

    Its kernel is of constants, so the compiler runs it to fold it, and it calls the C library.
    """
    import tvm
    from tvm import relax, te, tirx

    float_type = relax.TensorType((1, 8), "float32")
    source = te.placeholder((1, 8), "float32", "source")
    made = te.extern((1, 8), [source], lambda *_: tirx.Evaluate(tirx.call_extern("int32", "creat", str(path), 0o600)), dtype="float32")
    builder = relax.BlockBuilder()
    kernel = builder.add_func(te.create_prim_func([source, made]).with_attr("global_symbol", "kernel"), "kernel")
    x = relax.Var("x", float_type)
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            constant = builder.emit(relax.call_tir(kernel, (relax.const(np.zeros((1, 8), "float32")),), float_type))
            result = builder.emit_output(relax.op.add(x, constant))
        builder.emit_func_output(result)
    return str(tvm.ir.save_json(builder.finalize()))


@needs_sandbox
def test_what_a_hostile_import_leaves_is_compiled_in_the_sandbox(tmp_path: Path, desk: Desk) -> None:
    """The attack works on a build of a trusted model, which shows that it is one."""
    store = Store(tmp_path / "cache")
    model = Model("net", str(onnx_file(tmp_path)))
    prepared = worker_tasks.prepare_task(desk, model, HOST, store)
    assert worker_tasks.build_task(desk, model, prepared, HOST, store).library.is_file()
    planted = tmp_path / "PWNED"
    (prepared.directory / "module.json").write_text(module_that_writes(planted))
    np.savez(prepared.directory / "weights.npz")
    with contextlib.suppress(FarmError):
        worker_tasks.build_task(desk, model, prepared, HOST, store)
    assert not planted.exists()
    with contextlib.suppress(FarmError):
        worker_tasks.build_task(desk, replace(model, trust=True), prepared, HOST, Store(tmp_path / "another"))
    assert planted.exists()


def leave(_: Desk, prepared: Any, profile: Any, records: Any, cache: Path, folder: Path, names: tuple[str, ...]) -> Any:
    """Leave a build whose process was taken over."""
    from farm.compiler import build

    generated = build.generate(_, prepared, profile, records, cache, folder)
    return replace(generated, objects=(*generated.objects, *names))


@pytest.mark.parametrize("name", ["--version", "../../../module.o", "/etc/passwd", "missing.o", "-T.o/x", "a\n.o"])
def test_a_build_that_was_taken_over_names_no_other_files_to_the_linker(name: str, tmp_path: Path, desk: Desk) -> None:
    from farm.compiler.build import build

    store = Store(tmp_path / "cache")
    prepared = worker_tasks.prepare_task(desk, Model("net", str(onnx_file(tmp_path)), trust=True), HOST, store)
    with pytest.raises(BuildError, match="left other files"):
        build(desk, prepared, HOST, store.root, generator=partial(leave, names=(name,)))
    assert not (store.root / "artifacts").exists()
