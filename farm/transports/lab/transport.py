"""`lab://[user@]host[:port]/KIND` and `lab:KIND`: a board that a lab leases.

A lease has a thread and a connection of its own (see farm/lab_client/leasing.py). One that is no
longer used is given back after a moment, in which the next session of this process may take it:
jobs that follow each other have the same board. The lease of a reservation is its owner's, and
outlasts its use here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from farm.config.urls import parse_url
from farm.errors import DeviceError, FarmError, UsageError
from farm.lab_client.leasing import (
    BoardConnection,
    HeldLease,
    LeasePool,
    Say,
    WantedBoards,
    ask_for_reserved,
)
from farm.processes import at_exit
from farm.prompts import Ask, answer_nothing
from farm.transports.device_availability import DeviceAvailability
from farm.transports.lab.reach_lab import is_local, reach_lab, socket_path, ssh_url
from farm.transports.rpc_client import session_over_connection
from farm.types import Device

_LINGER_S = 3.0
_STATE_S = 10.0
_BOARD_S = 60.0  # for a board of the lease whose last session is still ending
_WAIT_S = 600.0
_FOR_S = 3600.0

_pool = LeasePool(_LINGER_S)
_registered = threading.Event()
_boards = threading.local()  # the name of the board of this thread's session


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,  # noqa: ARG001
    scratch: Path,  # noqa: ARG001
    timeout_s: float,
    ask: Ask,
    greeting_s: float | None,
) -> Iterator[Any]:
    """Lease a board, or take the lease of the session before, and open a session with it.

    Raises UnavailableError if no board became free in time, or the lease has ended.
    """
    with _leased(device, ask, _nothing) as held:
        board: BoardConnection | None = None
        try:
            with held.session(_session_wait_s(device)) as board:
                _boards.name = board.board
                key = board.match_key
                with session_over_connection(
                    device, board.stream, key, timeout_s, greeting_s
                ) as opened:
                    yield opened, None
        except Exception as exc:
            if isinstance(exc, DeviceError) or not isinstance(exc, FarmError):
                held.blame(board)  # that the lease has ended, or its board is at fault, explains it
            raise
        finally:
            _boards.name = ""


def reserve_board(device: Device, ask: Ask, say: Say) -> None:
    """Lease a board for the session that this thread opens next. `say` is told what it waits for.

    Raises UnavailableError if no board became free in time.
    """
    with _leased(device, ask, say):
        pass


def release_board_if_wanted(device: Device) -> None:
    """Give back the board of batch work that this process keeps for its next session.

    It is given back if somebody else waits for one, or the half of the lease's time is over: so
    that it does not end in a session.
    """
    if not wanted_boards(device).reservation:
        _pool.give_way(_pool_key(device))


def check_reservation(device: Device) -> None:
    """Raise UsageError if the reservation of a device's options cannot be used for it.

    A lab that does not answer is not told of here.
    """
    wants = wanted_boards(device)
    if not wants.reservation:
        return
    with (
        contextlib.suppress(DeviceError),
        reach_lab(device, answer_nothing, _STATE_S) as lab,
        lab.client() as client,
    ):
        ask_for_reserved(client, wants)


def max_board_wait_s(device: Device) -> float:
    """Return how long a job may wait for a board."""
    return wanted_boards(device).wait_s


def leased_board_facts() -> dict[str, str]:
    """Return which board this thread's session is with."""
    name = getattr(_boards, "name", "")
    return {"lab_board": name} if name else {}


def count_boards(device: Device) -> int:
    """Return how many boards that a device may be are free now."""
    wants = wanted_boards(device)
    with reach_lab(device) as lab, lab.client() as client:
        found = client.boards()
        if wants.reservation:
            lease = ask_for_reserved(client, wants)["lease"]
            return sum(board["lease"] == lease and board["use"] == "leased" for board in found)
    return sum(wants.fits(board) and board["use"] == "free" for board in found)


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready`, and how many of its boards are free, if the lab answers."""
    where = str(socket_path()) if is_local(device) else ssh_url(device)
    wants = wanted_boards(device)
    try:
        with reach_lab(device, answer_nothing, _STATE_S) as lab, lab.client() as client:
            found = [board for board in client.boards() if wants.fits(board)]
    except UsageError as error:
        return DeviceAvailability("unavailable", False, f"{error.what}: {error.why}", error.fix)
    except DeviceError as error:
        return DeviceAvailability(
            "offline", False, f"{where}: {error.what}: {error.why}", error.fix
        )
    there = [board for board in found if board["use"] != "away"]
    if not there:
        why = f"the lab at {where} has not {wants.words}"
        return DeviceAvailability("unavailable", False, why, "see what it has: farm lab boards")
    free = sum(board["use"] == "free" for board in there)
    return DeviceAvailability("ready", True, f"{free} of {len(there)} free")


def wanted_boards(device: Device) -> WantedBoards:
    """Return what a device's url and options ask the lab for."""
    url, options = parse_url(device.url), device.options
    return WantedBoards(
        url.key,
        url.board,
        url.tags,
        float(options.get("for_s", _FOR_S)),
        str(options.get("class", "interactive")),
        float(options.get("wait_s", _WAIT_S)),
        {"device": device.name},
        int(options.get("reservation", 0)),
    )


def _session_wait_s(device: Device) -> float:
    """Return how long a session waits for a board of its lease, which others may use."""
    wants = wanted_boards(device)
    return min(_BOARD_S, wants.wait_s) if wants.reservation else _BOARD_S


def _pool_key(device: Device) -> tuple[str, str, float, int]:
    """Return what two leases have in common of which one may be used as the other."""
    wants = wanted_boards(device)
    return device.url, wants.rank, wants.for_s, wants.reservation


@contextlib.contextmanager
def _leased(device: Device, ask: Ask, say: Say) -> Iterator[HeldLease]:
    """Yield a lease that has its board."""
    if not _registered.is_set():
        _registered.set()
        at_exit.register(_pool.end_all)
    wants = wanted_boards(device)
    key = _pool_key(device)
    held = _pool.take(key, lambda: HeldLease(partial(reach_lab, device, ask), wants, say))
    try:
        held.wait()
        held.wait_for_board(say)
        yield held
    except BaseException as exc:
        if not isinstance(exc, FarmError):
            held.end()
        raise
    finally:
        _pool.put(key, held)


def _nothing(_: str) -> None:
    """Say nothing."""
