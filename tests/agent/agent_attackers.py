"""A crowd that is no client of TVM's: python agent_attackers.py PORT READY_FILE GARBAGE IDLE

GARBAGE connections at a time say something that is no greeting, and come again as soon as they are
closed; IDLE ones say nothing, and come again too. READY_FILE appears once all have been there. Goes
on until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import struct
import sys
from pathlib import Path

MAGIC = 0xFF271
WORDS = (
    b"GET / HTTP/1.0\r\n\r\n",
    struct.pack("<ii", MAGIC, 0),
    struct.pack("<ii", MAGIC, -1),
    struct.pack("<ii", MAGIC, 2**31 - 1),
    struct.pack("<ii", MAGIC, 12) + b"client:wrong",
    struct.pack("<ii", MAGIC, 3000) + b"client:",
    b"\x71",
    random.Random(1).randbytes(4096),
)
PATIENCE_S = 1.0


async def come_again(port: int, words: bytes | None, been: asyncio.Semaphore) -> None:
    for visit in itertools.count():
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if visit == 0:
                been.release()
            try:
                if words is not None:
                    writer.write(words)
                    await asyncio.wait_for(reader.read(1), PATIENCE_S)
                else:
                    await reader.read(1)
            finally:
                writer.close()
        await asyncio.sleep(0)


async def attack(port: int, ready: Path, garbage: int, idle: int) -> None:
    been = asyncio.Semaphore(0)
    words = [WORDS[i % len(WORDS)] for i in range(garbage)] + [None] * idle
    crowd = [asyncio.create_task(come_again(port, each, been)) for each in words]
    for _ in crowd:
        await been.acquire()
    ready.write_text("ready\n")
    await asyncio.gather(*crowd)


if __name__ == "__main__":
    asyncio.run(attack(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
