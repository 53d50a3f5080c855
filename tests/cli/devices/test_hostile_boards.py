"""Boards that attack the controller, met by the commands: nothing of theirs runs, one error says
so, and nothing stays behind.
"""

from __future__ import annotations

import sys

import hostile_board
import pytest
from farm_processes import HOST, Farm, server
from ssh_board_checks import assert_failed, configure
from ssh_server import SshServer

REFUSED = "board sent what no agent sends: "


@pytest.mark.parametrize("command", ["deployments", "doctor", "bench digits", "devices -v"])
def test_no_command_runs_a_boards_program(command: str, farm: Farm) -> None:
    marker = farm.folder / "marker"
    board = (sys.executable, "-I", "-S", hostile_board.__file__, "popen", marker)
    with server(farm.folder, *board, says=r"port (\d+)") as port:
        configure(farm, f"rpc://{HOST}:{port}")
        done = farm.run(*command.split()[:1], "--device", "board", *command.split()[1:])
    assert REFUSED.strip() in " ".join((done.out + done.err).split()), done
    assert "Traceback" not in done.err
    if command == "deployments":
        assert_failed(done, 5, REFUSED)
    elif command != "devices -v":  # which lists what each device says
        assert done.code != 0
    assert not marker.exists()
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("mode", ["popen", "huge", "garbage", "module"])
def test_an_agent_by_ssh_is_cut_off(mode: str, farm: Farm, server: SshServer) -> None:
    marker = farm.folder / "marker"
    launcher = f"{sys.executable} -I -S {hostile_board.__file__} {mode} {marker}"
    configure(farm, server.url, options=f'launcher = "{launcher}"')
    done = farm.run("deployments", "--device", "board")
    assert_failed(done, 5, REFUSED)
    assert not marker.exists()
    farm.assert_nothing_is_left()


def test_a_board_that_opens_no_session_is_told_within_seconds(farm: Farm) -> None:
    board = (sys.executable, "-I", "-S", hostile_board.__file__, "silent", farm.folder / "marker")
    with server(farm.folder, *board, says=r"port (\d+)") as port:
        configure(farm, f"rpc://{HOST}:{port}")
        done = farm.run("deployments", "--device", "board")
    assert_failed(done, 5, REFUSED + "nothing for 15 s")
