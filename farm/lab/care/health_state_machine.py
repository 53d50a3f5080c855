"""Decide whether a board is fit to be lent: by checks, by its faults, and by its admin.

Pure: a board's `Health` is a value, and each function returns the next one. A board is taken out
when a check finds it wrong, slow or unreachable, or when it had faults with several owners. Then it
is power cycled, checked several times, and lent to batch work first.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOUR_S, DAY_S = 3600.0, 86400.0
_UNSTABLE_S, _UNSTABLE_TIMES = 30 * DAY_S, 2  # taken out so often in so long: reduced stability
MOST_CHECKS = 20  # of a board that are kept: its own history
_SLOW_MADS, _SLOW_SHARE = 3.0, 0.05  # above the median of its own right checks
_LEAST_HISTORY = 3
_SLOW_TIMES = 3  # in a row, before a board is taken out for that
_FAULTS = 3  # of a board within a day, with two owners
UNCHECKED, GOOD, BAD, PROBATION, HANDS = "unchecked", "good", "bad", "probation", "needs hands"
RIGHT, WRONG, SLOW, CHANGED, UNREACHABLE = "right", "wrong", "slow", "changed", "unreachable"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """How boards are checked. `every_s` of 0 is never: boards are lent unchecked.

    A board that was bad has to be right after each of `recheck_s`, then it is in probation for
    `probation_s` or so many sessions. `recoveries` may fail before a person is asked.
    """

    every_s: float = 0.0
    models: tuple[str, ...] = ("digits",)
    recheck_s: tuple[float, ...] = (60.0, 300.0, 900.0)
    probation_s: float = DAY_S
    probation_sessions: int = 20
    recoveries: int = 3
    cycle_s: float = 600.0  # between two power cycles
    cycles_a_day: int = 3
    back_s: float = 600.0  # until a board that was power cycled is to be back

    @property
    def checks(self) -> bool:
        """Return whether boards are checked."""
        return self.every_s > 0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check of a board: its verdict, its latency, and the facts that numbers depend on."""

    at: float
    verdict: str
    why: str = ""
    median_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was the board's: when, with whose work, and what happened."""

    at: float
    owner: str
    what: str


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a board. `out` is why its admin has taken it out; empty if it is in service."""

    state: str = UNCHECKED
    why: str = ""
    since: float = 0.0
    checks: tuple[CheckResult, ...] = ()
    faults: tuple[Fault, ...] = ()
    due_at: float = 0.0  # when it is to be checked next
    passed: int = 0  # right checks since it was bad
    failed: int = 0  # recoveries that failed
    sessions: int = 0  # good ones in probation
    cycled_at: tuple[float, ...] = ()
    cycle_wanted: bool = False
    out: str = ""
    bad_at: tuple[float, ...] = ()  # when it was taken out

    def barred(self, rules: HealthRules) -> str:
        """Return why the board is not to be lent; empty if it may be."""
        if self.out:
            return f"out of service: {self.out}"
        if self.state in (BAD, HANDS):
            return f"{self.state}: {self.why}"
        return "not checked yet" if rules.checks and self.state == UNCHECKED else ""

    @property
    def usual_s(self) -> float | None:
        """The median latency of right checks since numbers compare; None if there are too few."""
        right = [one for one in self.checks if one.verdict in (RIGHT, CHANGED)]
        return _usual_s(right, right[-1].facts) if right else None

    def reduced_stability(self, now: float) -> bool:
        """Return whether the board was taken out several times in the last 30 days."""
        return sum(now - at < _UNSTABLE_S for at in self.bad_at) >= _UNSTABLE_TIMES


def golden_models_check_result(
    right: bool, why: str, median_s: float, facts: Mapping[str, Any], health: Health, now: float
) -> CheckResult:
    """Return the verdict on a board that has run the golden models."""
    if not right:
        return CheckResult(now, WRONG, why, median_s, facts)
    before = [one for one in health.checks if one.verdict in (RIGHT, CHANGED)]
    if before and before[-1].facts and before[-1].facts != facts:
        names = sorted(
            name
            for name in {*facts, *before[-1].facts}
            if facts.get(name) != before[-1].facts.get(name)
        )
        return CheckResult(now, CHANGED, f"another {', '.join(names)} than before", median_s, facts)
    known = _comparable(before, facts)
    if (usual := _usual_s(before, facts)) is not None:
        spread = statistics.median(abs(one - usual) for one in known)
        if median_s > usual + max(_SLOW_MADS * spread, _SLOW_SHARE * usual):
            slower = (
                f"{100 * (median_s / usual - 1):.0f} % slower than its usual {usual * 1e3:.3g} ms"
            )
            return CheckResult(now, SLOW, slower, median_s, facts)
    return CheckResult(now, RIGHT, "", median_s, facts)


def health_after_check(health: Health, check: CheckResult, rules: HealthRules) -> Health:
    """Return the health of a board after a check."""
    now = check.at
    kept = dataclasses.replace(health, checks=(*health.checks, check)[-MOST_CHECKS:])
    if check.verdict == SLOW and health.state != HANDS and not _slow_often(kept):
        return dataclasses.replace(kept, due_at=now)  # anything may have been in its way
    if check.verdict not in (RIGHT, CHANGED):
        return _failed(
            kept, f"{check.verdict}: {check.why}" if check.why else check.verdict, rules, now
        )
    next_at = now + rules.every_s if rules.checks else float("inf")
    if health.state == PROBATION:
        ends_at = health.since + rules.probation_s
        if now < ends_at:
            return dataclasses.replace(kept, due_at=min(next_at, ends_at), why="")
        return _good(kept, next_at, now)
    if health.state not in (BAD, HANDS):
        since = health.since if health.state == GOOD else now
        return dataclasses.replace(kept, state=GOOD, since=since, due_at=next_at, why="")
    if health.state == HANDS or health.cycle_wanted:  # it waits for a person, or for its power
        return dataclasses.replace(kept, due_at=next_at)
    passed = health.passed + 1
    if passed < len(rules.recheck_s):
        return dataclasses.replace(kept, passed=passed, due_at=now + rules.recheck_s[passed])
    return dataclasses.replace(
        kept,
        state=PROBATION,
        why="",
        since=now,
        passed=0,
        sessions=0,
        due_at=min(next_at, now + rules.probation_s),
        faults=(),
    )


def health_after_fault(health: Health, fault: Fault, rules: HealthRules) -> Health:
    """Return the health of a board after a fault of its own; it is checked before all others."""
    now = fault.at
    faults = (*[one for one in health.faults if now - one.at < DAY_S][-10:], fault)
    health = dataclasses.replace(health, faults=faults, due_at=min(health.due_at, now))
    if health.state in (BAD, HANDS) or not rules.checks:
        return health
    if len(faults) >= _FAULTS and len({one.owner for one in faults}) > 1:
        return _taken_out(health, f"{len(faults)} faults in a day: {fault.what}", rules, now)
    if health.state != PROBATION:
        return health
    health = dataclasses.replace(health, state=BAD, why=fault.what, since=now, passed=0)
    return _bad_again(health, now)


def health_after_session(health: Health, well: bool, rules: HealthRules, now: float) -> Health:
    """Return the health of a board after a session; one that ended badly asks for a check."""
    if not well:
        return dataclasses.replace(health, due_at=min(health.due_at, now))
    if health.state != PROBATION:
        return health
    sessions = health.sessions + 1
    if sessions >= rules.probation_sessions or now - health.since >= rules.probation_s:
        return _good(health, health.due_at, now)
    return dataclasses.replace(health, sessions=sessions)


def health_after_power_cycle(health: Health, rules: HealthRules, now: float) -> Health:
    """Return the health of a board whose power was cycled, and which is back."""
    cycled = (*health.cycled_at, now)[-10:]
    return dataclasses.replace(
        health, cycle_wanted=False, cycled_at=cycled, passed=0, due_at=now + rules.recheck_s[0]
    )


def health_after_failed_recovery(
    health: Health, why: str, rules: HealthRules, now: float
) -> Health:
    """Return the health of a board whose recovery failed; the third time a person is asked."""
    failed = health.failed + 1
    state = HANDS if failed >= rules.recoveries else BAD
    return dataclasses.replace(
        health, state=state, why=why, since=now, failed=failed, passed=0, cycle_wanted=state == BAD
    )


def health_awaiting_person(health: Health, why: str, now: float) -> Health:
    """Return the health of a board that nothing but a person can help."""
    return dataclasses.replace(health, state=HANDS, why=why, since=now, cycle_wanted=False)


def health_after_return_to_service(health: Health, now: float) -> Health:
    """Return the health of a board that its admin has returned: it is checked as a new one."""
    return Health(
        checks=health.checks,
        cycled_at=health.cycled_at,
        bad_at=health.bad_at,
        since=now,
        due_at=now,
    )


def may_power_cycle(cycled_at: Sequence[float], rules: HealthRules, now: float) -> bool:
    """Return whether the power may be cycled again."""
    lately = [at for at in cycled_at if now - at < DAY_S]
    return len(lately) < rules.cycles_a_day and all(now - at >= rules.cycle_s for at in lately)


def _good(health: Health, due_at: float, now: float) -> Health:
    """Return the health of a board whose probation is over."""
    return dataclasses.replace(
        health, state=GOOD, since=now, sessions=0, failed=0, due_at=due_at, why=""
    )


def _slow_often(health: Health) -> bool:
    last = health.checks[-_SLOW_TIMES:]
    return len(last) == _SLOW_TIMES and all(one.verdict == SLOW for one in last)


def _failed(health: Health, why: str, rules: HealthRules, now: float) -> Health:
    if health.state in (BAD, HANDS):
        return (
            health_after_failed_recovery(health, why, rules, now) if health.state == BAD else health
        )
    return _taken_out(health, why, rules, now)


def _taken_out(health: Health, why: str, rules: HealthRules, now: float) -> Health:
    health = dataclasses.replace(
        health,
        state=BAD,
        why=why,
        since=now,
        passed=0,
        cycle_wanted=True,
        due_at=now + rules.recheck_s[0],
    )
    return _bad_again(health, now)


def _bad_again(health: Health, now: float) -> Health:
    return dataclasses.replace(health, bad_at=(*health.bad_at, now)[-10:])


def _comparable(before: Sequence[CheckResult], facts: Mapping[str, Any]) -> list[float]:
    """Return the latencies of right checks that compare with those of a board with these facts."""
    while before and before[0].facts != facts:  # numbers from before a change do not compare
        before = before[1:]
    return [one.median_s for one in before if one.median_s is not None]


def _usual_s(before: Sequence[CheckResult], facts: Mapping[str, Any]) -> float | None:
    known = _comparable(before, facts)
    return statistics.median(known) if len(known) >= _LEAST_HISTORY else None


def health_to_json(health: Health) -> dict[str, Any]:
    """Return a board's health as JSON."""
    return dataclasses.asdict(health)


def health_from_json(body: Mapping[str, Any]) -> Health:
    """Return the health of `health_to_json`; keys of a newer farm are left out."""
    found = _known(Health, body)
    found["checks"] = tuple(CheckResult(**_known(CheckResult, one)) for one in body["checks"])
    found["faults"] = tuple(Fault(**_known(Fault, one)) for one in body["faults"])
    found["cycled_at"] = tuple(body["cycled_at"])
    found["bad_at"] = tuple(body.get("bad_at", ()))
    return Health(**found)


def _known(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in dataclasses.fields(kind)}
    return {name: value for name, value in body.items() if name in names}
