"""The errors that a user can encounter: what happened, why, and what to type next.

    FarmError               1   any of the errors below; also: some of several jobs failed
    ├── UsageError          2   a wrong argument, an unknown name
    │   └── ConfigError     2   devices.toml is wrong
    ├── ModelError          3   the model cannot be read, imported or fed
    ├── BuildError          4   compiling or linking failed, or a tool is missing
    ├── DeviceError         5   a device cannot be reached, refused, or died
    │   ├── LinkError       5   the connection broke or its server ended: a retry may succeed
    │   ├── UnavailableError 5  a lab has no board for it, or took it away: run it again
    │   └── DeadlineError   6   it did not answer in time
    ├── WrongAnswer         7   the device's answer differs from the reference's
    ├── Regression          8   significantly slower than the baseline, by more than is allowed
    ├── UntrustedNumber     1   the run's verdict or number of samples does not support the latency
    ├── Interrupted       130   Ctrl-C; another signal gives 128 plus its number
    └── InternalError      70   a bug in farm

The number is the exit code of the command.
"""

from __future__ import annotations

import bisect
import difflib
import heapq
from collections import Counter
from collections.abc import Iterable

from farm import sanitize
from farm.types import Failure


class FarmError(Exception):
    """Some of several jobs failed; the base of all errors.

    `what` happened, `why`, and the `fix`: what to type or to do next. `why` and `fix` may be empty,
    but are never misleading.
    """

    exit_code = 1

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix

    def __reduce__(self) -> tuple[type[FarmError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)

    def __str__(self) -> str:
        """Return the text that a traceback shows.

        It has no control characters, and no line of a part except its first starts at the margin.
        """
        labelled = zip(("error", "why", "fix"), self.parts(), strict=True)
        return "\n".join(
            f"{label}: {sanitize.sanitized_block(str(text), ' ' * 7)}"
            for label, text in labelled
            if text
        )

    def parts(self) -> tuple[str, str, str]:
        """Return (what, why, fix)."""
        return self.what, self.why, self.fix

    def as_failure(self) -> Failure:
        """Return the error as a value."""
        return Failure(type(self).__name__, self.what, self.why, self.fix, self.exit_code)


class NoSpaceError(FarmError):
    """The disk of a database is full: the same change succeeds once there is space."""


class UsageError(FarmError):
    """A wrong argument, or an unknown name."""

    exit_code = 2


class ConfigError(UsageError):
    """A mistake in devices.toml."""


class ModelError(FarmError):
    """The model cannot be read, imported or fed."""

    exit_code = 3


class BuildError(FarmError):
    """Compiling or linking failed, or a tool is missing."""

    exit_code = 4


class DeviceError(FarmError):
    """A device cannot be reached, refused, or died."""

    exit_code = 5


class LinkError(DeviceError):
    """The connection to a device broke, or its server process ended: a retry may succeed."""


class UnavailableError(DeviceError):
    """A lab had no board for a job, or the board or its lease ended: the model is not to blame."""


class DeadlineError(DeviceError):
    """A deadline passed."""

    exit_code = 6


class WrongAnswer(FarmError):
    """The device's answer is not the reference's."""

    exit_code = 7


class Regression(FarmError):
    """A model is significantly slower than the baseline, by more than `--fail-on` allows."""

    exit_code = 8


class InternalError(FarmError):
    """A bug in farm."""

    exit_code = 70


class UntrustedNumber(FarmError):
    """A latency was asked for that the run's verdict or number of samples does not support.

    `wrong` says whether the answer itself is wrong.
    """

    def __init__(self, what: str, why: str = "", fix: str = "", wrong: bool = False) -> None:
        super().__init__(what, why, fix)
        self.wrong = wrong

    def __reduce__(self) -> tuple[type[FarmError], tuple[str, str, str, bool]]:  # type: ignore[override]
        return type(self), (self.what, self.why, self.fix, self.wrong)


class Interrupted(FarmError):
    """Stopped by Ctrl-C."""

    exit_code = 130


def error_from_failure(failure: Failure) -> FarmError:
    """Return the error that `as_failure` converted to a value, with its original class."""
    kind = globals().get(failure.kind)
    known = kind if isinstance(kind, type) and issubclass(kind, FarmError) else FarmError
    return known(failure.what, failure.why, failure.fix)


_SIMILAR = 0.6  # difflib's ratio: 1 for the same text
# Names come from strangers, and difflib takes seconds for some hundred long ones that are chosen
# for it. What all names cost grows with their length alone; few of them are compared by difflib.
_COMPARED_CHARACTERS = 40
_COMPARED_NAMES = 300
_BEST_NAMES = 4
_SHOWN_NAMES = 100


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a name; None if none is similar."""
    wanted = name[:_COMPARED_CHARACTERS]
    letters = Counter(wanted)

    def common_letters(other: str) -> float:
        beginning = other[:_COMPARED_CHARACTERS]
        common = (letters & Counter(beginning)).total()
        return 2.0 * common / max(1, len(wanted) + len(beginning))

    names = sorted(known)
    first = bisect.bisect_left(names, name) - _COMPARED_NAMES // 2
    first = max(0, min(first, len(names) - _COMPARED_NAMES))
    names = names[first : first + _COMPARED_NAMES]  # of very many those that begin as it does
    best = heapq.nlargest(_BEST_NAMES, names, common_letters)
    beginnings = {one[:_COMPARED_CHARACTERS]: one for one in reversed(best)}
    near = difflib.get_close_matches(wanted, beginnings, n=1, cutoff=_SIMILAR)
    return beginnings[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the most similar of the known names, or else all of them.

    Of very many, some.
    """
    names = sorted(known)
    if near := closest_name(name, names):
        return f"did you mean {near!r}?"
    return f"known: {join_names(names)}" if names else ""


def join_names(names: Iterable[str]) -> str:
    """Return the names in alphabetical order with commas between; of very many, some."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN_NAMES} more" if len(ordered) > _SHOWN_NAMES else ""
    return ", ".join(ordered[:_SHOWN_NAMES]) + more
