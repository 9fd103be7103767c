"""microRPC: packets and sessions over a byte stream such as a serial line.

A packet is ``FF FD``, the payload's length u32, the payload, and a CRC u16 (CCITT, initial value FFFF, over everything
before it as it is on the wire), little-endian. After the start a literal ``FF`` is sent as ``FF FF``, and ``FF FE``
means nothing (a lone ``FE`` starts a stream, which ends an escape that a reset may have left open). The payload begins
with a session header: two nonces, then the kind of message.

Source: tvm src/runtime/crt/microtvm_rpc_common/framing.cc and session.cc (0.8 and 0.9), and recorded traffic.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from enum import Enum, IntEnum

from nvdla.errors import FormatError

ESCAPE, NOP, START = 0xFF, 0xFE, 0xFD
_PACKET_START = bytes([ESCAPE, START])
_LENGTH_BYTES, _CRC_BYTES, _HEADER_BYTES = 4, 2, 3
#: Largest payload a receiver takes, unless told otherwise.
MAX_PAYLOAD = 1 << 24
VERSION = 1


def crc(data: bytes | bytearray | memoryview, start: int = 0xFFFF) -> int:
    """CRC-CCITT (polynomial 1021, most significant bit first) of the bytes, continuing from ``start``."""
    return binascii.crc_hqx(data, start)


def _escape(data: bytes) -> bytes:
    return data.replace(b"\xff", b"\xff\xff")


@dataclass
class Framer:
    """Puts payloads into packets. The very first packet of a stream has a lone ``FE`` before it."""

    started: bool = False

    def frame(self, payload: bytes) -> bytes:
        """A packet around a payload, with its length and checksum."""
        prefix = b"" if self.started else bytes([NOP])
        self.started = True
        body = _PACKET_START + _escape(len(payload).to_bytes(_LENGTH_BYTES, "little")) + _escape(payload)
        return prefix + body + _escape(crc(body).to_bytes(_CRC_BYTES, "little"))


@dataclass(frozen=True)
class Packet:
    """A payload, or (``fault`` not empty) what was wrong with bytes that were no packet."""

    payload: bytes
    fault: str = ""


class _State(Enum):
    SEARCH = "packet start"
    LENGTH = "length"
    PAYLOAD = "payload"
    CRC = "CRC"


class Unframer:
    """Takes packets out of a stream that may be cut anywhere; work and memory are linear in what is fed."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        self._state = _State.SEARCH
        self._escaped = False
        self._field = bytearray()
        self._needed = 0
        self._payload = b""
        self._crc = 0

    def feed(self, data: bytes) -> list[Packet]:
        """The packets and faults that these bytes complete."""
        found: list[Packet] = []
        at = 0
        while at < len(data):
            if self._state is _State.SEARCH:
                at = self._search(data, at)
                continue
            start = at
            at, fault = self._take(data, at)
            if fault:
                found.append(Packet(b"", fault))
                continue
            if self._state is not _State.CRC:
                self._crc = crc(data[start:at], self._crc)
            while self._state is not _State.SEARCH and len(self._field) == self._needed:
                found += self._finish_field()
        return found

    def _search(self, data: bytes, at: int) -> int:
        if self._escaped and data[at] == START:
            self._begin()
            return at + 1
        self._escaped = False
        found = data.find(_PACKET_START, at)
        if found < 0:
            self._escaped = data[-1] == ESCAPE
            return len(data)
        self._begin()
        return found + 2

    def _begin(self) -> None:
        self._escaped = False
        self._crc = crc(_PACKET_START)
        self._expect(_State.LENGTH, _LENGTH_BYTES)

    def _expect(self, state: _State, needed: int) -> None:
        self._state, self._needed = state, needed
        self._field = bytearray()

    def _take(self, data: bytes, at: int) -> tuple[int, str]:
        """Consumes until the field is full or the data ends; a fault when a packet starts inside this one or an escape
        has no meaning."""
        while at < len(data) and len(self._field) < self._needed:
            if self._escaped:
                self._escaped = False
                code, at = data[at], at + 1
                if code == ESCAPE:
                    self._field.append(ESCAPE)
                elif code == START:
                    where = self._state.value
                    self._begin()
                    return at, f"a new packet begins in the {where} of the one before"
                elif code != NOP:
                    where = self._state.value
                    self._expect(_State.SEARCH, 0)
                    return at, f"invalid escape FF {code:02X} in the {where}"
                continue
            limit = min(len(data), at + self._needed - len(self._field))
            end = data.find(ESCAPE, at, limit)
            self._field += data[at : limit if end < 0 else end]
            self._escaped = end >= 0
            at = limit if end < 0 else end + 1
        return at, ""

    def _finish_field(self) -> list[Packet]:
        if self._state is _State.LENGTH:
            length = int.from_bytes(self._field, "little")
            if length > self.max_payload:
                self._expect(_State.SEARCH, 0)
                return [Packet(b"", f"a packet of {length} bytes; the limit is {self.max_payload}")]
            self._expect(_State.PAYLOAD, length)
            return []
        if self._state is _State.PAYLOAD:
            self._payload = bytes(self._field)
            self._expect(_State.CRC, _CRC_BYTES)
            return []
        stated = int.from_bytes(self._field, "little")
        self._expect(_State.SEARCH, 0)
        if stated != self._crc:
            return [Packet(b"", f"the CRC is {self._crc:04X}, the packet says {stated:04X}")]
        return [Packet(self._payload)]


