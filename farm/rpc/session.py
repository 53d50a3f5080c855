"""A session with a server of TVM's RPC: one request at a time, and its answer.

A session that is late, broken, or whose server sends anything but the answer, is cut: later
requests raise LinkError. See RPCEndpoint and RPCClientSession of rpc_endpoint.cc.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from farm.errors import DeadlineError, LinkError
from farm.processes.deadline import Deadline
from farm.rpc import packing, unpacking
from farm.rpc.answer_filter import (
    MOST_TENSOR_BYTES,
    AnswerError,
    AnswerFilter,
    PacketCode,
    Request,
)
from farm.rpc.errors import ProtocolError, RemoteError, VersionError
from farm.rpc.stream_protocols import Stream
from farm.rpc.value_types import (
    CPU,
    Argument,
    DataType,
    RemoteDevice,
    RemoteObject,
    RemotePointer,
    RemoteTensor,
    Result,
)

_PIECE_BYTES = 4 << 20  # of a copy, each piece a request
_SENT_BYTES = 1 << 18  # handed to the connection at once
_HEAD_BYTES = 12
_TIME_UP = "RPCSessionTimeoutError"
_VERSIONS = re.compile(r"server protocol=(\S{1,40}), client protocol=(\S{1,40})")
_SIZE = struct.Struct("<Q")
_FUNCTION = 68


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to a request: its kind and the whole packet, or its head alone for a copy."""

    code: int
    packet: bytes


