"""Builds are found again by what went into them, are the same everywhere, and leave nothing when
they fail.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import elf_headers
import numpy as np
import pytest
import tvm
from relax_models import HOST, compute, lowered, target
from small_network import network, weights
from target_profiles import ARM32, ARM64, X86
from timeouts import LIMIT_S
from tvm import relax

from farm import agent
from farm.compiler import build_digests
from farm.compiler.artifact import GRAPH, KIND
from farm.compiler.build import find_or_build_model
from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.link import fcompile_for_profile
from farm.compiler.codegen.parallel_codegen import export_shared_library
from farm.errors import BuildError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import file_digest
from farm.types import PreparedModel

OP = relax.op
CODE = Path(__file__).parents[1] / "build_in_subprocess.py"
MACHINES = {"x86": 62, "arm64": 183, "arm32": 40}  # ELF: e_machine


@pytest.fixture
def prepared(kept) -> PreparedModel:
    return kept({"x": np.zeros((1, 3, 8, 8), "float32")}, network, weights())


def nothing_left(cache: Path) -> bool:
    return not (cache / KIND).exists() and not list((cache / "tmp").glob("*"))


def test_a_second_build_of_the_same_comes_from_the_store(context, prepared, cache):
    first, second = (find_or_build_model(context, prepared, X86, cache) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert replace(second, cached=False) == first
    assert first.library_digest == file_digest(first.library)
    files = [first.library, first.library.with_name(GRAPH), *first.parameters.iterdir()]
    assert len(files) == 4 and first.nbytes == sum(path.stat().st_size for path in files)
    assert set(first.seconds) == {"read", "graph", "schedule", "code", "link", "write"}


def test_profiles_with_one_target_share_an_artifact_under_their_own_names(context, prepared, cache):
    find_or_build_model(context, prepared, X86, cache)
    other = find_or_build_model(
        context, replace(prepared, model="renamed"), replace(X86, name="twin"), cache
    )
    assert (other.cached, other.profile, other.model) == (True, "twin", "renamed")


def test_tensors_have_the_names_of_the_model_that_was_asked_for(context, prepared, cache):
    find_or_build_model(context, prepared, X86, cache)
    renamed = replace(
        prepared,
        inputs=tuple(replace(spec, name="image") for spec in prepared.inputs),
        outputs=tuple(replace(spec, name="scores") for spec in prepared.outputs),
    )
    found = find_or_build_model(context, renamed, X86, cache)
    assert (found.inputs, found.outputs) == (renamed.inputs, renamed.outputs)


def test_the_digest_depends_on_all_that_matters(prepared, kept, monkeypatch):
    other_weights = kept({"x": np.zeros((1, 3, 8, 8), "float32")}, network, weights(1))
    other_code = kept(
        {"x": np.zeros((1, 3, 8, 8), "float32")},
        lambda *a: a[0](OP.nn.relu(network(*a))),
        weights(),
    )
    digests = [
        build_digests.build_inputs_digest_without_records(prepared, X86),
        build_digests.build_inputs_digest_without_records(other_weights, X86),
        build_digests.build_inputs_digest_without_records(other_code, X86),
        build_digests.build_inputs_digest_without_records(
            prepared, replace(X86, target={**X86.target, "mcpu": "x86-64"})
        ),
        build_digests.build_inputs_digest_without_records(prepared, replace(X86, linker=("gcc",))),
        *(
            build_digests.build_inputs_digest_without_records(
                prepared, replace(X86, memory_mb=memory_mb)
            )
            for memory_mb in (1, 512)
        ),
        build_digests.build_inputs_digest_without_records(
            prepared, replace(X86, target={**X86.target, "mcpu": "native"})
        ),
    ]
    monkeypatch.setattr(build_digests, "compiler_sources_digest", lambda: "another source")
    digests.append(build_digests.build_inputs_digest_without_records(prepared, X86))
    monkeypatch.undo()
    monkeypatch.setattr(build_digests, "compiler_package_versions", lambda: {"apache-tvm": "1.0"})
    digests.append(build_digests.build_inputs_digest_without_records(prepared, X86))
    monkeypatch.undo()
    monkeypatch.setattr(build_digests, "host_cpu_description", lambda: "another")
    digests.append(
        build_digests.build_inputs_digest_without_records(
            prepared, replace(X86, target={**X86.target, "mcpu": "native"})
        )
    )
    assert len(set(digests)) == len(digests)


def test_the_digest_does_not_depend_on_names_the_clock_or_this_cpu(prepared, kept, monkeypatch):
    again = kept({"x": np.zeros((1, 3, 8, 8), "float32")}, network, weights(), name="other")
    monkeypatch.setattr(build_digests, "host_cpu_description", lambda: "another")
    assert build_digests.build_inputs_digest_without_records(
        again, replace(X86, name="twin", description="words")
    ) == build_digests.build_inputs_digest_without_records(prepared, X86)


CPU = {"model": "85", "model name": "A", "cpu MHz": "2000.1", "flags": "fpu avx2 avx512f"}
CPU_OF_ARM = {"BogoMIPS": "50.0", "Features": "fp asimd asimddp", "CPU part": "0xd0c"}


@pytest.mark.parametrize(
    ("cpu", "key", "counts"),
    [
        (CPU, "model", True),
        (CPU, "model name", True),
        (CPU, "flags", True),
        (CPU, "cpu MHz", False),
        (CPU_OF_ARM, "Features", True),
        (CPU_OF_ARM, "CPU part", True),
        (CPU_OF_ARM, "BogoMIPS", False),
    ],
)
def test_a_build_for_this_cpu_is_for_its_model_and_features_and_not_for_its_clock(
    cpu, key, counts, monkeypatch
):
    def described(cpu: dict[str, str], other: dict[str, str]) -> str:
        text = "\n\n".join(
            "\n".join(f"{name}\t: {value}" for name, value in one.items()) for one in (cpu, other)
        )
        monkeypatch.setattr(
            build_digests, "Path", lambda _: SimpleNamespace(read_text=lambda: text)
        )
        return build_digests.host_cpu_description.__wrapped__()

    changed = {**cpu, key: "another"}
    assert (described(changed, cpu) != described(cpu, cpu)) == counts
    assert described(cpu, changed) == described(cpu, cpu), "the first core stands for all"


@pytest.fixture
def start(tmp_path, prepared) -> Callable[[Path, str], tuple]:
    """Starts a build in a process of its own."""

    def run(cache: Path, seed: str):
        folder = tmp_path / f"process-{seed}"
        folder.mkdir()
        for name, value in (("prepared", prepared), ("profile", X86)):
            (folder / name).write_bytes(pickle.dumps(value))
        command = [sys.executable, CODE, cache, folder, folder / "prepared", folder / "profile"]
        return subprocesses.start_program(
            command, log=folder / "log", env={"PYTHONHASHSEED": seed}
        ), folder / "log"

    return run


def ended(child, log) -> dict:
    assert child.wait(LIMIT_S) == 0, log.read_text()
    return json.loads(log.read_text().splitlines()[-1])


def test_two_processes_that_build_the_same_at_once_make_one_artifact(start, cache):
    first, second = [ended(*job) for job in [start(cache, "1"), start(cache, "2")]]
    assert first["digests"] == second["digests"]
    assert len(list((cache / KIND).iterdir())) == 1
    assert not list((cache / "tmp").iterdir())


def test_builds_in_two_places_are_the_same_to_the_byte(start, context, prepared, tmp_path):
    here = find_or_build_model(context, prepared, X86, tmp_path / "here")
    there = ended(*start(tmp_path / "there", "3"))
    assert here.cached is there["cached"] is False
    assert there["digests"] == [here.digest, here.library_digest, here.parameters_digest]


def test_a_change_of_code_leaves_the_parameters_as_they_were(context, prepared, kept, cache):
    changed = kept(
        {"x": np.zeros((1, 3, 8, 8), "float32")}, lambda *a: a[0](OP.exp(network(*a))), weights()
    )
    first, second = (
        find_or_build_model(context, prepared, X86, cache),
        find_or_build_model(context, changed, X86, cache),
    )
    assert first.parameters_digest == second.parameters_digest
    assert first.library_digest != second.library_digest


def test_a_change_of_weights_leaves_the_library_as_it_was(context, prepared, kept, cache):
    changed = kept({"x": np.zeros((1, 3, 8, 8), "float32")}, network, weights(1))
    first, second = (
        find_or_build_model(context, prepared, X86, cache),
        find_or_build_model(context, changed, X86, cache),
    )
    assert first.library_digest == second.library_digest
    assert first.parameters_digest != second.parameters_digest


@pytest.mark.parametrize("profile", [X86, ARM64, ARM32], ids=lambda profile: profile.name)
def test_a_library_needs_no_other_and_leaves_only_known_symbols_open(
    profile, context, prepared, cache
):
    library = elf_headers.read(find_or_build_model(context, prepared, profile, cache).library)
    assert library.machine == MACHINES[profile.name]
    assert library.needed == []
    assert "__tvm_ffi__library_bin" in library.defined
    assert {"sinf", "cosf"} <= library.undefined
    assert library.undefined <= agent_symbols()


def agent_symbols() -> set[str]:
    """What the agent, which is static, has for libraries: names in its table, those of libm also
    with an f.
    """
    names = set(
        re.findall(
            r"X\((\w+)\)",
            (Path(agent.__file__).parent / "src" / "loader" / "host_symbols.cc").read_text(),
        )
    )
    return names | {f"{name}f" for name in names}


@pytest.mark.parametrize("profile", [X86, ARM32], ids=lambda profile: profile.name)
def test_the_agent_has_whatever_arithmetic_needs_of_it(profile, context, kept, cache):
    types = ("float16", "float32", "float64", "int32", "int64", "uint32")

    def body(emit, *given):
        converted = [
            emit(OP.astype(x, dtype)) for x in given for dtype in types if dtype != str(x.ty.dtype)
        ]
        divided = [emit(divide(x, x)) for x in given for divide in (OP.divide, OP.floor_mod)]
        return (
            converted
            + divided
            + [
                emit(f(x))
                for x in given[:3]
                for f in (OP.exp, OP.log, OP.tanh, OP.erf, OP.round, OP.sin)
            ]
        )

    model = kept({dtype: np.zeros(9, dtype) for dtype in types}, body)
    assert (
        elf_headers.read(find_or_build_model(context, model, profile, cache).library).undefined
        <= agent_symbols()
    )


def test_a_32_bit_arm_library_is_of_the_hard_float_abi(context, prepared, kept, cache):
    hard = 0x400  # EF_ARM_ABI_FLOAT_HARD
    copy = kept({"x": np.zeros(3, "float32")}, lambda emit, x: x)  # no kernels at all
    for model in (prepared, copy):
        assert (
            elf_headers.read(find_or_build_model(context, model, ARM32, cache).library).flags & hard
        )


def test_a_linker_of_the_users_own_makes_a_library_that_runs(context, prepared, cache):
    """The library needs no other, such as the C library that a compiler driver links by default."""
    profile = replace(HOST, name="own", linker=(sys.executable, "-m", "ziglang", "cc"))
    artifact = find_or_build_model(context, prepared, profile, cache)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(artifact.library)), tvm.cpu())
    assert elf_headers.read(artifact.library).needed == []
    assert machine["main"] is not None


@pytest.mark.parametrize(
    ("linker", "words"),
    [
        (("no-such-linker",), "not installed"),
        (("false",), "failed with exit code 1"),
        (("true",), "made no library"),
        (("/etc/passwd",), "cannot be started"),
    ],
)
def test_a_linker_that_does_not_link_is_an_error_that_leaves_nothing(
    linker, words, context, prepared, cache
):
    with pytest.raises(BuildError) as caught:
        find_or_build_model(context, prepared, replace(X86, linker=linker), cache)
    assert words in caught.value.what
    assert linker[0] in caught.value.fix
    assert nothing_left(cache)


def test_what_tvm_cannot_compile_is_an_error_with_its_reason(context, kept, cache):
    model = kept(
        {"x": np.zeros(3, "float32")}, lambda emit, x: emit(OP.cosh(x))
    )  # TVM has no code for it on a CPU
    with pytest.raises(BuildError) as caught:
        find_or_build_model(context, model, X86, cache)
    assert "model does not compile for x86" in caught.value.what
    assert "cosh" in caught.value.why
    assert nothing_left(cache)


def test_a_target_that_tvm_does_not_know_is_an_error(context, prepared, cache):
    with pytest.raises(BuildError):
        find_or_build_model(
            context,
            prepared,
            replace(X86, target={"kind": "llvm", "mtriple": "x86_64-linux-gnu", "no-such-key": 1}),
            cache,
        )
    assert nothing_left(cache)


def test_reading_an_artifact_loads_no_tvm(context, prepared, cache, tmp_path):
    find_or_build_model(context, prepared, X86, cache)
    for name, value in (("prepared", prepared), ("profile", X86)):
        (tmp_path / name).write_bytes(pickle.dumps(value))
    code = f"""
