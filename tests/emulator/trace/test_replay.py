"""Replaying: events, interrupts, checks, and what happens when something never comes."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from nvdla.cli.main import main
from nvdla.emulator import trace
from nvdla.errors import ConfigError, LinkError, NvdlaError, ScheduleError, TraceError
from nvdla.limits import Limits

SOURCE, TARGET = 0x80000000, 0x80100000
DATA = bytes(range(1, 65))
MIXED = np.random.default_rng(0).integers(0, 256, 64, np.uint8).tobytes()


def bdma(source=SOURCE, target=TARGET, size=64, launch=0):
    """One transfer from DRAM to DRAM."""
    registers = {
        "CFG_SRC_ADDR_LOW": source,
        "CFG_DST_ADDR_LOW": target,
        "CFG_LINE": size // 32 - 1,
        "CFG_CMD": 3,
        "CFG_OP": 1,
        f"CFG_LAUNCH{launch}": 1,
    }
    return "".join(f"reg_write(NVDLA_BDMA.{name}_0, 0x{value:x});\n" for name, value in registers.items())


def check(data=DATA, address=TARGET, event="done"):
    return f"check_crc({event}, 1, 0x{address:x}, {len(data)}, 0x{zlib.crc32(data):x});\n"


def write(folder, text, name="t.cfg", images=None):
    for file, data in (images or {"in.bin": DATA}).items():
        (folder / file).write_bytes(data)
    (folder / name).write_text(text)
    return folder / name


def replay(folder, text, name="t.cfg", config="nv_full", images=None, **options):
    return trace.replay(write(folder, text, name, images), config, **options)


LOAD = f'mem_load(pri_mem, 0x{SOURCE:x}, "in.bin");\n'


def test_a_check_runs_when_its_interrupt_comes(tmp_path):
    result = replay(tmp_path, LOAD + bdma() + "intr_notify(BDMA_0, done);\n" + check())
    assert result.passed
    (only,) = result.checks
    assert (only.name, only.line) == ("check_crc done dram 0x80100000 64 bytes", 9)
    assert only.expected == only.actual == f"0x{zlib.crc32(DATA):08x}"
    assert [stage.engine for completion in result.completions for stage in completion.stages] == ["bdma"]


def test_a_wrong_crc_is_a_failed_check_with_both_values(tmp_path):
    result = replay(tmp_path, LOAD + bdma() + "intr_notify(BDMA_0, done);\n" + check(MIXED))
    assert not result.passed
    assert (result.checks[0].expected, result.checks[0].actual) == tuple(
        f"0x{zlib.crc32(data):08x}" for data in (MIXED, DATA)
    )


def test_memory_that_nothing_mentions_can_be_written(tmp_path):
    """The destination is only checked in part; the copy reaches beyond it."""
    images = {"in.bin": DATA * 64}
    text = LOAD + bdma(size=4096) + "intr_notify(BDMA_0, done);\n" + check(DATA)
    assert replay(tmp_path, text, images=images).passed


def test_a_golden_file_counts_the_bytes_that_differ(tmp_path):
    images = {"in.bin": DATA, "golden.dat": b"{offset:0x0, size:4, payload:0x01 0x02 0x09 0x04}\n"}
    text = LOAD + bdma() + "intr_notify(BDMA_0, done);\n"
    text += f'check_file(done, pri_mem, 0x{TARGET:x}, 0x40, "golden.dat");\n'
    result = replay(tmp_path, text, images=images)
    assert result.checks[0].actual == "1 bytes differ, the first at offset 0x2 (0x03)"
    images["golden.dat"] = b"{offset:0x20, size:2, payload:0x21 0x22}\n"
    assert replay(tmp_path, text, images=images).passed


def test_two_launches_end_one_after_the_other(tmp_path):
    middle = 0x80200000
    text = LOAD + bdma(target=middle) + bdma(source=middle, launch=1)
    text += "intr_notify(BDMA_0, first);\nintr_notify(BDMA_1, second);\n"
    text += check(bytes(64), event="first") + check(event="second")
    assert replay(tmp_path, text).passed


def test_blocks_wait_for_one_another(tmp_path):
    """The later line of another block goes first; the register that is read shows it."""
    text = "sync_wait(NVDLA_CDP, go);\nreg_read_expected(NVDLA_CDP.D_CYA_0, 7);\n"
    text += "sync_notify(NVDLA_PDP, go);\nreg_write(NVDLA_CDP.D_LRN_CFG_0, 1);\n"
    result = replay(tmp_path, text.replace("reg_read_expected", "reg_write(NVDLA_CDP.D_CYA_0, 7);\nreg_read_expected"))
    assert result.passed
    assert result.checks[0].actual == "0x7"


def test_memory_may_be_loaded_at_an_event(tmp_path):
    text = LOAD + f'mem_load(pri_mem, 0x{TARGET:x}, "late.bin", done);\n' + bdma()
    text += "intr_notify(BDMA_0, done);\n" + check(MIXED)
    assert replay(tmp_path, text, images={"in.bin": DATA, "late.bin": MIXED}).passed


def test_writing_a_group_that_is_at_work_waits_until_it_is_free(tmp_path):
    """Split and merge of one Rubik: the second layer uses group 0 again."""
    plane = bytes(range(32))
    layer = {
        "D_MISC_CFG": 2,
        "D_DAIN_RAM_TYPE": 1,
        "D_DAOUT_RAM_TYPE": 1,
        "D_DATAIN_SIZE_0": 31,
        "D_DATAIN_SIZE_1": 0,
        "D_DAIN_ADDR_LOW": SOURCE,
        "D_DAOUT_ADDR_LOW": TARGET,
        "D_OP_ENABLE": 1,
    }
    lines = [f"reg_write(NVDLA_RBK.{name}_0, 0x{value:x});\n" for name, value in layer.items()]
    second = [line.replace(f"0x{TARGET:x}", "0x80300000") for line in lines]
    text = LOAD + "".join(lines) + "".join(second)
    text += "reg_write(NVDLA_RBK.S_POINTER_0, 1);\n" + "".join(second)
    text += "intr_notify(RUBIK_0, a);\nintr_notify(RUBIK_1, b);\nintr_notify(RUBIK_0, c);\n"
    result = replay(tmp_path, text, images={"in.bin": plane})
    names = [(check.name, check.passed) for check in result.checks]
    assert ("write RBK.D_MISC_CFG", False) not in names
    assert len(result.completions) == 3


def test_an_interrupt_that_never_comes_is_a_failed_check(tmp_path):
    result = replay(tmp_path, "intr_notify(PDP_0, done);\n" + check())
    assert not result.passed
    assert [each.actual for each in result.checks] == [
        "never happened: no unit is enabled",
        "never happened: its event never came",
    ]


def test_a_unit_that_waits_is_named(tmp_path):
    """A PDP fed by an SDP that is never started."""
    result = replay(tmp_path, "reg_write(NVDLA_PDP.D_OP_ENABLE_0, 1);\nintr_notify(PDP_0, done);\n")
    assert result.checks[0].name == "intr_notify(PDP_0, done)"
    assert result.checks[0].actual == "never happened: enabled and waiting indefinitely: PDP group 0"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("poll_reg_equal(NVDLA_PDP.S_STATUS_0, 1);", "poll PDP.S_STATUS"),
        ("sync_wait(NVDLA_PDP, nobody);", "sync_wait nobody"),
    ],
)
def test_waits_without_end_are_failed_checks(tmp_path, line, name):
    (failed,) = replay(tmp_path, line).checks
    assert (failed.name, failed.passed) == (name, False)


def test_an_interrupt_can_be_raised_by_software_and_masked(tmp_path):
    text = "reg_write(NVDLA_GLB.S_INTR_SET_0, 0x10);\nintr_notify(PDP_0, a);\n"
    text += LOAD + f"check_crc(a, 1, 0x{SOURCE:x}, {len(DATA)}, 0x{zlib.crc32(DATA):x});\n"
    assert replay(tmp_path, text).passed
    assert not replay(tmp_path, "reg_write(NVDLA_GLB.S_INTR_MASK_0, 0x10);\n" + text).passed


def test_a_failed_read_is_a_check_with_its_line(tmp_path):
    (only,) = replay(tmp_path, "\nreg_read_expected(NVDLA_PDP.D_CYA_0, 0x5);\n").checks
    assert (only.line, only.expected, only.actual, only.passed) == (2, "0x5", "0x0", False)


def test_settings_that_cannot_run_raise_and_name_the_trace(tmp_path):
    with pytest.raises(ScheduleError, match=r"^t\.cfg: deadlock: BDMA group 0"):
        replay(tmp_path, "reg_write(NVDLA_BDMA.CFG_LAUNCH0_0, 1);\nintr_notify(BDMA_0, done);\n")
    with pytest.raises(ConfigError, match="unknown hardware configuration 'nv_smal'"):
        replay(tmp_path, LOAD, config="nv_smal")


@pytest.mark.parametrize(("config", "message"), [("nv_small", "got 0x1c0005"), ("nv_large", None)])
def test_an_address_above_the_address_bits_is_refused(samples, tmp_path, config, message):
    """nv_small has 32 address bits, nv_large 64."""
    text = (samples / "traces/pooling.cfg").read_text()
    cut = tmp_path / "high.cfg"
    lines = [line for line in text.splitlines() if "mem_load" not in line]
    cut.write_text("\n".join(lines).replace("SRC_BASE_ADDR_HIGH_0, 0x0", "SRC_BASE_ADDR_HIGH_0, 0x1") + "\n")
    if message is None:
        trace.replay(cut, config)
        return
    with pytest.raises(LinkError, match=f"PDP source: end: must fit 32 address bits of the configuration, {message}"):
        trace.replay(cut, config)


def test_more_memory_than_the_limit_is_refused_before_it_is_made(tmp_path):
    with pytest.raises(TraceError, match="must be at most 4294967296 bytes"):
        replay(tmp_path, "mem_init(pri_mem, 0x0, 0x10000000000, ONES);\n")
    with pytest.raises(TraceError, match="must be at most 65536 bytes"):
        replay(tmp_path, "mem_init(pri_mem, 0x0, 0x10000, ONES);\n", limits=Limits(memory=65536))
    with pytest.raises(LinkError, match="would exceed the limit"):
        text = LOAD + bdma(target=0x40000000, size=32 * 8192) + "intr_notify(BDMA_0, a);\n"
        replay(tmp_path, text, images={"in.bin": bytes(32 * 8192)}, limits=Limits(memory=600000))


def test_a_chain_of_many_events_takes_linear_time(tmp_path):
    """Each block waits for the next one, in the unluckiest order."""
    count = 20000
    lines = [f"sync_wait(B{i}, e{i + 1});\nsync_notify(B{i}, e{i});\n" for i in range(count)]
    text = "".join(lines) + f"sync_notify(LAST, e{count});\nreg_read_expected(LAST.D_CYA_0, 0x0);\n"
    assert replay(tmp_path, text.replace("LAST", "NVDLA_PDP")).passed


TXN = f"""# a copy
load_mem 0x{SOURCE:x} 0x40 in.dat
write_reg 0xffff1000 0x{SOURCE:x}
write_reg 0xffff1002 0x{TARGET:x}
write_reg 0xffff1004 0x1
write_reg 0xffff1005 0x3
write_reg 0xffff100c 0x1
read_reg 0xffff0003 0x40 0x0
write_reg 0xffff100d 0x1
wait
read_reg 0xffff0003 0x00000040 0x00000040
write_reg 0xffff0003 0xffffffff
read_reg 0xffff0003 0xffffffff 0x0
dump_mem 0x{TARGET:x} 0x40 out.dat
write_mem 0x{TARGET:x} 0x0002 0xabcd
read_mem 0x{TARGET:x} 0xffff 0xab01
"""


def hex_lines(data):
    rows = [" ".join(f"0x{byte:02x}" for byte in data[i : i + 32]) for i in range(0, len(data), 32)]
    return ("W = 8\n" + "\n".join(rows) + "\n").encode()


def test_the_nv_full_form_runs_in_sequence(tmp_path):
    images = {"in.dat": hex_lines(DATA), "out.dat": hex_lines(DATA)}
    result = replay(tmp_path, TXN, "input.txn", images=images)
    assert result.passed
    assert [each.name.split()[0] for each in result.checks] == ["read", "read", "read", "dump_mem", "read_mem"]
    images["out.dat"] = hex_lines(MIXED)
    assert [each.passed for each in replay(tmp_path, TXN, "input.txn", images=images).checks].count(False) == 1


def test_a_wait_for_no_interrupt_fails_and_the_trace_goes_on(tmp_path):
    result = replay(tmp_path, "wait\nread_reg 0xffff0003 0xffffffff 0x0\n", "input.txn")
    assert [each.passed for each in result.checks] == [False, True]


def test_the_command_prints_each_check_and_its_exit_code_counts(tmp_path, capsys):
    good = write(tmp_path, LOAD + bdma() + "intr_notify(BDMA_0, done);\n" + check())
    assert main(["trace", "replay", str(good), "--config", "nv_full"]) == 0
    assert "1 check passed, 0 failed" in capsys.readouterr().out
    bad = write(tmp_path, LOAD + bdma() + "intr_notify(BDMA_0, done);\n" + check(MIXED))
    assert main(["trace", "replay", str(bad), "--config", "nv_full"]) == 1
    assert "FAIL  line 9: check_crc done" in capsys.readouterr().out
    assert main(["trace", "replay", str(bad), "--config", "nv_small"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nv_small has no BDMA" in error
    broken = write(tmp_path, "reg_write(x);\n")
    assert main(["trace", "replay", str(broken), "--config", "nv_full"]) == 2
    assert "t.cfg:1: " in capsys.readouterr().err


def test_the_command_prints_json_and_dumps_memory(tmp_path, capsys):
    path = write(tmp_path, LOAD + bdma() + "intr_notify(BDMA_0, done);\n" + check())
    out = tmp_path / "out"
    assert main(["trace", "replay", str(path), "--config", "nv_full", "--json", "--dump-memory", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["checks"][0]["line"] == 9
    assert [each["engine"] for each in report["operations"]] == ["bdma"]
    assert sorted(path.name for path in out.iterdir()) == ["dram_0x80000000.bin", "dram_0x80100000.bin"]
    assert (out / "dram_0x80100000.bin").read_bytes() == DATA


def test_a_dump_that_cannot_be_written_is_one_line(tmp_path, capsys):
    path = write(tmp_path, LOAD)
    (tmp_path / "file").write_text("")
    assert (
        main(["trace", "replay", str(path), "--config", "nv_full", "--dump-memory", str(tmp_path / "file" / "x")]) == 2
    )
    assert capsys.readouterr().err.count("\n") == 1


WORDS = ["reg_write", "mem_load", "mem_init", "intr_notify", "check_crc", "sync_wait", "sync_notify", "check_file", "("]
WORDS += ["NVDLA_BDMA.CFG_LAUNCH0_0", "NVDLA_PDP.D_OP_ENABLE_0", "NVDLA_RBK.D_OP_ENABLE_0", "pri_mem", "0x80000000"]
WORDS += ["1", "64", '"in.bin"', "ONES", "BDMA_0", "a", ",", ",", ",", ")", ");\n", ");\n", "\n", "0xffffffffffffffff"]


@pytest.mark.parametrize("seed", range(60))
def test_random_lines_replay_or_raise_one_error(tmp_path, seed):
    choose = np.random.default_rng(seed)
    lines = []
    for _ in range(30):
        name = WORDS[choose.integers(0, 8)]
        count = choose.integers(1, 6)
        lines.append(f"{name}({','.join(WORDS[choose.integers(9, len(WORDS) - 5)] for _ in range(count))});\n")
    text = "".join(lines) if seed % 2 else "".join(WORDS[i] for i in choose.integers(0, len(WORDS), 60))
    try:
        replay(tmp_path, text)
    except NvdlaError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("name", "config"), [("pooling", "nv_large"), ("convolution", "nv_full")])
def test_a_replay_on_the_wrong_configuration_names_the_right_one(samples, capsys, name, config):
    """pooling.cfg runs on nv_large with other bytes; convolution.cfg has settings that nv_full refuses."""
    code = main(["trace", "replay", str(samples / "traces" / f"{name}.cfg"), "--config", config])
    output = "".join(capsys.readouterr())
    assert code == (1 if name == "pooling" else 2)
    assert "very check passes on nv_small" in output


def test_a_replay_that_fails_everywhere_names_no_configuration(tmp_path, capsys):
    path = write(tmp_path, LOAD + bdma() + "intr_notify(BDMA_0, done);\n" + check(b"x" * 64))
    assert main(["trace", "replay", str(path), "--config", "nv_full"]) == 1
    assert "passes on" not in capsys.readouterr().out