class Session:
    """A session; `opening.open_session` opens one.

    Each method takes a Deadline; at its end the session is cut and DeadlineError raised. They also
    raise RemoteError for an error of the server, ProtocolError for what no server sends, and
    LinkError if the connection breaks. Errors call the server by `name`.
    """

    def __init__(self, connection: Stream, name: str, most_return_bytes: int) -> None:
        self._connection, self._name = connection, name
        self._filter = AnswerFilter(most_return_bytes)
        self._functions: dict[str, RemoteObject] = {}
        self._over = ""
        self._last_words: _Answer | None = None  # why the server ends the session, unsolicited

    async def function(self, name: str, deadline: Deadline) -> RemoteObject | None:
        """Return the server's global function of a name; None if it has none."""
        found = await self._system(PacketCode.GET_GLOBAL_FUNC, (name,), deadline)
        if isinstance(found, RemotePointer) and found.address:
            return RemoteObject(_FUNCTION, found.address)
        return None

    async def call(
        self,
        function: RemoteObject,
        *arguments: Argument,
        deadline: Deadline,
    ) -> Result:
        """Call a function of the server and return its result."""
        request = packing.call_request(function.address, arguments)
        answer = await self._request(Request(PacketCode.CALL_FUNC), [request], deadline)
        return self._read(unpacking.unpack_returned_value, answer)

    async def call_named(self, name: str, *arguments: Argument, deadline: Deadline) -> Result:
        """Call a global function, which is looked up once. Raises RemoteError if there is none."""
        if name not in self._functions:
            if not (found := await self.function(name, deadline)):
                raise RemoteError(self._name, f"there is no function {name}")
            self._functions[name] = found
        return await self.call(self._functions[name], *arguments, deadline=deadline)

    async def allocate(
        self,
        shape: Sequence[int],
        data_type: DataType,
        deadline: Deadline,
        device: RemoteDevice = CPU,
    ) -> RemoteTensor:
        """Return a new tensor in the memory of a device of the server; `free` releases it."""
        form = RemoteTensor(0, device, data_type, tuple(shape))
        found = await self._system(PacketCode.DEV_ALLOC_DATA_WITH_SCOPE, (form, None), deadline)
        if not isinstance(found, RemotePointer):
            raise RemoteError(self._name, "it gives no memory for a tensor")
        return RemoteTensor(found.address, device, data_type, tuple(shape))

    async def copy_to(
        self,
        content: bytes | bytearray | memoryview,
        tensor: RemoteTensor,
        deadline: Deadline,
    ) -> None:
        """Copy the elements of a tensor to the server, in pieces."""
        view = memoryview(content).cast("B")
        self._check_size(len(view), tensor)
        for part, begin, size in _pieces(tensor):
            body = packing.pack_tensor_description(part) + _SIZE.pack(size)
            head = packing.request_packet(PacketCode.COPY_TO_REMOTE, body, size)
            ends = range(begin, begin + size, _SENT_BYTES)
            parts = (view[at : min(at + _SENT_BYTES, begin + size)] for at in ends)
            await self._request(Request(PacketCode.COPY_TO_REMOTE), [head, *parts], deadline)

    async def copy_from(
        self,
        tensor: RemoteTensor,
        deadline: Deadline,
        most_bytes: int = MOST_TENSOR_BYTES,
    ) -> bytearray:
        """Return the elements of a tensor of the server, copied in pieces.

        Memory is taken as they arrive. Raises ProtocolError for a tensor of more than `most_bytes`.
        """
        if tensor.size_bytes > most_bytes:
            size = tensor.size_bytes
            raise self._violation(f"a tensor of {size} bytes, where {most_bytes} may be")
        found = bytearray()
        for part, _, size in _pieces(tensor):
            body = packing.pack_tensor_description(part) + _SIZE.pack(size)
            request = packing.request_packet(PacketCode.COPY_FROM_REMOTE, body)
            await self._request(
                Request(PacketCode.COPY_FROM_REMOTE, size), [request], deadline, found
            )
        return found

    async def free(self, what: RemoteObject | RemoteTensor, deadline: Deadline) -> None:
        """Release an object or a tensor of the server."""
        if isinstance(what, RemoteTensor) and not what.handle:
            await self._system(
                PacketCode.DEV_FREE_DATA, (what.device, RemotePointer(what.data)), deadline
            )
            return
        address = what.handle if isinstance(what, RemoteTensor) else what.address
        await self._system(PacketCode.FREE_HANDLE, (RemotePointer(address),), deadline)

    async def synchronize(self, device: RemoteDevice, deadline: Deadline) -> None:
        """Wait until a device of the server has done all that it was given."""
        await self._system(PacketCode.DEV_STREAM_SYNC, (device, RemotePointer(0)), deadline)

    async def close(self) -> None:
        """End the session: the server frees what it keeps. The server has 1 s to take this."""
        if not self._over:
            self._over = "the session is closed"
            await self._connection.send(
                [packing.request_packet(PacketCode.SHUTDOWN)], Deadline(1.0)
            )
        await self._connection.close()

    async def open(self, deadline: Deadline) -> None:
        """Send the first request. Raises VersionError for a server of another protocol version."""
        try:
            await self._request(
                Request(PacketCode.INIT_SERVER), [packing.opening_request()], deadline
            )
        except RemoteError as exc:
            if found := _VERSIONS.search(exc.message):
                raise VersionError(
                    f"{self._name} speaks another version of TVM's RPC protocol",
                    f"it has {found[1]}, this farm has {packing.PROTOCOL_VERSION}",
                    "run the same version of TVM there and here",
                ) from exc
            raise

    async def _system(
        self,
        code: PacketCode,
        arguments: Sequence[Argument],
        deadline: Deadline,
    ) -> Result:
        request = packing.syscall_request(code, arguments)
        answer = await self._request(Request(code), [request], deadline)
        return self._read(unpacking.unpack_syscall_result, answer)

    async def _request(
        self,
        request: Request,
        parts: Iterable[bytes | memoryview],
        deadline: Deadline,
        sink: bytearray | None = None,
    ) -> _Answer:
        """Send a request and return its answer; append what is copied to `sink`."""
        async with self._connection.turn:
            if self._over:
                raise LinkError(f"the session with {self._name} is over", self._over)
            answer = self._last_words
            try:
                if not answer:
                    self._filter.expect(request)
                    await self._connection.send(parts, deadline)
                    answer = await self._answer(request, deadline, sink)
            except BaseException as exc:
                self.cut(f"an earlier request has failed: {type(exc).__name__}")
                if (error := self._described(exc, deadline)) is exc:
                    raise
                raise error from exc
        if answer.code != PacketCode.EXCEPTION:
            return answer
        text = unpacking.exception_text(answer.packet)
        if text.startswith(_TIME_UP):
            self.cut("its time is up")
            raise DeadlineError(f"the session with {self._name} ran out of time", text[:500])
        raise RemoteError(self._name, text)

    async def _answer(
        self,
        request: Request,
        deadline: Deadline,
        sink: bytearray | None,
    ) -> _Answer:
        packet, wanted = b"", 0
        while not packet or wanted:
            if not (piece := await self._connection.receive(deadline)):
                raise EOFError
            # All parts are checked before the first one is used
            for part in list(self._filter.feed(piece)):
                if not packet:
                    packet = bytes(part)
                    code = int.from_bytes(packet[8:_HEAD_BYTES], "little")
                    wanted = request.copied_bytes if code == PacketCode.COPY_ACK else 0
                elif wanted and sink is not None:
                    sink += part
                    wanted -= len(part)
                else:
                    self._hear_last_words(bytes(part))
        if code == PacketCode.SHUTDOWN:
            raise EOFError
        return _Answer(code, packet)

    def _hear_last_words(self, packet: bytes) -> None:
        """Keep what came with an answer: the next request raises it.

        The filter lets only an exception or a shutdown pass there.
        """
        code = int.from_bytes(packet[8:_HEAD_BYTES], "little")
        if code == PacketCode.EXCEPTION:
            self._last_words = _Answer(code, packet)

    def _described(self, exc: BaseException, deadline: Deadline) -> BaseException:
        match exc:
            case AnswerError():
                return ProtocolError(self._name, str(exc))
            case TimeoutError():
                why = f"nothing, or not all of the answer, within {deadline.seconds:.0f} s"
                return DeadlineError(f"{self._name} does not answer", why)
            case EOFError():
                return LinkError(f"{self._name} has ended the session", "it closed the connection")
            case OSError():
                return LinkError(f"the connection to {self._name} broke", str(exc))
            case _:
                return exc

    def _read(self, read: Callable[[bytes], Result], answer: _Answer) -> Result:
        try:
            return read(answer.packet)
        except AnswerError as exc:
            raise self._violation(str(exc)) from exc

    def _violation(self, reason: str) -> ProtocolError:
        self.cut(reason)
        return ProtocolError(self._name, reason)

    def cut(self, why: str) -> None:
        """Break the connection; `why` is what later requests say."""
        self._over = self._over or why
        self._connection.cut()

    @staticmethod
    def _check_size(size: int, tensor: RemoteTensor) -> None:
        if size != tensor.size_bytes:
            raise ValueError(f"{size} bytes for a tensor of {tensor.size_bytes}")


def _pieces(tensor: RemoteTensor) -> Iterable[tuple[RemoteTensor, int, int]]:
    """Yield a description of the tensor for each piece, where the piece begins, and its size.

    Other devices than the CPU copy whole tensors only: see LocalSession::CopyFromRemote.
    """
    size = tensor.size_bytes
    if not tensor.device.has_plain_addresses:
        if size:
            yield tensor, 0, size
        return
    for begin in range(0, size, _PIECE_BYTES):
        data = tensor.data + tensor.byte_offset
        part = RemoteTensor(data, tensor.device, tensor.data_type, tensor.shape, begin)
        yield part, begin, min(_PIECE_BYTES, size - begin)
