"""What a printer works from: the program, where it is put, and one run of it with known inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nvdla.csb.program import RegisterProgram, Write
from nvdla.csb.recording import PartOfRun, Recording
from nvdla.errors import FormatError
from nvdla.files import whole_file
from nvdla.hardware.register_file import Register, register_map
from nvdla.memory.address_space import Space

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Options:
    """``csb_base``: address of the first register (None: the form's own, else 0); ``word_addresses``: registers by word
    instead of byte; ``poll_limit``: how often a wait may look (0: for ever); ``arrays``: data in the C source, instead
    of an image."""

    csb_base: int | None = None
    word_addresses: bool | None = None
    poll_limit: int = 0
    arrays: bool | None = None


@dataclass(frozen=True)
class Export:
    """One export into ``folder``; files are called after ``name`` (an identifier in C)."""

    recording: Recording
    bases: dict[Space, int]
    folder: Path
    options: Options
    written: list[Path] = field(default_factory=list)

    @property
    def program(self) -> RegisterProgram:
        """Register writes, waits and CPU operations in order, as recorded."""
        return self.recording.program

    @property
    def parts(self) -> tuple[PartOfRun, ...]:
        """Its parts, with the memories before and after each."""
        return self.recording.parts

    @property
    def name(self) -> str:
        """The program's name, for files."""
        return self.program.name

    def save(self, name: str, data: str | Iterable[str | bytes | np.ndarray]) -> None:
        """Write a file of the export, whole or not at all: text, or pieces of it as they come."""
        path = self.folder / name
        with whole_file(path) as stream:
            for piece in [data] if isinstance(data, str) else data:
                stream.write(piece.encode() if isinstance(piece, str) else bytes(piece))
        self.written.append(path)

    def save_lines(self, name: str, lines: Iterable[str]) -> None:
        """:meth:`save` lines of text."""
        self.save(name, (f"{line}\n" for line in lines))

    def address(self, register: Register, default_words: bool) -> int:
        """The register's address on the CSB as the form gives it."""
        words = self.options.word_addresses if self.options.word_addresses is not None else default_words
        return (self.options.csb_base or 0) + (register.address >> 2 if words else register.address)

    def address_of_status(self) -> int:
        """The byte address of GLB.S_INTR_STATUS."""
        registers = register_map(self.program.config.register_map)
        return self.address(registers.register("GLB", "S_INTR_STATUS"), False)

    def value(self, step: Write) -> int:
        """What is written, with the addresses that were chosen."""
        return step.resolved(self.bases)


def export(recording: Recording, folder: str | Path, bases: dict[Space, int], options: Options) -> Export:
    """What printers need, with ``folder`` made. Raises FormatError for a program's name that C does not take."""
    name = recording.program.name
    if not NAME.fullmatch(name):
        raise FormatError(f"{name!r} cannot name the export: letters, digits and _ only, no digit first")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"folder {target} cannot be made: {error.strerror or error}") from error
    return Export(recording, bases, target, options)
