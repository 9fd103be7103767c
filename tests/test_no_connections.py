"""The toolkit opens no connection and sends nothing: commands run where every socket of a network is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvdla.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
SERVING = {"serve", "view"}
"""Commands that answer connections, on the loopback interface."""
RUNS = """
run lenet.loadable --input digit7.pgm
samples -o more
compile lenet.onnx --config nv_small --check
evaluate lenet.loadable digits.npz --limit 4
explore lenet.loadable --bandwidth 1 --latency 50
inspect lenet.loadable --all
layers lenet.loadable --caffe lenet.prototxt lenet.caffemodel --dry-run
hexdump lenet.loadable task-0-op_list
extract lenet.loadable task-0-op_list -o blob.bin
compare lenet.loadable lenet_nv_large.loadable --input digit7.pgm
doctor lenet.loadable --input digit7.pgm
lint lenet.loadable
diff lenet.loadable lenet_nv_large.loadable
memory lenet.loadable
graph lenet.loadable
cycles lenet.loadable
explain lenet.loadable
timeline lenet.loadable -o trace.json
tensor info digit7.pgm
report lenet.loadable -o report.html
export lenet.loadable --output graph.onnx
trace replay traces/convolution.cfg --config nv_small
faults lenet.loadable digits.npz --count 4 --where weight
program lenet.loadable --format riscv-txn --input digit7.pgm -o txn
csb txn/lenet.txn
container list lenet.loadable
configs
datasheet nv_small lenet.loadable -o sheet.html
cache info
completion bash
version --verbose
""".strip().splitlines()
#: imported by every interpreter; sockets of this machine's own kind (pairs of processes) are no connection
RECORDER = """
import os, sys
def record(event, arguments):
    network = event == "socket.__new__" and int(arguments[1]) != 1
    if network or event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        with open(os.environ["RECORDED"], "a") as file:
            file.write(f"{sys.argv[1:3]} {event} {arguments[1:]}\\n")
        raise PermissionError("a socket of a network")
sys.addaudithook(record)
"""
CODE = """
import shlex, sys
from nvdla.cli.main import main
for line in sys.stdin.read().splitlines():
    words = shlex.split(line)
    sys.argv[1:] = words
    print(main(words), line, flush=True)
"""


@pytest.fixture
def guarded(tmp_path):
    """``guarded(lines)``: runs the commands in a copy of the samples; (exit codes by line, what was recorded)."""
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(RECORDER)
    (tmp_path / "away").mkdir()
    log = tmp_path / "recorded"
    path = os.pathsep.join([str(tmp_path / "guard"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "RECORDED": str(log)}

    def run(lines):
        text = "\n".join(lines)
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            input=text,
            capture_output=True,
            text=True,
            cwd=tmp_path / "away",
            env=environment,
            timeout=600,
        )
        rows = [line.split(" ", 1) for line in done.stdout.splitlines() if line[2:] in lines]
        return {line: int(code) for code, line in rows}, log.read_text() if log.exists() else "", done.stderr

    return run


def test_every_command_but_servers_is_run_here():
    assert {line.split()[0] for line in RUNS} == COMMANDS.keys() - SERVING


def test_commands_open_no_connection(guarded):
    pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    codes, recorded, errors = guarded(["samples -o .", *RUNS])
    assert recorded == ""
    assert codes.keys() == {"samples -o .", *RUNS}
    assert [line for line, code in codes.items() if code not in (0, 1)] == [], errors


def test_a_connection_would_be_recorded(guarded):
    codes, recorded, _ = guarded(["serve --registers --config nv_small --socket 127.0.0.1:0"])
    assert list(codes.values()) == [2]
    assert "socket" in recorded
