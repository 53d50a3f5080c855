"""The agent's builder: what it takes for the same, where it looks, and what it leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from timeouts import LIMIT_S, patient, wait_until

from farm.agent import build, recipe
from farm.errors import BuildError, DeadlineError
from farm.processes.deadline import Deadline

ROOT = Path(__file__).resolve().parents[3]


def no_note(_text: str, _fraction: float | None) -> None:
    pass


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("nothing had to be compiled")

    monkeypatch.setattr(build, "compile_agent", fail)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
def test_an_agent_is_one_static_file_of_about_three_megabytes(
    arch: str, agents: Callable[[str], Path]
) -> None:
    content = agents(arch).read_bytes()
    assert 2e6 < len(content) < 4e6
    assert content[:4] == b"\x7fELF" and content[16] == 2, (
        "an executable that is not position independent has no interpreter"
    )
    assert b"ld-linux" not in content and b"ld-musl" not in content
    assert str(ROOT).encode() not in content and str(Path.home()).encode() not in content


def test_a_digest_belongs_to_an_architecture_and_its_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digests = {build.executable_build_inputs_digest(arch) for arch in build.AGENTS}
    assert len(digests) == len(build.AGENTS) and all(len(digest) == 64 for digest in digests)
    assert build.executable_build_inputs_digest("armv7") in digests
    (tmp_path / "main.cc").write_text("int main() {}")
    monkeypatch.setattr(recipe, "HERE", tmp_path)
    assert build.executable_build_inputs_digest("armv7") not in digests


def test_a_digest_is_had_without_tvm_and_torch() -> None:
    code = (
        "import sys; from farm.agent.build import executable_build_inputs_digest as digest; "
        "digest('armv7'); "
        "assert not {'tvm', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S, cwd=ROOT)


def test_an_architecture_that_is_not_known_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        build.ensure_executable("sparc", tmp_path, no_note, Deadline(LIMIT_S))
    assert "'sparc'" in caught.value.what and "riscv64" in caught.value.fix


def place(folder: Path, arch: str, digest: str, mode: int) -> Path:
    path = folder / f"farm-agent-{arch}"
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    path.with_name(f"{path.name}.digest").write_text(f"{digest}\n")
    return path


@pytest.mark.usefixtures("no_compiler")
def test_a_prebuilt_agent_of_the_same_digest_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    prebuilt = place(tmp_path, "armv7", build.executable_build_inputs_digest("armv7"), 0o755)
    assert (
        build.ensure_executable("armv7", tmp_path / "cache", no_note, Deadline(LIMIT_S)) == prebuilt
    )
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("no_compiler")
def test_a_prebuilt_agent_that_lost_its_mode_is_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    place(tmp_path, "armv7", build.executable_build_inputs_digest("armv7"), 0o644)
    found = build.ensure_executable("armv7", tmp_path / "cache", no_note, Deadline(LIMIT_S))
    assert found.is_relative_to(tmp_path / "cache") and os.access(found, os.X_OK)


def test_a_prebuilt_agent_of_another_digest_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    place(tmp_path, "armv7", "0" * 64, 0o755)
    made = tmp_path / "made"
    made.write_text("made")
    monkeypatch.setattr(build, "compile_agent", lambda *_: made)
    assert (
        build.ensure_executable("armv7", tmp_path / "cache", no_note, Deadline(LIMIT_S)).read_text()
        == "made"
    )


def test_an_agent_is_compiled_once_by_several_who_want_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls, notes, found = [], [], []

    def slow(arch: str, scratch: Path, *_: object) -> Path:
        calls.append(arch)
        wait_until(lambda: len(notes) >= 2, "the two others wait")
        made = scratch / "made"
        made.write_text("made")
        return made

    monkeypatch.setattr(build, "compile_agent", slow)
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none")

    def want() -> None:
        found.append(
            build.ensure_executable(
                "armv7", tmp_path, lambda text, _: notes.append(text), Deadline(LIMIT_S)
            )
        )

    threads = [threading.Thread(target=want) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["armv7"] and len(found) == 3 and len(set(found)) == 1
    assert all("another process" in note for note in notes)


def test_the_runtime_is_compiled_again_only_where_its_digest_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digests = iter(["one", "one", "other", "one"])

    def steps(
        arch: str, scratch: Path
    ) -> tuple[list[recipe.CompilerCall], recipe.CompilerCall, Path]:
        digest = next(digests)
        runtime, executable = scratch / "tvm.o", scratch / "farm-agent"
        slow = ("sh", "-c", f"echo compiled >>{tmp_path}/calls && echo runtime {digest} >{runtime}")
        link = ("sh", "-c", f"cat {runtime} {scratch}/agent.o >{executable}")
        own = recipe.CompilerCall("agent", ("sh", "-c", f"echo agent >{scratch}/agent.o"), 0.06)
        return (
            [recipe.CompilerCall("TVM's runtime", slow, 0.3, runtime, digest), own],
            recipe.CompilerCall("linking", link, 0.02),
            executable,
        )

    monkeypatch.setattr(build, "compile_steps", steps)
    made = []
    for number in range(4):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        made.append(
            build.compile_agent(
                "armv7", scratch, tmp_path / "zig", no_note, Deadline(LIMIT_S)
            ).read_text()
        )
    assert made == [f"runtime {digest}\nagent\n" for digest in ("one", "one", "other", "one")]
    assert (tmp_path / "calls").read_text().count("compiled") == 2


def test_the_runtime_of_each_architecture_outlives_our_own_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = {
        arch: (
            recipe.executable_build_inputs_digest(arch),
            recipe.runtime_build_inputs_digest(arch),
        )
        for arch in recipe.AGENTS
    }
    assert len({runtime for _, runtime in before.values()}) == len(recipe.AGENTS)
    shutil.copytree(recipe.HERE, tmp_path / "agent", ignore=shutil.ignore_patterns("prebuilt"))
    monkeypatch.setattr(recipe, "HERE", tmp_path / "agent")
    (tmp_path / "agent" / "main.cc").write_text("int main() {}")
    assert all(
        recipe.executable_build_inputs_digest(arch) != own
        and recipe.runtime_build_inputs_digest(arch) == runtime
        for arch, (own, runtime) in before.items()
    )
    shim = next((tmp_path / "agent" / "tvm_stand_ins" / "include").rglob("*.h"))
    shim.write_text("// another\n")
    assert all(
        recipe.runtime_build_inputs_digest(arch) != runtime for arch, (_, runtime) in before.items()
    )


def test_a_compiler_error_is_told_and_leaves_no_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none")
    monkeypatch.setattr(recipe, "_includes", lambda _: "int wrong = nonsense;\n")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with pytest.raises(BuildError) as caught:
        build.ensure_executable("x86_64", tmp_path, no_note, Deadline(LIMIT_S))
    assert re.search(r"failed \((agent|TVM's runtime)\)", caught.value.what)
    assert "error: use of undeclared identifier 'nonsense'" in caught.value.why
    assert not list(tmp_path.glob("agents/*/farm-agent"))


def test_a_build_past_its_deadline_ends_with_its_compilers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    notes: list[tuple[str, float | None]] = []
    with pytest.raises(DeadlineError) as caught:
        build.ensure_executable(
            "x86_64", tmp_path / "cache", lambda *note: notes.append(note), Deadline(patient(5))
        )
    assert "tools/build-agents x86_64" in caught.value.fix
    assert len(notes) >= 3 and all("C++ library" in note for note, _ in notes)
    assert not list(tmp_path.glob("farm-agent-*")), "the scratch folder is gone"
    wait_until(lambda: not _calls_with(tmp_path), "the end of the compilers", patient(1))


def _calls_with(folder: Path) -> list[Path]:
    return [
        line for line in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in _read(line)
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
