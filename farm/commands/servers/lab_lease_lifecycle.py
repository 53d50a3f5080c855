"""Lease boards for a command: wait in the queue, tell the server that one lives, give them back."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farm.commands.output import echo
from farm.errors import DeadlineError, DeviceError, UsageError
from farm.processes.signals import defer_signals

if TYPE_CHECKING:
    from farm.lab_client.control_client import LabClient, ReconnectingClient
    from farm.lab_client.leasing import LabAccess

RESTART_S = 30.0  # a server that is started again is back in 5 s
IN_QUEUE_S = 60.0  # after which a lease leaves the queue whose command was killed there
BEAT_PARTS = 4  # heartbeats in the time after which a lease without any is abandoned


class LeaseHeartbeatSender:
    """Tells the server that a lease's program runs.

    A server that is started again is found again.
    """

    def __init__(self, lab: LabAccess, number: int, beat_s: float) -> None:
        self._lab = lab
        self._client: LabClient | None = None
        self._number = number
        self._beat_s = beat_s
        self._heard_at = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat. Raises DeviceError if the lease has ended, or the server stays away."""
        from farm.errors import LinkError
        from farm.lab_client.control_client import connect

        try:
            self._client = self._client or connect(self._lab.client)
            self._client.ask("heartbeat", lease=self._number)
            self._heard_at = time.monotonic()
        except LinkError:
            self._client = None
            if time.monotonic() - self._heard_at > max(self._beat_s, 2 * RESTART_S):
                raise


def wait_until_granted(
    lab: LabAccess, client: ReconnectingClient, request: dict[str, Any]
) -> dict[str, Any]:
    """Return a lease once it has its boards. Raises DeadlineError if it ends in the queue.

    A lease is ended if the command is stopped before it has its boards, unless the lease is that of
    a reservation.
    """
    found: dict[str, Any] = {}
    said = ""
    try:
        with defer_signals():  # until the number is known, by which the lease is ended
            found = client.ask("request", **request)["lease"]
        while found["state"] == "queued":
            line = (
                f"lease {found['lease']}: {found['queue']['place']}. in the queue: "
                f"{found['queue']['reason']}"
            )
            if line != said:
                echo(line, err=True)
                said = line
            if request.get("heartbeat_s"):
                client.ask("heartbeat", lease=found["lease"])
            found = client.ask(
                "wait",
                lease=found["lease"],
                timeout_s=min(10.0, (request.get("heartbeat_s") or 60.0) / BEAT_PARTS),
            )["lease"]
    except BaseException:
        if found and not request.get("reservation"):
            end_lease(lab, found["lease"])
        raise
    if found["state"] != "active":
        how = (
            "has timed out in the queue"
            if found["state"] == "timed out"
            else f"has ended: {found['state']}"
        )
        what = f"lease {found['lease']} {how}"
        raise DeadlineError(
            what,
            found["why"],
            "wait longer with --wait, or see who has the boards: farm lab leases",
        )
    return found


def end_lease(lab: LabAccess, number: int) -> None:
    """End a lease, unless it has ended; a server that is away ends it without its heartbeats."""
    from farm.lab_client.control_client import connect

    with contextlib.suppress(DeviceError), connect(lab.client, RESTART_S) as client:
        client.ask("end", lease=number)


def create_reconnecting_client(lab: LabAccess) -> ReconnectingClient:
    """Return a client that outlasts a restart of the server. Raises LinkError if there is none."""
    from farm.lab_client.control_client import ReconnectingClient

    return ReconnectingClient(lab.client, RESTART_S)


def lease_request_fields(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, from the options. Raises UsageError."""
    from farm.lab.durations import parse_duration

    return {
        "kind": kind,
        "for_s": parse_duration(options["for_"]),
        "count": options["count"],
        "board": options["board"],
        "class": options["rank"],
        "any_health": options["any_health"],
        "wait_s": parse_duration(options["wait"]) if options["wait"] else None,
        "labels": parse_labels(options["labels"]),
        "nonce": secrets.token_hex(8),
        **({"reservation": options["reservation"]} if options["reservation"] else {}),
    }


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return the labels of a lease, by name. Raises UsageError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(
                f"--label {text} is no label",
                "it wants NAME=VALUE",
                "for example --label commit=1a2b3c",
            )
        found[name] = value
    return found
