"""Let only answers pass from a board to a client of TVM's RPC.

TVM's `RPCEndpoint` is client and server in one: it executes requests that the board sends, with any
function of its own process (`HandleInitServer`) and any address of its memory, and does not check
lengths, counts and types. A packet passes here only after it has been recognised as one that a
server of TVM sends: see `RPCReference` (minrpc/rpc_reference.h), `LocalSession::EncodeReturn`
(rpc_local_session.cc) and `RPCEndpoint` (rpc_endpoint.cc) of TVM 0.27.

This module does no I/O: it takes bytes and yields the bytes that may pass.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class PacketCode(enum.IntEnum):
    """The packet kinds: `RPCCode` of minrpc/rpc_reference.h."""

    NONE = 0
    SHUTDOWN = 1
    INIT_SERVER = 2
    CALL_FUNC = 3
    RETURN = 4
    EXCEPTION = 5
    COPY_FROM_REMOTE = 6
    COPY_TO_REMOTE = 7
    COPY_ACK = 8
    GET_GLOBAL_FUNC = 9
    FREE_HANDLE = 10
    DEV_SET_DEVICE = 11
    DEV_GET_ATTR = 12
    DEV_ALLOC_DATA = 13
    DEV_FREE_DATA = 14
    DEV_STREAM_SYNC = 15
    COPY_AMONG_REMOTE = 16
    DEV_ALLOC_DATA_WITH_SCOPE = 17
    DEV_CREATE_STREAM = 18
    DEV_FREE_STREAM = 19
    DEV_SET_STREAM = 20
    DEV_GET_CURRENT_STREAM = 21


class FfiTypeIndex(enum.IntEnum):
    """The value types: `TVMFFITypeIndex` of tvm/ffi/c_api.h."""

    NONE = 0
    INT = 1
    BOOL = 2
    FLOAT = 3
    OPAQUE_POINTER = 4
    DATA_TYPE = 5
    DEVICE = 6
    DL_TENSOR_POINTER = 7
    RAW_STRING = 8
    BYTE_ARRAY_POINTER = 9
    SMALL_STRING = 11
    SMALL_BYTES = 12
    FIRST_OBJECT = 64
    STRING = 65
    BYTES = 66
    FUNCTION = 68
    TENSOR = 70
    MODULE = 73
    REMOTE_OBJECT = 115  # kRuntimeRPCObjectRef of rpc_session.h


# A profile has at most 1.2 million records of 24 bytes (farm/agent/src/execution/call_profiler.cc).
MOST_RETURN_BYTES = 64 << 20
MOST_SYSTEM_RETURN_BYTES = 1 << 16  # of TVM's own requests: a number, a handle or a name
MOST_EXCEPTION_BYTES = 1 << 20
MOST_TENSOR_BYTES = (1 << 31) - 1  # the agent's own limit for a copy: PacketCheck::kMaxBytes
_MOST_DIMENSIONS = 32
_MOST_DEVICE_TYPE = 64  # DLDeviceType ends at 18; TVM's mask for a session begins at 128
_MOST_TYPE_CODE = 64  # DLDataTypeCode ends at 17
_MOST_REQUEST_HEAD_BYTES = 4096  # of a copy request: a tensor's description

_HEAD = struct.Struct("<Qi")  # bytes of the packet after this length field, and its code
_CODE_BYTES = 4
_INT32 = struct.Struct("<i")
_UINT64 = struct.Struct("<Q")
_INT64 = struct.Struct("<q")
_TENSOR = struct.Struct("<QiiiBBH")  # data; device: type, number; dimensions; code, bits, lanes

_POINTER_CODES = {
    PacketCode.GET_GLOBAL_FUNC,
    PacketCode.DEV_ALLOC_DATA,
    PacketCode.DEV_ALLOC_DATA_WITH_SCOPE,
    PacketCode.DEV_CREATE_STREAM,
    PacketCode.DEV_GET_CURRENT_STREAM,
}
_PLAIN_TYPES = {
    FfiTypeIndex.INT,
    FfiTypeIndex.BOOL,
    FfiTypeIndex.FLOAT,
    FfiTypeIndex.OPAQUE_POINTER,
    FfiTypeIndex.DATA_TYPE,
    FfiTypeIndex.DEVICE,
}
_STRING_TYPES = {FfiTypeIndex.RAW_STRING, FfiTypeIndex.STRING, FfiTypeIndex.SMALL_STRING}
_ATTRIBUTE_TYPES = {
    FfiTypeIndex.NONE,
    FfiTypeIndex.INT,
    FfiTypeIndex.BOOL,
    FfiTypeIndex.FLOAT,
    *_STRING_TYPES,
}


class AnswerError(Exception):
    """Raised for bytes that no TVM server sends to its client; the message describes them."""


class Request:
    """A request of the client: its code and, for a copy from the board, the bytes requested."""

    __slots__ = ("code", "copied_bytes")

    def __init__(self, code: int, copied_bytes: int = 0) -> None:
        self.code, self.copied_bytes = code, copied_bytes


class RequestReader:
    """Parse the bytes that the client sends, and report each request once its head has passed."""

    def __init__(self) -> None:
        self._collected = bytearray()
        self._wanted = _HEAD.size
        self._skipped = 0

    def feed(self, data: bytes | memoryview) -> list[Request]:
        """Return the requests whose heads are complete with these bytes.

        Shutdown requests are left out, because they have no answer.
        """
        found: list[Request] = []
        position = 0
        while position < len(data):
            if self._skipped:
                passed = min(self._skipped, len(data) - position)
                position += passed
                self._skipped -= passed
                continue
            part = data[position : position + self._wanted - len(self._collected)]
            position += len(part)
            self._collected += part
            if len(self._collected) == self._wanted:
                found += self._complete()
        return found

    def _complete(self) -> list[Request]:
        length, code = _HEAD.unpack_from(self._collected)
        rest = length - _CODE_BYTES
        if rest < 0:
            raise ValueError(f"a request of {length} bytes")
        if code == PacketCode.COPY_FROM_REMOTE and self._wanted == _HEAD.size:
            if not 0 < rest <= _MOST_REQUEST_HEAD_BYTES:
                raise ValueError(f"a request to copy of {length} bytes")
            self._wanted += rest
            return []
        copied = 0
        if code == PacketCode.COPY_FROM_REMOTE:  # the request ends with the number of bytes to copy
            (copied,) = _UINT64.unpack_from(self._collected, self._wanted - _UINT64.size)
        else:
            self._skipped = rest
        self._collected.clear()
        self._wanted = _HEAD.size
        return [] if code == PacketCode.SHUTDOWN else [Request(code, copied)]


class AnswerFilter:
    """Let answers of a board pass to the client that has requested them.

    `expect` takes the client's requests before they are sent. `feed` takes what the board sends and
    yields what may pass. Two threads may call the two concurrently. Memory is bounded by the
    largest answer that the outstanding request allows, or, for a copy, by the size of the data fed.
    What a function returns may have `most_return_bytes`.
    """

    def __init__(self, most_return_bytes: int = MOST_RETURN_BYTES) -> None:
        self._most_return_bytes = most_return_bytes
        self._requests: deque[Request] = deque()
        self._collected = bytearray()
        self._wanted = _UINT64.size
        self._passing = 0
        self._over = False
        self.answers = 0

    def expect(self, request: Request) -> None:
        """Register a request whose answer is expected."""
        self._requests.append(request)

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield the bytes that may pass.

        Raises AnswerError at the first packet that is not an answer.
        """
        view = memoryview(data)
        while view:
            if self._over:
                raise AnswerError("more after its last words")
            if self._passing:
                part = view[: self._passing]
                view = view[len(part) :]
                self._passing -= len(part)
                yield part
                continue
            part = view[: self._wanted - len(self._collected)]
            view = view[len(part) :]
            self._collected += part
            if len(self._collected) < self._wanted:
                return
            if self._wanted == _UINT64.size:
                self._check_length(*_UINT64.unpack(self._collected))
                self._wanted = _HEAD.size
                continue
            length, number = _HEAD.unpack_from(self._collected)
            if self._wanted == _HEAD.size and (rest := self._rest_of(length, number)):
                self._wanted += rest
                continue
            yield self._complete(length, number)

    def _check_length(self, length: int) -> None:
        """Check a packet's length against the longest packet of any kind that may come now."""
        most = MOST_EXCEPTION_BYTES
        if self._requests:
            request = self._requests[0]
            copied = _CODE_BYTES + request.copied_bytes
            most = max(self._most_return_bytes, MOST_EXCEPTION_BYTES, copied)
        if not _CODE_BYTES <= length <= most:
            raise AnswerError(f"a packet of {length} bytes, where {_CODE_BYTES} to {most} may be")

    def _rest_of(self, length: int, number: int) -> int:
        """Return how many bytes after its head a packet must have before it passes.

        Raises AnswerError if its kind or its length is wrong.
        """
        request = self._requests[0] if self._requests else None
        copied = request is not None and request.code == PacketCode.COPY_FROM_REMOTE
        if number == PacketCode.EXCEPTION:
            least, most = _CODE_BYTES, MOST_EXCEPTION_BYTES
        elif number == PacketCode.SHUTDOWN:
            least = most = _CODE_BYTES
        elif request is None and number in (PacketCode.RETURN, PacketCode.COPY_ACK):
            raise AnswerError("an answer that nothing asked for")
        elif request and number == PacketCode.RETURN and not copied:
            least = _CODE_BYTES
            called = request.code == PacketCode.CALL_FUNC
            most = self._most_return_bytes if called else MOST_SYSTEM_RETURN_BYTES
        elif request and number == PacketCode.COPY_ACK and copied:
            least = most = _CODE_BYTES + request.copied_bytes
        elif number in (PacketCode.RETURN, PacketCode.COPY_ACK):
            raise AnswerError("an answer of another kind than what was asked for")
        elif number in set(PacketCode) - {PacketCode.NONE}:
            raise AnswerError(f"a request to be carried out on this machine ({_name(number)})")
        else:
            raise AnswerError(f"a packet of no known kind ({number})")
        if not least <= length <= most:
            bound = f"{least} belong" if least == most else f"at most {most} may be"
            raise AnswerError(f"an answer of {length} bytes, where {bound}")
        return 0 if number == PacketCode.COPY_ACK else length - _CODE_BYTES

    def _complete(self, length: int, number: int) -> bytes:
        packet = bytes(self._collected)
        self._collected.clear()
        self._wanted = _UINT64.size
        request = self._requests.popleft() if self._requests else None
        if number == PacketCode.COPY_ACK:
            self._passing = length - _CODE_BYTES
        elif number == PacketCode.SHUTDOWN or (number == PacketCode.EXCEPTION and request is None):
            # An agent reports unsolicited that a session's time is up, and closes
            self._over = True
        if number == PacketCode.EXCEPTION:
            _Values(packet).exception()
        elif number == PacketCode.RETURN and request:
            _Values(packet).returned(request.code)
        self.answers += 1
        return packet


