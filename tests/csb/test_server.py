"""The register server: reads, writes, memory, interrupts, and what a client may do wrong."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.csb import record
from nvdla.csb.program import Await, CpuCall, Flushed, Write
from nvdla.csb.server import INTERRUPT, MemoryPlan, RegisterServer, listen
from nvdla.errors import ConfigError, FormatError
from nvdla.hardware.configuration import configuration
from nvdla.memory.address_space import Space

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


class Client:
    """The protocol of docs/register-server.md, in Python."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, command: str, address: int = 0, value: int = 0, data: bytes = b"") -> None:
        self.connection.sendall(struct.pack("<III", ord(command), address, value) + data)

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.connection.recv(size - len(data))
            assert piece, "the server hung up"
            data += piece
        return data

    def reply(self) -> tuple[int, int]:
        status, value = struct.unpack("<II", self.take(8))
        return status, value

    def ask(self, command: str, address: int = 0, value: int = 0, data: bytes = b"") -> int:
        self.send(command, address, value, data)
        status, value = self.reply()
        if status:
            raise RuntimeError(self.take(value).decode())
        return value


@pytest.fixture
def client(tmp_path):
    server = RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, 0xC0000000, 1 << 20)])
    yield from connected(server, tmp_path)


def connected(server, tmp_path):
    listener = listen(str(tmp_path / "s"))
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(tmp_path / "s"))
        yield Client(connection)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_lenet_runs_over_the_socket_alone(client):
    runtime = nvdla.Runtime(nvdla.load(SAMPLES / "lenet.loadable"))
    image = runtime.surfaces(SAMPLES / "digit7.pgm")
    program = record(runtime).program
    base = program.bases[Space.DRAM]
    for each in program.segments:
        client.ask("L", 0, each.size, struct.pack("<Q", base + each.offset) + each.data.tobytes())
    tensor = program.inputs[0]
    client.ask("L", 0, tensor.size, struct.pack("<Q", base + tensor.offset) + image[0])
    seen = 0
    for step in program.steps:
        if isinstance(step, Write):
            client.send("W", step.register.address, step.resolved(program.bases))
        elif isinstance(step, Flushed):
            assert client.ask("R", step.register.address) & 1
        elif isinstance(step, Await):
            seen |= client.ask("I")
            client.send("W", 0x100C, seen)
            assert seen & step.interrupts == step.interrupts
            seen &= ~step.interrupts
    source = next(step for step in program.steps if isinstance(step, CpuCall)).source
    size = client.ask("D", 0, 10, struct.pack("<Q", base + source.offset))
    scores = np.frombuffer(client.take(size), np.int8)
    assert int(scores.argmax()) == 7


def test_what_is_wrong_with_a_write_is_told_by_the_next_reply(client):
    client.send("W", 0x3FFFC, 1)
    with pytest.raises(RuntimeError, match="no register at byte address 0x3fffc"):
        client.ask("R", 0x100C)
    assert client.ask("R", 0x100C) == 0


def test_memory_outside_the_regions_is_refused_and_the_connection_goes_on(client):
    with pytest.raises(RuntimeError, match="no dram region"):
        client.ask("D", 0, 16, struct.pack("<Q", 0x1000))
    with pytest.raises(RuntimeError, match="outside region"):
        client.ask("L", 0, 1 << 16, struct.pack("<Q", 0xC00FFFF0) + bytes(1 << 16))
    assert client.ask("V") == 1


def test_with_events_on_the_line_is_told_as_it_rises(client):
    client.ask("E", 0, 1)
    client.send("W", 0x1004, 0)  # no cause is masked
    client.send("W", 0x1008, 1)  # S_INTR_SET: SDP_DONE of group 0
    assert client.reply() == (INTERRUPT, 1)
    client.send("W", 0x100C, 1)
    client.send("W", 0x1008, 2)
    assert client.reply() == (INTERRUPT, 2)


def test_reset_gives_a_new_machine_and_keeps_memory(client):
    client.ask("L", 0, 4, struct.pack("<Q", 0xC0000000) + b"abcd")
    client.send("W", 0x9004, 1)
    assert client.ask("R", 0x9004) & 1 == 1
    client.ask("Z")
    assert client.ask("R", 0x9004) & 1 == 0
    assert client.take(client.ask("D", 0, 4, struct.pack("<Q", 0xC0000000))) == b"abcd"


def test_unknown_commands_and_garbage_do_not_end_the_server(client):
    with pytest.raises(RuntimeError, match="unknown command 0x3f"):
        client.ask("?")
    generator = np.random.default_rng(3)
    for _ in range(200):
        command = generator.choice(list("WRIZEV?"))
        client.send(command, int(generator.integers(1 << 32)), int(generator.integers(1 << 32)))
    client.connection.shutdown(socket.SHUT_WR)
    while client.connection.recv(1 << 16):
        pass


def test_memory_files_are_shared(tmp_path):
    path = tmp_path / "dram"
    server = RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, 0, 4096, path)])
    np.memmap(path, np.uint8, "r+")[:4] = (1, 2, 3, 4)
    assert server.space.view(Space.DRAM, 0, 4).tolist() == [1, 2, 3, 4]


def test_only_this_machine_may_connect_and_only_memories_that_exist(tmp_path):
    with pytest.raises(FormatError, match=r"127\.0\.0\.1 only"):
        listen("0.0.0.0:9000")
    with pytest.raises(FormatError, match="cannot listen"):
        listen(str(tmp_path / "missing" / "s"))
    with pytest.raises(ConfigError, match="no CVSRAM"):
        RegisterServer(configuration("nv_small"), [MemoryPlan(Space.CVSRAM, 0, 4096)])


AFTER_WARM_UP = """
import gc, sys
import nvdla
from nvdla.kernels.jit.compilation import Kernel
from nvdla.warm_up import warm_up_engines

def specialised():
    kernels = [each for each in gc.get_objects() if type(each) is Kernel]
    forms = [form for each in kernels for form in (each._compiled, each._called) if form is not None]
    return sorted((form.py_func.__qualname__, str(signature)) for form in forms for signature in form.signatures)

assert list(warm_up_engines("nv_small")) == ["int8"]
before = specialised()
runtime = nvdla.Runtime(sys.argv[1])
runtime.run(sys.argv[2])
print(len(before), [each for each in specialised() if each not in before])
"""


def test_the_first_run_of_a_client_compiles_nothing():
    """The server compiles and loads before it announces itself what a network's register programs need."""
    words = [sys.executable, "-c", AFTER_WARM_UP, str(SAMPLES / "lenet.loadable"), str(SAMPLES / "digit7.pgm")]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split(maxsplit=1)
    assert int(printed[0]) > 5
    assert printed[1] == "[]\n"
