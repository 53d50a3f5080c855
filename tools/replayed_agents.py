"""Stand-ins for many agents: one session with a real agent is recorded and replayed, at its pace.

`Recorder` lies between `farm` and a real agent. `Replayer` answers on a port of its own for each
device what the agent answered: to the next request of the same kind, after the time that the agent
took. A timer and a call for several inputs answer for as many as they are asked for. What a device
costs its controller can be measured so with more devices than this machine can compute for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from dataclasses import dataclass, field

HOST = "127.0.0.1"
_SHORT_S = 0.001
_HEAD_BYTES = 8  # of a greeting: magic and length; of a packet: its length
_TIMER = struct.pack("<Q", 15) + b"invoke_stateful"  # what runtime.RPCTimeEvaluator is to time
_TIMER_VALUES = struct.Struct(
    "<iqiqiqiq"
)  # with their types: device, its number, calls a sample, samples
_INPUTS = struct.pack("<Q", 4) + b"main"  # what farm.agent.samples is to run
_INPUTS_VALUES = struct.Struct("<iqiq")  # with their types: how many of them, arguments of each
_INT = 1  # the type of an integer
_KIND = slice(
    8, 24
)  # of a packet: code, function and number of arguments; their content may differ


@dataclass(frozen=True)
class Exchange:
    """A request of the client, what was answered, and after how long."""

    request: bytes
    answer: bytes
    seconds: float


@dataclass
class Transcript:
    """What was said in one connection."""

    exchanges: list[Exchange] = field(default_factory=list)

    def outputs(self) -> list[bytes]:
        """Return the outputs for each of the inputs that were run several in a call."""
        found: list[bytes] = []
        for one in self.exchanges:
            if count := _inputs(one.request):
                data = _data(one.answer)
                each = len(data) // count
                found += [data[begin : begin + each] for begin in range(0, len(data), each)]
        return found


async def request(reader: asyncio.StreamReader, first: bool) -> bytes:
    """Return the client's greeting, or its next packet."""
    head = await reader.readexactly(_HEAD_BYTES)
    (length,) = struct.unpack("<i", head[4:]) if first else struct.unpack("<Q", head)
    return head + await reader.readexactly(length)


class Recorder:
    """A server on a port of its own that passes everything on to an agent and keeps it."""

    def __init__(self, agent_port: int) -> None:
        self.transcripts: list[Transcript] = []
        self._agent_port = agent_port

    async def serve(self) -> int:
        """Start; return the port."""
        server = await asyncio.start_server(self._pass, HOST, 0)
        return int(server.sockets[0].getsockname()[1])

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = Transcript()
        there, agent = await asyncio.open_connection(HOST, self._agent_port)
        with contextlib.suppress(OSError, EOFError):
            while True:
                asked = await request(reader, not kept.exchanges)
                begin = time.monotonic()
                agent.write(asked)
                try:
                    answer = await request(there, not kept.exchanges)
                except EOFError:  # the last request is not answered
                    kept.exchanges.append(Exchange(asked, b"", 0.0))
                    break
                kept.exchanges.append(Exchange(asked, answer, time.monotonic() - begin))
                writer.write(answer)
        writer.close()
        agent.close()
        if kept.exchanges:
            self.transcripts.append(kept)


class Replayer:
    """Servers that answer as the agent did that was recorded, one session after the other."""

    def __init__(self, transcripts: list[Transcript]) -> None:
        self._transcripts = transcripts
        self._servers: list[asyncio.Server] = []
        self.unknown = 0  # requests of a kind that was not recorded
        self.cut = 0

    async def serve(self, cut_at: int | None = None) -> int:
        """Start one device; return its port. It breaks its connection at a request, if one is
        given.
        """
        transcripts = itertools.cycle(self._transcripts)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, EOFError):
                await request(
                    reader, True
                )  # a connection that only asks whether somebody listens ends here
                await self._replay(next(transcripts), reader, writer, cut_at)
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0, backlog=8)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _replay(
        self,
        transcript: Transcript,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut_at: int | None,
    ) -> None:
        exchanges, outputs = transcript.exchanges, itertools.cycle(transcript.outputs())
        writer.write(exchanges[0].answer)
        place, share, samples = 0, 1.0, 0
        for number in itertools.count(1):
            asked = await request(reader, False)
            if number == cut_at:
                self.cut += 1
                writer.transport.abort()
                return
            found = _next(exchanges, place, asked)
            if found is None:
                self.unknown += 1
                return
            place = found
            one = exchanges[place]
            if timed := _timed(asked):
                recorded = _timed(one.request)
                assert recorded
                share, samples = timed[0] * timed[1] / (recorded[0] * recorded[1]), timed[1]
                writer.write(one.answer)
            elif count := _inputs(asked):
                await asyncio.sleep(one.seconds * count / (_inputs(one.request) or count))
                writer.write(_with_data(one.answer, b"".join(itertools.islice(outputs, count))))
            elif samples:  # the call of the timer
                await asyncio.sleep(one.seconds * share)
                writer.write(_with_samples(one.answer, samples))
                samples = 0
            else:
                if one.seconds > _SHORT_S:
                    await asyncio.sleep(one.seconds)
                writer.write(one.answer)


def _timed(asked: bytes) -> tuple[int, int] | None:
    """Return the calls a sample and the samples of a request for a timer, which depend on the
    client's clock.
    """
    begin = asked.find(_TIMER)
    if begin < 0 or len(asked) < begin + len(_TIMER) + _TIMER_VALUES.size:
        return None
    values = _TIMER_VALUES.unpack_from(asked, begin + len(_TIMER))
    return int(values[5]), int(values[7])


def _inputs(asked: bytes) -> int | None:
    """Return for how many inputs a request wants the outputs; None if it is of another kind."""
    begin = asked.find(_INPUTS)
    if begin < 0 or len(asked) < begin + len(_INPUTS) + _INPUTS_VALUES.size:
        return None
    first, count, second, _ = _INPUTS_VALUES.unpack_from(asked, begin + len(_INPUTS))
    return int(count) if (first, second) == (_INT, _INT) else None


def _data(answer: bytes) -> bytes:
    """Return the bytes with which an answer ends; their length lies before them."""
    for begin in range(_HEAD_BYTES, len(answer) - 8):
        if answer[begin : begin + 8] == struct.pack("<Q", len(answer) - begin - 8):
            return answer[begin + 8 :]
    raise ValueError("an answer without bytes")


def _with_data(answer: bytes, data: bytes) -> bytes:
    """Return the answer with other bytes at its end."""
    rest = answer[_HEAD_BYTES : -len(_data(answer)) - 8] + struct.pack("<Q", len(data)) + data
    return struct.pack("<Q", len(rest)) + rest


def _with_samples(answer: bytes, count: int) -> bytes:
    """Return the answer of a timer with another number of samples, which are those recorded."""
    samples = _data(answer)
    return _with_data(answer, (samples * (8 * count // len(samples) + 1))[: 8 * count])


def _next(exchanges: list[Exchange], place: int, asked: bytes) -> int | None:
    """Return the exchange of a request: the same one, else one of its kind; later ones come
    first.
    """
    order = [*range(place + 1, len(exchanges)), *range(place, 0, -1)]
    same = (at for at in order if exchanges[at].request == asked)
    alike = (at for at in order if exchanges[at].request[_KIND] == asked[_KIND])
    return next(itertools.chain(same, alike), None)
