"""Replay of a hardware register trace on the register model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from nvdla.argument_kinds import by_annotations
from nvdla.errors import FormatError, NvdlaError, TraceError
from nvdla.files import named, read_file, write_file
from nvdla.hardware.configuration import Configuration, configuration
from nvdla.hardware.machine import Completion, Machine
from nvdla.hardware.register_file import register_map
from nvdla.limits import Limits
from nvdla.trace.cfg import parse_cfg
from nvdla.trace.commands import Trace
from nvdla.trace.images import TraceFolder
from nvdla.trace.memory import TraceMemory
from nvdla.trace.player import BlockPlayer, Check, SequentialPlayer
from nvdla.trace.txn import parse_txn

TRACE_LIMIT = 64 << 20  # bytes of the text; its commands take some ten times as much memory


@dataclass(frozen=True)
class Replay:
    """What a replay did: ``checks`` in the order in which they were made, ``completions`` of the machine in order."""

    path: Path
    config: Configuration
    checks: tuple[Check, ...]
    completions: tuple[Completion, ...] = field(repr=False)
    memory: TraceMemory = field(repr=False)

    @property
    def passed(self) -> bool:
        """True when every check passed and nothing waits for ever."""
        return all(check.passed for check in self.checks)

    def dump(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write each range of memory that the trace used as ``<space>_0x<address>.bin``; returns the paths."""
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FormatError(f"folder {target} cannot be made: {error.strerror or error}") from error
        written = []
        for space, address, size in self.memory.used:
            path = target / f"{space.value}_0x{address:x}.bin"
            write_file(path, self.memory.view(space, address, size, "dump").data)
            written.append(path)
        return written


@by_annotations
def read_trace(path: str | os.PathLike[str], config: Configuration, limits: Limits | None = None) -> Trace:
    """Parse a trace and the memory images it names: ``.txn`` in the nv_full form, all else in the .cfg language.

    Raises TraceError with file name and line number.
    """
    path = Path(named(path, "trace"))
    try:
        text = read_file(path, TRACE_LIMIT, "trace").decode("utf-8", "replace")
    except FormatError as error:
        raise TraceError(str(error)) from error
    parse = parse_txn if path.suffix == ".txn" else parse_cfg
    return parse(
        text, path.name, register_map(config.register_map), TraceFolder(path.parent, (limits or Limits()).memory)
    )


@by_annotations
def replay(
    path: str | os.PathLike[str],
    config: str | Configuration,
    *,
    threads: int | None = None,
    limits: Limits | None = None,
) -> Replay:
    """Run a trace on a machine of configuration ``config`` with memory made for it.

    ``limits`` are those of a run; ``memory`` bounds the simulated memory, and the memory images. Raises TraceError for
    a trace that cannot be read, and whatever NvdlaError an engine raises for settings that cannot run; a comparison
    that fails, or something that the trace waits for and that never comes, is a failed check.
    """
    if isinstance(config, str):
        config = configuration(config)
    limits = limits or Limits()
    trace = read_trace(path, config, limits)
    memory = TraceMemory(trace.ranges(), limits.memory)
    machine = Machine(config, memory, threads, limits)
    player = (SequentialPlayer if trace.sequential else BlockPlayer)(trace, machine, memory)
    try:
        player.play()
        player.finish()
    except NvdlaError as error:
        text = str(error)
        raise error if text.startswith(f"{trace.name}:") else type(error)(f"{trace.name}: {text}") from error
    finally:
        machine.close()
    return Replay(Path(path), config, tuple(player.checks), tuple(player.completions), memory)
