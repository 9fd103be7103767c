"""Register programs: the firmware's writes, unrolled, give the same bytes wherever they are played."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.c_runner import WARNINGS, C, Served, compile_runner
from support.handmade import chain, network

import nvdla
from nvdla.cli.main import main
from nvdla.compiler.builder import Network, PixelNumbers, build, calibrate
from nvdla.emulator.hardware.register_file import register_map
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace.player import MemoryCheck
from nvdla.errors import FormatError, NvdlaError
from nvdla.loadable import to_bytes
from nvdla.loadable.enums import MemoryFlags
from nvdla.program.naming import Names
from nvdla.registers import record
from nvdla.registers.printers import _text, printer, printers
from nvdla.registers.printers.c99 import table_bytes
from nvdla.registers.recording import MemoryState, Options, export
from nvdla.registers.register_program import Await, Mark, Segment, checked_bases
from nvdla.tensors.inputs import Preprocessing

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"
LOADABLES = ROOT.parent / "shared" / "corpus" / "loadables"
NETWORKS = ["lenet", "lenet_nv_full_fp16"]


def programmed(path: Path, serial: bool = False, config: str = "auto", parts: bool = False):
    """A program recorded on random inputs, and the outputs that a runtime gives for them."""
    runtime = nvdla.Runtime(nvdla.load(path), config)
    generator = np.random.default_rng(1)
    inputs = [random_surface(generator, each) for each in runtime.inputs]
    return record(runtime, inputs, serial=serial, parts=parts), nvdla.Runtime(nvdla.load(path), config).run_raw(inputs)


def exported_to(folder: Path, recording, options: Options | None = None):
    return export(recording, folder, recording.register_program.bases, options or Options())


def random_surface(generator: np.random.Generator, tensor) -> bytes:
    if tensor.dtype.kind == "f":
        return generator.uniform(-1, 1, tensor.size // 2).astype(np.float16).tobytes()
    return generator.integers(0, 256, tensor.size, dtype=np.uint8).tobytes()


@pytest.fixture(params=[(name, serial) for name in NETWORKS for serial in (False, True)], ids=str)
def exported(request, tmp_path):
    name, serial = request.param
    recording, outputs = programmed(SAMPLES / f"{name}.loadable", serial, parts=True)
    return exported_to(tmp_path, recording), outputs


def test_the_parallel_form_writes_what_the_firmware_writes():
    runtime = nvdla.Runtime(nvdla.load(SAMPLES / "lenet.loadable"))
    log: list = []
    runtime.run_raw([bytes(each.size) for each in runtime.inputs], csb_log=log)
    program = record(runtime).register_program
    written = [(step.register.address, step.resolved(program.bases)) for step in program.writes]
    status = next(step for step in program.steps if isinstance(step, Await))
    assert status.causes()[0][0].endswith("_DONE")
    acknowledged = runtime.config.register_map == "nv_small" and 0x100C
    assert written == [(entry[1], entry[2]) for entry in log if entry[0] == "W" and entry[1] != acknowledged]


def test_the_serial_form_waits_for_each_chain_of_engines():
    program = programmed(SAMPLES / "lenet.loadable", serial=True)[0].register_program
    open_operations: set[tuple[int, str]] = set()
    for step in program.steps:
        if isinstance(step, Mark) and step.what == "enable":
            open_operations.add((step.index, step.engine))
            assert len(open_operations) <= 3  # CONV, SDP, PDP of one chain
            assert len({engine for _, engine in open_operations}) == len(open_operations)
        elif isinstance(step, Await):
            open_operations.clear()
    assert not open_operations


def test_a_recording_has_the_outputs_of_the_runtime(exported):
    made, outputs = exported
    assert list(made.recording.outputs) == outputs


def test_memories_may_lie_anywhere_that_keeps_alignment(tmp_path):
    recording, _ = programmed(SAMPLES / "lenet_nv_large.loadable", parts=True)
    program = recording.register_program
    base = 0x1_2345_6000
    made = export(recording, tmp_path, checked_bases(program, {Space.DRAM: base}), Options())
    (replay,) = replays(made, "txn")
    addresses = [check.address for check in replay.checks if isinstance(check, MemoryCheck)]
    assert addresses and replay.passed
    assert all(base <= address < base + program.sizes[Space.DRAM] for address in addresses)
    with pytest.raises(FormatError, match="multiple of 4096"):
        checked_bases(program, {Space.DRAM: 0x1_2345_6010})


def replays(made, form: str) -> list:
    """Write the traces of an export, one per part, and replay each."""
    printer(form).write(made)
    traces = [path for path in made.written if path.suffix in (".cfg", ".txn")]
    assert len(traces) == len(made.parts)
    return [nvdla.replay(path, made.register_program.config) for path in traces]


@pytest.mark.parametrize("form", ["cfg", "txn"])
def test_traces_replay_to_the_same_memory(exported, form):
    for replay in replays(exported[0], form):
        assert replay.checks and replay.passed, [check for check in replay.checks if not check.passed]


def test_every_form_names_what_it_writes_and_the_summary_counts_it(tmp_path, capsys):
    for form in printers():
        folder = tmp_path / form
        words = ["program", str(SAMPLES / "lenet.loadable"), "--format", form, "-o", str(folder), "--json"]
        assert main(words) == 0
        summary = json.loads(capsys.readouterr().out)
        assert sorted(Path(each["file"]).name for each in summary["files"]) == sorted(p.name for p in folder.iterdir())
        assert summary["register_writes"] == 661


def test_images_hold_the_memory_before_the_run(exported):
    made, _ = exported
    start = made.recording.start
    wanted = start.read(Space.DRAM, 0, start.sizes[Space.DRAM])
    for form in ("bin", "mem", "dat", "ihex"):
        printer(form).write(made)
    raw = np.fromfile(made.folder / "network_dram.bin", np.uint8)
    assert (raw == wanted[: raw.size]).all() and not wanted[raw.size :].any()
    words = [int(line, 16) for line in (made.folder / "network_dram.mem").read_text().split()]
    assert np.array(words, "<u4").tobytes() == raw.tobytes()
    assert [int(line, 16) for line in (made.folder / "network_dram.dat").read_text().split()] == words
    assert intel_hex(made.folder / "network_dram.hex", made.bases[Space.DRAM], raw.size) == raw.tobytes()


def intel_hex(path: Path, base: int, size: int) -> bytes:
    """Read by the format's definition, checksums included."""
    data, upper = bytearray(size), 0
    for line in path.read_text().split():
        record_bytes = bytes.fromhex(line[1:])
        assert line[0] == ":" and sum(record_bytes) & 0xFF == 0
        count, kind, body = record_bytes[0], record_bytes[3], record_bytes[4:-1]
        address = record_bytes[1] << 8 | record_bytes[2]
        assert count == len(body)
        if kind == 4:
            upper = int.from_bytes(body, "big") << 16
        elif kind == 0:
            start = upper + address - base
            data[start : start + count] = body
    return bytes(data)


