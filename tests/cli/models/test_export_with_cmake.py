"""An exported folder is built by CMake and runs with no Python: on this machine, and as code for
ARM under qemu-user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from farm_processes import DEVICES, DIGITS, QUICK, Farm
from onnx_models import save_selecting, selection_examples
from PIL import Image

from farm.agent import recipe
from farm.agent.zig_cache import zig_environment
from farm.compiler.parameter_files import ON_LOAD, PREFIX
from farm.processes import subprocesses
from farm.store import digest_of_parts

BINARIES = Path(sys.executable).parent
LIMIT_BYTES = 8_000_000
IMAGE = Path(__file__).parents[3] / "docs" / "digit.png"
BOARDS = [
    ("x86", "x86_64", ()),
    ("rasp3b", "armv7", ("qemu-arm",)),
    ("rk3399", "aarch64", ("qemu-aarch64",)),
]


# A compiler that keeps objects by what they are made of. argv: the folder that is compiled, where
# objects are kept, and the real command.
COMPILER = """
import hashlib, os, shutil, subprocess, sys, tempfile
from pathlib import Path
folder, kept, command, arguments = {folder!r}, Path({kept!r}), {command!r}, sys.argv[1:]
if "-c" not in arguments or "CMakeScratch" in os.getcwd() + " ".join(arguments):
    sys.exit(subprocess.run([*command, *arguments]).returncode)
made = [Path(arguments[arguments.index(option) + 1]) for option in ("-o", "-MF") if option in arguments]
content = hashlib.sha256(repr([*command[1:], *(word.replace(folder, "") for word in arguments)]).encode())
there = [kept / f"{{content.hexdigest()}}{{path.suffix}}" for path in made]
if not all(path.exists() for path in there):
    if code := subprocess.run([*command, *arguments]).returncode:
        sys.exit(code)
    for path, place in zip(made, there):
        with tempfile.NamedTemporaryFile(dir=kept, delete=False) as part:
            part.write(path.read_bytes())
        os.replace(part.name, place)
for path, place in zip(made, there):
    shutil.copyfile(place, path)
