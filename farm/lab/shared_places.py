"""Places that people share: each person has some of their own, and nobody takes those of others.

Whoever has all of their places loses the one that has been idle for longest. When all places are
taken, whoever has the most of them loses one to those who have fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
_NUMBERED = (
    "uid-"  # begins the name of a user without an account, as `ownership.user_name` makes it
)


def person_of(name: str) -> str:
    """Return whose limits count for a user.

    Users without an account are one person: with subordinate ids, a user of this machine may be
    any of very many.
    """
    return _NUMBERED if name.startswith(_NUMBERED) else name


class SharedPlaces(Generic[Item]):
    """The places that are taken, by person. `drop` ends what has lost its place."""

    def __init__(self, most: int, most_of_one: int, drop: Callable[[Item], None]) -> None:
        self._most, self._most_of_one, self._drop = most, most_of_one, drop
        self._of: dict[str, dict[Item, bool]] = {}  # whether each is busy, the oldest first
        self._person: dict[Item, str] = {}

    def take(self, item: Item, name: str, busy: bool = False) -> bool:
        """Take a place for a user; return whether there was one."""
        person = person_of(name)
        has = len(self._of.get(person, ()))
        if has >= self._most_of_one:
            if not self._make_room(person, busy_too=False):
                return False
        elif len(self._person) >= self._most:
            largest = max(self._of, key=lambda one: len(self._of[one]))
            if len(self._of[largest]) <= has + 1 or not self._make_room(largest, busy_too=True):
                return False
        self._of.setdefault(person, {})[item] = busy
        self._person[item] = person
        return True

    def __contains__(self, item: object) -> bool:
        return item in self._person

    def mark(self, item: Item, busy: bool) -> None:
        """Note whether something is busy. What becomes idle has been so for the shortest time."""
        person = self._person.get(item)
        if person is None:
            return
        if not busy:
            del self._of[person][item]
        self._of[person][item] = busy

    def leave(self, item: Item) -> None:
        """Give a place back, if it is still had."""
        person = self._person.pop(item, None)
        if person is not None:
            del self._of[person][item]
            if not self._of[person]:
                del self._of[person]

    def _make_room(self, person: str, busy_too: bool) -> bool:
        """End what a person has had idle for longest, or the oldest; return whether there was."""
        items = self._of[person]
        found = next((one for one, busy in items.items() if not busy), None)
        if found is None and busy_too:
            found = next(iter(items))
        if found is None:
            return False
        self.leave(found)
        self._drop(found)
        return True
