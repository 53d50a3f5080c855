"""Whether a board is fit: the rules, without any board. Real boards are in test_lab_care."""

from __future__ import annotations

import dataclasses
from typing import Any

from farm.lab.care import health_state_machine
from farm.lab.care.health_state_machine import CheckResult, Fault, Health, HealthRules

RULES = HealthRules(every_s=86400.0, recheck_s=(60.0, 300.0, 900.0), probation_sessions=3)
FACTS: dict[str, Any] = {"kernel": "6.1", "memory_total_bytes": "4"}


def check(found: Health, median_s: float = 0.010, now: float = 0.0, **facts: Any) -> CheckResult:
    return health_state_machine.golden_models_check_result(
        True, "", median_s, {**FACTS, **facts}, found, now
    )


def after(found: Health, *medians_s: float, now: float = 0.0) -> Health:
    for median_s in medians_s:
        found = health_state_machine.health_after_check(found, check(found, median_s, now), RULES)
    return found


def test_a_board_is_lent_once_it_was_right() -> None:
    assert Health().barred(RULES) == "not checked yet" and not Health().barred(HealthRules())
    found = after(Health(), 0.010)
    assert (found.state, found.barred(RULES), found.due_at) == (
        health_state_machine.GOOD,
        "",
        86400.0,
    )


def test_a_board_that_is_right_and_30_percent_slower_than_it_was_is_slow() -> None:
    found = after(Health(), 0.0100, 0.0101, 0.0099, 0.0100)
    assert check(found, 0.0103).verdict == health_state_machine.RIGHT, "within 5 %"
    slow = check(found, 0.0130)
    assert (
        slow.verdict == health_state_machine.SLOW and "30 % slower than its usual 10 ms" in slow.why
    )
    once = health_state_machine.health_after_check(found, slow, RULES)
    assert once.state == health_state_machine.GOOD and once.due_at == 0.0, (
        "it is checked again at once"
    )
    taken = health_state_machine.health_after_check(
        health_state_machine.health_after_check(once, slow, RULES), slow, RULES
    )
    assert (
        taken.state == health_state_machine.BAD
        and taken.cycle_wanted
        and "slow" in taken.barred(RULES)
    )


def test_a_noisy_board_is_slow_only_beyond_its_own_spread() -> None:
    found = after(Health(), 0.010, 0.012, 0.009, 0.011, 0.010, 0.0125)
    assert check(found, 0.0128).verdict == health_state_machine.RIGHT
    assert check(found, 0.0200).verdict == health_state_machine.SLOW


def test_numbers_from_before_a_change_do_not_count() -> None:
    found = after(Health(), 0.010, 0.010, 0.010)
    changed = check(found, 0.020, kernel="6.6")
    assert changed.verdict == health_state_machine.CHANGED and "another kernel" in changed.why
    found = health_state_machine.health_after_check(found, changed, RULES)
    assert found.state == health_state_machine.GOOD
    assert check(found, 0.021, kernel="6.6").verdict == health_state_machine.RIGHT


def test_a_wrong_board_is_taken_out_cycled_checked_three_times_and_given_back_to_batch() -> None:
    good = after(Health(), 0.010)
    bad = health_state_machine.health_after_check(
        good,
        health_state_machine.golden_models_check_result(False, "digits", 0.01, FACTS, good, 100.0),
        RULES,
    )
    assert (bad.state, bad.why, bad.cycle_wanted) == (
        health_state_machine.BAD,
        "wrong: digits",
        True,
    )
    found = health_state_machine.health_after_power_cycle(bad, RULES, 200.0)
    assert not found.cycle_wanted and found.due_at == 260.0
    for now, due_at in ((260.0, 560.0), (560.0, 1460.0)):
        found = after(found, 0.010, now=now)
        assert (found.state, found.due_at) == (health_state_machine.BAD, due_at)
    found = after(found, 0.010, now=1460.0)
    assert found.state == health_state_machine.PROBATION and not found.barred(RULES)
    for _ in range(RULES.probation_sessions):
        found = health_state_machine.health_after_session(found, True, RULES, 2000.0)
    assert found.state == health_state_machine.GOOD


def test_after_three_failed_recoveries_a_person_is_asked_and_nothing_is_tried_any_more() -> None:
    found = after(Health(), 0.010)
    for _ in range(3):
        assert found.state != health_state_machine.HANDS
        found = health_state_machine.health_after_check(
            found, CheckResult(1.0, health_state_machine.UNREACHABLE, "no answer"), RULES
        )
        found = (
            health_state_machine.health_after_power_cycle(found, RULES, 2.0)
            if found.cycle_wanted
            else found
        )
    found = health_state_machine.health_after_check(
        found, CheckResult(3.0, health_state_machine.UNREACHABLE, "no answer"), RULES
    )
    assert found.state == health_state_machine.HANDS and not found.cycle_wanted
    assert after(found, 0.010).state == health_state_machine.HANDS
    assert (
        health_state_machine.health_after_return_to_service(found, 9.0).state
        == health_state_machine.UNCHECKED
    )


