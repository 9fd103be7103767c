"""Project skeletons of boards, self-test kits, and the tables of their logs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
import yaml

import nvdla
from nvdla.emulator.hardware.configuration import configuration, configurations
from nvdla.emulator.hardware.machine import Machine
from nvdla.emulator.hardware.support import ask, probes
from nvdla.emulator.memory.address_space import AddressSpace, Space
from nvdla.errors import FormatError
from nvdla.registers.printers.c99 import BOARDS
from nvdla.registers.register_program import Write
from nvdla.registers.self_test import self_tests, verify_log
from nvdla.registers.server import MemoryPlan, RegisterServer, listen

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[1] / "samples"
HEADERS = HERE / "headers"
RISCV, ARM = "riscv64-unknown-elf-gcc", "arm-none-eabi-gcc"
MIB = 1 << 20


def needs(*tools: str):
    missing = [tool for tool in tools if not shutil.which(tool)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture
def kit(tmp_path, nvdla_command):
    """Write the self-test kit of nv_small for a board."""

    def make(board: str, *words: str) -> Path:
        folder = tmp_path / board
        code, _, err = nvdla_command(
            "program", "--self-test", "--config", "nv_small", "--board", board, "-o", folder, *words
        )
        assert (code, err) == (0, "")
        return folder

    return make


def run_all(machine, contents, tests):
    """Run tests as a board does, on one machine: CRCs by name, and warnings."""
    crcs = {}
    for test in tests:
        program = test.recording.register_program
        swapped = {name for name, unit in machine.registers.units.items() if unit.consumer}
        for segment in program.segments:
            contents[segment.space][segment.offset : segment.offset + segment.size] = segment.data
        for step in program.steps:
            if isinstance(step, Write):
                value = step.resolved(program.bases)
                if step.register.name == "S_POINTER":
                    value ^= step.register.unit in swapped
                machine.registers.write_register(step.register, value)
        while machine.step():
            pass
        (output,) = program.outputs
        crcs[test.name] = zlib.crc32(contents[output.space][output.offset : output.offset + output.size])
    return crcs


@pytest.mark.parametrize("config", configurations().values(), ids=lambda config: config.name)
def test_the_tests_of_a_kit_pass_in_any_number_of_rounds_on_one_machine(config):
    """No test depends on what the convolution buffer, tables or registers have from the test before."""
    tests = self_tests(config)
    spaces = tests[0].recording.register_program.sizes
    memory, bases = AddressSpace(), tests[0].recording.register_program.bases
    contents = {space: memory.map(space.value, space, bases[space], size).data for space, size in spaces.items()}
    machine = Machine(config, memory)
    for _ in range(3):
        assert run_all(machine, contents, tests) == {test.name: test.crcs[0] for test in tests}
    assert machine.warnings == []


@pytest.mark.parametrize("name", ["nv_small", "nv_full"])
def test_a_kit_covers_every_supported_mode_that_writes_memory(name):
    config = configuration(name)
    supported = [each for each in probes() if ask(each, config).supported and each.mode != "Y compares (EQL)"]
    tests = self_tests(config)
    assert [(test.engine, test.mode, test.precision) for test in tests] == [
        (probe.engine, probe.mode, probe.precision) for probe in supported
    ]
    for test in tests:  # results that depend on the data, and not on what was there before
        (output,) = test.recording.outputs
        assert len(set(output)) > 8, test
        assert output.count(0xA5) < len(output), test


def test_a_kit_has_no_test_of_what_the_rtl_lacks():
    """The C model of nv_small runs Y and its lookup tables, the RTL has neither."""
    modes = {name: {test.mode for test in self_tests(configuration(name))} for name in ("nv_small", "nv_large")}
    assert not any(mode.startswith("Y ") for mode in modes["nv_small"])
    assert {"Y (element-wise)", "Y lookup tables"} <= modes["nv_large"]


@pytest.mark.parametrize("name", ["nv_small", "nv_full"])
def test_a_kit_takes_less_than_half_an_hour(name):
    """At 1 MHz, 100 cycles per register access, and one cycle per byte of memory and per multiplication."""
    cycles = 0
    for test in self_tests(configuration(name)):
        program = test.recording.register_program
        data = sum(segment.size for segment in program.segments)
        cycles += 100 * len(program.steps) + 4 * data + 8 * 8 * 64 * 16 * 9
    assert cycles / 1e6 < 30 * 60


def test_every_test_of_a_kit_passes_as_a_trace(tmp_path, nvdla_command):
    """The trace player runs the same programs on its own memory."""
    words = ["program", "--self-test", "--config", "nv_small", "--format", "riscv-txn", "-o", tmp_path]
    assert nvdla_command(*words)[0] == 0
    traces = sorted(tmp_path.glob("*/*.txn"))
    assert len(traces) == len(self_tests(configuration("nv_small")))
    for trace in traces:
        code, out, _ = nvdla_command("csb", "replay", trace, "--config", "nv_small")
        assert (code, "0 not" in out) == (0, True), trace


@pytest.mark.parametrize(
    ("form", "step"),
    [
        ("c", "call nvdla_run_tests() of {kit}/nvdla_tests.h, then 'nvdla csb verify LOG' with its output."),
        ("cfg", "nvdla trace replay {kit}/test1_conv_int8/test1_conv_int8.cfg --config nv_small"),
        ("riscv-txn", "nvdla csb replay {kit}/test1_conv_int8/test1_conv_int8.txn --config nv_small"),
    ],
)
def test_a_kit_without_a_board_names_the_next_step(form, step, tmp_path, nvdla_command):
    words = ["program", "--self-test", "--config", "nv_small", "--format", form, "-o", tmp_path]
    _, out, _ = nvdla_command(*words)
    assert out.splitlines()[-1].startswith("Next: ")
    assert out.rstrip().endswith(step.format(kit=tmp_path))


def test_the_steps_of_a_program_are_its_writes_waits_and_cpu_operations(tmp_path, nvdla_command):
    """The wait for the flush of the convolution buffer counts."""
    code, out, _ = nvdla_command("program", SAMPLES / "lenet.loadable", "-o", tmp_path, "--json")
    sizes = json.loads(out)
    assert code == 0
    assert sizes["steps"] == sizes["register_writes"] + sizes["waits"] + sizes["cpu_operations"]


@pytest.mark.parametrize("board", BOARDS)
def test_a_skeleton_has_all_its_words_filled_in(board, kit):
    folder = kit(board)
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", "nvdla_tests_table.c", "nvdla_runner.c"} <= {path.name for path in texts}
    for path, text in texts.items():
        assert not re.search(r"@[A-Z_]+@", text), path
        assert path.suffix != ".in"
    assert f"0x{BOARDS[board].dram:x}" in "".join(texts.values())
    assert "#define NVDLA_POLL_LIMIT 10000000u" in (folder / "nvdla_port.h").read_text()


def test_a_name_of_a_configuration_adds_no_line_to_a_makefile(tmp_path, nvdla_command):
    """And its kit is verified with the file of the configuration."""
    name = "mine $(shell touch hacked)\nall:; touch hacked"
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"base: nv_small\nname: {json.dumps(name)}\n")
    folder = tmp_path / "kit"
    words = ["program", "--self-test", "--config", mine, "--board", "baremetal", "-o", folder]
    assert nvdla_command(*words)[0] == 0
    assert "touch hacked" not in (folder / "Makefile").read_text()
    mine.write_text("base: nv_small\nname: my chip\n")
    log = tmp_path / "board.log"
    log.write_text("\n".join(good_log()).replace("nv_small", "my chip"))
    assert nvdla_command("csb", "verify", log, "--config", mine)[0] == 0


def test_bases_and_limits_of_the_user_are_those_of_the_skeleton(kit):
    folder = kit("zynq", "--dram-base", "0x12000000", "--csb-base", "0x50000000", "--poll-limit", "77")
    assert "#define NVDLA_DRAM_BASE 0x12000000u" in (folder / "board.c").read_text()
    assert "#define NVDLA_POLL_LIMIT 77u" in (folder / "board.h").read_text()
    assert "#define NVDLA_CSB_BASE 0x50000000u" in (folder / "nvdla_port.h").read_text()


@pytest.mark.parametrize("board", BOARDS)
def test_the_readme_names_the_places_of_the_addresses_and_the_options_that_set_them(board, kit):
    """`NAME` in `FILE`: the lines of the file with that name contain the address of the registers or of the memory."""
    addresses = {"--csb-base": "0x51230000", "--dram-base": hex(BOARDS[board].dram + 0x123000)}
    folder = kit(board, *(word for option in addresses.items() for word in option))
    readme = " ".join((folder / "README.md").read_text().split())
    lines = [
        line
        for name, file in re.findall(r"`(\w+)` in `([\w./]+)`", readme)
        for line in _lines_with(name, folder / file)
    ]
    for option, address in addresses.items():
        assert f"`{option}`" in readme
        assert any(address in line for line in lines), (option, lines)


def _lines_with(word: str, file: Path) -> list[str]:
    lines = [line for line in file.read_text().splitlines() if re.search(rf"\b{word}\b", line)]
    assert lines, f"{file} has no {word}"
    return lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--board", "nano"], "--board: must be one of baremetal, litex, vitis, zephyr, zynq, got 'nano'"),
        (
            ["--board", "zynqmp"],
            "got 'zynqmp'. Use --board vitis (Zynq or ZynqMP with the standalone library of Vitis).",
        ),
        (["--board", "ZCU102"], "Use --board vitis ("),
        (["--board", "ZedBoard"], "Use --board zynq (Zynq-7000 without libraries)."),
        (["--board", "zynq", "--format", "cfg"], "format cfg does not support --board"),
        (["--board", "zynq", "--name", "board"], "must not be a name of the C code"),
        (["--self-test", "--config", "nv_small"], "takes no loadable"),
    ],
)
def test_wrong_options_are_refused(words, message, nvdla_command, tmp_path):
    code, _, err = nvdla_command("program", SAMPLES / "lenet.loadable", *words, "-o", tmp_path / "x")
    assert (code, message in err) == (2, True), err
    assert not (tmp_path / "x" / "board.c").exists()


def test_without_a_loadable_the_command_says_what_it_needs(nvdla_command):
    code, _, err = nvdla_command("program")
    assert (code, "program needs a loadable" in err) == (2, True)
    code, _, err = nvdla_command("program", "--self-test")
    assert (code, "--self-test needs --config NAME" in err) == (2, True)
    for option in (["--name", "x"], ["--image"]):
        code, _, err = nvdla_command("program", "--self-test", "--config", "nv_small", *option)
        assert (code, f"--self-test does not support {option[0]}" in err) == (2, True)
    code, _, err = nvdla_command("program", "--self-test", "--config", "nv_small", "--format", "mem")
    assert (code, "must be one that checks memory" in err) == (2, True)


class Ram:
    """The memory of a virtual machine, which a register server uses as NVDLA's DRAM."""

    def __init__(self, folder: Path, base: int, size: int) -> None:
        self.path, self.socket = folder / "ram", folder / "s"
        self.server = RegisterServer(configuration("nv_small"), [MemoryPlan(Space.DRAM, base, size, self.path)])

    def make(self, folder: Path, target: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``make`` while the server listens."""
        listener = listen(str(self.socket))
        thread = threading.Thread(target=self.server.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            command = ["make", "-s", target, f"SOCKET={self.socket}", f"RAM={self.path}", *words]
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        finally:
            listener.shutdown(2)
            listener.close()
            thread.join(10)
            self.path.unlink()


VIRTUAL = [
    pytest.param("baremetal", 0x80000000, 128 * MIB, marks=needs("make", RISCV, "qemu-system-riscv64")),
    pytest.param("zynq", 0, 512 * MIB, marks=needs("make", ARM, "qemu-system-arm")),
]


@pytest.mark.parametrize(("board", "base", "size"), VIRTUAL)
def test_a_kit_passes_on_a_virtual_board_and_its_log_is_verified(board, base, size, kit, tmp_path, nvdla_command):
    """Without an operating system, by interrupts of the register server, in memory that both share."""
    folder = kit(board)
    done = Ram(tmp_path, base, size).make(folder, "qemu")
    assert (done.returncode, done.stderr) == (0, "")
    log = tmp_path / "board.log"
    log.write_text(done.stdout)
    code, out, _ = nvdla_command("csb", "verify", log, "--json")
    document = json.loads(out)
    assert (code, document["passed"], len(document["tests"])) == (0, True, 16)
    assert {row["engine"] for row in document["tests"]} == {"conv", "sdp", "pdp", "cdp"}


@pytest.mark.parametrize(("board", "base", "size"), VIRTUAL)
def test_a_network_passes_on_a_virtual_board(board, base, size, tmp_path, nvdla_command):
    """Softmax on the virtual processor included."""
    folder = tmp_path / board
    words = ["program", SAMPLES / "lenet.loadable", "--input", SAMPLES / "digit7.pgm", "--board", board, "-o", folder]
    assert nvdla_command(*words)[0] == 0
    done = Ram(tmp_path, base, size).make(folder, "qemu")
    assert (done.returncode, done.stderr) == (0, "")
    crc = zlib.crc32(nvdla.Runtime(SAMPLES / "lenet.loadable").run_raw([_surface()])[0])
    assert f"result 0 crc 0x{crc:08x} expected 0x{crc:08x} | network | lenet | int8" in done.stdout
    (tmp_path / "board.log").write_text(done.stdout)
    assert nvdla_command("csb", "verify", tmp_path / "board.log")[0] == 0


def _surface() -> bytes:
    return nvdla.Runtime(SAMPLES / "lenet.loadable").surfaces(SAMPLES / "digit7.pgm")[0]


@pytest.mark.parametrize(("board", "base", "size"), VIRTUAL)
def test_the_program_for_hardware_is_built_without_warnings(board, base, size, kit):
    done = subprocess.run(["make", "-s"], cwd=kit(board), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PAGE = (HERE.parents[1] / "docs" / "registers.md").read_text(encoding="utf-8")


def block(heading: str, language: str) -> str:
    """The first block of a language after a text of docs/registers.md."""
    return PAGE.partition(heading)[2].partition(f"```{language}\n")[2].partition("```")[0]


def run_commands(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands of the page in ``folder``, with their files there; programs in the background end with them."""
    for name in ("/tmp/nvdla.sock", "/dev/shm/nvdla-dram", "/dev/shm/nvdla-ram"):
        text = text.replace(name, str(folder / Path(name).name))
    for name in ("lenet.loadable", "digit7.pgm"):
        shutil.copy(SAMPLES / name, folder)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"SOCKET": str(folder / "nvdla.sock"), "RAM": str(folder / "nvdla-ram")}
    command = f"set -e -o pipefail; trap 'kill $(jobs -p)' EXIT\n{text}"
    words = ["bash", "-c", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)


