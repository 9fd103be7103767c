"""Addresses of board projects: program, memories and registers have room next to each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvdla.registers.printers.c99 import BOARDS

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_has_room_for_its_program_below_the_memory_of_nvdla_and_states_the_limits(
    board, nvdla_command, tmp_path
):
    """At the lowest base a linker script leaves the program's size and a stack; a base of 0 is the null pointer."""
    start = BOARDS[board].program
    words = ["program", SAMPLES / "lenet.loadable", "--board", board, "-o", tmp_path / "x", "--dram-base"]
    for base in {0, start or 0}:
        code, _, err = nvdla_command(*words, hex(base))
        assert (code, f"got 0x{base:x}. Choose another --dram-base" in err) == (2, True), err
    lowest = int(re.search(r"must be (?:at least )?(0x[0-9a-f]+)", err)[1], 16)
    assert nvdla_command(*words, hex(lowest - 4096))[0] == 2
    assert not list(tmp_path.rglob("*.c"))
    assert nvdla_command(*words, hex(lowest))[0] == 0
    if start is not None:
        data = (49_152 + 5_688 + 6_272) + 16_384  # weights, tables and input of LeNet; code and stack
        assert start + data < lowest < start + 2 * data
    if BOARDS[board].end is not None:
        highest = int(re.search(r" to (0x[0-9a-f]+)", err)[1], 16)
        assert highest + 98_304 == BOARDS[board].end
        assert nvdla_command(*words, hex(highest))[0] == 0
        assert nvdla_command(*words, hex(highest + 4096))[0] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--csb-base", "0x84010000"], "csb must not overlap dram (0x84000000 to 0x840c0000)"),
        (["--csb-base", "0x80000000"], "csb must not overlap the program (0x80000000 to "),
        (["--csb-base", "0x83fc0000"], "csb must not overlap its stack (0x83ff0000 to 0x84000000)"),
        (["--cvsram-base", "0x84001000"], "cvsram must not overlap dram (0x84000000 to 0x840c0000)"),
    ],
)
def test_memories_and_registers_of_a_board_do_not_overlap(words, message, nvdla_command, tmp_path):
    words = ["--self-test", "--config", "nv_full", "--board", "baremetal", *words]
    code, _, err = nvdla_command("program", *words, "-o", tmp_path / "x")
    assert (code, message in err) == (2, True), err
