"""One small command line for each command, each with the command lines that make its files, and SIGINT while it runs.

They work in a folder that has the samples in it.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from pathlib import Path

from support.fault_commands import start

LOG = "program lenet.loadable --format riscv-txn --input digit7.pgm -o txn"
CFG = "program lenet.loadable --format cfg --input digit7.pgm -o cfg"
COMMAND_LINES: dict[str, tuple[str, ...]] = {
    "compile": ("compile lenet.onnx --config nv_small --check",),
    "run": ("run lenet.loadable --input digit7.pgm -o out.npy",),
    "inspect": ("inspect lenet.loadable --all",),
    "layers": ("layers lenet.loadable --caffe lenet.prototxt --dry-run",),
    "hexdump": ("hexdump lenet.loadable task-0-op_list",),
    "extract": ("extract lenet.loadable tb-0 -o blob.bin",),
    "compare": ("compare lenet.loadable lenet_nv_large.loadable -i digit7.pgm",),
    "doctor": ("doctor lenet.loadable -i digit7.pgm",),
    "lint": ("lint lenet.loadable",),
    "diff": ("diff lenet.loadable lenet_nv_large.loadable",),
    "memory": ("memory lenet.loadable --svg memory.svg",),
    "graph": ("graph lenet.loadable -o graph.json",),
    "cycles": ("cycles lenet.loadable",),
    "explain": ("explain lenet.loadable 0/3",),
    "timeline": ("timeline lenet.loadable -o trace.json",),
    "tensor": ("tensor info digit7.pgm",),
    "view": ("view lenet.loadable --no-browser",),
    "report": ("report lenet.loadable -i digit7.pgm -o page.html",),
    "export": ("export lenet.loadable --node-data nodes",),
    "trace": (CFG, "trace replay cfg/lenet.cfg --config nv_small"),
    "evaluate": ("evaluate lenet.loadable digits.npz --limit 20 --workers 2",),
    "faults": ("faults lenet.loadable digits.npz --count 12 --where weight,mac --workers 2",),
    "explore": ("explore lenet.loadable --bandwidth 1,2 --latency 50 --workers 2",),
    "program": (LOG,),
    "csb": (LOG, "csb txn/lenet.txn --operations"),
    "container": ("container list lenet.loadable",),
    "serve": ("serve --registers --config nv_small --socket 127.0.0.1:0",),
    "samples": ("samples digit -o digits",),
    "configs": ("configs",),
    "datasheet": ("datasheet nv_small lenet.loadable -o sheet.html",),
    "cache": ("cache info",),
    "completion": ("completion bash",),
    "version": ("version --verbose",),
}
NEVER_END = {"serve": 3.0, "view": 3.0}
"""Commands that go on until they are interrupted, and the seconds after which they surely listen."""

_TELLS = """
import os, sys
from nvdla.cli import entry
entry.install()
os.write(1, b"\\0")  # from here on Ctrl-C is the command's
sys.exit(entry.main())
"""


def takes_interrupts() -> None:
    """A group of processes of its own, as a terminal gives to a command, that does not ignore SIGINT."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(line: str, folder: Path, after: float | None) -> tuple[int, str, float]:
    """A command whose group of processes gets SIGINT ``after`` so many seconds from when it has taken over Ctrl-C.

    Returns (exit code, standard error, seconds from the signal, or the whole time where ``after`` is None)."""
    process = start([sys.executable, "-c", _TELLS], *shlex.split(line), cwd=folder, preexec_fn=takes_interrupts)
    assert process.stdout is not None
    try:
        assert process.stdout.read(1) == b"\0"
        began = time.perf_counter()
        if after is not None:
            time.sleep(after)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            began = time.perf_counter()
        _, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, error.decode(), time.perf_counter() - began