class _Values:
    """The values of a packet; each is checked as it is read."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._at = _HEAD.size

    def exception(self) -> None:
        """Check an exception: one string."""
        self._count(1)
        self._one_of({FfiTypeIndex.RAW_STRING})
        self._end()

    def returned(self, code: int) -> None:
        """Check the return value of a request with this code."""
        if code == PacketCode.CALL_FUNC:
            self._of_call()
        else:
            self._count(1)
            if code in _POINTER_CODES:
                self._one_of({FfiTypeIndex.NONE, FfiTypeIndex.OPAQUE_POINTER})
            else:
                self._one_of(
                    _ATTRIBUTE_TYPES if code == PacketCode.DEV_GET_ATTR else {FfiTypeIndex.NONE}
                )
        self._end()

    def _of_call(self) -> None:
        """Check the values that `EncodeReturn` writes: a type, then a value or a handle."""
        count = self._int32()
        if self._int32() != FfiTypeIndex.INT:
            raise AnswerError("a return value without its type")
        kind = self._take(_INT64)
        if kind == FfiTypeIndex.TENSOR:
            self._same(count, 3)
            self._one_of({FfiTypeIndex.DL_TENSOR_POINTER})
            self._one_of({FfiTypeIndex.OPAQUE_POINTER})
            return
        self._same(count, 2)
        if kind in (FfiTypeIndex.STRING, FfiTypeIndex.SMALL_STRING):
            self._one_of({FfiTypeIndex.RAW_STRING})
        elif kind in (FfiTypeIndex.BYTES, FfiTypeIndex.SMALL_BYTES):
            self._one_of({FfiTypeIndex.BYTE_ARRAY_POINTER})
        elif kind == FfiTypeIndex.NONE or kind in _PLAIN_TYPES:
            self._one_of({FfiTypeIndex(kind)})
        elif FfiTypeIndex.FIRST_OBJECT <= kind < 1 << 31:
            self._one_of({FfiTypeIndex.OPAQUE_POINTER})
        else:
            raise AnswerError(f"a return value of a type that none has ({kind})")

    def _count(self, wanted: int) -> None:
        self._same(self._int32(), wanted)

    def _same(self, count: int, wanted: int) -> None:
        if count != wanted:
            raise AnswerError(f"an answer of {count} values, where {wanted} belong")

    def _one_of(self, types: set[FfiTypeIndex]) -> None:
        """Read a value of one of these types."""
        kind = self._int32()
        if kind not in types:
            raise AnswerError(f"a value of type {kind}, which does not belong there")
        _READERS[FfiTypeIndex(kind)](self)

    def _nothing(self) -> None:
        pass

    def _word(self) -> None:
        self._skip(8)

    def _text(self) -> None:
        self._skip(self._take(_UINT64))

    def _owned_text(self) -> None:
        """Read a string as `WriteFFIAny` writes it: its type once more, then the bytes."""
        if self._int32() != FfiTypeIndex.STRING:
            raise AnswerError("a text that is none")
        self._text()

    def _device(self) -> None:
        self._check_device(self._int32())
        self._skip(4)

    def _tensor(self) -> None:
        """Read the description of a tensor, from which the client creates an array of its own."""
        _, device, _, dimensions, code, bits, lanes = self._take(_TENSOR, whole=True)
        self._check_device(device)
        if code > _MOST_TYPE_CODE or not bits or not lanes:
            raise AnswerError("a tensor of a type that none has")
        if not 0 <= dimensions <= _MOST_DIMENSIONS:
            raise AnswerError(f"a tensor of {dimensions} dimensions")
        size = (bits * lanes + 7) // 8
        shape = [self._take(_INT64) for _ in range(dimensions)]
        if any(extent < 0 for extent in shape):
            raise AnswerError("a tensor of less than nothing")
        for extent in shape:
            size *= max(1, extent)
        if size > MOST_TENSOR_BYTES:
            raise AnswerError(f"a tensor of more than {MOST_TENSOR_BYTES} bytes")
        self._skip(8)  # byte offset

    def _check_device(self, device: int) -> None:
        if not 0 < device <= _MOST_DEVICE_TYPE:
            raise AnswerError(f"a device of type {device}")

    def _int32(self) -> int:
        return int(self._take(_INT32))

    def _take(self, form: struct.Struct, whole: bool = False) -> Any:
        begin = self._at
        self._skip(form.size)
        values = form.unpack_from(self._packet, begin)
        return values if whole else values[0]

    def _skip(self, count: int) -> None:
        if count > len(self._packet) - self._at:
            raise AnswerError("a value that is longer than its packet")
        self._at += count

    def _end(self) -> None:
        if self._at != len(self._packet):
            raise AnswerError("an answer with more in it than its values")


_READERS: dict[FfiTypeIndex, Callable[[_Values], None]] = {
    FfiTypeIndex.NONE: _Values._nothing,
    FfiTypeIndex.INT: _Values._word,
    FfiTypeIndex.BOOL: _Values._word,
    FfiTypeIndex.FLOAT: _Values._word,
    FfiTypeIndex.OPAQUE_POINTER: _Values._word,
    FfiTypeIndex.DATA_TYPE: _Values._word,
    FfiTypeIndex.DEVICE: _Values._device,
    FfiTypeIndex.DL_TENSOR_POINTER: _Values._tensor,
    FfiTypeIndex.RAW_STRING: _Values._text,
    FfiTypeIndex.BYTE_ARRAY_POINTER: _Values._text,
    FfiTypeIndex.STRING: _Values._owned_text,
    FfiTypeIndex.SMALL_STRING: _Values._owned_text,
}


def _name(number: int) -> str:
    """Return TVM's name of a packet kind."""
    return "k" + "".join(word.capitalize() for word in PacketCode(number).name.split("_"))