def test_a_script_turns_json_into_the_writes_of_another_format(tmp_path, nvdla_command):
    lenet = SAMPLES / "lenet.loadable"
    for name, words in (("json", []), ("reg-write", ["--name", "lenet"])):
        assert nvdla_command("program", lenet, "--format", name, "-o", tmp_path, *words)[0] == 0
    document = json.loads((tmp_path / "lenet.json").read_text())
    assert {step["step"] for step in document["steps"]} == {"write", "await", "flushed", "mark", "cpu"}
    writes = [step for step in document["steps"] if step["step"] == "write"]
    assert len(writes) == 661
    bases = {memory["space"]: memory["base"] for memory in document["memories"]}
    for step in writes:
        if "offset" in step:
            address = bases[step["space"]] + step["offset"]
            assert step["value"] == (address >> 32 if step["half"] == "high" else address & 0xFFFFFFFF)
    log = tmp_path / "plain.txt"
    log.write_text("".join(f"0x{step['address']:x} 0x{step['value']:x}\n" for step in writes))
    code, out, _ = nvdla_command("csb", "diff", log, tmp_path / "lenet_straight.c")
    assert (code, out.strip()) == (0, "the same operations")


def test_an_error_names_the_form_or_the_address(tmp_path, capsys):
    lenet = str(SAMPLES / "lenet.loadable")
    for words, text in (
        (["--format", "elf"], "got 'elf'"),
        (["--dram-base", "0x10"], "multiple of 4096"),
        (["--name", "2nd"], "name of the export: must be"),
        (["--format", "txn", "--csb-addressing", "byte"], "riscv-txn"),
        (["--format", "cfg", "--poll-limit", "5"], "format cfg does not support --poll-limit"),
        (["--format", "txn", "--csb-base", "0x1000"], "does not support --csb-base"),
        (["--csb-base", "0x43c00002"], "csb base: must be a multiple of 4"),
        (["--format", "riscv-txn", "--csb-base", "0x43c00002"], "csb base: must be a multiple of 4"),
        (["--format", "mem", "--arrays"], "does not support --image and --arrays"),
        (["--dram-base", "0x100000000"], "must fit 32 address bits (nv_small), got 0x100018000 from base 0x100000000"),
        (["--format", "cfg", "--dram-base", "0xfffff000"], "must fit 32 address bits (nv_small), got 0x100017000"),
        (["--format", "riscv-txn", "--dram-base", "0xfffff000"], "must fit 32 address bits (nv_small)"),
    ):
        assert main(["program", lenet, *words, "-o", str(tmp_path / "x")]) == 2
        assert text in capsys.readouterr().err


