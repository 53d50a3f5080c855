from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from farm import config
from farm.config import profiles
from farm.types import Profile

PROFILES = {
    name: profiles.profile_from_table(name, table)
    for name, table in profiles.built_in_profile_tables().items()
}
PROMISED = """rasp3b rasp3b-64 rasp4 rasp4-64 rk3399 pynq ultra96 pixel2 mate10 mate10pro p20 p20pro x86 x86-v3 x86-v4 arm64 riscv64
    jetson-nano jetson-tx2 jetson-xavier jetson-agx-orin jetson-orin-nano cuda-sm75 cuda-sm80 cuda-sm86 cuda-sm89
    cuda-sm90 mali adreno"""  # noqa: E501
ARCHITECTURES = {
    "x86_64": (64, 62),
    "aarch64": (64, 183),
    "arm": (32, 40),
    "riscv64": (64, 243),
}  # ELF class and e_machine, elf(5)


def test_every_promised_profile_ships() -> None:
    assert set(PROFILES) == set(PROMISED.split())


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_states_all_of_its_facts(name: str) -> None:
    profile = PROFILES[name]
    assert profile.description
    assert profile.source
    architecture = profile.triple.partition("-")[0]
    machine = "armv7" if architecture == "arm" else architecture
    if profile.target["kind"] == "llvm":
        assert profile.agent == machine
    else:
        built = (
            profile.target["kind"] == "cuda"
            and int(str(profile.target["arch"]).removeprefix("sm_")) >= 75
        )  # by CUDA 13
        assert profile.agent == (f"{machine}-cuda" if built else None)
    assert cpu_target(profile)["kind"] == "llvm"
    assert cpu_target(profile).get("mfloat-abi") == (
        "hard" if architecture == "arm" else None
    )  # else ARM computes nonsense


def test_every_own_profile_passes_the_schema_that_users_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "devices.toml"
    path.write_text(
        (Path(config.__file__).parents[1] / "profiles.toml").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    assert config.load_fleet(path).profiles == PROFILES


def cpu_target(profile: Profile) -> Any:
    """The target of the profile's CPU; where that is this machine's, a CPU that all test machines
    are compiled for alike.
    """
    cpu: Any = profile.target.get("host", profile.target)
    named = "cortex-a72" if "aarch64" in cpu["mtriple"] else "x86-64-v3"
    return {**cpu, "mcpu": named} if cpu["mcpu"] == "native" else cpu


@functools.cache
def object_code(target: str) -> bytes:
    """y = x + x, compiled for a target (as JSON): the object file."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    code = []

    def keep(out: str, objects: list[str], **_: object) -> None:
        code.append(Path(objects[0]).read_bytes())
        Path(out).touch()

    with tempfile.TemporaryDirectory() as folder:
        built = tvm.compile(builder.get(), tvm.target.Target(json.loads(target)))
        built.export_library(f"{folder}/double.so", fcompile=keep)
    return code[0]


@pytest.mark.parametrize("name", PROFILES)
def test_tvm_takes_the_target(name: str) -> None:
    import tvm

    profile = PROFILES[name]
    target = tvm.target.Target(
        {**profile.target, "host": cpu_target(profile)}
        if "host" in profile.target
        else cpu_target(profile)
    )
    assert target.kind.name == profile.target["kind"]
    assert (target.host is not None) == ("host" in profile.target)


@pytest.mark.parametrize("name", PROFILES)
def test_the_cpu_target_compiles_to_the_architecture_of_agent_and_triple(name: str) -> None:
    profile = PROFILES[name]
    code = object_code(json.dumps(cpu_target(profile), sort_keys=True))
    architecture = profile.triple.partition("-")[0]
    assert (code[:4], code[4] * 32, int.from_bytes(code[18:20], "little")) == (
        b"\x7fELF",
        *ARCHITECTURES[architecture],
    )