import pickle, sys
from pathlib import Path
import farm.checked_model_import
from farm.compiler.build import find_or_build_model
from farm.processes.workers import TaskContext
here = Path({str(tmp_path)!r})
assert find_or_build_model(TaskContext(here), *(pickle.loads((here / name).read_bytes()) for name in ("prepared", "profile")), here / "cache").cached
print([name for name in ("tvm", "torch", "onnx", "onnxruntime") if name in sys.modules])
"""  # noqa: E501
    assert (
        subprocesses.run_program(
            [sys.executable, "-c", code], deadline=Deadline(LIMIT_S), what="a warm build"
        ).strip()
        == "[]"
    )


def test_tensors_of_a_kernel_do_not_overlap_for_the_compiler_whatever_the_kernel_is_called():
    low = lowered(
        {"x": np.zeros((1, 4, 6, 6, 6), "float32")},
        lambda emit, x: emit(relax.op.nn.max_pool3d(x, 2)),
    )
    modules = [compile_executable(low.module, target()).mod]
    for module in modules:
        modules += list(module.imports)
    (code,) = [module for module in modules if module.kind == "llvm"]
    arguments = re.search(r"define .*@__tvm_ffi_max_pool3d\((.*)\)", code.inspect_source("ll"))
    assert arguments and "noalias" in arguments[1]


LAYERS = {f"w{number}": np.full((8 + number, 9 + number), 0.1, "float32") for number in range(20)}


def layers(emit, x, *weights):
    """A model of twenty different kernels: dense layers of different widths."""
    for weight in weights:
        x = emit(OP.nn.relu(emit(OP.matmul(x, weight))))
    return x


def test_the_code_is_the_same_from_any_number_of_cores(tmp_path, monkeypatch):
    def library(cores: int) -> bytes:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
        folder = tmp_path / str(cores)
        folder.mkdir()
        made = lowered({"x": np.zeros((1, 8), "float32")}, layers, LAYERS)
        executable = compile_executable(made.module, target())
        assert (
            len(executable.mod._collect_dso_modules()) == 4
        )  # twenty kernels, at least six in a part
        export_shared_library(executable, folder / "library.so", fcompile_for_profile(HOST), folder)
        return (folder / "library.so").read_bytes()

    assert library(1) == library(2) == library(8)


@pytest.mark.parametrize("load", [False, True])
def test_object_files_that_are_written_with_the_code_are_those_of_its_libraries(load, tmp_path):
    made = lowered({"x": np.zeros((1, 8), "float32")}, layers, LAYERS)
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    late.mkdir()
    executable = compile_executable(made.module, target(), load=load, workspace=early)
    written = {path.name: path.read_bytes() for path in early.iterdir()}
    export_shared_library(executable, tmp_path / "library.so", lambda *_, **__: None, late)
    assert (
        len(written)
        == len(executable.mod._collect_dso_modules())
        == len(set(written.values()))
        == 4
    )
    assert written == {
        path.name: path.read_bytes() for path in late.iterdir() if path.name in written
    }


def test_kernels_in_several_libraries_compute_what_they_should():
    values = np.linspace(-1, 1, 8, dtype="float32").reshape(1, 8)
    expected = values
    for weight in LAYERS.values():
        expected = np.maximum(expected @ weight, 0)
    np.testing.assert_allclose(
        compute({"x": values}, layers, LAYERS).outputs[0], expected, rtol=1e-4
    )