def test_text_of_images_is_the_same_however_it_is_cut():
    """Lines are made many at a time: against the formats, a byte at a time."""
    data = np.random.default_rng(3).integers(0, 256, 70_001, dtype=np.uint8)
    cut = [data[:32_768], data[32_768:65_536], data[65_536:]]
    words = "".join(f"0x{value:02x}{chr(10) if at % 32 == 31 else ' '}" for at, value in enumerate(data))
    assert joined(_text.hex_words(cut)) == words.rstrip(" ") + "\n"
    lines = [data[at : at + 32] for at in range(0, data.size, 32)]
    payloads = [" ".join(f"0x{value:02x}" for value in line) for line in lines]
    rows = [f"{{offset:0x{32 * at:x}, size:{len(lines[at])}, payload:{each}}} ," for at, each in enumerate(payloads)]
    assert joined(_text.packets(cut)) == "\n".join(["{", *rows, "}", ""])


def joined(pieces) -> str:
    return "".join(each if isinstance(each, str) else each.decode() for each in pieces)


def test_a_state_has_what_was_loaded_and_what_changed():
    sizes, generator = {Space.DRAM: 3 << 18}, np.random.default_rng(5)
    weights = Segment(Space.DRAM, 5000, generator.integers(0, 256, 300_000, dtype=np.uint8))
    start = MemoryState(sizes, (weights,))
    memory = start.read(Space.DRAM, 0, 3 << 18)
    assert (memory[5000:305_000] == weights.data).all() and not memory[305_000:].any()
    memory[400_001] = 7
    memory[(3 << 18) - 1] = 9
    after = start.now(lambda space, low, high: memory[low:high].copy())
    assert after.changes(start, Space.DRAM) == [(397_312, 401_408), ((3 << 18) - 4096, 3 << 18)]
    assert after.end(Space.DRAM) == 3 << 18 and start.end(Space.DRAM) <= 305_000
    assert after.crc32(Space.DRAM, 0, 3 << 18) == zlib.crc32(memory)
    assert after.now(lambda space, low, high: memory[low:high].copy()).changes(after, Space.DRAM) == []


