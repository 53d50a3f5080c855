"""`farm-agent run` and `farm-agent list`: what is deployed on a device, with no host around."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_models
import numpy as np
import pytest
from agent_calls import BEGIN, FINISH, INSTALL, WRITE, Call, in_session
from agent_models import Deployable
from agent_processes import QEMU, Agent, client
from timeouts import LIMIT_S

from farm.store import file_digest

Start = Callable[..., Agent]
Deploy = Callable[..., "Board"]
LABELS = [f"digit {index}" for index in range(agent_models.OUTPUTS)]


@dataclass
class Board:
    """An agent with a deployment called `digits`, and its executable."""

    agent: Agent
    command: list[str]
    store: Path
    model: Deployable

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [*self.command, *map(str, words), "--store", str(self.store)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        return self("run", "digits", *words)

    def fails(self, *words: object, code: int = 1) -> str:
        """What a run that fails says."""
        done = self.run(*words)
        assert (done.returncode, done.stdout) == (code, ""), done
        return done.stderr


@pytest.fixture
def deploy(
    start: Start,
    agents: Callable[[str], Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Deploy:
    def deployed(
        make: Callable[[str, Path], Deployable], arch: str = "x86_64", **more: object
    ) -> Board:
        agent = start(arch)
        model = _built(make, arch, tmp_path_factory)
        digests = {path.name: file_digest(path) for path in model.files}
        calls: list[Call] = []
        for path in model.files:
            digest, size = digests[path.name], path.stat().st_size
            calls += [
                [BEGIN, digest, size],
                [WRITE, digest, 0, {"file": str(path)}],
                [FINISH, digest],
            ]
        body = {
            "name": "digits",
            "artifact": "0123456789abcdef",
            "files": digests,
            "installed_at": "2026-01-02T03:04:05+00:00",
        }
        assert (
            in_session(agent, *calls, [INSTALL, json.dumps(body | model.manifest | more)])[-1] == 1
        )
        emulator = QEMU[arch]
        return Board(
            agent,
            [*([emulator] if emulator else []), str(agents(arch))],
            agent.folder / "work" / "store",
            model,
        )

    return deployed


_MADE: dict[tuple[str, str], Deployable] = {}


def _built(
    make: Callable[[str, Path], Deployable], arch: str, folders: pytest.TempPathFactory
) -> Deployable:
    key = (make.__name__, arch)
    if key not in _MADE:
        _MADE[key] = make(arch, folders.mktemp(f"{make.__name__}-{arch}"))
    return _MADE[key]


@pytest.mark.parametrize("arch", ["x86_64", "armv7", "aarch64"])
def test_the_output_is_bit_for_bit_what_the_agent_gives_by_rpc(
    arch: str, deploy: Deploy, tmp_path: Path
) -> None:
    board = deploy(agent_models.classifier, arch, labels=LABELS)
    x = board.model.inputs["x"]
    client(
        "run_deployed", port=board.agent.port, name="digits", inputs=[str(x)], into=str(tmp_path)
    )
    done = board.run("--input", x, "--output", tmp_path / "outputs")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "outputs").iterdir()
    assert file.name == "scores.npy" and file.read_bytes() == (tmp_path / "0.npy").read_bytes()
    scores = np.load(file)[0]
    first, *best = done.stdout.splitlines()
    assert first == f"scores: float32 (1, 10), from {scores.min():.4g} to {scores.max():.4g}"
    order = np.argsort(-scores, kind="stable")[:5]
    assert best == [f"{scores[index]:10.4f}  {LABELS[index]}" for index in order]
    assert not list((board.store / ".run").glob("farm-session-*"))


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_model_of_several_inputs_and_outputs(arch: str, deploy: Deploy, tmp_path: Path) -> None:
    board = deploy(agent_models.pair, arch)
    a, b = board.model.inputs.values()
    client(
        "run_deployed",
        port=board.agent.port,
        name="digits",
        inputs=[str(a), str(b)],
        into=str(tmp_path),
    )
    done = board.run("--input", f"b={b}", "--input", f"a={a}", "--output", tmp_path / "outputs")
    assert done.returncode == 0, done.stderr
    expected = [np.load(tmp_path / f"{number}.npy") for number in range(4)]
    names = ["_total", "is_less", "_.half", "_half"]
    for name, dtype, value, line in zip(
        names,
        ["float32", "bool", "float16", "int8"],
        expected,
        done.stdout.splitlines(),
        strict=True,
    ):
        found = np.load(tmp_path / "outputs" / f"{name}.npy")
        assert found.dtype == value.dtype == np.dtype(dtype) and np.array_equal(found, value)
        low, high = float(value.min()), float(value.max())
        assert line.partition(": ")[2] == f"{dtype} (3, 5), from {low:.4g} to {high:.4g}"


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_weights_of_half_precision_are_widened_when_they_are_loaded(
    arch: str, deploy: Deploy, tmp_path: Path
) -> None:
    board = deploy(agent_models.halved, arch)
    x = board.model.inputs["x"]
    done = board.run("--input", x, "--output", tmp_path / "outputs")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "outputs" / "y.npy"),
        np.load(x.parent / "expected.npy"),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("model", "arch"),
    [
        *((agent_models.transformed, arch) for arch in ("x86_64", "aarch64", "armv7")),
        (agent_models.transformed_with_strides, "armv7"),
    ],
)
def test_weights_of_winograds_convolution_are_transformed_when_they_are_loaded(
    model: Any, arch: str, deploy: Deploy, tmp_path: Path
) -> None:
    board = deploy(model, arch)
    x = board.model.inputs["x"]
    done = board.run("--input", x, "--output", tmp_path / "outputs")
    assert done.returncode == 0, done.stderr
    found, expected = np.load(tmp_path / "outputs" / "y.npy"), np.load(x.parent / "expected.npy")
    assert found.tobytes() == expected.tobytes()


def test_inputs_are_named_where_there_are_several(deploy: Deploy) -> None:
    board = deploy(agent_models.pair)
    a = board.model.inputs["a"]
    wanted = "--input a=FILE --input b=FILE"
    assert wanted in board.fails("--input", a, code=2)
    assert wanted in board.fails("--input", f"a={a}", code=2)
    assert wanted in board.fails(code=2)
    assert "which input is c=" in board.fails("--input", f"c={a}", code=2)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_numpys_format_is_read(
    version: tuple[int, int], deploy: Deploy, tmp_path: Path
) -> None:
    board = deploy(agent_models.classifier)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, np.load(board.model.inputs["x"]), version)
    assert (
        board.run("--input", tmp_path / "x.npy").stdout
        == board.run("--input", board.model.inputs["x"]).stdout
        != ""
    )


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_an_input_that_does_not_fit_is_refused_with_what_it_is_and_what_is_wanted(
    arch: str, deploy: Deploy, tmp_path: Path
) -> None:
    board = deploy(agent_models.classifier, arch)
    whole = board.model.inputs["x"].read_bytes()
    x = np.load(board.model.inputs["x"])

    def says(content: np.ndarray | bytes) -> str:
        file = tmp_path / "odd.npy"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            np.save(file, content, allow_pickle=True)
        return board.fails("--input", file)

    assert 'is float64, the model\'s input "x" is float32' in says(x.astype("float64"))
    assert 'has the shape (64,), the model\'s input "x" has (1, 64)' in says(x[0])
    assert "Fortran order" in says(np.asfortranarray(np.ones((2, 3), "float32")))
    assert "big-endian" in says(x.astype(">f4"))
    assert "numpy's kind" in says(np.array([None]))
    assert "numpy's kind" in says(x.astype("complex64"))
    assert "truncated" in says(whole[:-1])
    assert "bytes too many" in says(whole + b"x")
    for content in (
        b"",
        whole[:5],
        whole[:9],
        whole[:40],
        b"PK\x03\x04" + whole,
        whole[:8] + b"\xff\xff" + whole[10:],
    ):
        assert "is not a .npy file, or damaged" in says(content)
    assert "version 9" in says(whole[:6] + b"\x09" + whole[7:])
    huge = whole.replace(b"(1, 64), }", b"(1" + b", 9" * 2 + b") }")
    assert "has the shape (1, 9, 9)" in says(huge)
    assert "No such file" in board.fails("--input", tmp_path / "none.npy")


def test_what_is_not_deployed_cannot_be_run(deploy: Deploy, tmp_path: Path) -> None:
    board = deploy(agent_models.classifier)
    done = board("run", "other", "--input", board.model.inputs["x"])
    assert done.returncode == 1 and 'nothing named "other" is deployed' in done.stderr
    assert (
        board("run").returncode == 2
        and board("walk").returncode == 2
        and board.run("surplus").returncode == 2
    )
    shutil.rmtree(board.store)
    assert "nothing named" in board.fails("--input", board.model.inputs["x"])


def test_a_file_that_the_store_has_lost_is_named(deploy: Deploy) -> None:
    board = deploy(agent_models.classifier)
    digest = file_digest(board.model.files[0])
    (board.store / digest).unlink()
    assert f"the store has no file {digest}" in board.fails("--input", board.model.inputs["x"])


def test_the_list_names_what_is_deployed_its_current_release_and_its_date(
    deploy: Deploy, tmp_path: Path
) -> None:
    board = deploy(agent_models.classifier)
    assert board("list").stdout == "digits  release 1  2026-01-02T03:04:05+00:00  0123456789ab\n"
    board.store = tmp_path / "empty"
    assert (board("list").stdout, board("list").returncode) == ("", 0)
