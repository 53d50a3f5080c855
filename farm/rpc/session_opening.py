"""Open a session: the greeting, and the first request.

The greeting is that of RPCConnect (rpc_socket_impl.cc).
"""

from __future__ import annotations

from farm.processes.deadline import Deadline
from farm.rpc import handshake
from farm.rpc.answer_filter import MOST_RETURN_BYTES
from farm.rpc.session import Session
from farm.rpc.stream_protocols import StreamBeforeGreeting


async def open_session(
    connection: StreamBeforeGreeting,
    name: str,
    key: str,
    greeting: Deadline,
    opening_s: float,
    most_return_bytes: int = MOST_RETURN_BYTES,
) -> Session:
    """Greet the server at the other end of a connection, and open a session with it.

    `name` is what errors call the server. `key` is the server's, followed by options such as
    " -timeout=60". A server that serves another client greets later; once it has greeted, it has
    `opening_s` seconds to open the session.

    Raises HandshakeError if the server is none of TVM's RPC or refuses the key, VersionError if it
    is of another version, and TimeoutError if it does not greet in time.
    """
    try:
        await greet(connection, key, greeting)
        session = Session(connection, name, most_return_bytes)
        await session.open(Deadline(opening_s))
    except BaseException:
        connection.cut()
        raise
    return session


async def greet(connection: StreamBeforeGreeting, key: str, deadline: Deadline) -> None:
    """Perform the client's side of the handshake, with a key and its options.

    Raises TimeoutError if the server has not greeted in time, and HandshakeError if it refuses the
    key, does not follow TVM's handshake, or breaks the connection.
    """
    try:
        await connection.send([handshake.client_greeting(key)], deadline)
        handshake.check_server_code(await connection.exactly(handshake.WORD_BYTES, deadline))
        length = handshake.server_name_length(
            await connection.exactly(handshake.WORD_BYTES, deadline)
        )
        handshake.check_server_name(
            await connection.exactly(length, deadline), key.partition(" ")[0]
        )
    except EOFError as exc:
        raise handshake.HandshakeError("it hangs up within the greeting") from exc
    except ConnectionError as exc:
        why = f"it breaks the connection within the greeting: {exc}"
        raise handshake.HandshakeError(why) from exc
