"""What the lab refuses to do, as errors of three lines."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from farm.errors import DeviceError, UnavailableError, UsageError, did_you_mean
from farm.lab.durations import clock_time, format_duration
from farm.lab.entities import (
    RANKS,
    Caller,
    Lease,
    LeaseClass,
    LeaseRequest,
    Reservation,
    ReservationRequest,
)


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


def too_many_changes_error(name: str, a_minute: int, wait_s: int) -> UnavailableError:
    """Return the error for a person who asks for more than the lab keeps."""
    why = f"{name} may ask for {a_minute} leases, reservations and extensions in a minute"
    return UnavailableError("this is too much at once", why, f"try again in {wait_s} s")


def no_space_error() -> UnavailableError:
    """Return the error for what cannot be kept, because the disk is full."""
    return UnavailableError(
        "the disk of the lab's server is full",
        "what changes cannot be kept; nothing is lent, and what runs goes on",
        "tell who looks after the lab; it goes on by itself once there is space",
    )


def unknown_lease_error(number: int) -> UsageError:
    """Return the error for a lease that there is not."""
    return UsageError(
        f"there is no lease {number}", "it never was, or it ended long ago", "farm lab leases"
    )


def lease_of_another_error(lease: Lease) -> UsageError:
    """Return the error for the lease of another."""
    why = f"it belongs to {lease.request.owner}; only its owner and administrators can change it"
    return UsageError(f"lease {lease.number} is not yours", why, "farm lab leases")


def reservation_past_error(request: ReservationRequest, now: float) -> UsageError:
    """Return the error for a reservation that begins in the past."""
    return UsageError(
        f"{clock_time(request.starts_at, now)} is past",
        f"it is {clock_time(now, now)} at the lab; a reservation begins later",
        f"farm lab lease {request.kind} --for {format_duration(request.for_s)}",
    )


def reservation_too_far_error(ahead_s: float) -> UsageError:
    """Return the error for a reservation that begins too late."""
    why = f"boards are reserved at most {format_duration(ahead_s)} ahead"
    return UsageError("this is too far ahead", why, "reserve for an earlier time, or later")


def too_few_boards_error(request: ReservationRequest, has: int) -> UsageError:
    """Return the error for more boards than the lab has of the kind."""
    tagged = f" tagged {', '.join(request.tags)}" if request.tags else ""
    boards = "board" if request.count == 1 else "boards"
    return UsageError(
        f"{request.count} {boards} of kind {request.kind}{tagged} cannot be reserved",
        f"the lab has {has}",
        f"--count {has}" if has else "farm lab boards",
    )


def too_many_reservations_error(owner: str, most: int) -> UsageError:
    """Return the error for an owner who has reserved too often."""
    why = f"{owner} has {most} reservations that have not begun"
    return UsageError("no more can be reserved", why, "cancel one: farm lab reservations")


def too_many_lately_error(request: ReservationRequest, had: int, within_s: float) -> UsageError:
    """Return the error for an owner who has had very many reservations lately."""
    return UsageError(
        "no more can be reserved",
        f"{request.owner} has had {had} reservations within {format_duration(within_s)}",
        f"reserve later, and for longer; or queue: farm lab lease {request.kind}",
    )


def too_many_reserved_error(request: ReservationRequest, has: int, most: int) -> UsageError:
    """Return the error for more boards at once than the class lends to one owner."""
    return UsageError(
        f"{request.count} more boards are too many for a lease of class {request.rank}",
        f"an owner may have {most} at once, and has reserved {has} for a part of that time",
        "reserve for another time, or cancel one: farm lab reservations",
    )


def too_large_a_share_error(
    request: ReservationRequest, hours: float, most: float, within_s: float
) -> UsageError:
    """Return the error for more of the time of a kind's boards than one owner may reserve."""
    tagged = f" tagged {', '.join(request.tags)}" if request.tags else ""
    within = format_duration(within_s)
    return UsageError(
        f"{request.owner} would reserve too much of the boards of kind {request.kind}{tagged}",
        f"it would be {hours:.1f} board-hours within {within}, with the times between that are too "
        f"short for others; one owner may reserve {most:.1f}",
        f"reserve less, or for another time; or queue: farm lab lease {request.kind}",
    )