@needs("make", RISCV, "qemu-system-riscv64")
def test_the_commands_of_the_page_run_a_whole_machine(tmp_path):
    done = run_commands(block("**A whole machine**", "sh"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nv_small: 1 test passed, 0 failed" in done.stdout


@needs("riscv64-linux-gnu-gcc", "qemu-riscv64")
def test_the_commands_of_the_page_run_a_program_of_another_processor(tmp_path):
    serve, run = block("## Serve the register model", "sh"), block("**A Linux program", "sh")
    client = block("### Client in C", "c").replace("/tmp/nvdla.sock", str(tmp_path / "nvdla.sock"))
    client = client.replace("/dev/shm/nvdla-dram", str(tmp_path / "nvdla-dram"))
    includes = '#include "nvdla_remote.h"\n#include "lenet.h"\n'
    (tmp_path / "main.c").write_text(f"{includes}int main(void) {{\nint result;\n{client}return result;\n}}\n")
    for name in ("nvdla_remote.h", "nvdla_remote.c"):
        shutil.copy(HERE.parents[1] / "nvdla" / "registers" / "c" / name, tmp_path)
    wait = f"while ! test -S {tmp_path / 'nvdla.sock'}; do sleep 0.2; done\n"
    done = run_commands(f"{serve.strip()} &\n{wait}{run}", tmp_path)
    assert done.returncode == 0, done.stderr


@needs("make", RISCV, "qemu-system-riscv64")
def test_a_virtual_board_reports_a_wrong_result(kit, tmp_path):
    folder = kit("baremetal")
    source = next(folder.glob("test8_pdp_int8.c"))
    source.write_text(re.sub(r"(segment_1\[4096\] = \{\n\s*)0x..", r"\g<1>0x55", source.read_text(), count=1))
    ram = Ram(tmp_path, 0x80000000, 128 * MIB)
    done = ram.make(folder, "qemu")
    assert done.returncode != 0
    assert [row.split()[3] for row in done.stdout.splitlines() if "result" in row].count("100") == 1
    (tmp_path / "log").write_text(done.stdout)
    _, results = verify_log(tmp_path / "log")
    assert [(row.mode, row.problem) for row in results if row.problem] == [("average pooling", "wrong output")]


def good_log() -> list[str]:
    lines = ["U-Boot 2024.01", "[    0.1] nvdla-test begin 14 | nv_small\r"]
    for number, test in enumerate(self_tests(configuration("nv_small")), 1):
        crc = f"0x{test.crcs[0]:08x}"
        lines.append(
            f"[    {number}.0] nvdla-test {number} result 0 crc {crc} expected {crc} "
            f"| {test.engine} | {test.mode} | {test.precision}\r"
        )
    return [*lines, "nvdla-test end"]


def replaced(lines: list[str], number: int, old: str, new: str) -> list[str]:
    changed = list(lines)
    changed[number + 1] = re.sub(old, new, changed[number + 1], count=1)
    return changed


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (lambda lines: lines, {}),
        (lambda lines: lines[:-3], {13: "missing in the log", 14: "missing in the log"}),
        (lambda lines: lines[:2], dict.fromkeys(range(1, 15), "missing in the log")),
        (lambda lines: replaced(lines, 3, "crc 0x.{8}", "crc 0x00000000"), {3: "wrong output"}),
        (lambda lines: replaced(lines, 3, "result 0", "result 1"), {3: "timed out"}),
        (lambda lines: replaced(lines, 3, "result 0", "result 2"), {3: "memory not visible to the processor"}),
        (lambda lines: replaced(lines, 3, "result 0", "result 100"), {3: "wrong output"}),
        (
            lambda lines: replaced(lines, 3, "crc 0x.{8} expected 0x.{8}", "crc 0x00000000 expected 0x00000000"),
            {3: "the kit is of another version: create it again"},
        ),
        (
            lambda lines: replaced(lines, 3, "memory to memory", "other"),
            {3: "the kit is of another version: create it again"},
        ),
        (lambda lines: replaced(lines, 3, r" \| int8", ""), {3: "missing in the log"}),
        (lambda lines: [*replaced(lines, 3, "result 0", "result 1"), *lines], {}),
    ],
    ids=["good", "cut off", "hangs", "crc", "time", "memory", "result", "expected", "mode", "garbled", "second run"],
)
def test_a_log_is_verified_line_by_line(change, failed, tmp_path, nvdla_command, as_documented):
    log = tmp_path / "board.log"
    log.write_text("\n".join(change(good_log())))
    code, out, _ = nvdla_command("csb", "verify", log, "--json")
    document = json.loads(out)
    as_documented(document)
    problems = {number: row["problem"] for number, row in enumerate(document["tests"], 1) if row["problem"]}
    assert (code, problems) == (1 if failed else 0, failed)
    assert len(document["tests"]) == 14 and document["passed"] == (not failed)


