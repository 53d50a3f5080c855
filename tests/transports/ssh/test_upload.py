"""A file on its way into a store: from where it stopped, in pieces that fit the line, by the faster
way as far as that goes.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from timeouts import LIMIT_S

from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd
from farm.transports.adb.upload import upload_file
from farm.transports.command import CommandBoard
from farm.transports.upload import Note, store_file
from farm.types import Device, Profile

SIZE = 5_000_000
CONTENT = bytes(range(250)) * (SIZE // 250)
DIGEST = sha256(CONTENT).hexdigest()


class Store:
    """A device's store, as far as it is asked here."""

    def __init__(self, arrived: int = 0) -> None:
        self.part, self.whole, self.writes = bytearray(CONTENT[:arrived]), b"", 0

    def call(self, name: str, digest: str, *arguments: object) -> int | None:
        assert digest == DIGEST
        return getattr(self, name.removeprefix("farm.store."))(*arguments)  # type: ignore[no-any-return]

    def begin(self, size: int) -> int:
        assert size == SIZE
        return len(self.part)

    def write(self, offset: int, piece: bytes) -> None:
        assert offset <= len(self.part)
        assert len(piece) <= 1 << 20, "progress is seen, however fast the line is"
        self.part[offset : offset + len(piece)] = piece
        self.writes += 1

    def finish(self) -> None:
        self.whole = bytes(self.part)

    def carry_up_to(self, end: int) -> object:
        """A faster way, which ends where `end` bytes have arrived."""

        def carry(path: Path, digest: str, offset: int, note: Note) -> int:
            assert (path.read_bytes(), digest) == (CONTENT, DIGEST)
            self.part[offset:] = CONTENT[offset:end]
            return end - offset

        return carry


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("arrived", [0, 1, SIZE - 1, SIZE])
def test_a_file_goes_on_where_it_stopped(file: Path, arrived: int) -> None:
    store, noted = Store(arrived), list[int]()
    assert store_file(store.call, None, file, DIGEST, noted.append) == SIZE - arrived
    assert store.whole == CONTENT
    assert (noted[0], noted[-1]) == (arrived, SIZE)
    assert noted == sorted(noted)


@pytest.mark.parametrize("end", [SIZE, SIZE // 3, 0])
def test_what_the_faster_way_leaves_goes_in_pieces(file: Path, end: int) -> None:
    store = Store()
    assert store_file(store.call, store.carry_up_to(end), file, DIGEST, lambda _: None) == SIZE  # type: ignore[arg-type]
    assert store.whole == CONTENT
    assert (store.writes == 0) == (end == SIZE)


def test_what_the_faster_way_lost_on_the_way_is_sent_again(file: Path) -> None:
    store = Store()

    def carry(path: Path, digest: str, offset: int, note: Note) -> int:
        """Send all of it through a channel that breaks before the last third has arrived."""
        store.part[offset:] = CONTENT[offset : 2 * SIZE // 3]
        return SIZE - offset

    lost = SIZE - 2 * SIZE // 3
    assert store_file(store.call, carry, file, DIGEST, lambda _: None) == SIZE + lost  # type: ignore[arg-type]
    assert store.whole == CONTENT


def test_a_small_rest_goes_by_calls(file: Path) -> None:
    store = Store(SIZE - 1000)
    assert store_file(store.call, store.carry_up_to(SIZE), file, DIGEST, lambda _: None) == 1000  # type: ignore[arg-type]
    assert (store.whole, store.writes) == (CONTENT, 1)


@pytest.mark.parametrize("arrived", [0, 1 << 16, 100_000, SIZE])
def test_the_rest_of_a_file_is_written_where_it_belongs(
    file: Path, tmp_path: Path, arrived: int
) -> None:
    """By dd on the board, whose blocks are not those in which a file was cut."""
    part, noted = tmp_path / f"{DIGEST}.part", list[int]()
    part.write_bytes(CONTENT[:arrived])
    device = Device("box", Profile("x86", {}, ""), "exec:box", options={"command": "env"})
    board = CommandBoard(device, Deadline(LIMIT_S))
    sent = upload_file(board, str(tmp_path), OutputEnd(), file, DIGEST, arrived, noted.append)  # type: ignore[arg-type]
    assert sent == SIZE - arrived // (1 << 16) * (1 << 16)
    assert sha256(part.read_bytes()).hexdigest() == DIGEST
