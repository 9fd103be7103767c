"""The register server: reads, writes, memory, interrupts, and what a client may do wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.cli.serve import _until_signal, load_kernels
from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.hardware.register_file import register_map
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, FormatError
from nvdla.registers import record
from nvdla.registers.register_program import Await, CpuCall, Flushed, Write
from nvdla.registers.self_test import self_tests
from nvdla.registers.server import INTERRUPT, Clients, Deadlines, MemoryPlan, RegisterServer, listen

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


class Client:
    """The protocol of docs/registers.md, in Python."""

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
    program = record(runtime).register_program
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


def test_the_next_reply_reports_a_failed_write(client):
    client.send("W", 0x3FFFC, 1)
    with pytest.raises(RuntimeError, match="no register at byte address 0x3fffc"):
        client.ask("R", 0x100C)
    assert client.ask("R", 0x100C) == 0


@pytest.mark.parametrize("command", "VEZRI")
def test_every_reply_tells_a_failed_write(client, command):
    client.send("W", 0x3FFFC, 1)
    with pytest.raises(RuntimeError, match="no register at byte address 0x3fffc"):
        client.ask(command, 0x100C)
    assert client.ask("V") == 1


def test_loads_and_dumps_report_a_failed_write(client):
    for command, data in (("L", b"abcd"), ("D", b"")):
        client.send("W", 0x3FFFC, 1)
        with pytest.raises(RuntimeError, match="no register at byte address 0x3fffc"):
            client.ask(command, 0, 4, struct.pack("<Q", 0xC0000000) + data)
        assert client.ask("V") == 1


def test_a_reset_that_tells_a_failure_has_reset(client):
    client.send("W", 0x9004, 1)
    client.send("W", 0x3FFFC, 1)
    with pytest.raises(RuntimeError, match="no register"):
        client.ask("Z")
    assert client.ask("R", 0x9004) & 1 == 0


def test_memory_outside_the_regions_is_refused_and_the_connection_goes_on(client):
    with pytest.raises(RuntimeError, match="no dram region"):
        client.ask("D", 0, 16, struct.pack("<Q", 0x1000))
    with pytest.raises(RuntimeError, match="outside region"):
        client.ask("L", 0, 1 << 16, struct.pack("<Q", 0xC00FFFF0) + bytes(1 << 16))
    assert client.ask("V") == 1


def test_with_events_on_a_rising_interrupt_line_is_sent(client):
    client.ask("E", 0, 1)
    client.send("W", 0x1004, 0)  # no cause is masked
    client.send("W", 0x1008, 1)  # S_INTR_SET: SDP_DONE of group 0
    assert client.reply() == (INTERRUPT, 1)
    client.send("W", 0x100C, 1)
    client.send("W", 0x1008, 2)
    assert client.reply() == (INTERRUPT, 2)


def test_a_group_that_is_enabled_ignores_writes(client):
    width, enable, pointer = (
        register_map(configuration("nv_small").register_map).register("SDP", name).address
        for name in ("D_DATA_CUBE_WIDTH", "D_OP_ENABLE", "S_POINTER")
    )
    for address, value in ((width, 5), (enable, 1), (width, 9), (enable, 0)):
        client.send("W", address, value)
    assert client.ask("R", width) == 5 and client.ask("R", enable) & 1 == 1
    client.send("W", pointer, 1)  # the other group is free
    client.send("W", width, 9)
    assert client.ask("R", width) == 9


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


@pytest.mark.parametrize("size", [1, 4095, 8192])
def test_a_memory_file_of_another_size_is_refused_and_not_touched(tmp_path, size):
    path = tmp_path / "mine"
    path.write_bytes(b"x" * size)
    with pytest.raises(FormatError, match=f"must be new, empty or of 4096 bytes, got {size} bytes"):
        RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, 0, 4096, path)])
    assert path.read_bytes() == b"x" * size


def test_a_memory_file_of_its_size_keeps_its_bytes(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(b"x" * 4096)
    server = RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, 0, 4096, path)])
    assert server.space.view(Space.DRAM, 0, 4096).tobytes() == b"x" * 4096


def test_a_memory_file_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="must be a regular file"):
        RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, 0, 4096, tmp_path / "pipe")])


def test_a_memory_file_that_is_cut_is_an_error_and_the_server_goes_on(tmp_path):
    """Beyond the end of a mapped file the system ends the process."""
    path = tmp_path / "dram"
    server = RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, 0, 1 << 16, path)])
    for client in connected(server, tmp_path):
        assert client.ask("L", 0, 4, struct.pack("<Q", 0xFFF0) + b"abcd") == 4
        os.truncate(path, 4096)
        for command, data in (("I", b""), ("L", struct.pack("<Q", 0xFFF0) + b"abcd"), ("D", struct.pack("<Q", 0xFFF0))):
            with pytest.raises(RuntimeError, match="must keep its 65536 bytes, got 4096"):
                client.ask(command, 0, 4, data)
        os.truncate(path, 1 << 16)
        assert client.take(client.ask("D", 0, 4, struct.pack("<Q", 0xFFF0))) == bytes(4)


@pytest.fixture
def hasty(tmp_path):
    """A server with short deadlines; ``hasty()`` gives a client of it."""
    server = RegisterServer(
        configuration("nv_small"),
        [MemoryPlan(Space.DRAM, 0, 1 << 16)],
        deadlines=Deadlines(silence=0.3, message=0.5, rate=1 << 30),
    )
    listener = listen(str(tmp_path / "s"))
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    opened = []

    def connect() -> Client:
        opened.append(socket.socket(socket.AF_UNIX))
        opened[-1].settimeout(30)
        opened[-1].connect(str(tmp_path / "s"))
        return Client(opened[-1])

    yield connect
    server.stop()
    thread.join(10)
    assert not thread.is_alive()
    for each in (*opened, listener):
        each.close()


def test_a_silent_client_is_disconnected_for_others_with_a_reason(hasty):
    silent, other = hasty(), hasty()
    assert other.ask("V") == 1
    status, size = silent.reply()
    assert (status, silent.take(size)) == (1, b"silent for 0.3 seconds while another client waits")
    assert silent.connection.recv(1) == b""


def test_a_client_alone_may_be_silent(hasty):
    client = hasty()
    assert client.ask("V") == 1
    time.sleep(1.0)
    assert client.ask("V") == 1


def test_clients_are_served_in_turn(hasty):
    clients = [hasty() for _ in range(6)]
    for client in clients:
        client.send("V")
        client.connection.shutdown(socket.SHUT_WR)
    assert [client.reply() for client in clients] == [(0, 1)] * 6


def test_a_client_that_stopped_waiting_disconnects_no_other(hasty):
    client, gone = hasty(), hasty()
    assert client.ask("V") == 1
    gone.connection.close()
    time.sleep(1.0)
    assert client.ask("V") == 1


@pytest.mark.parametrize(
    "begun", [b"V\0\0", struct.pack("<III", ord("L"), 0, 0xFFFFFFFF) + bytes(100)], ids=["a request", "4 GiB"]
)
def test_a_message_that_does_not_end_is_not_waited_for(hasty, begun):
    client = hasty()
    client.connection.sendall(begun)
    began = time.monotonic()
    status, size = client.reply()
    assert (status, client.take(size)) == (1, b"a message was not complete within its deadline")
    assert client.connection.recv(1) == b""
    assert time.monotonic() - began < 20


def test_replies_that_are_not_read_are_not_waited_for(hasty):
    greedy, other = hasty(), hasty()
    request = struct.pack("<IIIQ", ord("D"), 0, 1 << 16, 0)
    greedy.connection.sendall(request * 200)  # 13 MB, more than sockets hold
    assert other.ask("V") == 1


def test_a_system_without_descriptors_is_waited_for(monkeypatch):
    """accept() fails; the server neither ends nor turns at full speed."""
    clients = Clients()
    ours, theirs = socket.socketpair()

    class Listener:
        def __init__(self):
            self.errors = [OSError(errno.EMFILE, "no descriptor"), OSError(errno.EMFILE, "no descriptor")]

        def setblocking(self, flag):
            pass

        def fileno(self):
            return theirs.fileno()

        def accept(self):
            if self.errors:
                raise self.errors.pop()
            return ours, ""

    theirs.send(b"x")
    monkeypatch.setattr("nvdla.registers.server._BACK_OFF", 0.05)
    clients.listen(Listener())
    assert clients.next() is ours


def test_only_this_machine_may_connect_and_only_memories_that_exist(tmp_path):
    with pytest.raises(FormatError, match=r"must be on 127\.0\.0\.1"):
        listen("0.0.0.0:9000")
    with pytest.raises(FormatError, match="cannot listen"):
        listen(str(tmp_path / "missing" / "s"))
    with pytest.raises(ConfigError, match="no CVSRAM"):
        RegisterServer(configuration("nv_small"), [MemoryPlan(Space.CVSRAM, 0, 4096)])


@pytest.mark.parametrize("port", ["-1", "+5", "65536", "x", "", "\u0661", "1_0", "9" * 5000])
def test_a_port_that_is_none_is_refused(tmp_path, monkeypatch, port):
    """It is no name of a Unix socket."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match="port must be 0 to 65535"):
        listen(f"127.0.0.1:{port}")
    assert not list(tmp_path.iterdir())


