"""Logs of register accesses: the forms that people have say the same, differences are found by meaning, logs run."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.cli.main import main
from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import FormatError, TraceError
from nvdla.registers import record
from nvdla.registers.logs import LoggedTransfer, differences, operations, read_log
from nvdla.registers.printers import printer
from nvdla.registers.recording import Options, export
from nvdla.registers.register_program import Await, Write
from nvdla.registers.replay import replay_log

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """LeNet as a .txn of both dialects, as C statements, and as a .cfg."""
    runtime = nvdla.Runtime(nvdla.load(SAMPLES / "lenet.loadable"))
    inputs = [np.arange(each.size, dtype=np.uint8).tobytes() for each in runtime.inputs]
    recording = record(runtime, inputs, name="lenet", parts=True)
    options = Options(csb_base=0x10040000, poll_limit=50000)
    result = export(recording, tmp_path_factory.mktemp("lenet"), recording.register_program.bases, options)
    for form in ("txn", "riscv-txn", "reg-write", "cfg"):
        printer(form).write(result)
    return result


def own_log(made, path: Path, change=lambda text: text) -> Path:
    lines = [
        f"W 0x{step.register.address:05x} 0x{made.value(step):08x}"
        for step in made.register_program.steps
        if isinstance(step, Write)
    ]
    path.write_text(change("\n".join(["# made here", *lines, ""])))
    return path


def platform_log(made, path: Path) -> Path:
    """In the words of NVIDIA's virtual platform: register accesses, then what went over the memory bus."""
    lines = []
    part = made.parts[0]
    for step in part.steps:
        if isinstance(step, Write):
            address = 0x10200000 + step.register.address
            lines.append(platform_line("csb", 1, address, made.value(step).to_bytes(4, "little")))
        elif isinstance(step, Await):
            bits = step.interrupts.to_bytes(4, "little")
            lines += [platform_line("csb", write, 0x1020100C, bits) for write in (0, 1)]
    before, after = (each.read(Space.DRAM, 0, each.sizes[Space.DRAM]) for each in (part.before, part.after))
    base = made.bases[Space.DRAM]
    for at in range(0, before.size, 64):
        lines.append(platform_line("dbb", 0, base + at, before[at : at + 64].tobytes()))
    for at in range(0, after.size, 64):
        if (after[at : at + 64] != before[at : at + 64]).any():
            lines.append(platform_line("dbb", 1, base + at, after[at : at + 64].tobytes()))
    path.write_text("\n".join(lines))
    return path


def platform_line(bus: str, write: int, address: int, data: bytes) -> str:
    words = " ".join(f"{int.from_bytes(data[at : at + 4], 'little'):08x}" for at in range(0, len(data), 4))
    return (
        f"Info: nvdla.{bus}_adaptor: GP: iswrite={write} addr=0x{address:x} len={len(data)} data=0x {words} "
        "resp=TLM_OK_RESPONSE"
    )


def test_every_form_holds_the_same_operations(made, tmp_path):
    logs = [
        read_log(own_log(made, tmp_path / "csb.txt")),
        read_log(platform_log(made, tmp_path / "sc.log")),
        *(read_log(made.folder / name) for name in ("input.txn", "lenet.txn", "lenet_straight.c", "lenet.cfg")),
    ]
    assert [log.format for log in logs] == ["nvdla", "virtual-platform", "txn", "txn", "statements", "statements"]
    assert {log.map.name for log in logs} == {"nv_small"}
    for log in logs[1:]:
        assert differences(logs[0], log) == []
    counts = {each.unit for each in operations(logs[0])}
    assert {"CDMA", "CSC", "CMAC_A", "CACC", "SDP", "PDP"} <= counts


def test_plain_lines_are_read_too(tmp_path):
    (tmp_path / "x.txt").write_text("# comment\n0x9004 0x1\n9008, 00000001\n")
    log = read_log(tmp_path / "x.txt")
    assert [(each.address, each.value) for each in log.accesses] == [(0x9004, 1), (0x9008, 1)]


def test_times_of_dmesg_before_an_access_are_skipped(made, tmp_path, capsys):
    def kernel(text: str) -> str:
        lines = [f"[{at / 1000:12.6f}] {line}" for at, line in enumerate(text.splitlines())]
        return "\n".join(["[    0.000000] Booting Linux", "[    0.1] fb: 1", *lines])

    plain = read_log(own_log(made, tmp_path / "a.txt"))
    timed = read_log(own_log(made, tmp_path / "dmesg.log", kernel))
    assert timed.format == "nvdla" and differences(plain, timed) == []
    assert [access.value for access in timed.accesses] == [access.value for access in plain.accesses]
    (tmp_path / "txn.log").write_text(kernel("write_reg 0x9058 0x58\nread_reg 0x300c 0x1 0x1"))
    assert [access.kind for access in read_log(tmp_path / "txn.log").accesses] == ["write", "wait"]


