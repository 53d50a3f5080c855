"""Values to the bytes of a request: `SendPackedSeq` of minrpc/rpc_reference.h.

The forms are those that TVM's own client sends (RPCWrappedFunc of rpc_module.cc): a text as a
C string, bytes as a byte array, a tensor as its description, an object as its handle.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from farm.rpc.answer_filter import FfiTypeIndex, PacketCode
from farm.rpc.value_types import (
    Argument,
    DataType,
    RemoteDevice,
    RemoteObject,
    RemotePointer,
    RemoteTensor,
)

PROTOCOL_VERSION = "0.8.0"  # kRPCProtocolVer, unchanged since TVM 0.8
_HEAD = struct.Struct("<Qi")
_COUNT = struct.Struct("<i")
_SIZE = struct.Struct("<Q")
_INT = struct.Struct("<iq")
_FLOAT = struct.Struct("<id")
_ADDRESS = struct.Struct("<iQ")
_DATA_TYPE = struct.Struct("<iBBHi")
_DEVICE = struct.Struct("<iii")
_REFERENCE = struct.Struct("<iIQ")
_TENSOR = struct.Struct("<QiiiBBH")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def request_packet(code: PacketCode, body: bytes = b"", more_bytes: int = 0) -> bytes:
    """Return a request with this body, of which `more_bytes` bytes follow separately."""
    return _HEAD.pack(4 + len(body) + more_bytes, code) + body


def opening_request() -> bytes:
    """Return the request that opens a session: the protocol's version and no arguments."""
    version = PROTOCOL_VERSION.encode()
    return request_packet(
        PacketCode.INIT_SERVER, _SIZE.pack(len(version)) + version + _COUNT.pack(0)
    )


def call_request(function: int, arguments: Sequence[Argument]) -> bytes:
    """Return the request to call the function at an address."""
    return request_packet(PacketCode.CALL_FUNC, _SIZE.pack(function) + pack_arguments(arguments))


def syscall_request(code: PacketCode, arguments: Sequence[Argument]) -> bytes:
    """Return a request of TVM's own."""
    return request_packet(code, pack_arguments(arguments))


def pack_arguments(arguments: Sequence[Argument]) -> bytes:
    """Return the count of the arguments, and each with its type.

    Raises TypeError or ValueError for a value that cannot be sent.
    """
    return _COUNT.pack(len(arguments)) + b"".join(map(_packed, arguments))


def pack_tensor_description(tensor: RemoteTensor) -> bytes:
    """Return the description of a tensor."""
    data_type, device = tensor.data_type, tensor.device
    about = _TENSOR.pack(
        tensor.data,
        device.type,
        device.number,
        len(tensor.shape),
        data_type.code,
        data_type.bits,
        data_type.lanes,
    )
    extents = struct.pack(f"<{len(tensor.shape)}q", *tensor.shape)
    return about + extents + _SIZE.pack(tensor.byte_offset)


def _packed(value: Argument) -> bytes:
    match value:
        case None:
            return _COUNT.pack(FfiTypeIndex.NONE)
        case bool():
            return _INT.pack(FfiTypeIndex.BOOL, value)
        case int():
            if not _LEAST <= value <= _MOST:
                raise ValueError(f"{value} does not fit into 64 bits")
            return _INT.pack(FfiTypeIndex.INT, value)
        case float():
            return _FLOAT.pack(FfiTypeIndex.FLOAT, value)
        case str():
            return _text(value.encode())
        case bytes() | bytearray():
            return _ADDRESS.pack(FfiTypeIndex.BYTE_ARRAY_POINTER, len(value)) + value
        case _:
            return _foreign(value)


def _text(content: bytes) -> bytes:
    if 0 in content:  # a C string would end there
        return _REFERENCE.pack(FfiTypeIndex.STRING, FfiTypeIndex.STRING, len(content)) + content
    return _ADDRESS.pack(FfiTypeIndex.RAW_STRING, len(content)) + content


def _foreign(value: Argument) -> bytes:
    match value:
        case DataType():
            return _DATA_TYPE.pack(FfiTypeIndex.DATA_TYPE, value.code, value.bits, value.lanes, 0)
        case RemoteDevice():
            return _DEVICE.pack(FfiTypeIndex.DEVICE, value.type, value.number)
        case RemotePointer():
            return _ADDRESS.pack(FfiTypeIndex.OPAQUE_POINTER, value.address)
        case RemoteObject(FfiTypeIndex.FUNCTION | FfiTypeIndex.MODULE as kind, address):
            return _ADDRESS.pack(kind, address)
        case RemoteObject():
            return _REFERENCE.pack(
                FfiTypeIndex.REMOTE_OBJECT, FfiTypeIndex.REMOTE_OBJECT, value.address
            )
        case RemoteTensor():
            return _COUNT.pack(FfiTypeIndex.DL_TENSOR_POINTER) + pack_tensor_description(value)
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be an argument of a remote function")
