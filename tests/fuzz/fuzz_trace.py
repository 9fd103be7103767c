"""Fuzz targets: register traces, .cfg and .txn, with their memory images.

One input is a whole folder: parts divided by lines of ``%% NAME``; the first part is the trace. Its first line may be a
comment ``// config NAME``.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from fuzz_run import LIMITS

import nvdla
from nvdla.emulator.hardware.configuration import configurations
from nvdla.emulator.trace import replay

_FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def cfg_input(data: bytes) -> None:
    """A folder with a .cfg."""
    _replay(data, "input.cfg", "nv_small")


def txn_input(data: bytes) -> None:
    """A folder with an input.txn."""
    _replay(data, "input.txn", "nv_full")


def _replay(data: bytes, name: str, config: str) -> None:
    """The trace ends with its checks, or with NvdlaError."""
    trace, *parts = data.split(b"\n%% ")
    first = trace.split(b"\n", 1)[0].decode("ascii", "replace").split()
    if len(first) == 3 and first[:2] == ["//", "config"] and first[2] in configurations():
        config = first[2]
    written = [_FOLDER / name]
    written[0].write_bytes(trace)
    for part in parts[:16]:
        title, _, content = part.partition(b"\n")
        path = _FOLDER / ("i_" + "".join(chr(each) for each in title[:32] if chr(each).isalnum() or each in b"._-"))
        path.write_bytes(content)
        written.append(path)
    try:
        result = replay(written[0], config, threads=1, limits=LIMITS)
        if not isinstance(result.passed, bool):
            raise RuntimeError("a replay is neither passed nor failed")
    except nvdla.NvdlaError:
        pass
    for path in written:
        path.unlink(missing_ok=True)


def pack(trace: bytes, images: dict[str, bytes], config: str) -> bytes:
    """A folder as one input: images get short names, in the trace too, and with the i_ that one_input puts in front."""
    parts = []
    for number, (title, content) in enumerate(sorted(images.items(), key=lambda each: -len(each[0]))):
        name = f"{number}{Path(title).suffix}".encode()
        trace = trace.replace(title.encode(), b"i_" + name)
        parts.append(b"%% " + name + b"\n" + content)
    return b"\n".join([f"// config {config}".encode(), trace, *parts])
