"""What the lab refuses to do, as errors of three lines."""

from __future__ import annotations

from collections.abc import Iterable

from farm.errors import DeviceError, UsageError, did_you_mean
from farm.lab.durations import format_duration
from farm.lab.entities import RANKS, Caller, Lease, LeaseClass, LeaseRequest


def unknown_kind_error(kind: str, known: Iterable[str]) -> UsageError:
    """Return the error for a kind that no board has had."""
    why = did_you_mean(kind, known) or "no board has registered yet"
    return UsageError(f"no board is of kind {kind!r}", why, "farm lab boards")


def unknown_board_of_kind_error(board: str, kind: str, known: Iterable[str]) -> UsageError:
    """Return the error for a board that the kind does not have."""
    return UsageError(
        f"there is no board {board!r} of kind {kind}",
        did_you_mean(board, known),
        "farm lab boards",
    )


def unknown_board_error(board: str, known: Iterable[str]) -> UsageError:
    """Return the error for a board that the lab does not have."""
    return UsageError(
        f"there is no board {board[:100]!r}",
        did_you_mean(board, known),
        "farm lab boards",
    )


def no_board_with_tags_error(request: LeaseRequest, known: Iterable[str]) -> UsageError:
    """Return the error for tags that no board of the kind has, all of them."""
    tags = ", ".join(request.tags)
    which = f"the board {request.board}" if request.board else f"no board of kind {request.kind}"
    why = did_you_mean(request.tags[0], known) or f"boards of kind {request.kind} have no tags"
    what = f"{which} is not tagged {tags}" if request.board else f"{which} is tagged {tags}"
    return UsageError(what, why, "farm lab boards")


def unknown_class_error(rank: str) -> UsageError:
    """Return the error for a class that there is not."""
    return UsageError(
        f"there is no class {rank!r}",
        did_you_mean(rank, RANKS),
        "--class interactive",
    )


def lease_too_long_error(
    for_s: float, rank: str, longest: LeaseClass, lease: Lease | None = None
) -> UsageError:
    """Return the error for a duration beyond the class: of a new lease, or of one in force."""
    what = f"{format_duration(for_s)} is too long for a lease of class {rank}"
    fix = (
        f"give lease {lease.number} back when it ends, and lease anew"
        if lease
        else f"--for {format_duration(longest.longest_s)}"
    )
    return UsageError(what, f"its longest is {format_duration(longest.longest_s)}", fix)


def too_many_boards_error(count: int, rank: str, longest: LeaseClass) -> UsageError:
    """Return the error for more boards than the class ever lends to one owner."""
    what = f"{count} boards are too many for a lease of class {rank}"
    return UsageError(
        what, f"an owner may have {longest.boards} at once", f"--count {longest.boards}"
    )


def too_many_queued_leases_error(owner: str, most: int) -> UsageError:
    """Return the error for an owner who waits for too much."""
    why = f"{owner} has {most} leases in the queue"
    return UsageError("no more leases can wait", why, "farm lab leases, and end some of them")


def lease_ended_error(lease: Lease) -> DeviceError:
    """Return the error for a lease that has ended."""
    why = f"{lease.state.value}{f': {lease.why}' if lease.why else ''}"
    return DeviceError(
        f"lease {lease.number} has ended", why, f"farm lab lease {lease.request.kind}"
    )


def lease_still_queued_error(lease: Lease) -> UsageError:
    """Return the error for a lease that has no boards yet."""
    why = "only a lease that has its boards can be extended"
    return UsageError(f"lease {lease.number} is still in the queue", why, "farm lab leases")


def lease_without_boards_error(lease: Lease) -> UsageError:
    """Return the error for a session with a board of a lease that has none yet."""
    why = "it has no boards yet"
    return UsageError(f"lease {lease.number} is still in the queue", why, "farm lab leases")


def impersonation_error(caller: Caller) -> UsageError:
    """Return the error for a caller who says the name of another."""
    why = f"the server's own account alone may do that, and this is {caller.name}"
    return UsageError("only the lab's door speaks for others", why, "ask under your own name")


def not_an_administrator_error(caller: Caller) -> UsageError:
    """Return the error for what only administrators may do."""
    why = f"{caller.name} is neither root nor the server's account"
    return UsageError("only an administrator can do that", why, "run it as the server's account")


def invalid_user_name_error(name: str) -> UsageError:
    """Return the error for a name that no user can have."""
    why = "a name is a small letter, then at most 31 of a-z, 0-9, '_', '-' and '.'"
    return UsageError(f"{name[:100]!r} is no name of a user", why, "for example alice")


def too_many_connections_error(name: str = "", count: int = 0) -> DeviceError:
    """Return the error for a connection too many: of one person, or of all."""
    if not name:
        return DeviceError("the lab has no place for you", "too many use it now", "try again later")
    why = f"{name} has {count} connections to the lab already"
    return DeviceError("no more connections", why, "end some sessions, or wait for their end")


def unknown_lease_error(number: int) -> UsageError:
    """Return the error for a lease that there is not."""
    return UsageError(
        f"there is no lease {number}", "it never was, or it ended long ago", "farm lab leases"
    )


def lease_of_another_error(lease: Lease) -> UsageError:
    """Return the error for the lease of another."""
    why = f"it belongs to {lease.request.owner}; only its owner and administrators can change it"
    return UsageError(f"lease {lease.number} is not yours", why, "farm lab leases")
