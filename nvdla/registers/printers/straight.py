"""Straight C statements, one a register write, as in Chipyard's NVDLA test: ``reg_write(NAME, value);``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nvdla.errors import FormatError
from nvdla.registers.printers.images import write as write_images
from nvdla.registers.recording import Export, Printer
from nvdla.registers.register_program import Await, CpuCall, Flushed, Mark, Step, Write


def write(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    program = export.register_program
    if program.cpu_operations:
        last = max(at for at, step in enumerate(program.steps) if isinstance(step, Write))
        first = next(at for at, step in enumerate(program.steps) if isinstance(step, CpuCall))
        if first < last:
            raise FormatError(
                "the network has CPU operations, which the format reg-write cannot express. Use --format c."
            )
    export.save_lines(f"{export.name}_registers.h", _registers(export))
    export.save_lines(f"{export.name}_straight.c", _source(export))
    write_images(export)


def _names(export: Export) -> dict[str, int]:
    """Register name -> address, of those that the program uses, and the interrupt status."""
    registers = [step.register for step in export.register_program.steps if isinstance(step, (Write, Flushed))]
    found = {f"{each.unit}_{each.name}_0": export.address(each, False) for each in registers}
    return {"GLB_S_INTR_STATUS_0": export.address_of_status(), **found}


def _registers(export: Export) -> list[str]:
    guard = f"{export.name.upper()}_REGISTERS_H"
    names = sorted(_names(export).items(), key=lambda each: each[1])
    rows = [f"#define {name} 0x{address:x}u" for name, address in names]
    return [f"#ifndef {guard}", f"#define {guard}", *rows, "#endif"]


def _source(export: Export) -> list[str]:
    limit = export.options.poll_limit
    tail = f" && ++looks < {limit}u" if limit else ""
    lines = [
        "#include <stdint.h>",
        f'#include "{export.name}_registers.h"',
        "",
        "/* Yours: accesses to the register at a byte address. */",
        "void reg_write(uint32_t address, uint32_t value);",
        "uint32_t reg_read(uint32_t address);",
        "",
        "/* 1 when all bits are there; 0 when they did not come in time. */",
        "static int wait_for(uint32_t address, uint32_t bits) {",
        *(["    uint32_t looks = 0;"] if limit else []),
        f"    while ((reg_read(address) & bits) != bits{tail}) {{",
        "    }",
        f"    return {f'looks < {limit}u' if limit else '1'};",
        "}",
        "",
        "/* 0, or the number of the wait that failed, from 1. */",
        f"int {export.name}_run(void);",
        f"int {export.name}_run(void) {{",
    ]
    waits = itertools.count(1)
    for step in export.register_program.steps:
        lines += [f"    {line}" for line in _statements(export, step, waits)]
    return [*lines, "    return 0;", "}"]


def _wait(name: str, bits: int, number: int) -> list[str]:
    return [f"if (!wait_for({name}, 0x{bits:x}u)) {{", f"    return {number};", "}"]


def _statements(export: Export, step: Step, waits: Iterator[int]) -> list[str]:
    if isinstance(step, Mark):
        return [f"/* {step} */"]
    if isinstance(step, Await):
        status = "GLB_S_INTR_STATUS_0"
        return [*_wait(status, step.interrupts, next(waits)), f"reg_write({status}, 0x{step.interrupts:x}u);"]
    if isinstance(step, Flushed):
        return _wait(f"{step.register.unit}_{step.register.name}_0", 1, next(waits))
    if isinstance(step, CpuCall):
        return [f"/* then on the processor: {step.kind} of operation {step.task}/{step.index} */"]
    return [f"reg_write({step.register.unit}_{step.register.name}_0, 0x{export.value(step):x}u);"]


PRINTERS = (
    Printer(
        "reg-write",
        "straight C statements reg_write(NAME, value); with a header of register names, as in Chipyard's test",
        write,
        options=("csb_base", "word_addresses", "poll_limit"),
    ),
)