def test_memory_that_only_the_firmware_reads_is_stated_as_unused(tmp_path, nvdla_command):
    """Descriptors are between intermediate results and the input: no register, segment or tensor is there."""
    recording = record(nvdla.Runtime(nvdla.load(SAMPLES / "lenet.loadable")))
    program = recording.register_program
    ((start, end),) = program.unused[Space.DRAM]
    used = [(step.value, step.value + 1) for step in program.writes if step.space is Space.DRAM]
    tensors = (*program.segments, *program.inputs, *program.outputs)
    used += [(each.offset, each.offset + each.size) for each in tensors]
    assert all(high <= start or end <= low for low, high in used)
    assert (start, end) == (0xD000, 0x15000) and program.sizes[Space.DRAM] == 0x18000
    _, out, _ = nvdla_command("program", SAMPLES / "lenet.loadable", "-o", tmp_path)
    assert re.search(r"unused at 0xc000d000\s+32,?768", out)
    assert "unused: 0xd000 to 0x15000" in (tmp_path / "lenet.h").read_text()


def test_what_leaves_its_region_runs_as_a_program_too(tmp_path):
    """Hardware has no bounds between the memories of a loadable."""
    folder = LOADABLES.parent / "overrun" / "loadables"
    paths = sorted(folder.rglob("*.nvdla"))[:2] if folder.is_dir() else []
    if not paths:
        pytest.skip("shared/corpus/overrun is not here")
    for path in paths:
        recording, outputs = programmed(path, parts=True)
        assert list(recording.outputs) == outputs
        assert all(replay.passed for replay in replays(exported_to(tmp_path / path.stem, recording), "txn"))


def test_what_the_board_needs_stands_in_its_header(tmp_path, capsys):
    words = ["--csb-base", "0x10040000", "--csb-addressing", "word", "--poll-limit", "1000"]
    assert main(["program", str(SAMPLES / "lenet.loadable"), "-o", str(tmp_path), *words]) == 0
    port = (tmp_path / "nvdla_port.h").read_text()
    for name, value in (("CSB_BASE", "0x10040000u"), ("CSB_SHIFT", "2"), ("POLL_LIMIT", "1000u")):
        assert f"#define NVDLA_{name} {value}\n" in port
    assert "tables (32-bit processor)" in capsys.readouterr().out


def header_of(folder: Path, names: Names, input_format: str, pixels: PixelNumbers | None = None) -> str:
    """The header of a convolution of pictures; its JSON is next to it."""
    net = Network("first")
    convolution = net.convolution("c", net.input("data", (3, 6, 5)), np.ones((4, 3, 1, 1)), np.zeros(4))
    net.output(convolution)
    scales = calibrate(net, np.ones((1, 3, 6, 5)))
    built = build(net, "nv_small", "int8", scales, input_format=input_format, pixels=pixels)
    made = exported_to(folder, record(nvdla.Runtime(built.loadable), names=names))
    printer("json").write(made)
    printer("c").write(made)
    return (folder / "network.h").read_text()


def test_the_c_header_has_the_zero_point_of_an_input_and_the_bytes_of_its_pixels(tmp_path):
    names = Names(scales={"data": 0.5}, zero_points={"data": -128}, preprocessing=Preprocessing().document())
    header = header_of(tmp_path, names, "image")
    pixels = "pixels: A8B8G8R8, 4 bytes each, by address: channel 0 (R), channel 1 (G), channel 2 (B), unused"
    assert f"/* data: 3x6x5 int8\n   {pixels}\n   real = 0.5 * (element + 128) */\n" in header
    assert "c: 4x6x5 int8\n   features: atoms of 8 channels, 8 bytes */\n" in header
    assert ", 0x1.0000000000000p-1f, -128},\n" in (tmp_path / "network.c").read_text()
    tensor = json.loads((tmp_path / "network.json").read_text())["inputs"][0]
    assert (tensor["scale"], tensor["zero_point"], tensor["layout"]) == (0.5, -128, "A8B8G8R8")
    compiler = shutil.which("gcc")
    for source in ("network.c", "nvdla_runner.c") if compiler else ():
        assert subprocess.run([compiler, "-std=c99", *WARNINGS, "-c", source], cwd=tmp_path).returncode == 0


