"""C for bare metal: C99 with a table of steps, the tensors, the data and a small runner; or straight statements.

Files: ``NAME.h`` and ``NAME.c`` (the network), ``NAME_selftest.c`` (a run with a known input, by CRC), the runner
``nvdla_runner.[ch]``, ``nvdla_cpu.c`` (softmax, power) and ``nvdla_port.h`` (what a board must define). Straight
statements (``reg_write(NAME, value);``, one per register write) are those of Chipyard's NVDLA test. With a board, or
for several programs, ``nvdla_tests.[ch]`` run them and print the log that ``nvdla csb verify`` reads; ``boards/`` has
the templates of the boards' projects.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from nvdla.emulator.hardware.machine import ENGINES, INTERRUPT_BITS
from nvdla.emulator.hardware.register_file import register_map
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.memory.surfaces import FeatureLayout
from nvdla.errors import FormatError, counted
from nvdla.limits import PAGE
from nvdla.loadable.enums import PIXEL_FORMATS
from nvdla.registers.printers._text import hex_words
from nvdla.registers.printers.images import write as write_images
from nvdla.registers.recording import PIECE, Export, MemoryState, Printer
from nvdla.registers.register_program import (
    CSB_SPAN,
    Await,
    BoundTensor,
    CpuCall,
    CpuCube,
    Flushed,
    Mark,
    RegisterProgram,
    Step,
    Write,
)
from nvdla.util.escaping import c_comment, c_name_part, c_string, is_c_identifier
from nvdla.util.rounding import align

RUNNER = ("nvdla_port.h", "nvdla_runner.h", "nvdla_runner.c", "nvdla_cpu.c")
TESTS = ("nvdla_tests.h", "nvdla_tests.c", "nvdla_serial.h", "nvdla_serial.c")
MEMORIES = {Space.DRAM: 0, Space.CVSRAM: 1}
#: File-scope and local names of the generated code, and types of <stdint.h>.
_OWN_NAMES = re.compile(
    r"(segment|input|crcs)_\d+|segments|pointers|inputs|outputs|cpu_operations|steps|known_inputs|known_crcs|known_cube_crcs|cube|"
    r"program|device|index|at|result|bytes|u?int\w*_t"
)
MAX_CHANNELS = 4
"""Channels whose scales the header lists."""
ARRAY_LIMIT = 4 << 20
"""Bytes of data that become C arrays unless the user asks otherwise; more is an image."""


@dataclass(frozen=True)
class Skeleton:
    """A project skeleton: ``help``, and where its hardware has NVDLA's registers and memories.

    ``program``: start of the memory that the project gives to its program, up to the DRAM of NVDLA (None: the tools of
    the board place it); ``end``: end of the memory (None: that of NVDLA's addresses).
    """

    help: str
    csb: int
    dram: int
    cvsram: int
    program: int | None = None
    end: int | None = None


BOARDS = {
    "baremetal": Skeleton(
        "RISC-V without an operating system", 0x10040000, 0x84000000, 0x86000000, program=0x80000000, end=1 << 32
    ),
    "litex": Skeleton("LiteX SoC", 0x90000000, 0x44000000, 0x46000000, program=0x40000000, end=1 << 32),
    "vitis": Skeleton("Zynq or ZynqMP with the standalone library of Vitis", 0x43C00000, 0x10000000, 0x18000000),
    "zephyr": Skeleton("Zephyr application", 0x10040000, 0x84000000, 0x86000000, end=1 << 32),
    "zynq": Skeleton(
        "Zynq-7000 without libraries", 0x43C00000, 0x10000000, 0x18000000, program=0x00100000, end=0x40000000
    ),
}
CODE_AND_STACK = 64 << 10
"""Bytes for a board's program without its tables and data: code, libraries and stack (with GCC less than half)."""
TEST_CODE = 512
"""Bytes for the code and names of one test."""
POLL_LIMIT = 10_000_000
"""Polls per event on a board unless the user gives another limit: a test that hangs is reported."""


@dataclass(frozen=True)
class TestRow:
    """A program in the table of tests: what it covers, its export, and the CRC-32 of each output."""

    engine: str
    mode: str
    precision: str
    export: Export
    crcs: tuple[int, ...]


def write(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    program = export.register_program
    precision = program.outputs[0].dtype if program.outputs else "int8"
    crcs = tuple(zlib.crc32(data) for data in export.recording.outputs)
    rows = [TestRow("network", export.name, precision, export, crcs)]
    _check_addresses(rows)
    _write_program(export)
    if export.options.board is not None:
        _write_tests(rows)


def write_programs(rows: Sequence[TestRow]) -> None:
    """Write several programs into one directory, with the table of tests and the files of the board."""
    _check_addresses(rows)
    for number, row in enumerate(rows):
        _write_program(row.export, runner=number == 0)
    _write_tests(rows)


def _check_addresses(rows: Sequence[TestRow]) -> None:
    """Raise FormatError where a board has too little memory for the program, or its memories or registers overlap."""
    export = rows[0].export
    if export.options.board is None:
        return
    name, board = export.options.board, BOARDS[export.options.board]
    dram = export.bases.get(Space.DRAM, board.dram)
    needed = align(CODE_AND_STACK + sum(_program_bytes(row.export) for row in rows), PAGE)
    sizes: dict[Space, int] = {}
    for row in rows:
        for space, size in row.export.register_program.sizes.items():
            sizes[space] = max(size, sizes.get(space, 0))
    _check_dram(name, dram, sizes.get(Space.DRAM, 0), needed)
    csb = board.csb if export.options.csb_base is None else export.options.csb_base
    places = [("csb", csb, csb + (CSB_SPAN // 4 if export.options.word_addresses else CSB_SPAN))]
    places += [(space.value, export.bases[space], export.bases[space] + size) for space, size in sizes.items()]
    for what, start, end in places:
        others = [place for place in places if place[0] > what]
        if board.program is not None and what != "dram":
            others.append(("the program", board.program, board.program + needed))
            others.append(("its stack", dram - CODE_AND_STACK, dram))
        for other, low, high in others:
            if low < end and start < high:
                raise FormatError(
                    f"{what} base of the board {name}: {what} must not overlap {other} (0x{low:x} to 0x{high:x}), got "
                    f"0x{start:x} to 0x{end:x}. Choose other addresses: --dram-base, --cvsram-base, --csb-base."
                )


def _check_dram(name: str, base: int, size: int, needed: int) -> None:
    """Raise FormatError for a DRAM that begins before the ``needed`` bytes of the program end, or ends too late."""
    board = BOARDS[name]
    # A base of 0 is the null pointer, which the runner takes for a memory that the processor cannot access.
    lowest = PAGE if board.program is None else board.program + needed
    highest = None if board.end is None else (board.end - size) // PAGE * PAGE
    if base < lowest or (highest is not None and base > highest):
        limits = f"at least 0x{lowest:x}" if highest is None else f"0x{lowest:x} to 0x{highest:x}"
        needs = "" if board.program is None else f" (the program needs 0x{needed:x} bytes from 0x{board.program:x} on)"
        raise FormatError(
            f"dram base of the board {name}: must be {limits}{needs}, got 0x{base:x}. "
            f"Choose another --dram-base, or omit it for 0x{board.dram:x}."
        )


def _program_bytes(export: Export) -> int:
    """Bytes of a program in the memory of its board: tables, data and known inputs."""
    data = sum(segment.size for segment in export.register_program.segments) if _has_arrays(export) else 0
    return TEST_CODE + table_bytes(export) + data + sum(map(len, export.recording.inputs))


def _has_arrays(export: Export) -> bool:
    """Check whether the data are in the C source; otherwise they are an image."""
    if export.options.arrays is not None:
        return export.options.arrays
    return sum(segment.size for segment in export.register_program.segments) <= ARRAY_LIMIT


def _write_program(export: Export, runner: bool = True) -> None:
    """Write the files of a program, and those of the runner."""
    program = export.register_program
    texts = {name: _text(f"c/{name}") for name in RUNNER}
    others = {**texts, **{name: _text(f"c/{name}") for name in TESTS}, **_board_files(export.options.board)}
    if not is_c_identifier(export.name) or _OWN_NAMES.fullmatch(export.name) or _is_used(export.name, others):
        raise FormatError(f"name {export.name}: must not be a name of the C code. Give another one with --name.")
    for space, size in program.sizes.items():
        if size > 1 << 32:
            raise FormatError(f"size of {space.value}: must be at most 4 GiB for the runner's tables, got {size} bytes")
    arrays = _has_arrays(export)
    for name, text in texts.items() if runner else ():
        export.save(name, _port(text, export) if name == "nvdla_port.h" else text)
    export.save(f"{export.name}.h", _header(export, arrays))
    export.save(f"{export.name}.c", _source(export, arrays))
    export.save(f"{export.name}_selftest.c", _selftest(export))
    weights = MemoryState(program.sizes, program.segments)
    for space in () if arrays else program.sizes:
        if end := weights.end(space):
            export.save(f"{export.name}_{space.value}.bin", weights.pieces(space, 0, end))


def _write_tests(rows: Sequence[TestRow]) -> None:
    """Write the table of tests, the program that logs them, and the files of the board."""
    export = rows[0].export
    for name in TESTS if export.options.board in ("baremetal", "zynq") else TESTS[:2]:
        export.save(name, _text(f"c/{name}"))
    export.save_lines("nvdla_tests_table.c", _test_table(rows))
    if export.options.board is None:
        return
    values = _values(rows)
    for path, text in _board_files(export.options.board).items():
        export.save(path, re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text))


def _text(path: str) -> str:
    return resources.files("nvdla.registers").joinpath(*path.split("/")).read_text(encoding="utf-8")


def _board_files(board: str | None) -> dict[str, str]:
    """Path -> template of each file of a project skeleton."""
    if board is None:
        return {}
    root = f"boards/{board}"
    return {path.removesuffix(".in"): _text(f"{root}/{path}") for path in sorted(_templates(root))}


def _templates(folder: str, prefix: str = "") -> Iterator[str]:
    """Paths below a folder of the package whose names end with .in."""
    for entry in resources.files("nvdla.registers").joinpath(*folder.split("/")).iterdir():
        if entry.is_dir():
            yield from _templates(f"{folder}/{entry.name}", f"{prefix}{entry.name}/")
        elif entry.name.endswith(".in"):
            yield f"{prefix}{entry.name}"


def _values(rows: Sequence[TestRow]) -> dict[str, str]:
    """Values of the words between @ in templates."""
    export, board = rows[0].export, BOARDS[rows[0].export.options.board or ""]
    program = export.register_program
    csb = board.csb if export.options.csb_base is None else export.options.csb_base
    sources = [f"{row.export.name}{ending}.c" for row in rows for ending in ("", "_selftest")]
    values = {
        "NAME": export.name if len(rows) == 1 else "selftest",
        "CONFIG": c_name_part(program.config.name),
        "SOURCES": " ".join(sources),
        "CSB_BASE": f"0x{csb:x}",
        "CSB_UNIT": f"{csb:x}",
        "DRAM_UNIT": f"{export.bases.get(Space.DRAM, board.dram):x}",
        "POLL_LIMIT": str(export.options.poll_limit),
        "DATA_WIDTH": str(program.config.dram_width_bits),
        "CVSRAM_WIDTH": str(program.config.cvsram_width_bits or 0),
    }
    for space, default in ((Space.DRAM, board.dram), (Space.CVSRAM, board.cvsram)):
        values[f"{space.name}_BASE"] = f"0x{export.bases.get(space, default):x}"
        values[f"{space.name}_SIZE"] = f"0x{program.sizes.get(space, 0):x}"
    return values


def _test_table(rows: Sequence[TestRow]) -> Iterator[str]:
    yield '#include "nvdla_tests.h"'
    for row in rows:
        yield f'#include "{row.export.name}.h"'
    yield ""
    for number, row in enumerate(rows):
        values = ", ".join(f"0x{crc:08x}u" for crc in row.crcs) or "0u"
        yield f"static const uint32_t crcs_{number}[] = {{{values}}};"
    yield f"const char nvdla_tests_config[] = {c_string(rows[0].export.register_program.config.name)};"
    yield "const nvdla_test nvdla_tests[] = {"
    for number, row in enumerate(rows):
        words = ", ".join(map(c_string, (row.engine, row.mode, row.precision)))
        yield f"    {{{words}, &{row.export.name}, {row.export.name}_selftest, crcs_{number}}},"
    yield "};"
    yield f"const uint32_t nvdla_tests_count = {len(rows)}u;"


def _is_used(name: str, texts: dict[str, str]) -> bool:
    """Check whether a network called ``name`` is the name of a file or identifier of the runner."""
    file_names = {f"{name}{ending}" for ending in (".h", ".c", "_selftest.c")}
    words = {word for text in texts.values() for word in re.findall(r"\bnvdla_\w+", text)}
    return not file_names.isdisjoint(texts) or not words.isdisjoint((name, f"{name}_selftest"))


def _port(text: str, export: Export) -> str:
    """Return the board's header with the requested values."""
    options = export.options
    for name, value in (
        ("NVDLA_CSB_BASE", None if options.csb_base is None else f"0x{options.csb_base:x}{_suffix(options.csb_base)}"),
        ("NVDLA_CSB_SHIFT", "2" if options.word_addresses else None),
        ("NVDLA_POLL_LIMIT", f"{options.poll_limit}u" if options.poll_limit else None),
    ):
        if value is not None:
            text = re.sub(rf"^#define {name} \S+$", f"#define {name} {value}", text, count=1, flags=re.MULTILINE)
    return text


def _suffix(value: int) -> str:
    return "u" if value < 1 << 32 else "ull"


def table_bytes(export: Export) -> int:
    """Bytes of the program's tables on a 32-bit processor, data apart."""
    program = export.register_program
    steps = sum(not isinstance(step, Mark) for step in program.steps)
    tensors = len(program.inputs) + len(program.outputs)
    return (
        8 * (steps + len(_pointers(program)))
        + 16 * len(program.segments)
        + 48 * tensors
        + 100 * len(program.cpu_operations)
        + 60
    )


def _header(export: Export, arrays: bool) -> str:
    program, name = export.register_program, export.name
    upper = name.upper()
    kind = "serial" if program.serial else "parallel"
    lines = [
        f"/* {name}: a register program for {c_comment(program.config.name)}, {kind}. */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        '#include "nvdla_runner.h"',
        "",
    ]
    for space, size in program.sizes.items():
        base = f"0x{export.bases[space]:x}ull /* base address used by the export */"
        lines.append(f"#define {upper}_{space.name}_BASE {base}")
        lines.append(f"#define {upper}_{space.name}_SIZE 0x{size:x}ul")
        for start, end in program.unused.get(space, ()):
            lines.append(f"/* unused: 0x{start:x} to 0x{end:x} (descriptors for NVIDIA's firmware) */")
    if not arrays:
        lines.append(f"/* {name}_dram.bin (and _cvsram.bin) must be loaded at the bases before the program runs. */")
    for kind, tensors in (("INPUT", program.inputs), ("OUTPUT", program.outputs)):
        for number, tensor in enumerate(tensors):
            lines += _tensor_macros(f"{upper}_{kind}{number}", tensor)
    lines += [
        "",
        f"extern const nvdla_program {name};",
        "",
        "/* Load the program's data and a known input, run, and compare the CRCs of the outputs and of the data of CPU",
        "   operations. Returns NVDLA_OK, an error code of the runner, 100 + the index of the first different output,",
        "   or 200 + the index of the first CPU operation with different data. */",
        f"int {name}_selftest(nvdla_device *device);",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _tensor_macros(prefix: str, tensor: BoundTensor) -> list[str]:
    _, channels, height, width = tensor.shape
    lines = [f"{c_comment(tensor.name)}: {channels}x{height}x{width} {tensor.dtype}", _bytes_text(tensor)]
    lines += [numbers] if (numbers := _numbers_text(tensor)) else []
    return [
        f"/* {f'{chr(10)}   '.join(lines)} */",
        f"#define {prefix}_OFFSET 0x{tensor.offset:x}ul",
        f"#define {prefix}_SIZE {tensor.size}ul",
        f"#define {prefix}_LINE_STRIDE {tensor.strides[1]}ul",
        f"#define {prefix}_SURFACE_STRIDE {tensor.strides[2]}ul",
    ]


def _numbers_text(tensor: BoundTensor) -> str:
    """The formula of a tensor's real numbers, "" where it is not known."""
    units, zero = tensor.units, tensor.zero_point
    if units is None:
        return ""
    if tensor.scale is not None:
        if (tensor.scale, zero) == (1.0, 0):
            return "real = element"
        element = f"(element {'-' if zero > 0 else '+'} {abs(zero)})" if zero else "element"
        return f"real = {tensor.scale!r} * {element}"
    if np.size(units.scales) > MAX_CHANNELS:
        return "real = scale * (element - zero_point), with a scale per channel: see the layer file"
    scales, zeros = np.broadcast_arrays(units.scales, units.zero)
    rows = [f"{scale!r} * (element - {zero!r})" for scale, zero in zip(scales.tolist(), zeros.tolist(), strict=True)]
    return f"real = {', '.join(rows)} (by channel)"


def _bytes_text(tensor: BoundTensor) -> str:
    """The order of a tensor's bytes in memory: pixel format or atoms."""
    layout = tensor.layout
    if layout is None:
        return "bytes"
    if isinstance(layout, FeatureLayout):
        return f"features: atoms of {counted(layout.elements, 'channel')}, {layout.atom} bytes"
    image = PIXEL_FORMATS[layout.format]
    planes = [", ".join(_channel_text(tensor, channel) for channel in plane) for plane in image.planes]
    unit = f"32-bit words with {', '.join(map(str, image.bits))} bits from the lowest" if image.bits else "by address"
    sizes = [counted(image.bytes_per_pixel(number), "byte") for number in range(len(planes))]
    text = f"pixels: {layout.format.name}, {sizes[0]} each, {unit}: {planes[0]}"
    return text + (f"; second plane at SURFACE_STRIDE, {sizes[1]} each: {planes[1]}" if len(planes) > 1 else "")


def _channel_text(tensor: BoundTensor, channel: int) -> str:
    count = tensor.shape[1]
    if channel >= count:
        return "unused"
    letters = f"{tensor.color}a".upper() if count > 1 else ""
    return f"channel {channel}" + (f" ({letters[channel]})" if tensor.color and letters else "")


def _source(export: Export, arrays: bool) -> Iterator[str | bytes]:
    program, name = export.register_program, export.name
    pointers = _pointers(program)
    yield f'#include "{name}.h"\n\n'
    segments = []
    for number, segment in enumerate(program.segments):
        data = "0"
        if arrays:
            yield f"static const uint8_t segment_{number}[{segment.size}] = {{\n"
            yield from _array(segment.data)
            yield "};\n\n"
            data = f"segment_{number}"
        segments.append(f"    {{{MEMORIES[segment.space]}u, 0x{segment.offset:x}u, {segment.size}u, {data}}},")
    parts = _table("nvdla_segment", "segments", segments)
    parts += _table("nvdla_pointer", "pointers", [f"    {{0x{a:x}u, 0x{b:x}u}}," for a, b in pointers.values()])
    parts += _table("nvdla_tensor", "inputs", [_tensor(tensor) for tensor in program.inputs])
    parts += _table("nvdla_tensor", "outputs", [_tensor(tensor) for tensor in program.outputs])
    operations = program.cpu_operations
    parts += _table("nvdla_cpu_operation", "cpu_operations", [_cpu(call) for call in operations])
    steps, count = _steps(program, list(pointers), operations)
    parts += _table("nvdla_step", "steps", steps)
    sizes = [program.sizes.get(space, 0) for space in MEMORIES]
    status = register_map(program.config.register_map).register("GLB", "S_INTR_STATUS")
    fields = [
        f"steps, {count}u",
        f"{_pointer('pointers', len(pointers))}, {len(pointers)}u",
        f"{_pointer('segments', len(segments))}, {len(segments)}u",
        f"{_pointer('inputs', len(program.inputs))}, {len(program.inputs)}u",
        f"{_pointer('outputs', len(program.outputs))}, {len(program.outputs)}u",
        f"{_pointer('cpu_operations', len(operations))}, {len(operations)}u",
        f"{{{sizes[0]}u, {sizes[1]}u}}",
        f"0x{status.address:x}u",
    ]
    parts += [f"const nvdla_program {name} = {{", *[f"    {field}," for field in fields], "};", ""]
    yield "\n".join(parts)


def _pointer(table: str, count: int) -> str:
    return table if count else "0"


def _table(kind: str, name: str, rows: list[str]) -> list[str]:
    """A constant array; nothing where it would be empty, which C does not allow."""
    return [f"static const {kind} {name}[] = {{", *rows, "};", ""] if rows else []


def _array(data: np.ndarray) -> Iterator[str | bytes]:
    return hex_words((data[at : at + PIECE] for at in range(0, data.size, PIECE)), ",", 16)


def _pointers(program: RegisterProgram) -> dict[str, tuple[int, int]]:
    """Unit -> (address of its S_POINTER, the interrupt bits whose group is the unit's), for the units at work."""
    causes = {link.units[0]: link.interrupts for link in ENGINES.values()}
    pointers: dict[str, tuple[int, int]] = {}
    for step in program.writes:
        register = step.register
        if register.name == "S_POINTER":
            bits = sum(3 << INTERRUPT_BITS[cause] for cause in causes.get(register.unit, ()))
            pointers[register.unit] = (register.address, bits)
    return pointers


def _steps(program: RegisterProgram, units: list[str], operations: list[CpuCall]) -> tuple[list[str], int]:
    """Rows of the table, remarks included, and how many steps they are."""
    rows, count = [], 0
    for step in program.steps:
        if isinstance(step, Mark):
            rows.append(f"    /* {step} */")
            continue
        kind, address, value = _step(step, units, operations)
        rows.append(f"    {{NVDLA_STEP({kind}, 0x{address:x}), 0x{value:x}u}},")
        count += 1
    return rows, count


def _step(step: Step, units: list[str], operations: list[CpuCall]) -> tuple[str, int, int]:
    """Kind, CSB byte address, value."""
    if isinstance(step, Await):
        return "NVDLA_AWAIT", 0, step.interrupts
    if isinstance(step, Flushed):
        return "NVDLA_FLUSHED", step.register.address, 0
    if isinstance(step, CpuCall):
        return "NVDLA_COMPUTE", 0, next(at for at, call in enumerate(operations) if call is step)
    assert isinstance(step, Write)
    register = step.register
    if step.space is not None:
        return f"NVDLA_{step.space.name}_{'HIGH' if step.high else 'LOW'}", register.address, step.value
    if register.name == "S_POINTER":
        return "NVDLA_POINTER", register.address, units.index(register.unit) << 8 | step.value & 1
    return "NVDLA_WRITE", register.address, step.value


def _tensor(tensor: BoundTensor) -> str:
    _, channels, height, width = tensor.shape
    element = np.dtype(tensor.dtype).itemsize
    place = f"{MEMORIES[tensor.space]}u, 0x{tensor.offset:x}u, {tensor.size}u"
    return (
        f"    {{{c_string(tensor.name)}, {place}, {channels}u, "
        f"{height}u, {width}u, {element}u, {tensor.strides[1]}u, {tensor.strides[2]}u, {_float(tensor.scale or 0.0)}, "
        f"{tensor.zero_point}}},"
    )


def _cpu(operation: CpuCall) -> str:
    numbers = (
        operation.input_scale,
        operation.output_scale,
        operation.shift,
        operation.scale,
        operation.power,
    )
    return (
        f"    {{NVDLA_{operation.kind.upper()}, {int(operation.source.half)}u, {_cube(operation.source)}, "
        f"{_cube(operation.destination)}, {', '.join(map(_float, numbers))}}},"
    )


def _cube(cube: CpuCube) -> str:
    return (
        f"{{{MEMORIES[cube.space]}u, 0x{cube.offset:x}u, {cube.size}u, {cube.atom}u, {cube.channels}u, {cube.height}u, "
        f"{cube.width}u, {cube.line_stride}u, {cube.surface_stride}u}}"
    )


def _float(value: float) -> str:
    """A float32 constant, exactly. Raises FormatError for what C has no constant for."""
    number = float(np.float32(value))
    if not np.isfinite(number):
        raise FormatError(f"factor of a CPU operation: must be finite for a constant in C, got {value}")
    return f"{number.hex()}f"


def _crcs_of_cpu_operations(export: Export) -> list[str]:
    """CRCs of what CPU operations read, after a run: a softmax gives equal outputs for many inputs."""
    cubes = [call.source for call in export.register_program.cpu_operations if export.recording.parts]
    crcs = [export.recording.parts[-1].after.crc32(at.space, at.offset, at.offset + at.size) for at in cubes]
    return [f"    0x{crc:08x}u," for crc in crcs]


def _selftest(export: Export) -> Iterator[str | bytes]:
    name = export.name
    yield f'#include "{name}.h"\n#include "nvdla_port.h"\n\n'
    rows = []
    for number, data in enumerate(export.recording.inputs):
        yield f"static const uint8_t input_{number}[{len(data)}] = {{\n"
        yield from _array(np.frombuffer(data, np.uint8))
        yield "};\n\n"
        rows.append(f"    input_{number},")
    parts = _table("uint8_t *const", "known_inputs", rows)
    crcs = [f"    0x{zlib.crc32(data):08x}u," for data in export.recording.outputs]
    parts += _table("uint32_t", "known_crcs", crcs)
    cubes = _crcs_of_cpu_operations(export)
    parts += _table("uint32_t", "known_cube_crcs", cubes)
    parts += [
        f"int {name}_selftest(nvdla_device *device) {{",
        f"    const nvdla_program *program = &{name};",
        *(["    uint32_t index;"] if rows or crcs or cubes else []),
        *(["    uint32_t at;"] if rows else []),
        "    int result = nvdla_load(device, program);",
    ]
    if rows:
        parts += [
            "    for (index = 0; result == NVDLA_OK && index < program->input_count; index++) {",
            "        uint8_t *bytes = nvdla_tensor_bytes(device, &program->inputs[index]);",
            "        if (bytes == 0) {",
            "            return NVDLA_NO_MEMORY;",
            "        }",
            "        for (at = 0; at < program->inputs[index].size; at++) {",
            "            bytes[at] = known_inputs[index][at];",
            "        }",
            "        NVDLA_CACHE_FLUSH(device, bytes, program->inputs[index].size);",
            "    }",
        ]
    parts.append("    if (result == NVDLA_OK) {\n        result = nvdla_run(device, program);\n    }")
    if crcs:
        find = [
            "        const uint8_t *bytes = nvdla_tensor_bytes(device, &program->outputs[index]);",
            "        if (bytes == 0) {",
            "            return NVDLA_NO_MEMORY;",
            "        }",
        ]
        parts += _comparison("output_count", find, "program->outputs[index].size", "known_crcs", 100)
    if cubes:
        find = [
            "        const nvdla_cpu_cube *cube = &program->cpu_operations[index].source;",
            "        uint8_t *bytes = device->memory[cube->memory] + cube->offset;",
            "        NVDLA_CACHE_INVALIDATE(device, bytes, cube->size);",
        ]
        parts += _comparison("cpu_operation_count", find, "cube->size", "known_cube_crcs", 200)
    yield "\n".join([*parts, "    return result;", "}", ""])


def _comparison(count: str, find: list[str], size: str, crcs: str, code: int) -> list[str]:
    return [
        f"    for (index = 0; result == NVDLA_OK && index < program->{count}; index++) {{",
        *find,
        f"        if (nvdla_crc32(bytes, {size}) != {crcs}[index]) {{",
        f"            result = {code} + (int)index;",
        "        }",
        "    }",
    ]


def write_statements(export: Export) -> None:
    """Write straight statements. Raises FormatError for CPU operations between register writes."""
    program = export.register_program
    if program.cpu_operations:
        last = max(at for at, step in enumerate(program.steps) if isinstance(step, Write))
        first = next(at for at, step in enumerate(program.steps) if isinstance(step, CpuCall))
        if first < last:
            raise FormatError("network for the format reg-write: must not have CPU operations. Use --format c.")
    export.save_lines(f"{export.name}_registers.h", _register_header(export))
    export.save_lines(f"{export.name}_straight.c", _statement_source(export))
    write_images(export)


def _register_names(export: Export) -> dict[str, int]:
    """Register name -> address, of those that the program uses, and the interrupt status."""
    registers = [step.register for step in export.register_program.steps if isinstance(step, (Write, Flushed))]
    addresses = {f"{register.unit}_{register.name}_0": export.address(register, False) for register in registers}
    return {"GLB_S_INTR_STATUS_0": export.address_of_status(), **addresses}


def _register_header(export: Export) -> list[str]:
    guard = f"{export.name.upper()}_REGISTERS_H"
    names = sorted(_register_names(export).items(), key=lambda item: item[1])
    rows = [f"#define {name} 0x{address:x}u" for name, address in names]
    return [f"#ifndef {guard}", f"#define {guard}", *rows, "#endif"]


def _statement_source(export: Export) -> list[str]:
    limit = export.options.poll_limit
    tail = f" && ++polls < {limit}u" if limit else ""
    lines = [
        "#include <stdint.h>",
        f'#include "{export.name}_registers.h"',
        "",
        "/* To be defined by the application: write and read the register at a byte address. */",
        "void reg_write(uint32_t address, uint32_t value);",
        "uint32_t reg_read(uint32_t address);",
        "",
        "/* Returns 1 when all bits are set, or 0 after the poll limit. */",
        "static int wait_for(uint32_t address, uint32_t bits) {",
        *(["    uint32_t polls = 0;"] if limit else []),
        f"    while ((reg_read(address) & bits) != bits{tail}) {{",
        "    }",
        f"    return {f'polls < {limit}u' if limit else '1'};",
        "}",
        "",
        "/* Returns 0, or the number of the wait that failed (from 1). */",
        f"int {export.name}_run(void);",
        f"int {export.name}_run(void) {{",
    ]
    waits = itertools.count(1)
    for step in export.register_program.steps:
        lines += [f"    {line}" for line in _statements(export, step, waits)]
    return [*lines, "    return 0;", "}"]


def _wait_for(name: str, bits: int, number: int) -> list[str]:
    return [f"if (!wait_for({name}, 0x{bits:x}u)) {{", f"    return {number};", "}"]


def _statements(export: Export, step: Step, waits: Iterator[int]) -> list[str]:
    if isinstance(step, Mark):
        return [f"/* {step} */"]
    if isinstance(step, Await):
        status = "GLB_S_INTR_STATUS_0"
        return [*_wait_for(status, step.interrupts, next(waits)), f"reg_write({status}, 0x{step.interrupts:x}u);"]
    if isinstance(step, Flushed):
        return _wait_for(f"{step.register.unit}_{step.register.name}_0", 1, next(waits))
    if isinstance(step, CpuCall):
        return [f"/* to be computed on the processor: {step.kind} of operation {step.task}/{step.index} */"]
    return [f"reg_write({step.register.unit}_{step.register.name}_0, 0x{export.value(step):x}u);"]


PRINTERS = (
    Printer(
        "c",
        "C99 for bare metal: step table, runner, data as arrays or as an image (--image)",
        write,
        options=("csb_base", "word_addresses", "poll_limit", "arrays", "board"),
        checks_memory=True,
        table_bytes=table_bytes,
    ),
    Printer(
        "reg-write",
        "straight C statements reg_write(NAME, value); with a header of register names, as in Chipyard's test",
        write_statements,
        options=("csb_base", "word_addresses", "poll_limit"),
    ),
)
