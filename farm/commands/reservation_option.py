"""--reservation: the boards of a reservation, for a command whose devices are leased from a lab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from farm.api.resolve import check_reservations, devices_with_reservation

if TYPE_CHECKING:
    from farm.commands.common import Session
    from farm.types import Device

with_reservation = click.option(
    "--reservation",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="For devices of a lab: the boards of this reservation of yours, which has begun.",
)


def reserved_devices(
    session: Session, devices: Sequence[Device], number: int | None
) -> list[Device]:
    """Return the devices as they use a reservation, and let all of the command use them so.

    Raises UsageError for a device that no lab leases.
    """
    found = devices_with_reservation(devices, number)
    if number is not None:
        fleet = session.fleet()
        known = {**fleet.devices, **{device.name: device for device in found}}
        session.use(replace(fleet, devices=known))
    return found


def checked_reserved_devices(
    session: Session, devices: Sequence[Device], number: int | None
) -> list[Device]:
    """Return the devices like `reserved_devices`, after asking the lab for the reservation.

    Raises UsageError if it cannot be used, before anything is built.
    """
    found = reserved_devices(session, devices, number)
    check_reservations(found)
    return found
