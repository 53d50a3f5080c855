"""The lab's numbers for Prometheus. Owners are no labels: there may be any number of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from aiohttp import web

from farm import metrics
from farm.lab.control_socket import ControlSocket
from farm.lab.entities import RANKS, Event, Lease, LeaseState
from farm.lab_page.snapshot import take_snapshot
from farm.tracker import metrics_of_summary

_LAG_PERIOD_S = 1.0


class LabMetrics:
    """Counters since the start of the server, and gauges of its present state."""

    def __init__(self, control: ControlSocket) -> None:
        self._control = control
        self._events: Counter[str] = Counter()
        self._grants: Counter[tuple[str, str]] = Counter()
        self._waited_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._lag_s = 0.0
        control.watch(self._note)

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered where."""
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer with the numbers."""
        return web.Response(text=self.text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def watch_lag(self) -> None:
        """Measure how late the event loop wakes, until cancelled."""
        while True:
            due = asyncio.get_running_loop().time() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._lag_s = max(0.0, asyncio.get_running_loop().time() - due)

    def text(self) -> str:
        """Return the numbers in Prometheus's format."""
        lender, now = self._control.lender, time.time()
        shown = take_snapshot(lender, now)
        boards = metrics.Metric("farm_lab_boards", "Boards by kind and use.")
        uses = Counter((one.kind, one.use) for one in shown.boards)
        boards.values += [
            ({"kind": kind, "use": use}, count) for (kind, use), count in _sorted(uses)
        ]
        fit = metrics.Metric("farm_lab_health", "Boards by kind and health.")
        healths = Counter((one.kind, one.health or "unchecked") for one in shown.boards)
        fit.values += [
            ({"kind": kind, "health": health}, count) for (kind, health), count in _sorted(healths)
        ]
        ended = metrics.Metric(
            "farm_lab_sessions_total",
            "Sessions that farm's agents have told the end of, by how they ended.",
            [({"kind": kind, "end": how}, n) for (kind, how), n in _sorted(lender.endings)],
            "counter",
        )
        queued = Counter(
            one.request.rank for one in lender.scheduler.leases() if one.state is LeaseState.QUEUED
        )
        active = Counter(one.request.rank for one in shown.active)
        queue = metrics.Metric(
            "farm_lab_queue",
            "Leases that wait, by class.",
            [({"class": rank}, queued[rank]) for rank in RANKS],
        )
        leases = metrics.Metric(
            "farm_lab_leases",
            "Leases in force, by class.",
            [({"class": rank}, active[rank]) for rank in RANKS],
        )
        grants = metrics.Metric(
            "farm_lab_grants_total",
            "Leases that people asked for and that got their boards.",
            kind="counter",
        )
        waited = metrics.Metric(
            "farm_lab_wait_seconds_total", "How long they had waited, added up.", kind="counter"
        )
        for metric, found in ((grants, self._grants), (waited, self._waited_s)):
            metric.values += [
                ({"kind": kind, "class": rank}, value) for (kind, rank), value in _sorted(found)
            ]
        events = metrics.Metric("farm_lab_events_total", "What has happened.", kind="counter")
        events.values += [({"what": what}, count) for what, count in sorted(self._events.items())]
        lag = metrics.Metric(
            "farm_lab_loop_lag_seconds", "How late the event loop woke last.", [({}, self._lag_s)]
        )
        beside = metrics_of_summary(lender.summary(asyncio.get_running_loop().time()))
        return beside + metrics.format_metrics(
            [boards, fit, ended, queue, leases, grants, waited, events, lag]
        )

    def _note(self, leases: list[Lease], events: list[Event]) -> None:
        self._events.update(one.what for one in events)
        granted = {one.lease for one in events if one.what == "lease-granted"}
        for lease in {one.number: one for one in leases if one.number in granted}.values():
            of = lease.request.kind, lease.request.rank
            self._grants[of] += 1
            self._waited_s[of] += max(0.0, (lease.granted_at or lease.asked_at) - lease.asked_at)


def _sorted(found: Mapping[tuple[str, str], float]) -> list[tuple[tuple[str, str], float]]:
    return sorted(found.items())
