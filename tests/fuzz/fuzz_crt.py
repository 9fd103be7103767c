"""Fuzz target: TVM's registry strings and RPC packets."""

from __future__ import annotations

import contextlib

from nvdla.errors import FormatError
from nvdla.interop.containers.tvm.crt import CrtRuntime, FuncRegistry, decode_handle
from nvdla.interop.containers.tvm.rpc_session import RemoteMemory, RpcSession


def one_input(data: bytes) -> None:
    """Give a registry and a caller the same bytes: each answers, or raises FormatError."""
    for width in (None, 1, 2):
        try:
            FuncRegistry.parse(data, width).encode()
        except FormatError:
            continue
    with contextlib.suppress(FormatError):
        decode_handle(int.from_bytes(data[:5], "little"))
    for dialect in (None, "0.8", "0.27"):
        answer = RpcSession(CrtRuntime(), RemoteMemory(1 << 16), dialect).handle(memoryview(data))
        if answer is not None and b"internal fault" in answer:
            raise RuntimeError(answer.decode("utf-8", "replace"))
