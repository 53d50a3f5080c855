"""Streams of TVM's RPC: requests of a client with right answers to them, and answers that are
changed at random.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from farm.rpc.answer_filter import (
    AnswerError,
    AnswerFilter,
    FfiTypeIndex,
    PacketCode,
    Request,
    RequestReader,
)

_WORD = struct.Struct("<q")
TEXTS = (b"", b"x", b"name", bytes(100))


def packet(code: int, body: bytes = b"") -> bytes:
    return struct.pack("<Qi", 4 + len(body), code) + body


def value(kind: int, rng: random.Random) -> bytes:
    """A value as a server sends it."""
    head = struct.pack("<i", kind)
    text = rng.choice(TEXTS)
    if kind == FfiTypeIndex.NONE:
        return head
    if kind in (FfiTypeIndex.RAW_STRING, FfiTypeIndex.BYTE_ARRAY_POINTER):
        return head + struct.pack("<Q", len(text)) + text
    if kind in (FfiTypeIndex.STRING, FfiTypeIndex.SMALL_STRING):
        return head + struct.pack("<iQ", FfiTypeIndex.STRING, len(text)) + text
    if kind == FfiTypeIndex.DEVICE:
        return head + struct.pack("<ii", 1, 0)
    if kind == FfiTypeIndex.DL_TENSOR_POINTER:
        shape = [rng.randrange(20) for _ in range(rng.randrange(5))]
        about = struct.pack("<QiiiBBH", 4096, 1, 0, len(shape), 2, 32, 1)
        return head + about + b"".join(map(_WORD.pack, shape)) + struct.pack("<Q", 0)
    return head + _WORD.pack(rng.randrange(-1 << 63, 1 << 63))


def returned(kinds: tuple[int, ...], rng: random.Random) -> bytes:
    return packet(
        PacketCode.RETURN,
        struct.pack("<i", len(kinds)) + b"".join(value(kind, rng) for kind in kinds),
    )


def call_returns(kind: int, form: tuple[int, ...], rng: random.Random) -> bytes:
    body = struct.pack("<iiq", 1 + len(form), FfiTypeIndex.INT, kind)
    return packet(PacketCode.RETURN, body + b"".join(value(one, rng) for one in form))


# The type that a function returns, and the values by which it is sent: LocalSession::EncodeReturn.
CALLS: dict[int, tuple[int, ...]] = {
    FfiTypeIndex.NONE: (FfiTypeIndex.NONE,),
    FfiTypeIndex.INT: (FfiTypeIndex.INT,),
    FfiTypeIndex.BOOL: (FfiTypeIndex.BOOL,),
    FfiTypeIndex.FLOAT: (FfiTypeIndex.FLOAT,),
    FfiTypeIndex.OPAQUE_POINTER: (FfiTypeIndex.OPAQUE_POINTER,),
    FfiTypeIndex.DATA_TYPE: (FfiTypeIndex.DATA_TYPE,),
    FfiTypeIndex.DEVICE: (FfiTypeIndex.DEVICE,),
    FfiTypeIndex.STRING: (FfiTypeIndex.RAW_STRING,),
    FfiTypeIndex.SMALL_STRING: (FfiTypeIndex.RAW_STRING,),
    FfiTypeIndex.BYTES: (FfiTypeIndex.BYTE_ARRAY_POINTER,),
    FfiTypeIndex.SMALL_BYTES: (FfiTypeIndex.BYTE_ARRAY_POINTER,),
    68: (FfiTypeIndex.OPAQUE_POINTER,),  # a function
    73: (FfiTypeIndex.OPAQUE_POINTER,),  # a module
    FfiTypeIndex.TENSOR: (FfiTypeIndex.DL_TENSOR_POINTER, FfiTypeIndex.OPAQUE_POINTER),
    200: (FfiTypeIndex.OPAQUE_POINTER,),  # an object of a class of its own
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, as the client sends it, and a right answer."""

    sent: bytes
    request: Request
    answer: bytes


