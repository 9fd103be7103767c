"""What a printer works from: the program, where it is put, and one run of it with known inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nvdla.csb.player import Player
from nvdla.csb.program import CpuOperation, RegisterProgram, Step, Write
from nvdla.errors import FormatError
from nvdla.files import write_file
from nvdla.hardware.register_file import Register, register_map
from nvdla.memory.address_space import Space

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Options:
    """``csb_base``: address of the first register; ``word_addresses``: registers by word instead of byte;
    ``poll_limit``: how often a wait may look (0: for ever); ``arrays``: data in the C source, instead of an image."""

    csb_base: int = 0
    word_addresses: bool | None = None
    poll_limit: int = 0
    arrays: bool | None = None


@dataclass(frozen=True)
class PartOfRun:
    """The steps between CPU operations; memory before (uint8 by memory, segments and inputs included) and after."""

    steps: list[Step]
    before: dict[Space, np.ndarray] = field(repr=False)
    after: dict[Space, np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class Export:
    """One export into ``folder``; files are called after ``name`` (an identifier in C)."""

    program: RegisterProgram
    bases: dict[Space, int]
    folder: Path
    options: Options
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    parts: tuple[PartOfRun, ...]
    written: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The program's name, for files."""
        return self.program.name

    def save(self, name: str, data: bytes | str) -> None:
        """Write a file of the export, whole or not at all."""
        path = self.folder / name
        write_file(path, data.encode() if isinstance(data, str) else data)
        self.written.append(path)

    def address(self, register: Register, default_words: bool) -> int:
        """The register's address on the CSB as the form gives it."""
        words = self.options.word_addresses if self.options.word_addresses is not None else default_words
        return self.options.csb_base + (register.address >> 2 if words else register.address)

    def address_of_status(self) -> int:
        """The byte address of GLB.S_INTR_STATUS."""
        registers = register_map(self.program.config.register_map)
        return self.address(registers.register("GLB", "S_INTR_STATUS"), False)

    def value(self, step: Write) -> int:
        """What is written, with the addresses that were chosen."""
        return step.resolved(self.bases)


def export(
    program: RegisterProgram,
    folder: str | Path,
    inputs: Sequence[bytes],
    bases: dict[Space, int],
    options: Options,
) -> Export:
    """Run the program once on the emulator, on raw input surfaces, and gather all that printers need."""
    if not NAME.fullmatch(program.name):
        raise FormatError(f"{program.name!r} cannot name the export: letters, digits and _ only, no digit first")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"folder {target} cannot be made: {error.strerror or error}") from error
    player = Player.of(program, bases)
    try:
        player.bind(program, inputs)
        parts = tuple(_parts(program, player))
        outputs = tuple(player.outputs(program))
    finally:
        player.close()
    return Export(program, bases, target, options, tuple(inputs), outputs, parts)


def _parts(program: RegisterProgram, player: Player) -> list[PartOfRun]:
    found: list[PartOfRun] = []
    for part in program.parts():
        _compute_before(program, part[0], player)
        before = {space: data.copy() for space, data in player.memory.items()}
        player.run(part)
        player.settle()
        found.append(PartOfRun(part, before, {space: data.copy() for space, data in player.memory.items()}))
    _compute_before(program, None, player)
    return found


def _compute_before(program: RegisterProgram, first: Step | None, player: Player) -> None:
    """The CPU operations right before the step ``first``, or at the end."""
    steps = list(program.steps)
    end = len(steps) if first is None else next(at for at, step in enumerate(steps) if step is first)
    start = end
    while start and not isinstance(steps[start - 1], Write):
        start -= 1
    player.run(step for step in steps[start:end] if isinstance(step, CpuOperation))
