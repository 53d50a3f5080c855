"""The boards and kinds of a lab: which are there, which are free, and who waits for a kind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from farm.lab.entities import InventoryBoard, Lease

MOST_KINDS = 1000


@dataclass(slots=True)
class RegisteredBoard:
    """A board. `listed` is one of the inventory.

    `idle` is one that has said that it has no session. `hushed` is one that has not been heard as
    it should, `silent` one that has not been heard for so long that its lease gets another.
    `barred` is why it is not lent, by its health or its admin, or `briefly`, until it is checked;
    one in probation is `batch_only`. `held` is one whose agent was told not to offer it.
    """

    name: str
    kind: str
    tags: tuple[str, ...] = ()
    listed: bool = False
    present: bool = False
    idle: bool = False
    hushed: bool = False
    silent: bool = False
    barred: str = ""
    briefly: bool = False
    batch_only: bool = False
    held: bool = False
    health: str = ""
    lease: int | None = None


@dataclass(slots=True)
class BoardKindQueue:
    """The boards of a kind and the leases that wait for it.

    `free` has the least recently used first.

    A kind is `known` if a board of it is there, or has been.
    """

    known: bool = False
    boards: dict[str, RegisteredBoard] = field(default_factory=dict)
    free: OrderedDict[str, RegisteredBoard] = field(default_factory=OrderedDict)
    queue: OrderedDict[int, Lease] = field(default_factory=OrderedDict)


class BoardRegistry:
    """All boards and kinds by name."""

    def __init__(self, kinds: Iterable[str], inventory: Iterable[InventoryBoard]) -> None:
        self.new_kinds: list[str] = []
        self.boards: dict[str, RegisteredBoard] = {}
        self.kinds: OrderedDict[str, BoardKindQueue] = OrderedDict(
            (kind, BoardKindQueue(True)) for kind in kinds
        )
        for one in inventory:
            self.board(one.name, one.kind, one.tags).listed = True

    def board(self, name: str, kind: str, tags: tuple[str, ...] = ()) -> RegisteredBoard:
        """Return a board, which is made if it is new."""
        board = self.boards.get(name)
        if board is None:
            board = self.boards[name] = RegisteredBoard(name, kind, tags)
            self.kind(kind).boards[name] = board
        return board

    def kind(self, name: str) -> BoardKindQueue:
        """Return a kind that a board has.

        A new one may displace one of very many that nothing holds.
        """
        kind = self.kinds.setdefault(name, BoardKindQueue())
        if not kind.known:
            kind.known = True
            self.new_kinds.append(name)
            if len(self.kinds) > MOST_KINDS:
                unused = next(
                    (
                        key
                        for key, one in self.kinds.items()
                        if not (one.boards or one.queue) and one is not kind
                    ),
                    None,
                )
                if unused is not None:
                    del self.kinds[unused]
        return kind

    def knows(self, kind: str) -> bool:
        """Return whether a board of the kind is there, or has been."""
        return kind in self.kinds and self.kinds[kind].known

    @property
    def known_kinds(self) -> list[str]:
        """The kinds of which a board is there, or has been."""
        return [name for name, kind in self.kinds.items() if kind.known]

    def refresh(self, board: RegisteredBoard) -> None:
        """Note whether a board is free, after a change."""
        free = self.kinds[board.kind].free
        if (
            board.idle
            and board.lease is None
            and not (board.hushed or board.silent or board.barred)
        ):
            free.setdefault(board.name, board)
        else:
            free.pop(board.name, None)

    def forget(self, board: RegisteredBoard) -> None:
        """Forget a board that is away, and neither leased nor in the inventory."""
        if not (board.listed or board.present or board.lease is not None):
            self.boards.pop(board.name, None)
            self.kinds[board.kind].boards.pop(board.name, None)

    def queue(self, lease: Lease) -> None:
        """Let a lease wait for its kind, or note that it has changed."""
        self.kinds.setdefault(lease.request.kind, BoardKindQueue()).queue[lease.number] = lease

    def leave_queue(self, lease: Lease) -> None:
        """Let a lease wait no longer.

        A kind that no board has had is forgotten with its last one.
        """
        kind = self.kinds[lease.request.kind]
        kind.queue.pop(lease.number, None)
        if not (kind.known or kind.queue):
            del self.kinds[lease.request.kind]
