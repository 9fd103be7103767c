"""Fuzz target: a caller of the served emulator, from its first packet to its last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvdla.interop.containers.tvm import rpc_worker
from nvdla.interop.containers.tvm.rpc_functions import Service
from nvdla.interop.containers.tvm.rpc_protocol import Code, pack_sequence, packet
from nvdla.limits import Limits

MEMORY = 1 << 18
_LIMITS = Limits(operations=16, multiplications=10**6, elements=10**6, cube=10**5)
_LENGTH = 2


class _Near(rpc_worker.Worker):
    """The worker's own code in this process: to start one for every input would be all that is measured."""

    def _do(self, name: str, *arguments: Any) -> Any:
        if not hasattr(self, "networks"):
            self.networks = rpc_worker._Networks(1, _LIMITS)
        return getattr(self.networks, name)(*arguments)

    def free(self, number: int) -> None:
        self._do("free", number)


def one_input(data: bytes) -> None:
    """Packets behind lengths of two bytes; each has an answer, and what is kept stays below the limit."""
    service = Service(memory_limit=MEMORY, transfer_limit=1 << 16, make_worker=_Near)
    session = service.session()
    for body in split(data):
        answer = session.handle(memoryview(body))
        if answer is None:
            break
        if b"internal fault" in answer:
            raise RuntimeError(answer.decode("utf-8", "replace"))
        if not 0 <= session.memory.used <= MEMORY:
            raise RuntimeError(f"{session.memory.used} bytes are counted, the limit is {MEMORY}")
    session.close()


def split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH <= len(data):
        size = int.from_bytes(data[at : at + _LENGTH], "little")
        yield data[at + _LENGTH : at + _LENGTH + size]
        at += _LENGTH + size


def join(packets: list[bytes]) -> bytes:
    """Whole packets (with their u64 length) as one input."""
    return b"".join(len(each[8:]).to_bytes(_LENGTH, "little") + each[8:] for each in packets)


def seeds(loadable: bytes) -> Iterator[bytes]:
    """What a client does, in both dialects."""
    runtime = Service().session().runtime
    for dialect in ("0.27", "0.8"):

        def call(name: str, *arguments: Any, dialect: str = dialect) -> bytes:
            handle = runtime.get_global(name) or 0
            return packet(Code.CALL, handle.to_bytes(8, "little"), pack_sequence(list(arguments), dialect))

        yield join([call("tvm.rpc.server.upload", "net", loadable), call("tvm.rpc.server.load_module", "net")])
        network = rpc_worker_handle()
        for name in ("nvdla.describe", "nvdla.run", "nvdla.get_output", "nvdla.free"):
            yield join([call("nvdla.load", loadable), call(name, network)])
        yield join([call("tvm.rpc.server.upload", "a", b"x"), call("tvm.rpc.server.download", "a")])
        yield join([call("tvm.rpc.server.listdir"), call("tvm.rpc.server.remove", "a"), call("nvdla.version")])


def rpc_worker_handle() -> Any:
    """The module that a first nvdla.load returns."""
    from nvdla.interop.containers.tvm.crt import ModuleHandle

    return ModuleHandle(0x8000)