def not_free_then_error(
    request: ReservationRequest, whose: Iterable[str], free_from: float | None, now: float
) -> UsageError:
    """Return the error for boards that others have at the time; and when they are free next."""
    boards = "board" if request.count == 1 else "boards"
    what = f"{request.count} {boards} of kind {request.kind} cannot be had then"
    why = "; ".join(whose) or "too few boards are fit to be lent"
    if free_from is None:
        return UsageError(what, why, "farm lab reservations, and choose another time")
    again = datetime.datetime.fromtimestamp(free_from).astimezone().isoformat(timespec="minutes")
    count = f" --count {request.count}" if request.count > 1 else ""
    tags = "".join(f" --tag {tag}" for tag in request.tags)
    return UsageError(
        what,
        f"{why}; free next from {clock_time(free_from, now)}",
        f"farm lab reserve {request.kind}{count}{tags} --from {again} "
        f"--for {format_duration(request.for_s)}",
    )


def extension_reserved_error(
    lease: Lease, reserved: Reservation, most_s: float, now: float
) -> UsageError:
    """Return the error for an extension into the time for which boards are reserved."""
    what = f"lease {lease.number} cannot be extended so far"
    why = reserved_for(reserved, now)
    if most_s >= 1:
        return UsageError(what, why, f"farm lab extend {lease.number} {format_duration(most_s)}")
    return UsageError(what, why, "give the boards back when it ends, and lease anew")


def reserved_for(reservation: Reservation, now: float) -> str:
    """Return whom boards are reserved for, and from when."""
    request = reservation.request
    return f"reserved for {request.owner} from {clock_time(request.starts_at, now)}"


def reserved_until(request: ReservationRequest, now: float) -> str:
    """Return who has reserved how many boards, from when until when."""
    starts_at, until = (clock_time(at, now) for at in (request.starts_at, request.until))
    return f"{request.owner} has reserved {request.count} from {starts_at} to {until}"


def leased_until(lease: Lease, ends_at: float, now: float) -> str:
    """Return who has leased how many boards, and until when."""
    return f"{lease.request.owner} has leased {len(lease.boards)} until {clock_time(ends_at, now)}"


def unknown_reservation_error(number: int) -> UsageError:
    """Return the error for a reservation that there is not, or that is over."""
    return UsageError(
        f"there is no reservation {number}", "it never was, or it is over", "farm lab reservations"
    )


def reservation_of_another_error(reservation: Reservation) -> UsageError:
    """Return the error for the reservation of another."""
    why = f"it belongs to {reservation.request.owner}"
    return UsageError(
        f"reservation {reservation.number} is not yours", why, "farm lab reservations"
    )


def reservation_began_error(reservation: Reservation) -> UsageError:
    """Return the error for a reservation that has begun, and can be cancelled no more."""
    return UsageError(
        f"reservation {reservation.number} has begun",
        f"its boards are those of lease {reservation.lease}",
        f"farm lab end {reservation.lease}",
    )


def reservation_not_begun_error(reservation: Reservation, now: float) -> UsageError:
    """Return the error for a reservation whose time has not come."""
    why = f"it begins at {clock_time(reservation.request.starts_at, now)}"
    return UsageError(
        f"reservation {reservation.number} has not begun", why, "farm lab reservations"
    )


def reservation_of_another_kind_error(reservation: Reservation, kind: str) -> UsageError:
    """Return the error for a reservation of another kind than the one that is asked for."""
    its = reservation.request.kind
    return UsageError(
        f"reservation {reservation.number} is not of kind {kind[:100]!r}",
        f"it is of kind {its}",
        f"name the kind {its}, or another reservation: farm lab reservations",
    )


def reason_needed_error(reservation: Reservation) -> UsageError:
    """Return the error for an administrator who says no reason."""
    return UsageError(
        f"reservation {reservation.number} is of {reservation.request.owner}",
        "who cancels what is another's says why",
        f"farm lab cancel {reservation.number} --because REASON",
    )
