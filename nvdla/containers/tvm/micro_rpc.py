"""A microTVM device in Python: bytes of the serial line in, bytes out (microRPC framing, session, and 0.8's calls)."""

from __future__ import annotations

from nvdla.containers.tvm.framing import MAX_PAYLOAD, MessageType, Session
from nvdla.containers.tvm.rpc_session import RpcSession

_LENGTH_BYTES = 8


class MicroRpcServer:
    """Serves one caller over a byte stream. ``nonce`` should differ from one start to the next."""

    def __init__(self, session: RpcSession, nonce: int, max_payload: int = MAX_PAYLOAD) -> None:
        self.session = session
        self.running = True
        self._link = Session(nonce, max_payload)
        self._link.initialize()

    @property
    def faults(self) -> int:
        """Packets that were damaged and dropped."""
        return self._link.faults

    def feed(self, data: bytes) -> bytes:
        """Takes bytes from the line and returns those to send (the first ones also when ``data`` is empty)."""
        for message in self._link.receive(data):
            if message.kind == MessageType.NORMAL and self.running:
                self._answer(message.body)
        sent = bytes(self._link.outgoing)
        self._link.outgoing.clear()
        return sent

    def _answer(self, body: bytes) -> None:
        """One call: the RPC packet lies in the message with its length before it."""
        if len(body) < _LENGTH_BYTES or int.from_bytes(body[:_LENGTH_BYTES], "little") == 0:
            return
        length = int.from_bytes(body[:_LENGTH_BYTES], "little")
        reply = self.session.handle(memoryview(body)[_LENGTH_BYTES : _LENGTH_BYTES + length])
        if reply is None:
            self.running = False
            self.session.close()
        else:
            self._link.send(reply)
