"""The wheel that tools/wheel makes: what is in it, and that a farm installed from it finds its
agents and devices without compiling.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

import farm
from farm.agent.build import executable_build_inputs_digest

ROOT = Path(farm.__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import wheel_sbom  # noqa: E402

ARCHITECTURES = ("x86_64", "aarch64", "armv7")
NOT_SHIPPED = {"__pycache__", "prebuilt"}

# In a process of its own: tests/conftest.py keeps the check of IRIs out of this one.
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema import Draft7Validator
assert "iri-reference" in Draft7Validator.FORMAT_CHECKER.checkers
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""
ENSURE = """
import json, sys
from pathlib import Path
from farm.agent.build import ensure_executable
from farm.processes.deadline import Deadline

def note(text, fraction):
    sys.exit(f"it compiles: {text}")

print(json.dumps({
    arch: str(ensure_executable(arch, Path("cache"), note, Deadline(1))) for arch in sys.argv[1:]
}))
"""


@pytest.fixture(scope="module")
def making(
    agents: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, set[Path], set[Path]]:
    """The wheel, with three agents from farm's cache, and what lay in the repository before it was
    made and after.
    """
    for arch in ARCHITECTURES:
        agents(arch)
    folder = tmp_path_factory.mktemp("wheel")
    before = lying_about()
    run([ROOT / "tools" / "wheel", "--out", folder, *ARCHITECTURES], folder)
    [made] = folder.glob("*.whl")
    return made, before, lying_about()


@pytest.fixture(scope="module")
def wheel(making: tuple[Path, set[Path], set[Path]]) -> Path:
    return making[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, without what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    run(
        ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel],
        folder,
    )
    return folder


def run(arguments: list[str | Path], cwd: Path, **env: str) -> str:
    """What Python prints with these arguments, run in a folder, without any configuration of this
    machine's.
    """
    kept = {name: value for name, value in os.environ.items() if name != "FARM_CONFIG"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**kept, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lying_about() -> set[Path]:
    """Where a build might leave something."""
    return {
        path
        for path in [*ROOT.glob("*"), *(ROOT / "farm").rglob("*")]
        if "__pycache__" not in path.parts
    }


def shipped() -> set[str]:
    """The files of the package as they lie in the repository."""
    package = ROOT / "farm"
    files = {
        path
        for path in package.rglob("*")
        if path.is_file() and not NOT_SHIPPED.intersection(path.parts)
    }
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_the_wheel_holds_the_whole_package_and_the_agents_and_nothing_else(wheel: Path) -> None:
    agents = {
        f"farm/agent/prebuilt/farm-agent-{arch}{suffix}"
        for arch in ARCHITECTURES
        for suffix in ("", ".digest")
    }
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == shipped() | agents


def in_dist_info(wheel: Path, folder: str) -> dict[str, bytes]:
    """The files of a folder of .dist-info, by their path below it."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.partition(f".dist-info/{folder}/")[2]: archive.read(name)
            for name in archive.namelist()
            if f".dist-info/{folder}/" in name
        }


def test_the_wheel_has_the_licences_of_what_its_agents_contain(wheel: Path) -> None:
    texts = in_dist_info(wheel, "licenses")
    assert texts.keys() == {
        *("LICENSE", "NOTICE", "third-party/zig/LICENSE", "third-party/musl/COPYRIGHT"),
        *(f"third-party/{name}/LICENSE.TXT" for name in ("libc++", "libc++abi", "libunwind")),
        *(
            f"third-party/{name}/{file}"
            for name in ("apache-tvm", "apache-tvm-ffi")
            for file in ("LICENSE", "NOTICE")
        ),
    }
    assert b"musl as a whole is licensed under" in texts["third-party/musl/COPYRIGHT"]
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert set(metadata["License-Expression"].split(" AND ")) == {
        *("Apache-2.0", "Apache-2.0 WITH LLVM-exception", "CC-BY-4.0", "MIT"),
    }
    assert set(metadata.get_all("License-File") or []) == texts.keys()


def test_the_wheel_has_a_bill_of_materials(wheel: Path) -> None:
    (text,) = in_dist_info(wheel, "sboms").values()
    command = [sys.executable, "-c", VALIDATE]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    document = json.loads(text)
    parts = {one["bom-ref"]: one for one in document["components"]}
    with zipfile.ZipFile(wheel) as archive:
        for arch in ARCHITECTURES:
            content = archive.read(f"farm/agent/prebuilt/farm-agent-{arch}")
            [said] = parts[f"farm-agent-{arch}"]["hashes"]
            assert said == {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}
    below = {one["ref"]: set(one.get("dependsOn", [])) for one in document["dependencies"]}
    inside = {"apache-tvm", "apache-tvm-ffi", "dlpack", "libc++", "libc++abi", "libunwind", "zig"}
    assert below["farm-agent-x86_64"] == {*inside, "musl"}
    for name in below["farm-agent-x86_64"]:
        assert re.fullmatch(r"\d+(\.\w+)+", parts[name]["version"])
        assert parts[name]["licenses"][0]["expression"]
    assert parts["zig"]["version"] == importlib.metadata.version("ziglang")
    assert below["tvm-farm"] >= {"farm-agent-x86_64", "requires numpy", "requires apache-tvm"}
    assert "requires torch" not in parts, "of an extra"


def test_agents_for_gpus_contain_glibcs_start_files_in_the_place_of_musl() -> None:
    names = {part.name for part in wheel_sbom.parts_of("x86_64-cuda")}
    assert "glibc" in names and "musl" not in names
    assert "LGPL-2.1-or-later" in wheel_sbom.license_expression(["x86_64-cuda"])


def test_the_same_sources_make_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        run(
            [ROOT / "tools" / "wheel", "--out", tmp_path, *ARCHITECTURES], tmp_path, TZ="Asia/Tokyo"
        )
    finally:
        os.umask(before)
    [again] = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_an_agent_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools" / "wheel", "--out", tmp_path, "z80"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no agent: z80" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_making_it_leaves_the_sources_alone(making: tuple[Path, set[Path], set[Path]]) -> None:
    _, before, after = making
    assert after == before


def test_an_installed_farm_has_its_agents_without_compiling(
    installed: Path, tmp_path: Path
) -> None:
    found = json.loads(run(["-c", ENSURE, *ARCHITECTURES], tmp_path, PYTHONPATH=str(installed)))
    for arch, path in found.items():
        assert Path(path).parent == installed / "farm" / "agent" / "prebuilt"
        assert os.access(path, os.X_OK)
        assert Path(f"{path}.digest").read_text().strip() == executable_build_inputs_digest(arch)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_of_the_wheel_runs(installed: Path) -> None:
    done = subprocess.run(
        [installed / "farm" / "agent" / "prebuilt" / "farm-agent-x86_64", "--version"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    assert farm.__version__ in done.stdout


def test_an_installed_farm_brings_its_devices(installed: Path, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(installed),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "FARM_CACHE": str(tmp_path / "cache"),
    }
    where = run(["-c", "import farm; print(farm.__file__)"], tmp_path, **environment)
    listed = json.loads(run(["-m", "farm", "devices", "--json"], tmp_path, **environment))
    assert Path(where.strip()) == installed / "farm" / "__init__.py"
    assert [(device["name"], device["url"]) for device in listed["devices"]] == [
        ("host", "local:"),
        ("pi3", "qemu:"),
        ("rk3399", "qemu:"),
    ]
