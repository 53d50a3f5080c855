"""A folder of one's own with a devices.toml in it, and nothing of the machine's configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from farm import config
from farm.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("FARM_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return here


@pytest.fixture
def load(folder: Path) -> Callable[[str], config.Fleet]:
    """Load a configuration of this text."""

    def load_text(text: str) -> config.Fleet:
        (folder / "devices.toml").write_text(text, encoding="utf-8")
        return config.load_fleet()

    return load_text


@pytest.fixture
def mistakes(load: Callable[[str], config.Fleet]) -> Callable[[str], list[str]]:
    """The mistakes found in a configuration of this text, a line each."""

    def mistakes_in(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text)
        return caught.value.why.splitlines()

    return mistakes_in