def test_times_of_dmesg_before_plain_accesses_are_skipped(tmp_path, capsys):
    accesses = "0x9058 0x58", "9038, 1  # enable"
    plain, timed = tmp_path / "plain.log", tmp_path / "timed.log"
    plain.write_text("\n".join(accesses))
    timed.write_text("".join(f"[   12.34567{number}] {line}\n" for number, line in enumerate(accesses)))
    log = read_log(timed)
    assert log.format == "plain"
    assert [(access.address, access.value) for access in log.accesses] == [(0x9058, 0x58), (0x9038, 1)]
    assert main(["csb", "diff", str(plain), str(timed)]) == 0
    assert "the same operations" in capsys.readouterr().out
    assert main(["csb", "replay", str(timed), "--config", "nv_small"]) in (1, 2)
    assert "must be a log" not in capsys.readouterr().err


def test_accesses_operations_and_differences_are_rows_of_csv(made, tmp_path, capsys):
    def rows(*words) -> list[dict[str, str]]:
        main(["csb", *map(str, words), "--csv"])
        return list(csv.DictReader(capsys.readouterr().out.splitlines()))

    first, second = made.folder / "lenet.txn", tmp_path / "b.txt"
    log = read_log(own_log(made, second, lambda text: text.replace("W 0x09058 0x00000058", "W 0x09058 0x00000059", 1)))
    accesses = rows(second)
    assert [(int(row["address"], 16), int(row["value"], 16)) for row in accesses] == [
        (access.address, access.value) for access in log.accesses
    ]
    registers = rows(second, "--operations")
    values = [value for operation in operations(log) for value in operation.values.values()]
    assert [int(row["value"], 16) for row in registers] == [value for value in values if value]
    (row,) = rows("diff", first, second)
    assert (row["register"], row["first"], row["second"], row["fields"]) == (
        "D_DP_BS_CFG", "0x58", "0x59", "BS_BYPASS 0 | 1"
    )  # fmt: skip
    assert rows("diff", first, first) == []


@pytest.mark.parametrize("config", ["nv_large", "nv_full"])
def test_a_replay_on_the_wrong_configuration_names_the_right_one(made, config, capsys):
    assert main(["csb", "replay", str(made.folder / "lenet.txn"), "--config", config]) == 2
    assert capsys.readouterr().err.rstrip().endswith(". Every check passes on nv_small")


@pytest.mark.parametrize("unit", ["SDP", "PDP"])
def test_an_enable_that_the_driver_forgot_is_a_deadlock(made, unit, tmp_path, capsys):
    """The convolution waits in its group, which ignores the writes for the next one."""
    lines = (made.folder / "lenet.txn").read_text().splitlines(keepends=True)
    for path in made.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    del lines[next(at for at, line in enumerate(lines) if f" {unit}.D_OP_ENABLE" in line)]
    (tmp_path / "lenet.txn").write_text("".join(lines))
    assert main(["csb", "replay", str(tmp_path / "lenet.txn"), "--config", "nv_small"]) == 2
    assert "deadlock: enabled and waiting indefinitely: CDMA group 0" in capsys.readouterr().err


def test_the_configurations_that_pass_follow_the_question_about_a_name(capsys):
    trace = SAMPLES / "traces" / "scaling.cfg"
    assert main(["trace", "replay", str(trace), "--config", "nv_smal"]) == 2
    assert "; did you mean nv_small? Every check passes on nv_small" in capsys.readouterr().err


def test_one_operation_differs(made, tmp_path, capsys):
    """Counts of operations are in words."""
    paths = [own_log(made, tmp_path / name) for name in ("a.txt", "b.txt")]
    address = read_log(paths[0]).map.register("SDP", "D_CVT_SHIFT").address
    paths[1].write_text(re.sub(rf"W 0x{address:05x} 0x\w+", f"W 0x{address:05x} 0x3f", paths[1].read_text(), count=1))
    assert main(["csb", "diff", *map(str, paths)]) == 1
    assert capsys.readouterr().out.endswith("\n1 operation differs\n")