"""  # noqa: E501


def built(folder: Path, arch: str, cache: Path) -> Path:
    """The example, linked statically by zig, which stands for any cross compiler here. It is
    not optimised, which takes a fourth of the time: the model's kernels are compiled already.

    Objects of sources that have not changed come from an earlier run of the tests, in another
    clone, too: the path of its Python is no part of their names.
    """
    sources = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and folder / "model" not in path.parents
    ]
    kept = cache / "exported-objects" / digest_of_parts(*sources)
    for old in kept.parent.glob("*"):
        if old != kept and old.stat().st_mtime < time.time() - 7 * 24 * 3600:
            shutil.rmtree(old, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    # The target is the agent's, or zig builds its libraries anew for CMake's own checks
    command = [sys.executable, "-m", "ziglang", "c++", *recipe.zig_flags(arch), "-s"]
    compiler = folder.parent / f"{arch}-c++"
    compiler.write_text(
        f"#!{sys.executable}\n{COMPILER.format(folder=str(folder), kept=str(kept), command=command)}"  # noqa: E501
    )
    compiler.chmod(0o755)
    options = [
        f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -fno-sanitize=undefined",
    ]
    options += ["-DCMAKE_EXE_LINKER_FLAGS=-O2"]  # that of the libraries
    make = f"-DCMAKE_MAKE_PROGRAM={BINARIES / 'ninja'}"
    cmake, build = str(BINARIES / "cmake"), folder / "build"
    environment = {**os.environ, **zig_environment(cache / "zig")}
    for step in (
        ["-G", "Ninja", make, *options, "-B", str(build), "-S", str(folder)],
        ["--build", str(build)],
    ):
        done = subprocess.run(
            [cmake, *step], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "classify"


def outputs_in_python(model: Path, sample: np.ndarray) -> np.ndarray:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(str(model / "library.so")), tvm.cpu())
    tvm.get_global_func(
        "vm.builtin.tensor_cache.clear"
    )()  # of what other tests have left in this process
    tvm.get_global_func("vm.builtin.tensor_cache.load")(str(model), 1, 0)
    if machine.module.implements_function(ON_LOAD):
        machine.set_input(ON_LOAD)
        machine.invoke_stateful(ON_LOAD)
    parameters = tvm.get_global_func("vm.builtin.param_array_from_cache")(PREFIX, -1)
    machine.set_input("main", tvm.runtime.tensor(sample), parameters)
    machine.invoke_stateful("main")
    return machine.get_outputs("main").numpy()


def test_the_runner_gives_as_many_elements_as_the_model_selected(
    farm: Farm, tmp_path: Path
) -> None:
    folder, model = tmp_path / "exported", save_selecting(tmp_path / "model.onnx")
    assert farm.run("export", str(model), "--profile", "x86", "-o", str(folder)).code == 0
    program = built(folder, "x86_64", (farm.cache / "agents").resolve().parent)
    for sample in selection_examples():
        sample.tofile(tmp_path / "input.bin")
        files = [str(tmp_path / name) for name in ("input.bin", "output.bin")]
        subprocess.run([str(program), str(folder / "model"), *files], check=True)
        found = np.fromfile(tmp_path / "output.bin", np.float32)
        np.testing.assert_array_equal(found, sample[sample > 0.5])


@pytest.mark.parametrize(("profile", "arch", "emulator"), BOARDS)
def test_an_exported_folder_builds_and_computes_what_python_does(
    farm: Farm, tmp_path: Path, profile: str, arch: str, emulator: tuple[str, ...]
) -> None:
    if emulator and not subprocesses.first_installed_program(emulator[0]):
        pytest.skip("qemu-user is not installed")
    folder = tmp_path / "exported"
    assert farm.run("export", "digits", "--profile", profile, "-o", str(folder)).code == 0
    program = built(folder, arch, (farm.cache / "agents").resolve().parent)
    assert program.stat().st_size < LIMIT_BYTES

    sample = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    sample.tofile(tmp_path / "input.bin")
    run = [*emulator, str(program), str(folder / "model")]
    subprocess.run([*run, str(tmp_path / "input.bin"), str(tmp_path / "output.bin")], check=True)
    found = np.fromfile(tmp_path / "output.bin", np.float32)
    if not emulator:
        np.testing.assert_array_equal(found, outputs_in_python(folder / "model", sample).ravel())
    expected = farm.folder / "sample.npy"
    np.save(expected, sample)
    assert (
        farm.run(
            "run",
            "--device",
            "host",
            "digits",
            "--input",
            str(expected),
            "--output",
            str(tmp_path / "o.npz"),
        ).code
        == 0
    )
    with np.load(tmp_path / "o.npz") as arrays:
        np.testing.assert_allclose(found, arrays[arrays.files[0]].ravel(), atol=1e-5)

    image = Image.open(IMAGE).convert("RGB")
    image.save(tmp_path / "digit.ppm")
    best = subprocess.run(
        [*run, str(tmp_path / "digit.ppm")], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shown = farm.run("run", "--device", "host", "digits", "--input", str(IMAGE)).out.splitlines()
    assert [line.split() for line in best] == [line.split() for line in shown[: len(best)]]

    if not emulator:
        image.resize((41, 24)).save(tmp_path / "wide.ppm")
        said = (folder / "model" / "model.json").read_text()
        for crop in ("0.75", "1.0"):
            cropped = DIGITS.replace('"grey"', f'{{ kind = "grey", crop = {crop} }}')
            farm.configure(DEVICES + cropped + QUICK)
            (folder / "model" / "model.json").write_text(
                said.replace('"crop": null', f'"crop": {crop}')
            )
            best = subprocess.run(
                [*run, str(tmp_path / "wide.ppm")], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            shown = farm.run(
                "run", "--device", "host", "digits", "--input", str(tmp_path / "wide.ppm")
            ).out.splitlines()
            assert [line.split() for line in best] == [line.split() for line in shown[: len(best)]]

    for arguments, words in (
        ((str(IMAGE),), "no binary PPM"),
        ((str(IMAGE), "x"), "image has 256 bytes, not"),
    ):
        refused = subprocess.run([*run, *arguments], capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and words in refused.stderr


def test_parts_are_the_library_the_graph_and_the_parameters(farm: Farm, tmp_path: Path) -> None:
    done = farm.run(
        "export", "digits", "--format", "parts", "-o", str(tmp_path / "parts"), "--json"
    )
    assert [Path(path).name for path in done.json["paths"]] == [
        "digits.so",
        "digits.json",
        "digits.npz",
    ]
    assert (tmp_path / "parts" / "digits.so").read_bytes()[:4] == b"\x7fELF"
    content = json.loads((tmp_path / "parts" / "digits.json").read_text())
    graph, known = content["graph"], set(content["graph"]["inputs"])
    with np.load(tmp_path / "parts" / "digits.npz") as parameters:
        assert sorted(parameters.files) == sorted(graph["parameters"])
        for name in parameters.files:
            assert list(parameters[name].shape) == graph["tensors"][name]["shape"]
            known.add(name)
    for step in graph["steps"]:
        assert known.issuperset(step["inputs"]), f"{step} takes what no step before has made"
        known.add(step["output"])
    assert graph["outputs"] and known.issuperset(graph["outputs"])


def test_an_export_is_never_mixed_with_other_files(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert (
        "exists already"
        in farm.run("export", "digits", "-o", str(tmp_path / "there")).error["error"]
    )


def test_a_folder_for_a_gpu_is_refused_as_its_runtime_is_for_cpus(
    farm: Farm, tmp_path: Path
) -> None:
    done = farm.run("export", "digits", "-p", "cuda-sm90", "-o", str(tmp_path / "out"))
    assert "--format parts" in done.error["fix"]
    assert not (tmp_path / "out").exists()
