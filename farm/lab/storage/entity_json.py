"""Leases, reservations, boards and events as JSON and back: for the database and for clients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from farm.lab.care.health_state_machine import Health
from farm.lab.entities import (
    AgentInfo,
    BoardView,
    Event,
    Lease,
    LeaseRequest,
    LeaseState,
    QueuePosition,
    Reservation,
    ReservationRequest,
    ReservationState,
)
from farm.tracker.agent_messages import BoardState


def lease_to_json(lease: Lease) -> dict[str, Any]:
    """Return a lease as JSON, with its key."""
    return {**dataclasses.asdict(lease), "state": lease.state.value, "boards": list(lease.boards)}


def lease_from_json(body: Mapping[str, Any]) -> Lease:
    """Return the lease of `lease_to_json`; keys of a newer farm are left out.

    The first stores of labs have the request under another name.
    """
    asked = _known(LeaseRequest, body["request"] if "request" in body else body["wish"])
    request = LeaseRequest(**{**asked, "tags": tuple(asked.get("tags", ()))})
    rest = {
        **_known(Lease, body),
        "request": request,
        "state": LeaseState(body["state"]),
        "boards": tuple(body["boards"]),
    }
    return Lease(**rest)


def reservation_to_json(reservation: Reservation) -> dict[str, Any]:
    """Return a reservation as JSON, with the key of its lease."""
    return {**dataclasses.asdict(reservation), "state": reservation.state.value}


def reservation_from_json(body: Mapping[str, Any]) -> Reservation:
    """Return the reservation of `reservation_to_json`; keys of a newer farm are left out."""
    asked = _known(ReservationRequest, body["request"])
    request = ReservationRequest(**{**asked, "tags": tuple(asked["tags"])})
    known = _known(Reservation, body)
    return Reservation(**{**known, "request": request, "state": ReservationState(body["state"])})


def reservation_for_display(reservation: Reservation, missing: int = 0) -> dict[str, Any]:
    """Return a reservation as people see it: flat, and how many boards it lacks as things stand."""
    request = reservation.request
    return {
        "reservation": reservation.number,
        "owner": request.owner,
        "kind": request.kind,
        "class": request.rank,
        "count": request.count,
        "tags": list(request.tags),
        "labels": dict(request.labels),
        "state": reservation.state.value,
        "why": reservation.why,
        "made_at": reservation.made_at,
        "starts_at": request.starts_at,
        "until": request.until,
        "missing": missing,
        "lease": reservation.lease,
    }


def lease_for_display(
    lease: Lease, prospect: QueuePosition | None = None, key: bool = False
) -> dict[str, Any]:
    """Return a lease as people see it: flat, with its place in the queue, and without its key."""
    request = lease.request
    return {
        "lease": lease.number,
        "owner": request.owner,
        "kind": request.kind,
        "class": request.rank,
        "count": request.count,
        "state": lease.state.value,
        "why": lease.why,
        "boards": list(lease.boards),
        "lost": dict(lease.lost),
        "labels": dict(request.labels),
        "implicit": request.implicit,
        "for_s": request.for_s,
        "asked_at": lease.asked_at,
        "granted_at": lease.granted_at,
        "ends_at": None if request.implicit else lease.ends_at,
        "ended_at": lease.ended_at,
        "heartbeat_s": request.heartbeat_s,
        "reservation": request.reservation,
        "queue": None if prospect is None else dataclasses.asdict(prospect),
        **({"key": lease.key} if key else {}),
    }


def board_for_display(
    board: BoardView, address: str, agent: AgentInfo | None = None, heard_s: float | None = None
) -> dict[str, Any]:
    """Return a board as people see it. Its address is empty if it is away.

    Of farm's agents there is more: the version, and the state that was heard `heard_s` ago.
    """
    state = agent.state if agent else BoardState()
    return {
        **dataclasses.asdict(board),
        "tags": list(board.tags),
        "address": address,
        "agent": agent.version if agent else "",
        "heard_s": None if heard_s is None else round(heard_s, 1),
        **dataclasses.asdict(state),
    }


def health_for_display(board: str, kind: str, health: Health, now: float) -> dict[str, Any]:
    """Return the health of a board as people see it, with its checks, the oldest first."""
    at = {"since": health.since or None, "due_at": health.due_at or None}
    return {
        "board": board,
        "kind": kind,
        "state": health.state,
        "why": health.why,
        "out": health.out,
        **{name: value if value != math.inf else None for name, value in at.items()},
        "failed_recoveries": health.failed,
        "reduced_stability": health.reduced_stability(now),
        "usual_s": health.usual_s,
        "power_cycles": list(health.cycled_at),
        "checks": [
            {**dataclasses.asdict(one), "facts": _texts(one.facts)} for one in health.checks
        ],
        "faults": [dataclasses.asdict(one) for one in health.faults],
    }


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items()}


def event_from_json(body: Mapping[str, Any]) -> Event:
    """Return the event of its fields."""
    return Event(**_known(Event, body))


def _known(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in dataclasses.fields(kind)}
    return {name: value for name, value in body.items() if name in names}
