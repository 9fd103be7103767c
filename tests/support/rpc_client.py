"""A caller of ``nvdla serve --tvm-rpc`` over a real socket, in the older dialect of TVM's protocol."""

from __future__ import annotations

import socket
import struct
from typing import Any

import numpy as np

from nvdla.interop.containers.tvm import params
from nvdla.interop.containers.tvm.crt import ModuleHandle
from nvdla.interop.containers.tvm.rpc_protocol import (
    MAGIC,
    Code,
    Device,
    Reader,
    TensorView,
    pack_sequence,
    pack_tensor_view,
    packet,
    read_sequence,
)

DIALECT = "0.8"


class RemoteError(Exception):
    """What the server answered instead of a result."""


class RpcClient:
    """One connection."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=120)
        self._socket.sendall(struct.pack("<ii", MAGIC, 7) + b"client:")
        assert self._take(15) == struct.pack("<ii", MAGIC, 7) + b"server:"

    def close(self) -> None:
        self._socket.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a global function."""
        handle = self._ask(Code.GET_GLOBAL, pack_sequence([name], DIALECT))[0].value
        assert handle, name
        return self._ask(Code.CALL, struct.pack("<Q", handle), pack_sequence(arguments, DIALECT))[1]

    def load(self, data: bytes) -> ModuleHandle:
        return ModuleHandle(self.call("nvdla.load", data).value)

    def tensor(self, array: np.ndarray) -> TensorView:
        """A copy of an array on the server."""
        kind = params.parse(array.dtype.name)
        where = self._ask(Code.ALLOC_DATA, pack_sequence([Device(), array.nbytes, 64, kind], DIALECT))[0]
        view = TensorView(where.value, kind, array.shape)
        self._ask(Code.COPY_TO_REMOTE, pack_tensor_view(view), struct.pack("<Q", array.nbytes), array.tobytes())
        return view

    def _ask(self, code: Code, *body: bytes) -> list[Any]:
        self._socket.sendall(packet(code, *body))
        (size,) = struct.unpack("<Q", self._take(8))
        reader = Reader(memoryview(self._take(size)))
        answered = reader.i32()
        values = read_sequence(reader, DIALECT)
        if answered == Code.EXCEPTION:
            raise RemoteError(values[0])
        return values

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise RemoteError("the server has ended the connection")
            data += piece
        return data
