"""Fuzz target: every command that looks at a loadable, as a user calls it; one of them for each input."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import os
import pkgutil
import tempfile
import zlib
from pathlib import Path

from nvdla.cli.main import main

for _name in ("analysis", "checks.diff", "checks.doctor", "checks.lint", "cli"):
    _package = importlib.import_module(f"nvdla.{_name}")  # now, so that a campaign sees what they cover
    for _module in pkgutil.walk_packages(getattr(_package, "__path__", []), f"{_package.__name__}."):
        importlib.import_module(_module.name)

_HANDLE, _PATH = tempfile.mkstemp(suffix=".nvdla", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
os.close(_HANDLE)
atexit.register(lambda: Path(_PATH).unlink(missing_ok=True))
COMMANDS = (
    ["inspect", _PATH, "--all"],
    ["lint", _PATH],
    ["memory", _PATH, "--buffers"],
    ["graph", _PATH],
    ["cycles", _PATH],
    ["timeline", _PATH],
    ["doctor", _PATH, "--converters"],
    ["diff", _PATH, _PATH],
    ["hexdump", _PATH, "task-0-op_list"],
)
AS_TABLES = 16  # one input of so many is printed for people: laying out tables takes most of the time


def one_input(data: bytes) -> None:
    """A command, chosen by the input's checksum, gives its result, or one line and exit code 2."""
    Path(_PATH).write_bytes(data)
    number = zlib.crc32(data)
    words = COMMANDS[number % len(COMMANDS)]
    if number // len(COMMANDS) % AS_TABLES:
        words = [*words, "--json"]
    called(words)


def called(words: list[str]) -> int:
    """The exit code of a command; raises where it is none of ours, or where not exactly the last line is the error."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(words)
    said = error.getvalue()
    errors = [line for line in said.split("\n") if line.startswith("nvdla ")]
    unclear = code == 2 and (len(errors) != 1 or not said.endswith(f"{errors[0]}\n"))
    if code not in (0, 1, 2) or "internal error" in said or unclear:
        where = said.partition("internal error")[2][:120]
        raise RuntimeError(f"{words[0]}: exit code {code}: {where or said[:120]}")
    return code
