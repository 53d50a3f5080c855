"""What passes from a board to TVM's RPC client: right answers do, whole and unchanged; nothing else
does.
"""

from __future__ import annotations

import importlib.util
import random
import re
import struct
import tracemalloc
from pathlib import Path

import hostile_board
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from random_rpc_streams import (
    CALLS,
    call_returns,
    conversation,
    exchange,
    packet,
    pieces,
    returned,
    value,
)

from farm.rpc.answer_filter import (
    MOST_EXCEPTION_BYTES,
    MOST_RETURN_BYTES,
    MOST_TENSOR_BYTES,
    AnswerError,
    AnswerFilter,
    FfiTypeIndex,
    PacketCode,
    Request,
    RequestReader,
)

CALL = Request(PacketCode.CALL_FUNC)


def passed(answer: bytes, *requests: Request) -> bytes:
    answers = AnswerFilter()
    for request in requests:
        answers.expect(request)
    return b"".join(bytes(part) for part in answers.feed(answer))


def refused(answer: bytes, *requests: Request) -> str:
    with pytest.raises(AnswerError) as caught:
        passed(answer, *requests)
    return str(caught.value)


@given(st.integers(0))
def test_right_answers_pass_however_they_arrive(seed: int) -> None:
    rng = random.Random(seed)
    answers, reader = AnswerFilter(), RequestReader()
    for _ in range(10):
        one = exchange(rng)
        (request,) = [request for piece in pieces(one.sent, rng) for request in reader.feed(piece)]
        assert (request.code, request.copied_bytes) == (one.request.code, one.request.copied_bytes)
        answers.expect(request)
        assert (
            b"".join(
                bytes(part) for piece in pieces(one.answer, rng) for part in answers.feed(piece)
            )
            == one.answer
        )


@given(st.integers(0))
def test_of_answers_that_were_changed_only_what_is_one_passes(seed: int) -> None:
    exchanges, sent, outcome = conversation(seed)
    assert sent.startswith(outcome.passed)
    assert sorted(outcome.refused) == [] or outcome.refused.isprintable()
    if outcome.passed:
        _, code = struct.unpack_from("<Qi", outcome.passed)
        copied = exchanges[-1].request.code == PacketCode.COPY_FROM_REMOTE
        assert code in (
            (PacketCode.COPY_ACK, PacketCode.EXCEPTION, PacketCode.SHUTDOWN)
            if copied
            else (PacketCode.RETURN, PacketCode.EXCEPTION, PacketCode.SHUTDOWN)
        )


@given(st.binary(max_size=200), st.sampled_from([*PacketCode]))
def test_any_bytes_are_judged(content: bytes, code: PacketCode) -> None:
    answers = AnswerFilter()
    answers.expect(Request(code, 10))
    try:
        assert content.startswith(b"".join(bytes(part) for part in answers.feed(content)))
    except AnswerError as error:
        assert str(error)


@pytest.mark.parametrize(("kind", "form"), CALLS.items())
def test_what_a_function_returns_passes(kind: int, form: tuple[int, ...]) -> None:
    answer = call_returns(kind, form, random.Random(0))
    assert passed(answer, CALL) == answer


@pytest.mark.parametrize("mode", sorted(set(hostile_board.ATTACKS) - {"silent", "twice", "big"}))
def test_an_attack_is_no_answer_to_anything(mode: str) -> None:
    attack = hostile_board.ATTACKS[mode]("marker")
    for request in (
        Request(PacketCode.INIT_SERVER),
        CALL,
        Request(PacketCode.GET_GLOBAL_FUNC),
        Request(PacketCode.COPY_FROM_REMOTE, 10),
    ):
        assert refused(attack, request)
    assert refused(attack)


@pytest.mark.parametrize(
    "code",
    sorted(
        set(PacketCode)
        - {
            PacketCode.RETURN,
            PacketCode.EXCEPTION,
            PacketCode.COPY_ACK,
            PacketCode.SHUTDOWN,
            PacketCode.NONE,
        }
    ),
)
def test_a_request_of_the_board_is_named(code: PacketCode) -> None:
    assert "a request to be carried out on this machine (k" in refused(
        packet(code, bytes(20)), CALL
    )


def test_the_types_and_codes_are_those_of_this_tvm() -> None:
    header = (Path(tvm_ffi.__file__).parent / "include/tvm/ffi/c_api.h").read_text()
    protocol = (
        Path(importlib.util.find_spec("tvm").origin).parent
        / "src/runtime/rpc/minrpc/rpc_reference.h"
    ).read_text()  # type: ignore
    body = re.search(r"enum class RPCCode : int \{(.*?)\};", protocol, re.DOTALL)
    assert body
    names = [
        name
        for name in re.findall(r"^\s*k(\w+)", body[1], re.MULTILINE)
        if name != "SyscallCodeStart"
    ]
    assert [name.upper() for name in names] == [code.name.replace("_", "") for code in PacketCode]
    for kind, name in {
        FfiTypeIndex.INT: "Int",
        FfiTypeIndex.BOOL: "Bool",
        FfiTypeIndex.FLOAT: "Float",
        FfiTypeIndex.OPAQUE_POINTER: "OpaquePtr",
        FfiTypeIndex.DATA_TYPE: "DataType",
        FfiTypeIndex.DEVICE: "Device",
        FfiTypeIndex.DL_TENSOR_POINTER: "DLTensorPtr",
        FfiTypeIndex.RAW_STRING: "RawStr",
        FfiTypeIndex.BYTE_ARRAY_POINTER: "ByteArrayPtr",
        FfiTypeIndex.SMALL_STRING: "SmallStr",
        FfiTypeIndex.SMALL_BYTES: "SmallBytes",
        FfiTypeIndex.FIRST_OBJECT: "StaticObjectBegin",
        FfiTypeIndex.STRING: "Str",
        FfiTypeIndex.BYTES: "Bytes",
        FfiTypeIndex.TENSOR: "Tensor",
    }.items():
        assert f" kTVMFFI{name} = {int(kind)}," in header