def test_the_c_header_has_the_scales_of_all_channels_where_they_differ(tmp_path):
    numbers = PixelNumbers((123.5, 116.0, 104.0), (0.25,))
    header = header_of(tmp_path, Names(pixels={"data": numbers.document()}), "pixels", numbers)
    assert "/* data: 3x6x5 uint8\n" in header
    formula = "0.25 * (element - 123.5), 0.25 * (element - 116.0), 0.25 * (element - 104.0) (by channel) */"
    assert f"   real = {formula}\n" in header
    assert ", 0x0.0p+0f, 0},\n" in (tmp_path / "network.c").read_text()


def test_the_help_has_the_default_address_of_the_registers_by_format(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["program", "--help"])
    default = " ".join(capsys.readouterr().out.split()).partition("address of the first register (default: ")[2]
    assert main(["program", str(SAMPLES / "lenet.loadable"), "-o", str(tmp_path)]) == 0
    assert default.startswith("c: that of --board, else 0x10040000; other formats: 0)")
    assert "#define NVDLA_CSB_BASE 0x10040000u\n" in (tmp_path / "nvdla_port.h").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(printers()))
def test_resnet_50_takes_little_memory_and_time(form, tmp_path):
    path = next(iter(LOADABLES.glob("resnet50/nv_large*.nvdla")), None)
    if path is None:
        pytest.skip("shared/corpus/loadables is not here")
    words = ["-m", "nvdla", "program", str(path), "--format", form, "-o", str(tmp_path)]
    code = (
        "import resource, subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_maxrss, used.ru_utime + used.ru_stime)"
    )
    subprocess.run([sys.executable, *words], check=True, capture_output=True)  # kernels are compiled once a machine
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    kibibytes, seconds = done.stdout.split()[-2:]
    assert int(kibibytes) <= 300_000
    assert float(seconds) <= 6  # of two cores


needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")


@needs_gcc
@pytest.mark.parametrize("interrupts", [False, True], ids=["polling", "interrupts"])
def test_the_c_program_gives_the_emulators_bytes_again_and_again(exported, interrupts):
    """Three runs in a row: after an odd number of operations a unit goes on with its other register group."""
    made, outputs = exported
    printer("c").write(made)
    target = compile_runner(made.folder, made.register_program, interrupts=interrupts)
    served = Served(made.folder, made.register_program)
    assert served.run(target, runs=2) == (0, "")
    assert served.outputs() == outputs


@needs_gcc
def test_the_c_programs_writes_are_the_firmwares(tmp_path):
    recording, _ = programmed(SAMPLES / "lenet.loadable")
    program, made = recording.register_program, exported_to(tmp_path, recording)
    printer("c").write(made)
    served = Served(tmp_path, program)
    assert served.run(compile_runner(tmp_path, program))[0] == 0
    written = [entry for entry in served.log if entry[0] != 0x100C]
    assert written == [(step.register.address, step.resolved(program.bases)) for step in program.writes]


@needs_gcc
def test_the_self_test_sees_a_wrong_weight(tmp_path):
    recording, _ = programmed(SAMPLES / "lenet.loadable")
    program, made = recording.register_program, exported_to(tmp_path, recording)
    printer("c").write(made)
    source = (tmp_path / "network.c").read_text()
    first = source.index("static const uint8_t segment_0")
    changed = re.sub(r"0x(\w\w),", lambda match: f"0x{int(match[1], 16) ^ 0x40:02x},", source[first:], count=999)
    (tmp_path / "network.c").write_text(source[:first] + changed)
    assert Served(tmp_path, program).run(compile_runner(tmp_path, program))[0] == 100


