"""microRPC packets and sessions, against recorded traffic and against damage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.containers.tvm.crt import CrtModule, CrtRuntime, FuncRegistry
from nvdla.containers.tvm.framing import Framer, MessageType, Session, Unframer, crc
from nvdla.containers.tvm.micro_rpc import MicroRpcServer
from nvdla.containers.tvm.rpc_memory import RemoteMemory
from nvdla.containers.tvm.rpc_session import RpcSession
from nvdla.errors import FormatError


@pytest.fixture(scope="module")
def transcript(formats) -> list[tuple[str, bytes]]:
    recorded = json.loads((formats / "mlf" / "microrpc_transcript_tvm0.8.json").read_text())
    return [(direction, bytes.fromhex(data)) for direction, data in recorded["bytes"]]


def test_recorded_packets_are_read_and_framed_again_byte_for_byte(transcript):
    framers = {"host>dev": Framer(), "dev>host": Framer()}
    unframers = {"host>dev": Unframer(), "dev>host": Unframer()}
    packets = 0
    for direction, data in transcript:
        found = unframers[direction].feed(data)
        assert [packet.fault for packet in found] == [""] * len(found)
        assert b"".join(framers[direction].frame(packet.payload) for packet in found) == data
        packets += len(found)
    assert packets == 48


def test_a_device_in_python_answers_a_recorded_host_byte_for_byte(transcript):
    """The dense layer of the recorded model, its weights sent by the host, at the recorded addresses and nonce."""

    def dense(x, w, b, out):
        x, w, b, out = map(session.array, (x, w, b, out))
        total = np.zeros(out.shape, np.float32)
        for k in range(x.shape[1]):  # in TVM's order: float32 sums depend on it
            total = total + x[:, k : k + 1] * w[:, k]
        out[:] = np.maximum(total + b, 0)

    names = ["tvmgen_default_fused_nn_dense_add_nn_relu", "__tvm_main__"]
    crt = CrtRuntime(system_library=lambda: CrtModule(FuncRegistry(names, [dense, dense], 1)))
    session = RpcSession(crt, RemoteMemory(1 << 20, 0x55C745DEC6A0), "0.8")
    device = MicroRpcServer(session, nonce=0x47)
    answered = device.feed(b"")
    for direction, data in transcript:
        if direction == "host>dev":
            answered += device.feed(data)
        else:
            assert answered == data
            answered = b""
    assert answered == b""


def test_the_crc_is_ccitt_of_ffff():
    assert crc(b"123456789") == 0x29B1


@given(
    st.lists(
        st.binary(max_size=40) | st.lists(st.sampled_from([0xFF, 0xFD, 0xFE, 0]), max_size=20).map(bytes), max_size=6
    ),
    st.integers(1, 9),
)
def test_packets_survive_any_cutting_of_the_stream(payloads, cut):
    framer, unframer = Framer(), Unframer()
    stream = b"".join(framer.frame(payload) for payload in payloads)
    found = [packet for at in range(0, len(stream), cut) for packet in unframer.feed(stream[at : at + cut])]
    assert [(packet.payload, packet.fault) for packet in found] == [(payload, "") for payload in payloads]


def test_a_packet_inside_another_ends_the_other():
    unframer = Unframer()
    whole = Framer(started=True).frame(b"hello")
    found = unframer.feed(whole[:8] + whole)
    assert [(p.payload, bool(p.fault)) for p in found] == [(b"", True), (b"hello", False)]


def test_nops_mean_nothing_anywhere():
    body = bytes.fromhex("fffd") + b"\x03\xff\xfe\0\0\0" + b"a\xff\xfebc"
    packet = body + crc(body).to_bytes(2, "little")
    assert [p.payload for p in Unframer().feed(b"\xff\xfe\xfe" + packet)] == [b"abc"]


@pytest.mark.parametrize(("damage", "word"), [
    (lambda p: p[:-1] + bytes([p[-1] ^ 1]), "CRC"), (lambda p: p[:7] + b"\xff\x01" + p[9:], "invalid escape"),
    (lambda p: p[:2] + b"\x00\x00\x00\x7f" + p[6:], "limit"),
])  # fmt: skip
def test_damage_is_reported_and_the_next_packet_arrives(damage, word):
    packet = Framer(started=True).frame(b"hello world")
    found = Unframer().feed(damage(packet) + packet)
    assert word in found[0].fault
    assert found[-1].payload == b"hello world"


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_noise_before_a_packet_does_not_hide_what_follows(noise):
    packet = Framer(started=True).frame(b"x")
    unframer = Unframer(max_payload=100)
    unframer.feed(noise)
    found = unframer.feed(packet + packet + packet)
    assert found[-1].payload == b"x"


def link() -> tuple[Session, Session]:
    host, device = Session(1), Session(2)
    host.initialize()
    device.initialize()
    host.start()
    exchange(host, device)
    return host, device


def exchange(one: Session, two: Session) -> list:
    """Passes bytes until both are silent; what either received."""
    received = []
    while one.outgoing or two.outgoing:
        for sender, receiver in ((one, two), (two, one)):
            data = bytes(sender.outgoing)
            sender.outgoing.clear()
            received += receiver.receive(data)
    return received


def test_a_session_is_made_used_and_ended():
    host, device = link()
    assert host.established
    assert device.established
    host.send(b"ping")
    device.send(b"note", MessageType.LOG)
    assert {(m.kind, m.body) for m in exchange(host, device)} == {(0x10, b"ping"), (3, b"note")}
    host.initialize()
    assert [m.kind for m in exchange(host, device)] == [MessageType.TERMINATE]
    with pytest.raises(FormatError, match="no microRPC session"):
        device.send(b"late")


def test_when_both_ask_at_once_the_lower_nonce_wins():
    host, device = Session(1), Session(2)
    for side in (host, device):
        side.initialize()
        side.start()
    exchange(host, device)
    assert host.established
    assert device.established


def test_a_message_of_another_session_is_ignored():
    host, device = link()
    host.send(b"old")
    old = bytes(host.outgoing)
    host.outgoing.clear()
    host.start()
    exchange(host, device)
    assert device.receive(old) == []