def test_a_log_without_tests_and_one_of_another_configuration_are_refused(tmp_path):
    log = tmp_path / "board.log"
    log.write_text("hello\n")
    with pytest.raises(FormatError, match="got no line 'nvdla-test begin'"):
        verify_log(log)
    log.write_text("\n".join(good_log()))
    with pytest.raises(FormatError, match="must be nv_large, got nv_small"):
        verify_log(log, configuration("nv_large"))


WARNINGS = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", '-DNVDLA_PORT_FILE="board.h"']


def compile_all(folder: Path, sources: list[Path], compiler: str, *words: str) -> None:
    for path in sources:
        command = [compiler, *WARNINGS, *words, "-c", str(path), "-o", "/dev/null"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def fixed(folder: Path) -> list[Path]:
    """Files that are not data of a test."""
    return [path for path in sorted(folder.rglob("*.c")) if not re.match(r"test\d", path.name)]


@needs(ARM)
def test_the_vitis_project_compiles_with_the_declarations_that_it_uses(kit):
    """Vitis is not free software; the headers in tests/registers/headers declare what the project calls."""
    folder = kit("vitis")
    words = ["-mcpu=cortex-a9", "-mfloat-abi=soft", "-ffreestanding", f"-I{HEADERS}/vitis", "-I.", "-Isrc"]
    compile_all(folder, fixed(folder), ARM, *words)
    script = (folder / "create.tcl").read_text()
    assert "app create -name selftest" in script and "src" in script


@needs(RISCV)
@pytest.mark.parametrize("options", [[], ["-DCONFIG_NVDLA_INTERRUPTS=1"], ["-DCONFIG_MMU=1"]])
def test_the_zephyr_application_compiles_with_the_declarations_that_it_uses(options, kit):
    folder = kit("zephyr")
    words = [
        "-march=rv64imac",
        "-mabi=lp64",
        "-mcmodel=medany",
        "-ffreestanding",
        f"-I{HEADERS}/zephyr",
        "-I.",
        "-Isrc",
    ]
    words += ["-DCONFIG_NVDLA_POLL_LIMIT=10000000", *options]
    compile_all(folder, fixed(folder), RISCV, *words)


# As on Zephyr's boards: the interrupt controller is no parent of nodes at the root.
BOARD_TREE = """/dts-v1/;
/ {
    #address-cells = <1>;
    #size-cells = <1>;
    plic: controller@0 {
        compatible = "test,controller";
        reg = <0 4>;
        interrupt-controller;
        #address-cells = <0>;
        #interrupt-cells = <2>;
    };
};
"""


def test_zephyr_reads_the_devicetree_of_the_application(kit, tmp_path):
    """With the parser that Zephyr's build uses."""
    edtlib = pytest.importorskip("devicetree.edtlib", reason="the package devicetree is not installed")
    folder = kit("zephyr")
    bindings = tmp_path / "bindings"
    bindings.mkdir()
    (bindings / "base.yaml").write_text(
        "include: []\nproperties:\n  compatible: {type: string-array}\n  reg: {type: array}\n"
        "  status: {type: string}\n  interrupts: {type: array}\n"
    )
    (bindings / "controller.yaml").write_text(
        'description: interrupt controller\ncompatible: "test,controller"\ninclude: base.yaml\nproperties:\n'
        "  interrupt-controller: {type: boolean}\ninterrupt-cells: [irq, priority]\n"
    )
    (tmp_path / "board.dts").write_text(BOARD_TREE + (folder / "app.overlay").read_text())
    tree = edtlib.EDT(str(tmp_path / "board.dts"), [str(bindings), str(folder / "dts" / "bindings")])
    node = tree.label2node["nvdla"]
    assert node.matching_compat == "nvidia,nvdla"
    assert (node.regs[0].addr, node.regs[0].size) == (0x10040000, 0x40000)
    assert [interrupt.data for interrupt in node.interrupts] == [{"irq": 5, "priority": 1}]
    memory = node.props["memory-region"].val
    assert (memory.regs[0].addr, memory.regs[0].size) == (BOARDS["zephyr"].dram, 0xC0000)


@needs("dtc")
def test_the_overlay_is_a_devicetree(kit):
    text = BOARD_TREE + (kit("zephyr") / "app.overlay").read_text()
    done = subprocess.run(["dtc", "-I", "dts", "-O", "dtb", "-o", "/dev/null"], input=text, text=True, check=False)
    assert done.returncode == 0


def test_zephyr_reads_the_options_of_the_application(kit, tmp_path, monkeypatch):
    kconfiglib = pytest.importorskip("kconfiglib", reason="the package kconfiglib is not installed")
    folder = kit("zephyr", "--poll-limit", "1234")
    names = re.findall(r"^CONFIG_(\w+)=", (folder / "prj.conf").read_text(), flags=re.M)
    types = {"MAIN_STACK_SIZE": "int"}
    (tmp_path / "Kconfig.zephyr").write_text(
        "".join(f'config {name}\n\t{types.get(name, "bool")} "{name}"\n' for name in names if "NVDLA" not in name)
    )
    monkeypatch.setenv("srctree", str(tmp_path))
    shutil.copy(folder / "Kconfig", tmp_path / "Kconfig")
    options = kconfiglib.Kconfig("Kconfig", warn_to_stderr=False)
    options.load_config(str(folder / "prj.conf"))
    assert options.warnings == []
    assert options.syms["NVDLA_POLL_LIMIT"].str_value == "1234"
    assert options.syms["NVDLA_INTERRUPTS"].str_value == "y"


@needs("cmake", "gcc")
def test_cmake_builds_the_zephyr_application(kit, tmp_path):
    """With a package "Zephyr" that makes the target ``app``, as Zephyr's does, from the declarations of this test."""
    folder, package = kit("zephyr"), tmp_path / "package"
    package.mkdir()
    (package / "ZephyrConfig.cmake").write_text(
        "enable_language(C)\nadd_library(app STATIC)\nset_target_properties(app PROPERTIES LINKER_LANGUAGE C)\n"
        f"target_include_directories(app PRIVATE {HEADERS}/zephyr)\n"
        "target_compile_definitions(app PRIVATE CONFIG_NVDLA_POLL_LIMIT=1000 CONFIG_NVDLA_INTERRUPTS=1)\n"
    )
    build = tmp_path / "build"
    for command in (
        ["cmake", "-S", str(folder), "-B", str(build), f"-DZephyr_DIR={package}"],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (build / "libapp.a").stat().st_size > 10_000


def test_the_twister_description_of_the_application_is_yaml(kit):
    sample = yaml.safe_load((kit("zephyr") / "sample.yaml").read_text())
    assert sample["tests"]["nvdla.selftest"]["harness_config"]["regex"] == ["nvdla-test begin", "nvdla-test end"]


@needs(RISCV)
def test_the_litex_firmware_compiles_with_the_declarations_that_it_uses(kit):
    library = Path("/usr/lib/picolibc/riscv64-unknown-elf/include")
    if not library.is_dir():
        pytest.skip("not installed: picolibc-riscv64-unknown-elf")
    folder = kit("litex")
    words = ["-march=rv32imac", "-mabi=ilp32", f"-I{HEADERS}/litex", "-I.", "-isystem", str(library)]
    compile_all(folder, fixed(folder), RISCV, *words)


TARGET = """
import sys

from litex.build.generic_platform import Pins, Subsignal
from litex.build.xilinx import XilinxPlatform
from litex.soc.integration.builder import Builder
from litex.soc.integration.soc_core import SoCCore
from migen.genlib.io import CRG
from nvdla_soc import add_nvdla

signals = [("clk", 0, Pins(1)), ("serial", 0, Subsignal("tx", Pins(1)), Subsignal("rx", Pins(1)))]
platform = XilinxPlatform("xc7a200t-sbg484-1", signals)
soc = SoCCore(platform, 50_000_000, cpu_type="vexriscv", integrated_rom_size=1 << 16, integrated_main_ram_size=5 << 24)
soc.crg = CRG(platform.request("clk"))
add_nvdla(soc, sys.argv[1])
Builder(soc, output_dir=sys.argv[2], compile_gateware=False).build(run=False)
"""


@pytest.mark.slow
@needs("make", RISCV)
@pytest.mark.parametrize(("config", "ports"), [("nv_small", {"dbb"}), ("nv_full", {"dbb", "cvsram"})])
def test_litex_generates_the_soc_and_builds_its_firmware(config, ports, tmp_path, nvdla_command):
    """With the packages litex, pythondata-cpu-vexriscv, pythondata-software-picolibc, -compiler-rt, meson (PyPI)."""
    for name in ("litex", "pythondata_cpu_vexriscv", "pythondata_software_picolibc", "mesonbuild"):
        pytest.importorskip(name, reason=f"the package {name} is not installed")
    folder, sources, build = tmp_path / "kit", tmp_path / "vmod", tmp_path / "build"
    words = ["program", "--self-test", "--config", config, "--board", "litex", "-o", folder]
    assert nvdla_command(*words)[0] == 0
    for path in ("include/ticks.vh", "nvdla/top.v", "rams/fpga/ram.v", "rams/model/ram.v"):
        (sources / path).parent.mkdir(parents=True, exist_ok=True)
        (sources / path).touch()
    (folder / "target.py").write_text(TARGET)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in (
        [sys.executable, "target.py", str(sources), str(build)],
        ["make", "-s", f"BUILD={build}"],
    ):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    verilog = (build / "gateware" / "platform.v").read_text()
    assert set(re.findall(r"\.nvdla_core2(\w+?)_aw_awvalid", verilog)) == ports
    assert re.search(r"interrupt\[\d\] <= \w*nvdla_ev_irq;", verilog)
    files = (build / "gateware" / "platform.prj").read_text()
    assert re.findall(r"vmod/(\S+\.v)", files) == ["nvdla/top.v", "rams/fpga/ram.v"]
    assert f"{sources}/include" in (build / "gateware" / "platform.xst").read_text()
    symbols = subprocess.run(
        ["riscv64-unknown-elf-nm", folder / "selftest.elf"], capture_output=True, text=True, check=True
    ).stdout
    assert "40000000 T _start" in symbols  # where LiteX starts a program


def soc_module(folder: Path):
    pytest.importorskip("migen", reason="the package migen is not installed")
    where = importlib.util.spec_from_file_location("nvdla_soc", folder / "nvdla_soc.py")
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_the_bridge_of_litex_gives_each_access_to_the_register_bus_once(kit):
    """Simulated with migen: a register file with pauses at the other end."""
    module = soc_module(kit("litex"))
    from migen import Record, run_simulation

    bus = Record([(name, 32 if name in ("adr", "dat_w", "dat_r") else 1) for name in
                  ("adr", "dat_w", "dat_r", "we", "cyc", "stb", "ack")])  # fmt: skip
    csb = module.csb_record()
    bridge = module.CsbBridge(bus, csb)
    seen, answers = [], []

    def master():
        for write, address, value in ((1, 3, 0x11223344), (1, 0xFFFF, 5), (0, 3, 0), (0, 0xFFFF, 0)):
            yield bus.adr.eq(address)
            yield bus.dat_w.eq(value)
            yield bus.we.eq(write)
            yield bus.cyc.eq(1)
            yield bus.stb.eq(1)
            yield
            while not (yield bus.ack):
                yield
            answers.append((yield bus.dat_r) if not write else None)
            yield bus.cyc.eq(0)
            yield bus.stb.eq(0)
            yield

    def registers():
        values = {}
        for turn in range(120):
            yield csb.ready.eq(turn % 3 == 2)
            yield csb.rvalid.eq(0)
            yield csb.wr_complete.eq(0)
            yield
            if (yield csb.valid) and (yield csb.ready):
                address, write = (yield csb.addr), (yield csb.write)
                assert (yield csb.nposted) == write
                seen.append((write, address))
                yield csb.ready.eq(0)
                yield
                yield
                if write:
                    values[address] = yield csb.wdat
                    yield csb.wr_complete.eq(1)
                else:
                    yield csb.rdata.eq(values[address])
                    yield csb.rvalid.eq(1)
                yield

    run_simulation(bridge, [master(), registers()])
    assert seen == [(1, 3), (1, 0xFFFF), (0, 3), (0, 0xFFFF)]
    assert answers == [None, None, 0x11223344, 5]