def test_the_first_difference_of_an_operation_is_named_with_its_fields(made, tmp_path):
    first = read_log(own_log(made, tmp_path / "a.txt"))
    register = first.map.register("SDP", "D_CVT_SHIFT")
    line = re.compile(rf"W 0x{register.address:05x} 0x0*(\w+)")
    changed = f"W 0x{register.address:05x} 0x3f"
    second = read_log(own_log(made, tmp_path / "b.txt", lambda text: line.sub(changed, text, count=1)))
    (found,) = differences(first, second)
    assert (found.unit, found.number, found.register, found.second) == ("SDP", 0, "D_CVT_SHIFT", 0x3F)
    assert found.fields


def test_the_order_of_independent_writes_does_not_matter(made, tmp_path):
    def turned(text: str) -> str:
        """Neighbours that write different units change places."""
        lines = text.split("\n")
        for at in range(1, len(lines) - 2, 2):
            one, other = lines[at].split(), lines[at + 1].split()
            if len(one) == len(other) == 3 and one[1][:4] != other[1][:4]:
                lines[at], lines[at + 1] = lines[at + 1], lines[at]
        return "\n".join(lines)

    first, second = read_log(own_log(made, tmp_path / "a.txt")), read_log(own_log(made, tmp_path / "b.txt", turned))
    assert [each.address for each in first.accesses] != [each.address for each in second.accesses]
    assert differences(first, second) == []


def test_addresses_are_masked_on_request(made, tmp_path):
    first = read_log(own_log(made, tmp_path / "a.txt"))
    second = read_log(own_log(made, tmp_path / "b.txt", lambda text: text.replace("0xc00", "0xd00")))
    assert differences(first, second)
    assert differences(first, second, mask_addresses=True) == []


@pytest.mark.parametrize("name", ["input.txn", "lenet.txn"])
def test_a_log_runs_and_its_dumps_are_the_check(made, name):
    result = replay_log(read_log(made.folder / name), made.register_program.config)
    assert result.passed and result.memory_checks
    assert result.engines.count("conv") == 5


def test_a_log_of_the_virtual_platform_is_a_test_of_its_own(made, tmp_path):
    log = platform_log(made, tmp_path / "sc.log")
    assert replay_log(read_log(log), made.register_program.config).passed
    lines = log.read_text().split("\n")
    last = lines[-1].replace("0x ", "0x 55aa55aa ", 1).rsplit(" ", 2)
    lines[-1] = f"{last[0]} {last[2]}"
    log.write_text("\n".join(lines))
    assert not replay_log(read_log(log), made.register_program.config).passed


