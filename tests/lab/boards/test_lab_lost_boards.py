"""A board of a lease that is lost: which one the lease gets in its place."""

from __future__ import annotations

from farm.lab.entities import InventoryBoard, LeaseRequest, SharingRules
from farm.lab.scheduling.scheduler import LeaseScheduler


def test_a_lease_gets_a_board_with_its_tags_in_the_place_of_a_lost_one() -> None:
    boards = [InventoryBoard(name, "pi5", "", tags) for name, tags in BOARDS.items()]
    scheduler = LeaseScheduler(SharingRules(), boards)
    scheduler.board_idle("camera-1", "pi5", 0.0)
    request = LeaseRequest("alice", "pi5", 60.0, tags=("camera",))
    number = scheduler.request(request, "key", 0.0).number
    scheduler.board_idle("plain", "pi5", 1.0)
    scheduler.board_bad("camera-1", "wrong: digits", 2.0)
    assert scheduler.lease(number).boards == ("camera-1",)
    scheduler.board_idle("camera-2", "pi5", 3.0)
    assert scheduler.lease(number).boards == ("camera-2",)


BOARDS = {"camera-1": ("camera",), "camera-2": ("camera",), "plain": ()}
