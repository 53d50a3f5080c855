"""Say what an error of an agent means by its code, and how an agent's session ended by its log.

An agent begins the text of an error with a code, as in "E_DISK_FULL: cannot write x: ...", and logs
the end of a session as "session 12 is over after 1.5 s: END_SIGNAL_9: died of Killed". The codes
are those of farm/agent/src/base/error_code.h and of farm/agent/src/rpc/session.cc. Only codes
decide; the texts are for people. Texts of agents that were built before there were codes are known
to `agent_errors_by_text`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from farm.errors import BuildError, DeviceError, FarmError, LinkError
from farm.transports.agent import legacy_error_texts as agent_errors_by_text


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """The error that farm raises: its class, what happened, and the fix.

    `what` and `fix` have places for {name} and {url} of the device.
    """

    error: type[FarmError]
    what: str
    fix: str


_BUDGET = "farm undeploy --device {name} MODEL, or raise `store_budget_mb` in its options"
_DEPLOYED = "see what is there: farm deployments --device {name}"
_AGAIN = "run the command again: it goes on where it stopped"

NO_MEMORY = ErrorMeaning(
    DeviceError,
    "not enough memory on {name}",
    "a smaller model or batch, or end what else runs there",
)
DISK_FULL = ErrorMeaning(
    DeviceError,
    "the disk of {name} is full",
    "free space there, or set `store` and `work_dir` in its options",
)
SESSION_ENDED = ErrorMeaning(
    LinkError,
    "the agent of {name}, or its session, ended",
    "check that the board is on and what it says: farm devices -v",
)

MEANINGS: Mapping[str, ErrorMeaning] = {
    "E_NO_MEMORY": NO_MEMORY,
    "E_DISK_FULL": DISK_FULL,
    "E_FILE": ErrorMeaning(
        DeviceError,
        "{name} cannot use one of its files or folders",
        "check its disk, and who may write to the folders `store` and `work_dir` of its options",
    ),
    "E_NAME": ErrorMeaning(
        DeviceError,
        "{name} refuses a name",
        "give it a name of at most 100 letters, digits and signs, without slashes and with no dot "
        "in front",
    ),
    "E_WORK_FULL": ErrorMeaning(
        DeviceError,
        "the session's folder on {name} is full",
        "start its agent with a larger --max-work",
    ),
    "E_STORE_FULL": ErrorMeaning(DeviceError, "the store of {name} has no room for that", _BUDGET),
    "E_STORE_BUSY": ErrorMeaning(
        DeviceError,
        "another session has the store of {name}",
        "run the command again when that one is done",
    ),
    "E_STORE_LOST": ErrorMeaning(
        DeviceError,
        "{name} has lost a file of the model",
        "farm deploy --device {name} MODEL",
    ),
    "E_UPLOAD": ErrorMeaning(LinkError, "what was sent to {name} has not arrived whole", _AGAIN),
    "E_DIGEST": ErrorMeaning(
        DeviceError,
        "what arrived on {name} is not what was sent",
        "run the command again, then suspect its memory",
    ),
    "E_MANIFEST": ErrorMeaning(
        DeviceError,
        "{name} refuses the description of the model",
        "shorten its labels; 1 MiB is the most",
    ),
    "E_NOT_DEPLOYED": ErrorMeaning(DeviceError, "that is not deployed on {name}", _DEPLOYED),
    "E_NO_RELEASE": ErrorMeaning(DeviceError, "{name} has no such release", _DEPLOYED),
    "E_LIBRARY": ErrorMeaning(
        BuildError, "{name} refuses the library", "correct `profile` of {name}"
    ),
    "E_PACKET": ErrorMeaning(
        DeviceError,
        "{name} does not understand what it was sent",
        "run the command again; no file or tensor may have 2 GiB",
    ),
    "E_SILENT": SESSION_ENDED,
    "E_THREADS": ErrorMeaning(
        DeviceError,
        "{name} cannot compute with these threads and cores",
        "choose others with --threads and --cores, or in its options; it tells its cores: farm "
        "devices -v",
    ),
    "E_SAMPLES": ErrorMeaning(
        DeviceError,
        "{name} cannot run these samples in one call",
        "a smaller model, or samples of the model's own shape",
    ),
    "E_PROFILE": ErrorMeaning(
        DeviceError,
        "{name} cannot time each kernel of that",
        "measure it as a whole: farm bench",
    ),
    "E_GPU": ErrorMeaning(
        DeviceError,
        "the GPU of {name} failed",
        "run the command again: each session is a fresh one; if it fails again, look there with "
        "nvidia-smi and dmesg (Xid)",
    ),
    "E_NO_GPU": ErrorMeaning(
        DeviceError, "the GPU of {name} cannot be used", "farm doctor --device {name}"
    ),
    "E_LAB": ErrorMeaning(
        DeviceError,
        "the lab has ended the session with {name}",
        "see why the lease ended: farm lab leases --all; and take another one",
    ),
    # The next two do not reach a client: they belong to commands that a person types on the board.
    "E_ARRAY": ErrorMeaning(
        DeviceError, "{name} cannot use an array", "save the array anew by numpy.save"
    ),
    "E_ADDRESS": ErrorMeaning(
        DeviceError, "the agent of {name} cannot listen", "correct its --host and --port"
    ),
}

_CODE = re.compile(r"(?:^|[\s:])(E_[A-Z]+(?:_[A-Z]+)*): ")
_END = re.compile(r"\bEND_(?:(TOLD|TIME_UP|CLIENT_GONE|LAB)|EXIT_(\d{1,3})|SIGNAL_(\d{1,3})): ")
# Signals by which a session's process may die, with the fix
_FIXES: Mapping[int, str] = {
    signal.SIGILL: (
        "correct `profile` of {name}: its code is for another core than the board has (farm "
        "devices -v)"
    ),
    signal.SIGKILL: "check the memory of the board (dmesg there), then run the command again",
    signal.SIGSEGV: (
        "the model's code did that, or the board: farm doctor --device {name}, farm bisect "
        "--device {name} MODEL"
    ),
}


def find_error_meaning_by_code(message: str) -> ErrorMeaning | None:
    """Return what an agent's error means by its code; None if it has no code that is known."""
    found = _CODE.search(message)
    return MEANINGS.get(found[1]) if found else None


def find_error_meaning_by_text(message: str) -> ErrorMeaning | None:
    """Return what an error means if it is one of an agent from before there were codes."""
    code = agent_errors_by_text.find_error_code_by_text(message)
    return MEANINGS[code] if code else None


@dataclass(frozen=True, slots=True)
class LoggedSessionEnd:
    """How a session ended.

    `properly`: its process ended by itself, or had told the client why it would end. `signal`: the
    number of the signal by which it died.
    """

    properly: bool
    signal: int | None = None

    def fix(self, name: str, otherwise: str) -> str:
        """Return the fix for a device; `otherwise` if no signal, or no known one, ended it."""
        return _FIXES.get(self.signal or 0, otherwise).format(name=name)


def parse_last_session_end(log: str) -> LoggedSessionEnd | None:
    """Return how the last session in an agent's log ended; None if none has ended."""
    *_, last = (None, *_END.finditer(log))
    if last is None:
        ended = agent_errors_by_text.parse_last_session_end_by_text(log)
        return LoggedSessionEnd(*ended) if ended else None
    word, status, number = last.groups()
    return LoggedSessionEnd(word == "TOLD" or status == "0", int(number) if number else None)