def test_three_faults_with_two_owners_take_a_board_out_and_one_owners_do_not() -> None:
    found = after(Health(), 0.010)
    alone = both = found
    for number in range(3):
        alone = health_state_machine.health_after_fault(
            alone, Fault(float(number), "ann", "silent"), RULES
        )
        owner = "bob" if number else "ann"
        both = health_state_machine.health_after_fault(
            both, Fault(float(number), owner, "silent"), RULES
        )
    assert alone.state == health_state_machine.GOOD and alone.due_at == 0.0, "it is checked at once"
    assert both.state == health_state_machine.BAD and both.why == "3 faults in a day: silent"
    old = dataclasses.replace(
        found, faults=(Fault(-90000.0, "ann", "x"), Fault(-90000.0, "b", "x"))
    )
    assert (
        health_state_machine.health_after_fault(old, Fault(0.0, "bob", "silent"), RULES).state
        == health_state_machine.GOOD
    )


def test_a_session_that_ended_badly_asks_for_a_check_and_blames_nobody() -> None:
    found = after(Health(), 0.010)
    crashed = health_state_machine.health_after_session(found, False, RULES, 50.0)
    assert (
        crashed.state == health_state_machine.GOOD and crashed.due_at == 50.0 and not crashed.faults
    )
    assert after(crashed, 0.010, now=60.0).due_at == 60.0 + 86400.0


def test_the_power_is_cycled_so_often_at_most() -> None:
    assert health_state_machine.may_power_cycle((), RULES, 0.0)
    assert not health_state_machine.may_power_cycle(
        (0.0,), RULES, 599.0
    ) and health_state_machine.may_power_cycle((0.0,), RULES, 600.0)
    three = (0.0, 1000.0, 2000.0)
    assert not health_state_machine.may_power_cycle(three, RULES, 86399.0)
    assert health_state_machine.may_power_cycle(three, RULES, 86400.0), "that of a day ago is old"


def test_health_is_read_back_as_it_was() -> None:
    found = after(Health(), 0.010, 0.011)
    found = health_state_machine.health_after_fault(found, Fault(1.0, "ann", "silent"), RULES)
    found = dataclasses.replace(found, out="a new fan", cycled_at=(5.0,))
    assert (
        health_state_machine.health_from_json(health_state_machine.health_to_json(found)) == found
    )


def test_probation_ends_by_a_right_check_once_its_time_is_over_without_any_user() -> None:
    rules = dataclasses.replace(RULES, probation_s=3600.0)
    bad = health_state_machine.health_after_check(
        Health(), CheckResult(0.0, health_state_machine.WRONG, "digits"), rules
    )
    found = health_state_machine.health_after_power_cycle(bad, rules, 10.0)
    for _ in rules.recheck_s:
        found = health_state_machine.health_after_check(
            found, check(found, now=found.due_at), rules
        )
    assert (found.state, found.due_at) == (health_state_machine.PROBATION, found.since + 3600.0)
    early = health_state_machine.health_after_check(
        found, check(found, now=found.since + 60.0), rules
    )
    assert early.state == health_state_machine.PROBATION and early.due_at == found.due_at
    late = health_state_machine.health_after_check(early, check(early, now=early.due_at), rules)
    assert (late.state, late.failed) == (health_state_machine.GOOD, 0)
    assert late.due_at == early.due_at + rules.every_s


def in_probation() -> Health:
    return Health(health_state_machine.PROBATION, since=1000.0, due_at=5000.0, failed=1)


def test_a_board_in_probation_is_taken_out_by_its_first_fault() -> None:
    fault = Fault(1100.0, "ann", "silent")
    found = health_state_machine.health_after_fault(in_probation(), fault, RULES)
    assert (found.state, found.why, found.due_at) == (health_state_machine.BAD, "silent", 1100.0)
    assert found.barred(RULES) == "bad: silent" and found.bad_at == (1100.0,)


def test_probation_ends_by_a_good_session_once_its_time_is_over() -> None:
    ends_at = in_probation().since + RULES.probation_s
    early, late = (
        health_state_machine.health_after_session(in_probation(), True, RULES, now)
        for now in (ends_at - 1.0, ends_at)
    )
    assert (early.state, early.sessions) == (health_state_machine.PROBATION, 1)
    assert (late.state, late.sessions, late.failed) == (health_state_machine.GOOD, 0, 0)
    bad = health_state_machine.health_after_session(in_probation(), False, RULES, ends_at)
    assert bad.state == health_state_machine.PROBATION


def test_a_board_that_was_taken_out_twice_in_30_days_is_of_reduced_stability() -> None:
    day_s = 86400.0
    found = Health(bad_at=(0.0, 10 * day_s, 35 * day_s))
    assert found.reduced_stability(39 * day_s) and not found.reduced_stability(40 * day_s)


def test_one_slow_check_of_three_does_not_fail_a_recovery() -> None:
    good = after(Health(), 0.010, 0.010, 0.010)
    bad = health_state_machine.health_after_check(
        good, CheckResult(0.0, health_state_machine.WRONG, "digits"), RULES
    )
    cycled = health_state_machine.health_after_power_cycle(bad, RULES, 10.0)
    slow = health_state_machine.health_after_check(
        cycled, check(cycled, 0.020, cycled.due_at), RULES
    )
    assert (slow.state, slow.failed, slow.due_at) == (health_state_machine.BAD, 0, cycled.due_at)
    again = health_state_machine.health_after_check(slow, check(slow, 0.010, slow.due_at), RULES)
    assert again.passed == 1
