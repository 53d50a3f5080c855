"""Compare what farm makes of cases with the answers of a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from farm.errors import FarmError
from farm.types import Profile
from random_operators.random_values import Array

RIGHT, REFUSED, WRONG, BROKEN, UNJUDGED = ("right", "refused", "wrong", "broken", "unjudged")
VERDICTS = (RIGHT, REFUSED, WRONG, BROKEN, UNJUDGED)
HOST = Profile("this machine", {"kind": "llvm", "mcpu": "native"}, "")
TOGETHER = 24  # cases of a model
# Relative to a number, and to the largest number of an output.
TOLERANCES = {"float16": (1e-2, 3e-3), "float32": (1e-4, 2e-5), "float64": (1e-6, 1e-7)}
_LEAST = {"float16": 1e-6}  # absolute: numbers that are not normal
_SAID = 300


class Compared(Protocol):
    """How the answers to a case are compared."""

    operator: str
    seed: int
    unordered: int | None
    rtol: float
    steps: int


C = TypeVar("C", bound=Compared)


@dataclass(frozen=True)
class Judged:
    """What became of a case, and why if it is not right."""

    case: Any
    verdict: str
    why: str = ""


def judge_together(
    some: Sequence[tuple[C, list[Array]]],
    run_together: Callable[[Sequence[C], Sequence[list[Array]]], list[list[Array]]],
    second_opinion: Callable[[C, list[Array], list[Array]], str] | None = None,
) -> Iterator[Judged]:
    """Yield the verdicts of cases built as one model; smaller models where that fails.

    `some` are cases with the answers of their reference, `run_together` returns those of farm.
    """
    cases, answers = [case for case, _ in some], [of for _, of in some]
    try:
        outputs = run_together(cases, answers)
    except Exception as error:
        if len(some) == 1:
            known = isinstance(error, FarmError)
            why = f"{error.what}: {error.why}" if isinstance(error, FarmError) else ""
            yield Judged(cases[0], REFUSED if known else BROKEN, why or one_line(error))
            return
        middle = len(some) // 2
        yield from judge_together(some[:middle], run_together, second_opinion)
        yield from judge_together(some[middle:], run_together, second_opinion)
        return
    for (case, theirs), ours in zip(some, outputs, strict=True):
        said = differences(case, ours, theirs)
        if not said:
            yield Judged(case, RIGHT)
        elif len(some) > 1:
            (alone,) = judge_together([(case, theirs)], run_together, second_opinion)
            among = Judged(case, WRONG, f"wrong among others only: {said}")
            yield alone if alone.verdict != RIGHT else among
        else:
            opinion = f"; {second_opinion(case, theirs, ours)}" if second_opinion else ""
            yield Judged(case, WRONG, said + opinion)


def differences(case: Compared, ours: Sequence[Array], theirs: Sequence[Array]) -> str:
    """Return how the first output that differs does; "" if none does."""
    said = (difference(case, one, other) for one, other in zip(ours, theirs, strict=True))
    return next((one for one in said if one), "")


def difference(case: Compared, ours: Array, theirs: Array) -> str:
    """Return how an output differs from the reference's; "" if it does not."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    if case.unordered is not None:
        ours, theirs = (np.sort(value, case.unordered) for value in (ours, theirs))
    try:
        if theirs.dtype.kind != "f":
            if case.steps:
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=case.steps)
            else:
                np.testing.assert_array_equal(ours, theirs)
        else:
            relative, of_largest = TOLERANCES[theirs.dtype.name]
            finite = np.abs(theirs[np.isfinite(theirs)].astype("float64"))
            largest = float(finite.max(initial=0))
            np.testing.assert_allclose(
                ours.astype("float64"),
                theirs.astype("float64"),
                rtol=max(relative, case.rtol),
                atol=max(of_largest * largest, _LEAST.get(theirs.dtype.name, 0.0)),
            )
    except AssertionError as error:
        return " ".join(str(error).split())[:_SAID]
    return ""


def one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:_SAID]
