"""NVIDIA's trace language (.cfg): named registers, one sequence per block, events between them.

Blocks run side by side there, so commands that the firmware issues after an interrupt wait for the interrupt's event in
every block. The language has no CPU operations: the program is cut there, and each part loads the memory contents at
that point.
"""

from __future__ import annotations

from nvdla.emulator.memory.address_space import Space
from nvdla.registers.printers._text import packets
from nvdla.registers.recording import Export, PartOfRun, Printer
from nvdla.registers.register_program import Await, Mark, Write

MEMORIES = {Space.DRAM: ("pri_mem", 1), Space.CVSRAM: ("sec_mem", 2)}


def write(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    for number, part in enumerate(export.parts):
        name = export.name if len(export.parts) == 1 else f"{export.name}_part{number}"
        export.save_lines(f"{name}.cfg", [*_memory(export, part, name), *_commands(export, part)])


def _memory(export: Export, part: PartOfRun, name: str) -> list[str]:
    lines = []
    for space, size in part.before.sizes.items():
        memory, _ = MEMORIES[space]
        base = export.bases[space]
        lines.append(f"mem_init({memory}, 0x{base:x}, 0x{size:x}, ALL_ZERO);")
        for start, end in part.before.filled(space):
            file = f"{name}_{space.value}_{start:x}.dat"
            export.save(file, packets(part.before.pieces(space, start, end)))
            lines.append(f'mem_load({memory}, 0x{base + start:x}, "{file}");')
    return lines


def _commands(export: Export, part: PartOfRun) -> list[str]:
    """Registers, interrupts and events. ``waited``: up to which event each block has waited."""
    lines: list[str] = []
    events: list[str] = []
    waited: dict[str, int] = {}
    for step in part.steps:
        if isinstance(step, Mark):
            lines.append(f"// {step}")
        elif isinstance(step, Await):
            for cause, group in step.causes():
                events.append(f"event_{len(events)}")
                lines.append(f"intr_notify({cause.removesuffix('_DONE')}_{group}, {events[-1]});")
        elif isinstance(step, Write):
            unit = step.register.unit
            lines += [f"sync_wait(NVDLA_{unit}, {event});" for event in events[waited.get(unit, 0) :]]
            waited[unit] = len(events)
            lines.append(f"reg_write(NVDLA_{unit}.{step.register.name}_0, 0x{export.value(step):x});")
    lines += [f"sync_wait(NVDLA_GLB, {event});" for event in events[waited.get("GLB", 0) :]]
    lines.append("sync_notify(NVDLA_GLB, all_done);")
    return [*lines, *_checks(export, part)]


def _checks(export: Export, part: PartOfRun) -> list[str]:
    """The bytes that the part has changed."""
    lines = []
    for space in part.after.sizes:
        _, number = MEMORIES[space]
        for start, end in part.after.changes(part.before, space):
            crc = part.after.crc32(space, start, end)
            place = f"{number}, 0x{export.bases[space] + start:x}, 0x{end - start:x}"
            lines.append(f"check_crc(all_done, {place}, 0x{crc:08x});")
    return lines


PRINTERS = (
    Printer(
        "cfg",
        "NVIDIA's trace language, with data files; for NVIDIA's test benches and 'nvdla trace replay'",
        write,
        checks_memory=True,
    ),
)
