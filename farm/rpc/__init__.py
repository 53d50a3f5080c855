"""A client of TVM's RPC protocol in Python alone, on asyncio; no TVM is imported.

    answer_filter        which bytes of a server are answers; nothing else is accepted
    handshake            the greeting with magic number and key
    value_types          arguments and results: data types, devices, remote objects, tensors
    packing              values to the bytes of a request
    unpacking            the bytes of a checked answer to a value
    stream_protocols     what a session needs of a connection
    connection           a TCP connection whose every wait has a deadline
    session              requests and answers, one at a time: calls, copies, freed handles
    blocking_connection  the same for a thread that waits
    blocking_session     the same for code that waits; functions, modules and tensors of the server
    virtual_machine      Relax's virtual machine of the server
    session_opening      the greeting and the first request, which open a session
    filtered_session     answers alone pass from a board to a client of TVM's own
    errors               what is raised

The protocol is that of TVM 0.27: src/runtime/rpc/rpc_endpoint.cc and minrpc/rpc_reference.h. It
knows no devices of devices.toml: farm/transports translates its errors.
"""