def exchange(rng: random.Random) -> Exchange:
    """A request and a right answer."""
    code = rng.choice(
        [
            code
            for code in PacketCode
            if code
            not in (
                PacketCode.NONE,
                PacketCode.SHUTDOWN,
                PacketCode.RETURN,
                PacketCode.EXCEPTION,
                PacketCode.COPY_ACK,
            )
        ]
    )
    request, body = Request(code), bytes(rng.randrange(60))
    if code == PacketCode.COPY_FROM_REMOTE:
        request = Request(code, rng.randrange(3000))
        body += struct.pack("<Q", request.copied_bytes)
    if rng.random() < 0.1:
        answer = packet(
            PacketCode.EXCEPTION, struct.pack("<i", 1) + value(FfiTypeIndex.RAW_STRING, rng)
        )
    elif code == PacketCode.COPY_FROM_REMOTE:
        answer = packet(PacketCode.COPY_ACK, rng.randbytes(request.copied_bytes))
    elif code == PacketCode.CALL_FUNC:
        answer = call_returns(*rng.choice(list(CALLS.items())), rng)
    elif code == PacketCode.DEV_GET_ATTR:
        answer = returned(
            (
                rng.choice(
                    [
                        FfiTypeIndex.NONE,
                        FfiTypeIndex.INT,
                        FfiTypeIndex.STRING,
                        FfiTypeIndex.SMALL_STRING,
                        FfiTypeIndex.RAW_STRING,
                    ]
                ),
            ),
            rng,
        )
    elif code in (
        PacketCode.GET_GLOBAL_FUNC,
        PacketCode.DEV_ALLOC_DATA,
        PacketCode.DEV_ALLOC_DATA_WITH_SCOPE,
        PacketCode.DEV_CREATE_STREAM,
        PacketCode.DEV_GET_CURRENT_STREAM,
    ):
        answer = returned((rng.choice([FfiTypeIndex.NONE, FfiTypeIndex.OPAQUE_POINTER]),), rng)
    else:
        answer = returned((FfiTypeIndex.NONE,), rng)
    return Exchange(packet(code, body), request, answer)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with some bytes changed, cut out, repeated or put in: often lengths, counts and
    types.
    """
    data = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at : at + 4] = struct.pack(
                    "<i", rng.choice((-1, 0, 1, 2, 3, 5, 8, 64, 73, 1 << 30, -(1 << 31)))
                )
            case 2:
                data[at : at + 8] = struct.pack(
                    "<Q", rng.choice((0, 1, 4, 1 << 20, 1 << 31, 1 << 62, (1 << 64) - 1))
                )
            case 3:
                del data[at : at + rng.randrange(1, 20)]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case 5:
                data += rng.randbytes(rng.randrange(1, 40))
    return bytes(data)


def pieces(content: bytes, rng: random.Random) -> list[bytes]:
    """The content as it may arrive."""
    cuts = sorted(rng.randrange(len(content) + 1) for _ in range(rng.randrange(4)))
    return [
        content[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What passed of a stream, and why the rest did not."""

    passed: bytes
    refused: str


def conversation(seed: int) -> tuple[list[Exchange], bytes, Outcome]:
    """Have one exchange or a few, of which the last is changed at random; what the board sent of
    it, and how it ended.

    Whatever passes of it has to be the beginning of what was sent.
    """
    rng = random.Random(seed)
    exchanges = [exchange(rng) for _ in range(rng.randrange(1, 4))]
    answers, reader = AnswerFilter(), RequestReader()
    for one in exchanges[:-1]:
        _request(reader, answers, one, rng)
        passed = b"".join(
            bytes(part) for piece in pieces(one.answer, rng) for part in answers.feed(piece)
        )
        assert passed == one.answer
    last = exchanges[-1]
    _request(reader, answers, last, rng)
    sent = rng.randbytes(rng.randrange(64)) if rng.random() < 0.1 else mutated(last.answer, rng)
    passed = b""
    try:
        for piece in pieces(sent, rng):
            for part in answers.feed(piece):
                passed += part
    except AnswerError as error:
        return exchanges, sent, Outcome(passed, str(error))
    return exchanges, sent, Outcome(passed, "")


def _request(
    reader: RequestReader, answers: AnswerFilter, one: Exchange, rng: random.Random
) -> None:
    found = [request for piece in pieces(one.sent, rng) for request in reader.feed(piece)]
    assert [(request.code, request.copied_bytes) for request in found] == [
        (one.request.code, one.request.copied_bytes)
    ]
    answers.expect(found[0])
