"""The errors a user can meet: what happened, why, and what to type next.

    FarmError               1   anything of the below; also: a job of several failed
    ├── UsageError          2   a wrong argument, an unknown name
    │   └── ConfigError     2   devices.toml is wrong
    ├── ModelError          3   the model cannot be read, imported or fed
    ├── BuildError          4   compiling, linking, or a tool that is missing
    ├── DeviceError         5   a device cannot be reached, refused, or died
    │   ├── LinkError       5   ... the connection to it broke, or what served it there ended: another try may do
    │   └── DeadlineError   6   ... or did not answer in time
    ├── WrongAnswer         7   the device's answer is not the reference's
    ├── Regression          8   surely slower than the baseline, by more than is allowed
    ├── UntrustedNumber     1   a figure was asked for whose run's verdict, or number of samples, does not allow it
    ├── Interrupted       130   Ctrl-C; another signal gives 128 and its number
    └── InternalError      70   a bug of farm's own

The number is the exit code of the command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from farm.types import Failure


class FarmError(Exception):
    """An error with its cause and its cure. `why` and `fix` may be empty, never misleading."""

    exit_code = 1

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix

    def __reduce__(self) -> tuple[type[FarmError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)

    def __str__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in zip(("error", "why", "fix"), self.parts(), strict=True) if text)

    def parts(self) -> tuple[str, str, str]:
        return self.what, self.why, self.fix

    def as_failure(self) -> Failure:
        return Failure(type(self).__name__, self.what, self.why, self.fix, self.exit_code)


class UsageError(FarmError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class ModelError(FarmError):
    exit_code = 3


class BuildError(FarmError):
    exit_code = 4


class DeviceError(FarmError):
    exit_code = 5


class LinkError(DeviceError):
    pass


class DeadlineError(DeviceError):
    exit_code = 6


class WrongAnswer(FarmError):
    exit_code = 7


class Regression(FarmError):
    exit_code = 8


class InternalError(FarmError):
    exit_code = 70


class UntrustedNumber(FarmError):
    """`wrong` is whether the answer itself is."""

    def __init__(self, what: str, why: str = "", fix: str = "", wrong: bool = False) -> None:
        super().__init__(what, why, fix)
        self.wrong = wrong

    def __reduce__(self) -> tuple[type[FarmError], tuple[str, str, str, bool]]:  # type: ignore[override]
        return type(self), (self.what, self.why, self.fix, self.wrong)


class Interrupted(FarmError):
    exit_code = 130


def of_failure(failure: Failure) -> FarmError:
    """The error that became a value, of the kind that it was."""
    kind = globals().get(failure.kind)
    known = kind if isinstance(kind, type) and issubclass(kind, FarmError) else FarmError
    return known(failure.what, failure.why, failure.fix)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence naming the nearest of the known names, or else all of them."""
    names = sorted(known)
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names)}" if names else ""