@needs_gcc
def test_the_self_test_sees_a_wrong_weight_that_the_softmax_hides(tmp_path):
    """The scores of a clear digit saturate: the output is that of the right weights."""
    runtime = nvdla.Runtime(nvdla.load(SAMPLES / "lenet.loadable"))
    recording = record(runtime, runtime.surfaces(SAMPLES / "digit7.pgm"), parts=True)
    program, made = recording.register_program, exported_to(tmp_path, recording)
    printer("c").write(made)
    assert Served(tmp_path, program).run(compile_runner(tmp_path, program))[0] == 0
    source = (tmp_path / "network.c").read_text()
    first = source.index("0x", source.index("static const uint8_t segment_0"))
    wrong = f"0x{int(source[first + 2 : first + 4], 16) ^ 0x10:02x}"
    (tmp_path / "network.c").write_text(source[:first] + wrong + source[first + 4 :])
    served = Served(tmp_path, program)
    assert served.run(compile_runner(tmp_path, program))[0] == 200
    assert served.outputs() == list(recording.outputs)


@needs_gcc
@pytest.mark.parametrize(
    "unbound", [(MemoryFlags.INPUT,), (MemoryFlags.OUTPUT,), (MemoryFlags.INPUT, MemoryFlags.OUTPUT)]
)
def test_the_self_test_of_a_program_without_inputs_or_outputs_compiles_and_runs(tmp_path, unbound):
    loadable = network(chain(3))
    kept = [each if not any(flag in each.flags for flag in unbound) else replace(each, flags=MemoryFlags.ALLOC)
            for each in loadable.memories]  # fmt: skip
    path = tmp_path / "unbound.loadable"
    path.write_bytes(to_bytes(replace(loadable, memories=tuple(kept))))
    recording, outputs = programmed(path, config="nv_small")
    assert (not recording.inputs) == (MemoryFlags.INPUT in unbound)
    assert (not outputs) == (MemoryFlags.OUTPUT in unbound)
    printer("c").write(exported_to(tmp_path, recording))
    served = Served(tmp_path, recording.register_program)
    assert served.run(compile_runner(tmp_path, recording.register_program)) == (0, "")
    assert served.outputs() == outputs


CROSS = {
    "riscv32": ("riscv64-unknown-elf-gcc", "-march=rv32imac", "-mabi=ilp32", "-ffreestanding"),
    "riscv64": ("riscv64-linux-gnu-gcc",),
    "arm": ("arm-linux-gnueabihf-gcc",),
    "aarch64": ("aarch64-linux-gnu-gcc",),
}