def test_the_commands_exit_codes_and_json(made, tmp_path, capsys):
    log = str(own_log(made, tmp_path / "a.txt"))
    other = str(own_log(made, tmp_path / "b.txt", lambda text: text.replace("0xc00", "0xd00")))
    assert main(["csb", log, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["accesses"][0]["register"].endswith("S_POINTER")
    assert main(["csb", "diff", log, log]) == 0
    assert main(["csb", "diff", log, other]) == 1
    assert main(["csb", "diff", log, other, "--mask-addresses", "--json"]) == 0
    capsys.readouterr()
    dump = tmp_path / "out.bin"
    words = ["csb", "replay", str(made.folder / "lenet.txn"), "--config", "nv_small"]
    first = made.register_program.outputs[0]
    assert main([*words, "--dump", f"0x{made.bases[Space.DRAM]:x}:{first.size}={dump}"]) == 0
    assert dump.stat().st_size == first.size
    assert main(words[:-2]) == 2


def test_memory_that_differs_is_listed_with_its_address_in_hexadecimal(made, tmp_path, capsys):
    folder = shutil.copytree(made.folder, tmp_path / "bad")
    log = folder / "lenet.txn"
    (address, golden) = re.findall(r"^dump_mem (0x\w+) \w+ (\S+)", log.read_text(), re.MULTILINE)[-1]
    text = (folder / golden).read_text()
    (folder / golden).write_text(re.sub(r"0x\w\w", "0x5a", text, count=9))
    assert main(["csb", "replay", str(log), "--config", "nv_small"]) == 1
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["dram", f"0x{int(address, 16):x}"] in rows


NO_LOGS = ["", "hello\n", "W 0x0b004\n", "\0" * 100, "write_reg\n", "W 0xfffffff0 0x1\nW 0x4 0x1\n"]


@pytest.mark.parametrize("text", NO_LOGS)
def test_what_is_no_log_is_refused_in_one_line(tmp_path, text, capsys):
    (tmp_path / "x.log").write_text(text)
    with pytest.raises(TraceError):
        read_log(tmp_path / "x.log")
    assert main(["csb", str(tmp_path / "x.log")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_line_takes_time_that_grows_with_its_length(tmp_path):
    """100 KB of a name that never ends, and of names that are none."""
    for text in (
        "reg_write(" + "D_" * 50_000,
        "reg_write(NVDLA_" + "D_A_0_" * 20_000 + ",0)",
        "reg_write(A.B." * 10_000,
    ):
        (tmp_path / "x.log").write_text(f"reg_write(NVDLA_PDP.S_POINTER_0, 0x0);\n{text}\n")
        began = time.process_time()
        with contextlib.suppress(TraceError):
            read_log(tmp_path / "x.log")
        assert time.process_time() - began < 1


def test_a_file_that_every_line_names_is_held_once(tmp_path):
    """Ten thousand loads of a megabyte: 10 GB, had each its own."""
    (tmp_path / "a.dat").write_text("0x00 " * 1000)
    lines = ["write_reg 0xffff0003 0x0", *["load_mem 0x0 0x3e8 a.dat"] * 10_000]
    (tmp_path / "x.log").write_text("\n".join(lines) + "\n")
    held = {id(each.data) for each in read_log(tmp_path / "x.log").events if isinstance(each, LoggedTransfer)}
    assert len(held) == 1
    (tmp_path / "x.log").write_text("write_reg 0xffff0003 0x0\nload_mem 0x0 0xffffffffffff a.dat\n")
    with pytest.raises(TraceError, match="must have at least 281474976710655 bytes"):
        read_log(tmp_path / "x.log")


def test_the_lines_of_a_log_are_counted_first(tmp_path, monkeypatch):
    monkeypatch.setattr("nvdla.registers.logs.LINES_LIMIT", 10)
    (tmp_path / "x.log").write_text("\n" * 11)
    with pytest.raises(TraceError, match="must have at most 10 lines, got 11"):
        read_log(tmp_path / "x.log")


def test_polls_of_the_riscv_dialect_are_bounded_and_the_bound_is_read_back(made, tmp_path):
    """The bound is the fifth word; the projects' converters take four, and know the register by the remark."""
    text = (made.folder / "lenet.txn").read_text()
    log = read_log(made.folder / "lenet.txn")
    waits = [each for each in log.accesses if each.kind == "wait"]
    assert waits and {each.looks for each in waits} == {50000}
    for line in text.split("\n"):
        if line.startswith("read_reg"):
            words, _, remark = line.partition("#")
            address, mask, value = (int(word, 16) for word in words.split()[1:4])
            assert mask == value and remark.split()[:2] == ["actual", "addr:"]
            assert int(remark.split()[2], 16) << 2 == address - 0x10040000
    short = tmp_path / "short.txn"
    short.write_text("write_reg 0x9004 0x0\nread_reg 0x100c 0x1 0x1 7  # actual addr: 0x0403\n")
    (stuck,) = replay_log(read_log(short), made.register_program.config).stuck
    assert stuck.endswith("GLB.S_INTR_STATUS & 0x1: must be 0x1 within 7 polls, got 0x0")
    short.write_text("read_reg 0x100c 0x1 0x1 0\n")
    with pytest.raises(TraceError, match="must be at least 1, or omitted"):
        read_log(short)


@pytest.mark.parametrize("base", [None, 4, 0x10004, 0x43C00000, 0x43C10000, 0xFFFF0000, 1 << 40])
@pytest.mark.parametrize("words", [False, True])
def test_the_base_and_the_unit_of_register_addresses_are_read_from_the_file(made, words, base, tmp_path):
    """The remarks of the RISC-V dialect state the word address of each register within NVDLA."""
    other = export(made.recording, tmp_path, made.bases, Options(csb_base=base, word_addresses=words))
    printer("riscv-txn").write(other)
    log, first = read_log(tmp_path / "lenet.txn"), read_log(made.folder / "input.txn")
    assert [each.address for each in log.accesses] == [each.address for each in first.accesses]
    assert not differences(log, first)
    assert replay_log(log, made.register_program.config).passed


def test_register_addresses_that_are_not_multiples_of_4_are_words(made, tmp_path):
    """Without remarks, too; a base that is a multiple of the register space is detected, --csb-base states others."""
    for base, stated in ((0, None), (0x43C00000, None), (0x43C00000, 0x43C00000), (0x43C0F000, 0x43C0F000)):

        def words(text, base=base):
            return re.sub(r"W (\w+)", lambda match: f"W 0x{base + int(match[1], 16) // 4:x}", text)

        log = read_log(own_log(made, tmp_path / "w.txt", words), base=stated)
        assert not differences(log, read_log(own_log(made, tmp_path / "b.txt")))
    with pytest.raises(FormatError, match="csb base: must be a multiple of 4"):
        read_log(tmp_path / "w.txt", base=0x43C00002)


def test_a_log_of_unknown_registers_hints_at_the_options(tmp_path, capsys):
    (tmp_path / "x.txt").write_text("0x43c1300c 0x1\n0x43c17004 0x0\n")
    assert main(["csb", str(tmp_path / "x.txt")]) == 0
    assert "2 of 2 accesses are to unknown registers. Set the address of the first register with --csb-base" in (
        capsys.readouterr().err
    )
    assert main(["csb", str(tmp_path / "x.txt"), "--csb-base", "0x43c10000"]) == 0
    assert capsys.readouterr().err == ""


def test_memories_at_any_base_are_told_apart(made, tmp_path):
    """NVIDIA's trace player takes 0x5....... for CVSRAM, so txn refuses DRAM there; riscv-txn names the memory."""
    other = export(made.recording, tmp_path, {Space.DRAM: 0x50000000}, Options())
    printer("riscv-txn").write(other)
    log = read_log(tmp_path / "lenet.txn")
    assert {each.space for each in log.events if isinstance(each, LoggedTransfer)} == {Space.DRAM}
    assert replay_log(log, made.register_program.config).passed
    with pytest.raises(FormatError, match="dram in the format txn: must be outside 0x50000000 to 0x5fffffff"):
        printer("txn").write(other)


def test_a_bound_is_shown(made, capsys):
    assert main(["csb", str(made.folder / "lenet.txn")]) == 0
    assert "within 50,000 polls)" in capsys.readouterr().out


def test_a_log_that_is_all_over_memory_is_refused_before_it_takes_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("nvdla.registers.replay.PAGE_LIMIT", 100)
    lines = [platform_line("dbb", 0, at << 20, bytes(8)) for at in range(101)]
    (tmp_path / "sc.log").write_text("\n".join([platform_line("csb", 1, 0x9004, bytes(4)), *lines]))
    with pytest.raises(TraceError, match="must be at most 100 pages"):
        replay_log(read_log(tmp_path / "sc.log"), configuration("nv_small"))


def test_of_each_byte_the_first_read_and_the_last_write_count(tmp_path):
    """A byte that was written before it is read was not there before."""
    events = [(1, 0x1FFE, b"\1\2\3\4"), (0, 0x1FFC, b"\7\7\7\7"), (0, 0x2002, b"\5"), (1, 0x2000, b"\6")]
    lines = [platform_line("csb", 1, 0x9004, bytes(4)), *(platform_line("dbb", *event) for event in events)]
    (tmp_path / "sc.log").write_text("\n".join(lines))
    result = replay_log(read_log(tmp_path / "sc.log"), configuration("nv_small"))
    (check,) = result.memory_checks
    assert (check.address, check.size, check.different) == (0x1FFE, 4, 4)
    held = result.memory.view(Space.DRAM, 0x1FFC, 7, "test").tolist()
    assert held == [7, 7, 0, 0, 0, 0, 5]


@pytest.mark.parametrize("name", ["lenet.cfg", "input.txn", "lenet.txn", "lenet_straight.c", "csb.txt", "sc.log"])
def test_a_log_that_ends_within_a_line_is_reported_as_cut_off(made, tmp_path, name):
    """Anywhere in a line, but where what is left is a line, too."""
    own_log(made, made.folder / "csb.txt")
    platform_log(made, made.folder / "sc.log")
    for path in made.folder.glob("*.dat"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (made.folder / name).read_text()
    line = next(
        each
        for each in text.split("\n")[-40 if name == "sc.log" else 80 :]
        if re.search("reg_write|write_reg|W 0x|GP", each)
    )
    start = text.index(line)
    begun = line.index("GP") + 3 if "GP" in line else line.index("rite") + 9 if "rite" in line else 5
    for end in range(start + begun, start + begun + 8):
        (tmp_path / name).write_text(text[:end])
        with pytest.raises(TraceError, match=rf"{name}:\d+: .*cut off\?"):
            read_log(tmp_path / name)


@pytest.mark.parametrize("name", ["lenet.cfg", "input.txn"])
def test_a_truncated_trace_is_reported_as_cut_off(made, tmp_path, name):
    for path in made.folder.glob("*.dat"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (made.folder / name).read_text()
    for word in ("reg_write(", "write_reg 0x"):
        if word in text:
            (tmp_path / name).write_text(text[: text.index(word) + len(word)])
    with pytest.raises(TraceError, match=rf"{name}:\d+: .*cut off\?"):
        nvdla.replay(tmp_path / name, made.register_program.config)
    (tmp_path / name).write_text(text)
    data = next(path for path in tmp_path.glob("*.dat") if path.name in text)
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(TraceError, match=rf"{data.name}.*cut off\?"):
        nvdla.replay(tmp_path / name, made.register_program.config)
