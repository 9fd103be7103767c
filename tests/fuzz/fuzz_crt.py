"""Fuzz target: TVM's registry strings, microRPC streams and RPC packets."""

from __future__ import annotations

import contextlib

from nvdla.containers.tvm.crt import CrtRuntime, FuncRegistry, decode_handle
from nvdla.containers.tvm.framing import Session
from nvdla.containers.tvm.rpc_memory import RemoteMemory
from nvdla.containers.tvm.rpc_session import RpcSession
from nvdla.errors import FormatError


def one_input(data: bytes) -> None:
    """A registry, a serial line and a caller all get the same bytes: an answer, or FormatError."""
    for width in (None, 1, 2):
        try:
            FuncRegistry.parse(data, width).encode()
        except FormatError:
            continue
    with contextlib.suppress(FormatError):
        decode_handle(int.from_bytes(data[:5], "little"))
    for started in (False, True):
        session = Session(1, max_payload=1 << 16)
        if started:
            session.initialize()
            session.start()
        session.receive(data)
    for dialect in (None, "0.8", "0.27"):
        answer = RpcSession(CrtRuntime(), RemoteMemory(1 << 16), dialect).handle(memoryview(data))
        if answer is not None and b"internal fault" in answer:
            raise RuntimeError(answer.decode("utf-8", "replace"))