TENSOR = struct.pack(
    "<iiqi", 3, FfiTypeIndex.INT, FfiTypeIndex.TENSOR, FfiTypeIndex.DL_TENSOR_POINTER
)


def tensor(*shape: int, bits: int = 32, device: int = 1, dimensions: int | None = None) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    about = struct.pack("<QiiiBBH", 1, device, 0, count, 2, bits, 1) + b"".join(
        struct.pack("<q", extent) for extent in shape
    )
    return packet(
        PacketCode.RETURN,
        TENSOR
        + about
        + struct.pack("<Q", 0)
        + value(FfiTypeIndex.OPAQUE_POINTER, random.Random(0)),
    )


def test_a_tensor_is_one_that_can_be_copied() -> None:
    assert passed(tensor(2, 3), CALL)
    assert passed(tensor(MOST_TENSOR_BYTES // 4), CALL)
    assert "more than" in refused(tensor(1 << 40), CALL)
    assert "more than" in refused(tensor(*[1 << 62] * 8), CALL)
    assert "more than" in refused(tensor(0, 1 << 62), CALL), "an empty one has no such shape"
    assert "less than nothing" in refused(tensor(-1), CALL)
    assert "dimensions" in refused(tensor(dimensions=-1), CALL)
    assert "dimensions" in refused(tensor(dimensions=1 << 30), CALL)
    assert "device" in refused(tensor(2, device=129), CALL), "a device of a session's own"
    assert "type" in refused(tensor(2, bits=0), CALL)


def test_a_copy_has_the_bytes_that_were_asked_for_and_is_not_kept() -> None:
    size = 50 << 20
    answers = AnswerFilter()
    answers.expect(Request(PacketCode.COPY_FROM_REMOTE, size))
    tracemalloc.start()
    count = sum(
        len(part) for part in answers.feed(struct.pack("<Qi", 4 + size, PacketCode.COPY_ACK))
    )
    piece = bytes(1 << 20)
    for _ in range(50):
        count += sum(len(part) for part in answers.feed(piece))
    assert count == size + 12
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()
    for other in (size - 1, size + 1):
        assert "belong" in refused(
            struct.pack("<Qi", 4 + other, PacketCode.COPY_ACK),
            Request(PacketCode.COPY_FROM_REMOTE, size),
        )
    assert "another kind" in refused(
        returned((FfiTypeIndex.NONE,), random.Random(0)), Request(PacketCode.COPY_FROM_REMOTE, 8)
    )
    assert "another kind" in refused(packet(PacketCode.COPY_ACK), CALL)


@pytest.mark.parametrize(
    ("code", "most", "request_"),
    [
        (PacketCode.RETURN, MOST_RETURN_BYTES, CALL),
        (PacketCode.EXCEPTION, MOST_EXCEPTION_BYTES, CALL),
        (PacketCode.RETURN, 1 << 16, Request(PacketCode.FREE_HANDLE)),
    ],
)
def test_an_answer_beyond_its_bound_is_refused_at_its_head(
    code: PacketCode, most: int, request_: Request
) -> None:
    assert refused(struct.pack("<Qi", most + 1, code), request_)
    assert passed(struct.pack("<Qi", most, code), request_) == b""


def test_last_words_may_come_unasked_and_are_the_last() -> None:
    words = packet(
        PacketCode.EXCEPTION,
        struct.pack("<i", 1) + value(FfiTypeIndex.RAW_STRING, random.Random(0)),
    )
    assert passed(words) == words, "a session's time is up"
    assert "after its last words" in refused(words + words)
    assert passed(packet(PacketCode.SHUTDOWN)) == packet(PacketCode.SHUTDOWN)
    assert refused(packet(PacketCode.SHUTDOWN, b"1"))
    assert "nothing asked for" in refused(returned((FfiTypeIndex.NONE,), random.Random(0)))


def test_a_handle_is_not_taken_for_an_object() -> None:
    rng = random.Random(0)
    for kind in (68, 73, FfiTypeIndex.TENSOR, FfiTypeIndex.STRING):
        assert refused(call_returns(kind, (kind,), rng), CALL)
    assert refused(call_returns(FfiTypeIndex.INT, (68,), rng), CALL)
    assert refused(
        call_returns(FfiTypeIndex.DL_TENSOR_POINTER, (FfiTypeIndex.DL_TENSOR_POINTER,), rng), CALL
    )
    assert refused(returned((FfiTypeIndex.OPAQUE_POINTER,), rng), Request(PacketCode.INIT_SERVER))


@pytest.mark.parametrize("length", [0, 3])
def test_a_request_too_short_for_its_code_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match=f"a request of {length} bytes"):
        RequestReader().feed(struct.pack("<Qi", length, PacketCode.CALL_FUNC))
