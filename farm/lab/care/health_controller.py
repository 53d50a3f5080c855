"""The lab's care for its boards: what it does about their health, second by second.

It checks boards that are due, takes out those that are not fit, cycles their power and checks them
again, and lets boards cool. Programs that run (checks, power) are looked at, and never waited for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm import sanitize
from farm.errors import FarmError, UsageError
from farm.lab import refusals
from farm.lab.board_records import OpenSession
from farm.lab.care import board_checks, health_state_machine
from farm.lab.care.health_state_machine import CheckResult, Fault, Health, HealthRules
from farm.lab.entities import CHECKS_OWNER, Caller, InventoryBoard
from farm.lab.lender import LabLender
from farm.processes import subprocesses
from farm.processes.output_end import OutputEnd
from farm.tracker.agent_messages import SessionEnded
from farm.types import new_lease_key

if TYPE_CHECKING:
    from subprocess import Popen

MOST_CHECKS = 2  # at once: they build and measure
MOST_CHECKS_OF_OTHERS = 1  # of boards that are not in lab.toml
_POWER_S = 60.0  # of the command that cycles the power
_OUT_OF_MEMORY = 9  # SIGKILL: the kernel of the board ended the session
_TO_BE_CHECKED = "to be checked"


@dataclass(slots=True)
class _PowerCycle:
    child: Popen[bytes]
    output: OutputEnd
    began_at: float
    peer: int | None
    ended: bool = False  # it, and what it has started, because it failed
    vanished: bool = False


class BoardHealthController:
    """Keeps the boards of a lab fit. `profiles` has the profile of a kind; "" for none.

    `url` returns where a lease's board is found; `clock` is the time of leases.
    """

    def __init__(
        self,
        lender: LabLender,
        rules: HealthRules,
        inventory: Iterable[InventoryBoard],
        folder: Path,
        url: Callable[[str], str],
        clock: Callable[[], float],
        profile_of: Callable[[str], str],
    ) -> None:
        self._lender = lender
        self._rules = rules
        self._known: Mapping[str, InventoryBoard] = {one.name: one for one in inventory}
        self._folder = folder
        self._url = url
        self._clock = clock
        self._profile_of = profile_of
        self._checks: dict[str, board_checks.RunningCheck] = {}
        self._cycles: dict[str, _PowerCycle] = {}
        self._missing: dict[str, float] = {}  # boards that are not heard, since when
        self._cooling: dict[str, float] = {}  # boards that rest, since when
        self._wanted: set[str] = set()  # checks that somebody has asked for
        self._begun: Counter[str] = Counter()  # checks, by the address that offers the board
        self.verdicts: Counter[str] = Counter()  # of checks
        self.cycles: Counter[str] = Counter()  # of power, by how they went
        for record in lender.records.all():
            if record.health:
                self._apply(record.name, record.health)

    # what the lender tells

    def before_idle(self, board: str, had_session: bool) -> None:
        """Say whether a board that is about to be idle may be lent; after a session it rests."""
        known = self._known.get(board)
        if had_session and known and known.cooldown:
            self._cooling[board] = self._clock()
        if self._rules.checks or known or self._lender.records.of(board):
            self._apply(board, self.of(board))

    def session_ended(self, board: str, session: OpenSession | None, ended: SessionEnded) -> str:
        """Take in how a session has ended; return the board's own fault, or "" if it had none."""
        if board in self._checks:
            return ""
        now, owner = self._clock(), session.owner if session else ""
        if ended.how == "signal" and ended.signal == _OUT_OF_MEMORY:
            fault = "its system killed a session: is its memory used up?"
            self.fault(board, owner, fault)
            return fault
        well = ended.how in ("closed", "gone", "timeout", "told")
        self._change(
            board, health_state_machine.health_after_session(self.of(board), well, self._rules, now)
        )
        return ""

    def fault(self, board: str, owner: str, what: str) -> None:
        """Take in a fault of the board's own: it fell silent, or its agent died, in a session."""
        if board not in self._checks:
            now = self._clock()
            self._lender.scheduler.note("board-fault", now, board, None, owner, what)
            fault = Fault(now, owner, what)
            self._change(
                board, health_state_machine.health_after_fault(self.of(board), fault, self._rules)
            )

    def holds(self, board: str) -> bool:
        """Return whether nobody, the lab's checks included, is to have a board now."""
        found, holder = self.of(board), self._lender.scheduler.holder(board)
        if board in self._wanted or not (holder is None or holder.request.implicit):
            return False
        return bool(found.out) or found.state == health_state_machine.HANDS or board in self._cycles

    # what people ask

    def check(self, board: str, caller: Caller) -> None:
        """Check a board as soon as nobody has it. Raises UsageError."""
        self._allowed(board, caller)
        if not self._profile(board):
            raise UsageError(
                f"{board} cannot be checked",
                "no profile is known for its kind",
                f'in lab.toml: [lab.boards.{board}] profile = "rasp4"',
            )
        self._wanted.add(board)
        self._lender.scheduler.note("check-asked", self._clock(), board, None, caller.name)

    def power(self, board: str, caller: Caller) -> None:
        """Cycle a board's power. Raises UsageError, also while another's lease has the board."""
        known = self._allowed(board, caller)
        if known is None or not known.power:
            raise UsageError(
                f"the power of {board} cannot be cycled",
                "lab.toml says no `power` for it",
                f'[lab.boards.{board}] power = "pdudaemon://localhost:16421/pdu1/7"',
            )
        holder = self._lender.scheduler.holder(board)
        if holder is not None and holder.request.owner != caller.name:
            raise UsageError(
                f"{board} is in use",
                f"lease {holder.number} of {holder.request.owner} has it",
                f"end that first: farm lab end {holder.number} --because REASON",
            )
        self._begin_cycle(board, known, caller.name)

    def drain(self, board: str, why: str, caller: Caller) -> None:
        """Take a board out of service once its lease has ended. Raises UsageError."""
        self._allowed(board, caller)
        now = self._clock()
        self._lender.scheduler.note("board-drained", now, board, None, caller.name, why)
        self._change(board, dataclasses.replace(self.of(board), out=f"{why} ({caller.name})"))

    def give_back(self, board: str, why: str, caller: Caller) -> None:
        """Return a board to service: it is checked as a new one. Raises UsageError."""
        self._allowed(board, caller)
        now = self._clock()
        self._lender.scheduler.note("board-returned", now, board, None, caller.name, why)
        self._change(
            board, health_state_machine.health_after_return_to_service(self.of(board), now)
        )

    def has_power(self, board: str) -> bool:
        """Return whether the lab can cycle a board's power."""
        known = self._known.get(board)
        return known is not None and bool(known.power)

    def of(self, board: str) -> Health:
        """Return the health of a board."""
        record = self._lender.records.of(board)
        return (record.health if record else None) or Health()

    # second by second

    def tick(self) -> None:
        """Do what is due."""
        now = self._clock()
        self._end_checks(now)
        self._watch_cycles(now)
        self._cool(now)
        if not self._rules.checks and not self._wanted:
            return
        for board in sorted(
            (view.name for view in self._lender.scheduler.boards()), key=self._turn
        ):
            self._look_at(board, now)
        self._lender.settle()

    def close(self) -> None:
        """End what runs."""
        for check in self._checks.values():
            check.stop()
        for cycle in self._cycles.values():
            subprocesses.end_program(cycle.child, group=True)

    # inside

    def _look_at(self, board: str, now: float) -> None:
        found, here = self.of(board), self._lender.scheduler.is_present(board)
        if found.out or found.state == health_state_machine.HANDS or board in self._cycles:
            self._missing.pop(board, None)
            if board not in self._wanted:
                return
        if not here:
            self._miss(board, found, now)
            return
        self._missing.pop(board, None)
        if found.cycle_wanted and self._try_cycle(board, found, now):
            return
        due = self._rules.checks and self._profile(board) and self._is_due(board, found)
        if not (due or board in self._wanted) or board in self._checks or board in self._cooling:
            return
        self._apply(board, found)
        others = sum(one not in self._known for one in self._checks)
        has_room = board in self._known or others < MOST_CHECKS_OF_OTHERS
        if has_room and len(self._checks) < MOST_CHECKS:
            self._begin_check(board, now)

    def _turn(self, board: str) -> tuple[bool, bool, int, float]:
        """Return a key that sorts boards by whose check is next.

        Those of the inventory come before others, of whom one address may offer any number.
        """
        others = board not in self._known
        begun = self._begun[self._lender.origin_of(board)] if others else 0
        return board not in self._wanted, others, begun, self.of(board).due_at

    def _miss(self, board: str, found: Health, now: float) -> None:
        """Take out a board of the inventory that stays away, and cycle its power if that helps."""
        if board not in self._known or not self._rules.checks:
            return
        if found.cycle_wanted and self._try_cycle(board, found, now):
            return
        since = self._missing.setdefault(board, now)
        patience_s = (
            self._rules.back_s
            if found.state == health_state_machine.BAD
            else self._rules.recheck_s[0]
        )
        if now - since >= patience_s:
            self._missing[board] = now
            why = f"not heard for {now - since:.0f} s"
            self._take_in(board, CheckResult(now, health_state_machine.UNREACHABLE, why))

    def _begin_check(self, board: str, now: float) -> None:
        key = new_lease_key()
        lease = self._lender.scheduler.take_for_check(board, key, board_checks.CHECK_S, now)
        if lease is None:
            return
        self._lender.know(lease)
        self._wanted.discard(board)
        self._begun[self._lender.origin_of(board)] += 1
        self._checks[board] = board_checks.begin_check(
            self._folder,
            board,
            lease.number,
            self._profile(board),
            self._url(key),
            self._rules.models,
            now,
        )

    def _end_checks(self, now: float) -> None:
        for board, check in list(self._checks.items()):
            late = now - check.began_at > board_checks.CHECK_S
            if not check.done and not late:
                continue
            if check.done:
                result = check.result(self.of(board), now)
            else:
                check.stop()
                result = CheckResult(
                    now, health_state_machine.UNREACHABLE, f"no end in {board_checks.CHECK_S:.0f} s"
                )
            self._take_in(board, result)  # first, or the board would be lent meanwhile
            del self._checks[board]
            with contextlib.suppress(FarmError):  # the lease has ended by itself
                self._lender.scheduler.end(check.lease, Caller(CHECKS_OWNER), now)
            self._lender.settle()

    def _take_in(self, board: str, check: CheckResult) -> None:
        self.verdicts[check.verdict] += 1
        said = f"{check.verdict}: {check.why}" if check.why else check.verdict
        if check.median_s is not None:
            said += f" ({check.median_s * 1e3:.4g} ms)"
        self._lender.scheduler.note("board-checked", check.at, board, None, "farm", said)
        self._change(
            board, health_state_machine.health_after_check(self.of(board), check, self._rules)
        )

    def _try_cycle(self, board: str, found: Health, now: float) -> bool:
        """Cycle the power if that is possible; return whether there is nothing else to do now."""
        known = self._known.get(board)
        if known is None or not known.power:
            self._change(board, dataclasses.replace(found, cycle_wanted=False))
            return False
        if self._lender.scheduler.holder(board) is not None:
            return True
        if health_state_machine.may_power_cycle(found.cycled_at, self._rules, now):
            self._begin_cycle(board, known, "farm")
        return True

    def _begin_cycle(self, board: str, known: InventoryBoard, who: str) -> None:
        now = self._clock()
        if board in self._cycles:
            return
        output = OutputEnd()
        self._lender.scheduler.note("power-cycled", now, board, None, who)
        try:
            child = subprocesses.start_program(known.power, log=output, own_group=True)
        except OSError as exc:
            why = f"the power hook cannot be run: {exc.strerror or exc}"
            self._change(
                board, health_state_machine.health_awaiting_person(self.of(board), why, now)
            )
            return
        self._cycles[board] = _PowerCycle(child, output, now, self._lender.peer_of(board))
        self._apply(board, self.of(board))

    def _watch_cycles(self, now: float) -> None:
        for board, cycle in list(self._cycles.items()):
            peer = self._lender.peer_of(board)
            here = self._lender.scheduler.is_present(board)
            cycle.vanished |= not here or peer != cycle.peer
            code, passed_s = cycle.child.poll(), now - cycle.began_at
            if code is None and passed_s <= _POWER_S:
                continue
            found = self.of(board)
            if code != 0:
                if not cycle.ended:
                    subprocesses.end_program(cycle.child, group=True, grace_s=0)
                    cycle.ended = True
                    if cycle.output.is_open:
                        continue  # what it wrote last is there at the next look
                said = subprocesses.last_lines(cycle.output.text(0), 1)
                why = sanitize.sanitized_line(f"the power hook failed: {said}")[:300]
                self._finish_cycle(
                    board,
                    health_state_machine.health_awaiting_person(found, why, now),
                    "hook failed",
                )
            elif cycle.vanished and here:
                self._finish_cycle(
                    board,
                    health_state_machine.health_after_power_cycle(found, self._rules, now),
                    "back",
                )
            elif passed_s > self._rules.back_s:
                if cycle.vanished:
                    why = f"not back {passed_s:.0f} s after its power was cycled"
                    cycled = dataclasses.replace(found, cycled_at=(*found.cycled_at, now)[-10:])
                    found, how = (
                        health_state_machine.health_after_failed_recovery(
                            cycled, why, self._rules, now
                        ),
                        "not back",
                    )
                else:
                    why = "the power hook did nothing: the board was here all the time"
                    found, how = (
                        health_state_machine.health_awaiting_person(found, why, now),
                        "did nothing",
                    )
                self._finish_cycle(board, found, how)

    def _finish_cycle(self, board: str, found: Health, how: str) -> None:
        self.cycles[how] += 1
        del self._cycles[board]
        self._change(board, found)

    def _cool(self, now: float) -> None:
        for board, since in list(self._cooling.items()):
            rest = self._known[board].cooldown
            agent = self._lender.agent(board)
            warm = agent.state.temperature_c if agent else None
            cool = rest is None or (
                rest.below_c is not None and warm is not None and warm < rest.below_c
            )
            if cool or rest is None or now - since >= rest.at_most_s:
                del self._cooling[board]
                self._apply(board, self.of(board))

    def _change(self, board: str, found: Health) -> None:
        before, now = self.of(board), self._clock()
        if found == before:
            return
        kind = self._lender.scheduler.kind_of(board)
        if kind is None:
            return
        self._lender.records.change(board, kind, now, health=found)
        if found.state != before.state:
            scheduler = self._lender.scheduler
            scheduler.note(
                f"board-{found.state.replace(' ', '-')}", now, board, None, "farm", found.why
            )
            if found.state in (health_state_machine.BAD, health_state_machine.HANDS):
                scheduler.board_bad(board, found.why, now)
        self._apply(board, found)

    def _apply(self, board: str, found: Health) -> None:
        why = found.barred(self._rules) if self._profile(board) or found.out else ""
        if not why and board in self._cycles:
            why = "its power is being cycled"
        briefly = not why or (found.state == health_state_machine.UNCHECKED and not found.out)
        if not why and self._rules.checks and self._profile(board):
            why = _TO_BE_CHECKED if self._is_due(board, found) else ""
        if not why and board in self._cooling:
            why = "it cools"
        batch_only = found.state == health_state_machine.PROBATION
        self._lender.scheduler.bar(board, why, batch_only, found.state, self._clock(), briefly)

    def _is_due(self, board: str, found: Health) -> bool:
        """Return whether a board is to be checked; a good one is not just before it is reserved."""
        now = self._clock()
        if found.due_at > now:
            return False
        scheduler = self._lender.scheduler
        return found.state != health_state_machine.GOOD or scheduler.can_be_missed(
            board, board_checks.CHECK_S, now
        )

    def _profile(self, board: str) -> str:
        known, kind = self._known.get(board), self._lender.scheduler.kind_of(board)
        return (known.profile if known else "") or (self._profile_of(kind) if kind else "")

    def _allowed(self, board: str, caller: Caller) -> InventoryBoard | None:
        """Return a board of the inventory. Raises UsageError for one that is not there."""
        if not caller.admin:
            raise refusals.not_an_administrator_error(caller)
        names = [view.name for view in self._lender.scheduler.boards()]
        if board not in names:
            raise refusals.unknown_board_error(board, names)
        return self._known.get(board)


def remove_old_check_folders(folder: Path) -> None:
    """Remove what the checks of an earlier server have left."""
    for path in folder.glob("check-*"):
        shutil.rmtree(path, ignore_errors=True)