def test_a_signal_is_heard_in_the_middle_of_an_operation():
    """The work cannot be ended; the main thread goes on all the same."""
    release, stopped = threading.Event(), []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    began = time.monotonic()
    try:
        assert _until_signal(release.wait, lambda: stopped.append(True)) is False
        assert time.monotonic() - began < 2
        assert stopped == [True]
    finally:
        release.set()
        signal.signal(signal.SIGINT, before)


def test_a_socket_that_a_killed_server_left_is_replaced_but_none_of_a_server(tmp_path):
    path = str(tmp_path / "s")
    listen(path).close()
    assert os.path.exists(path)
    with listen(path) as listener:
        with pytest.raises(FormatError, match=f"cannot listen on {path}: a server uses it"):
            listen(path)
        assert listener.getsockname() == path
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FormatError, match="in use"):
        listen(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_after_random_writes(number, tmp_path):
    path = tmp_path / "s"
    words = [
        sys.executable,
        "-m",
        "nvdla",
        "serve",
        "--registers",
        "--socket",
        str(path),
        "--dram-size",
        "1MiB",
        "--json",
    ]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # nohup ignores SIGHUP
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    try:
        assert json.loads(process.stdout.readline())["address"] == str(path)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            client = Client(connection)
            generator = np.random.default_rng(7)
            for _ in range(3000):
                client.send("W", int(generator.integers(0x10000)) << 2, int(generator.integers(1 << 32)))
            client.send("I")
            process.send_signal(number)
            began = time.monotonic()
            assert process.wait(60) == 0
            assert time.monotonic() - began < 20
        assert not path.exists()
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


AFTER_WARM_UP = """
import gc, sys
import nvdla
from nvdla.kernels.jit.compilation import Kernel
from nvdla.cli.serve import load_kernels
from nvdla.emulator.hardware.configuration import configuration
from nvdla.registers.self_test import self_tests

def specialized():
    kernels = [each for each in gc.get_objects() if type(each) is Kernel]
    forms = [form for each in kernels for form in (each._compiled, each._called) if form is not None]
    return sorted((form.py_func.__qualname__, str(signature)) for form in forms for signature in form.signatures)

load_kernels("nv_small")
before = specialized()
runtime = nvdla.Runtime(sys.argv[1])
runtime.run(sys.argv[2])
assert len(self_tests(configuration("nv_small"))) == 14
print(len(before), [each for each in specialized() if each not in before])
"""


def test_a_configuration_that_cannot_run_the_self_tests_is_served(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("base: nv_small\nname: small\ncbuf_banks: 2\n")
    with pytest.raises(ConfigError, match="at most 2 banks"):
        self_tests(configuration(str(path)))
    load_kernels(str(path))


def test_the_first_run_of_a_client_compiles_nothing():
    """The server compiles and loads before it announces itself what networks and the self-test kit need."""
    words = [sys.executable, "-c", AFTER_WARM_UP, str(SAMPLES / "lenet.loadable"), str(SAMPLES / "digit7.pgm")]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split(maxsplit=1)
    assert int(printed[0]) > 5
    assert printed[1] == "[]\n"
