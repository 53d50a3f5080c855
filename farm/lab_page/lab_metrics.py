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
from farm.lab_page.snapshot import LabSnapshot, take_snapshot
from farm.metrics import Metric
from farm.tracker import format_summary_metrics

_LAG_PERIOD_S = 1.0
_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)


class LabMetrics:
    """Counters since the start of the server, and gauges of its present state."""

    def __init__(self, control: ControlSocket) -> None:
        self._control = control
        self._events: Counter[str] = Counter()
        self._grants: Counter[tuple[str, str]] = Counter()
        self._waited_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._wait_s = metrics.Histogram(
            "farm_lab_wait_seconds", "How long leases waited for their boards.", _BUCKETS_S
        )
        self._lease_s = metrics.Histogram(
            "farm_lab_lease_seconds", "How long leases had their boards.", _BUCKETS_S
        )
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
        beside = format_summary_metrics(lender.summary(asyncio.get_running_loop().time()))
        full = metrics.Metric(
            "farm_lab_disk_full",
            "Whether nothing can be kept and lent, for the disk is full.",
            [({}, int(lender.disk_full))],
        )
        return beside + metrics.format_metrics(
            [
                *(boards, fit, ended, queue, leases, grants, waited, events, lag, full),
                *(self._wait_s, self._lease_s, lender.commit_s),
                *self._of_care(shown),
            ]
        )

    def _of_care(self, shown: LabSnapshot) -> list[Metric]:
        """Return the numbers of checks, power cycles and heartbeats."""
        lender, keeper = self._control.lender, self._control.keeper
        checks, cycles = (keeper.verdicts, keeper.cycles) if keeper else (Counter(), Counter())
        ages = {one.name: lender.last_word_s(one.name) for one in shown.boards}
        return [
            metrics.Metric(
                "farm_lab_checks_total",
                "Checks of boards, by their verdict.",
                [({"verdict": verdict}, count) for verdict, count in sorted(checks.items())],
                "counter",
            ),
            metrics.Metric(
                "farm_lab_power_cycles_total",
                "Power cycles of boards, by how they went.",
                [({"result": how}, count) for how, count in sorted(cycles.items())],
                "counter",
            ),
            metrics.Metric(
                "farm_lab_check_latency_ratio",
                "The latency of a board's last check, as a share of its usual one.",
                [
                    ({"board": name}, one.latencies[-1] / 100)
                    for name, one in shown.healths.items()
                    if one.latencies
                ],
            ),
            metrics.Metric(
                "farm_lab_heartbeat_age_seconds",
                "How long ago a board that is connected was heard.",
                [({"board": name}, age) for name, age in ages.items() if age is not None],
            ),
        ]

    def _note(self, leases: list[Lease], events: list[Event]) -> None:
        self._events.update(one.what for one in events)
        granted = {one.lease for one in events if one.what == "lease-granted"}
        for lease in {one.number: one for one in leases if one.number in granted}.values():
            of = lease.request.kind, lease.request.rank
            self._grants[of] += 1
            waited_s = max(0.0, (lease.granted_at or lease.asked_at) - lease.asked_at)
            self._waited_s[of] += waited_s
            self._wait_s.observe(waited_s, kind=of[0], **{"class": of[1]})
        for lease in {one.number: one for one in leases if one.state.ended}.values():
            if lease.granted_at is not None and lease.ended_at is not None:
                of = lease.request.kind, lease.request.rank
                held_s = max(0.0, lease.ended_at - lease.granted_at)
                self._lease_s.observe(held_s, kind=of[0], **{"class": of[1]})


def _sorted(found: Mapping[tuple[str, str], float]) -> list[tuple[tuple[str, str], float]]:
    return sorted(found.items())
