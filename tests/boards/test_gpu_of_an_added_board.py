"""The device that `farm add` writes uses the GPU that its profile is for."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from farm import boards
from farm.cli import cli
from farm.commands.devices import add
from farm.pipeline import identify

SECOND_FITS = "12.1, A GPU;9.0, NVIDIA H200;"
FIRST_FITS = "9.0, NVIDIA H200;12.1, A GPU;"


@pytest.mark.parametrize(
    ("gpus", "words", "options"),
    [
        (SECOND_FITS, (), {"gpu": 1}),
        (SECOND_FITS, ("-o", "threads=2"), {"gpu": 1, "threads": 2}),
        (SECOND_FITS, ("-o", "gpu=3"), {"gpu": 3}),
        (FIRST_FITS, (), None),
    ],
)
def test_the_number_of_the_gpu_is_written_unless_the_user_gives_one(
    gpus: str,
    words: tuple[str, ...],
    options: dict[str, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = boards.hardware_from_report("x86_64", {"features": "fma avx2", "gpus": gpus})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(identify, "detect_board_hardware", lambda *_, **__: found)
    monkeypatch.setattr(add, "_builds_cuda", lambda: True)
    command = ["add", "box", "ssh://me@box", *words, "--dry-run", "--json"]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0
    box = tomllib.loads(json.loads(done.stdout)["toml"])["devices"]["box"]
    assert (box["profile"], box.get("options")) == ("cuda-sm90", options)