class MessageType(IntEnum):
    """The third byte of a payload."""

    START_INIT = 0
    START_REPLY = 1
    TERMINATE = 2
    LOG = 3
    NORMAL = 0x10


@dataclass(frozen=True)
class RpcMessage:
    """What a session hands up: a message of the other side, a log line, or START_REPLY / TERMINATE for the beginning
    and end of the session."""

    kind: int
    body: bytes = b""


class _Link(Enum):
    RESET = 0
    NONE = 1
    START_SENT = 2
    ESTABLISHED = 3


class Session:
    """One end of a session. Bytes to send collect in ``outgoing``; the owner takes them away."""

    def __init__(self, nonce: int, max_payload: int = MAX_PAYLOAD) -> None:
        self.outgoing = bytearray()
        self.faults = 0
        self.last_fault = ""
        self._framer = Framer()
        self._unframer = Unframer(max_payload)
        self._nonce = nonce & 0xFF
        self._ids = (0, 0)
        self._link = _Link.RESET

    @property
    def established(self) -> bool:
        """Whether both sides know of one another."""
        return self._link is _Link.ESTABLISHED

    def initialize(self) -> None:
        """Ends whatever session the other side still holds; to be called once before anything else."""
        self._ids, self._link = (0, 0), _Link.NONE
        self._send(MessageType.TERMINATE)

    def start(self) -> None:
        """Asks for a session."""
        if self._link is _Link.RESET:
            raise FormatError("a microRPC session must be initialized before it is started")
        self._renew_nonce()
        self._ids, self._link = (self._nonce, 0), _Link.START_SENT
        self._send(MessageType.START_INIT, bytes([VERSION]))

    def send(self, body: bytes, kind: MessageType = MessageType.NORMAL) -> None:
        """A message, which needs a session, or a log line, which does not."""
        if not self.established and kind is not MessageType.LOG:
            raise FormatError("there is no microRPC session; start one first")
        self._send(kind, body)

    def receive(self, data: bytes) -> list[RpcMessage]:
        """The messages that these bytes complete; damaged packets are dropped and counted."""
        messages: list[RpcMessage] = []
        for packet in self._unframer.feed(data):
            if packet.fault or len(packet.payload) < _HEADER_BYTES:
                self.faults += 1
                self.last_fault = packet.fault or "a packet too short for a session header"
                continue
            messages += self._handle(packet.payload)
        return messages

    def _send(self, kind: MessageType, body: bytes = b"") -> None:
        ids = (0, 0) if kind is MessageType.LOG else self._ids
        self.outgoing += self._framer.frame(bytes([*ids, kind]) + body)

    def _renew_nonce(self) -> None:
        self._nonce = (((self._nonce << 5) | (self._nonce >> 5)) + 1) & 0xFF or 1

    def _handle(self, payload: bytes) -> list[RpcMessage]:
        initiator, responder, kind = payload[:_HEADER_BYTES]
        body = payload[_HEADER_BYTES:]
        if kind == MessageType.START_INIT:
            return self._on_init(initiator, body)
        if kind == MessageType.START_REPLY:
            return self._on_reply(initiator, responder, body)
        if kind == MessageType.TERMINATE:
            was, self._link = self._link, _Link.NONE if self.established else self._link
            return [RpcMessage(MessageType.TERMINATE)] if was is _Link.ESTABLISHED else []
        if kind == MessageType.LOG:
            return [RpcMessage(kind, body)] if (initiator, responder) in ((0, 0), self._ids) else []
        return [RpcMessage(kind, body)] if self.established and (initiator, responder) == self._ids else []

    def _on_init(self, initiator: int, body: bytes) -> list[RpcMessage]:
        if not initiator or not body:
            return []
        if self._link is _Link.START_SENT:  # both sides ask at once: the lowest nonce wins, equal ones try again
            if initiator == self._nonce:
                self.start()
                return []
            if initiator > self._nonce or body[0] != VERSION:
                return []
        self._renew_nonce()
        self._ids, self._link = (initiator, self._nonce), _Link.ESTABLISHED
        self._send(MessageType.START_REPLY, bytes([VERSION]))
        return [RpcMessage(MessageType.START_REPLY)]

    def _on_reply(self, initiator: int, responder: int, body: bytes) -> list[RpcMessage]:
        if not responder or not body:
            return []
        if self._link is _Link.ESTABLISHED:
            self._link = _Link.RESET
            return []
        if self._link is not _Link.START_SENT or initiator != self._nonce or body[0] != VERSION:
            return []
        self._ids, self._link = (initiator, responder), _Link.ESTABLISHED
        return [RpcMessage(MessageType.START_REPLY)]
