"""An adb server and an Android board for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from android_board import AdbServer, AndroidBoard, adb_server, android_board
from farm_processes import Farm


@pytest.fixture
def adb(tmp_path: Path) -> Iterator[AdbServer]:
    """A server without devices."""
    (tmp_path / "adb").mkdir()
    with adb_server(tmp_path / "adb") as server:
        yield server


@pytest.fixture
def phone(farm: Farm, adb: AdbServer) -> Iterator[AndroidBoard]:
    """The only board of the server, which the farm finds."""
    farm.environment = adb.env
    with android_board(adb, farm.mark) as board:
        yield board