@pytest.mark.parametrize("target", CROSS)
@pytest.mark.parametrize("interrupts", [0, 1])
def test_the_c_program_compiles_without_warnings(target, interrupts, tmp_path):
    compiler = CROSS[target]
    if not shutil.which(compiler[0]):
        pytest.skip(f"{compiler[0]} is not installed")
    recording, _ = programmed(SAMPLES / "lenet.loadable")
    made = exported_to(tmp_path, recording)
    printer("c").write(made)
    for path in tmp_path.glob("*.c"):
        command = [*compiler, "-std=c99", "-Os", *WARNINGS, f"-DNVDLA_INTERRUPTS={interrupts}", "-c", path.name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@needs_gcc
def test_straight_statements_say_which_wait_failed(tmp_path, capsys):
    words = ["--format", "reg-write", "--poll-limit", "3", "--name", "net"]
    assert main(["program", str(SAMPLES / "lenet.loadable"), "-o", str(tmp_path), *words]) == 0
    (tmp_path / "main.c").write_text(
        "#include <stdint.h>\n#include <stdio.h>\nint net_run(void);\nstatic int reads;\n"
        "void reg_write(uint32_t a, uint32_t v) { (void)a; (void)v; }\n"
        "uint32_t reg_read(uint32_t a) { (void)a; return reads++ == 0; }\n"
        'int main(void) { int wait = net_run(); printf("%d %d", wait, reads); return 0; }\n'
    )
    command = ["gcc", "-std=c99", *WARNINGS, "-Wno-missing-prototypes", "main.c", "net_straight.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout == "2 4"


def test_the_tables_have_the_size_of_the_summary(tmp_path):
    compiler = CROSS["riscv32"]
    if not shutil.which(compiler[0]):
        pytest.skip(f"{compiler[0]} is not installed")
    recording, _ = programmed(SAMPLES / "lenet.loadable")
    made = exported_to(tmp_path, recording, Options(arrays=False))
    printer("c").write(made)
    subprocess.run([*compiler, "-std=c99", "-Os", "-c", "network.c"], cwd=tmp_path, check=True)
    shown = subprocess.run([compiler[0].replace("gcc", "size"), "network.o"], cwd=tmp_path, capture_output=True)
    taken = int(shown.stdout.split(b"\n")[1].split()[0])
    names = sum(
        len(each.name) + 4 for each in (*recording.register_program.inputs, *recording.register_program.outputs)
    )
    assert 0 <= taken - table_bytes(made) <= names


def test_the_runner_is_small(tmp_path):
    compiler = CROSS["riscv32"]
    if not shutil.which(compiler[0]):
        pytest.skip(f"{compiler[0]} is not installed")
    sizes = 0
    for name in ("nvdla_runner", "nvdla_cpu"):
        built = tmp_path / f"{name}.o"
        subprocess.run([*compiler, "-std=c99", "-Os", "-c", str(C / f"{name}.c"), "-o", str(built)], check=True)
        command = [compiler[0].replace("gcc", "size"), str(built)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes += int(shown.stdout.split("\n")[1].split()[0])
        if name == "nvdla_runner":
            assert sizes <= 4096
    assert sizes <= 16384


@pytest.mark.parametrize(
    ("target", "machine", "libraries"),
    [
        ("riscv64", "qemu-riscv64", "/usr/riscv64-linux-gnu"),
        ("arm", "qemu-arm", "/usr/arm-linux-gnueabihf"),
    ],
)
@pytest.mark.parametrize("interrupts", [False, True])
def test_lenet_runs_on_other_processors(target, machine, libraries, interrupts, tmp_path):
    """Linux programs of other processors under QEMU, by polling and by interrupts of the register server."""
    if not shutil.which(machine) or not shutil.which(CROSS[target][0]):
        pytest.skip(f"{machine} or {CROSS[target][0]} is not installed")
    recording, outputs = programmed(SAMPLES / "lenet.loadable")
    program, made = recording.register_program, exported_to(tmp_path, recording)
    printer("c").write(made)
    served = Served(tmp_path, program)
    built = compile_runner(tmp_path, program, CROSS[target], interrupts)
    assert served.run(built, runs=1, before=(machine, "-L", libraries)) == (0, "")
    assert served.outputs() == outputs


def corpus_files() -> list[Path]:
    return sorted(LOADABLES.glob("*/*.nvdla")) if LOADABLES.is_dir() else []


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("path", corpus_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_loadable_of_the_corpus_runs_as_a_c_program(path, tmp_path):
    try:
        runtime = nvdla.Runtime(nvdla.load(path))
        runtime.run_raw([bytes(each.size) for each in runtime.inputs])
    except NvdlaError as error:
        pytest.skip(f"the emulator refuses it: {error}")
    for serial in (False, True):
        folder = tmp_path / str(serial)
        recording, outputs = programmed(path, serial)
        program, made = recording.register_program, exported_to(folder, recording, Options(arrays=False))
        assert list(recording.outputs) == outputs
        printer("c").write(made)
        for interrupts in (False, True):
            served = Served(folder, program)
            assert served.run(compile_runner(folder, program, interrupts=interrupts), runs=1) == (0, "")
            assert served.outputs() == outputs
            status = register_map(program.config.register_map).register("GLB", "S_INTR_STATUS").address
            writes = [(step.register.address, step.resolved(program.bases)) for step in program.writes]
            assert [entry for entry in served.log if entry[0] != status][: len(writes)] == writes
        shutil.rmtree(folder)
