"""The two trace languages: what each command means, and what is wrong with a line, by file and line number."""

from __future__ import annotations

import pytest

from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace import commands, read_trace
from nvdla.errors import TraceError


def parse(folder, text, name="t.cfg", config="nv_full"):
    (folder / name).write_text(text)
    return read_trace(folder / name, configuration(config)).commands


def test_comments_and_blank_lines_are_skipped_but_counted(tmp_path):
    (only,) = parse(tmp_path, "// a comment\n\n   reg_write ( NVDLA_PDP.D_CYA_0 , 12 ) ; // more\n")
    assert only.line == 3
    assert (str(only.register), only.value) == ("PDP.D_CYA", 12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reg_read(NVDLA_SDP.D_STATUS_0, x);", (None, 0xFFFFFFFF)),
        ("reg_read_expected(NVDLA_SDP.D_STATUS_0, 0x1);", (1, 0xFFFFFFFF)),
        ("reg_read_check(NVDLA_SDP.D_STATUS_0, 0b11);", (3, 0xFFFFFFFF)),
    ],
)
def test_register_reads_compare_when_a_value_is_given(tmp_path, text, expected):
    (read,) = parse(tmp_path, text)
    assert (read.expected, read.mask) == expected


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("poll_reg_equal(NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0,0x1);", 1, True),
        ("poll_reg_greater(NVDLA_PDP.S_STATUS_0, 4);", 4, False),
        ("poll_reg_not_less(NVDLA_PDP.S_STATUS_0, 4);", 4, True),
        ("poll_reg_less(NVDLA_PDP, S_STATUS_0, 4);", 3, True),
        ("poll_field_equal(NVDLA_PDP.S_STATUS_0, STATUS_1, 2);", 2 << 16, True),
        ("poll_field_nt_greater(NVDLA_PDP, S_STATUS_0, STATUS_1, 1);", 2 << 16, False),
        ("poll_reg_not_equal(NVDLA_PDP.S_STATUS_0, 0);", 0, False),
    ],
)
def test_polls_compare_registers_and_fields(tmp_path, text, value, holds):
    (poll,) = parse(tmp_path, text)
    assert poll.holds(value) is holds


def test_checks_name_their_event_memory_and_golden(tmp_path):
    (tmp_path / "golden.dat").write_text("{offset:0x4, size:2, payload:0x01 0x02}")
    text = 'check_crc(a, 1, 0x80000000, 64, 0xdeadbeef);\ncheck_file(b, sec_mem, 0x10, 0x20, "golden.dat");\n'
    crc, file, nothing = parse(tmp_path, text + "check_nothing(c);")
    assert (crc.sync_id, crc.space, crc.address, crc.size, crc.crc) == ("a", Space.DRAM, 1 << 31, 64, 0xDEADBEEF)
    assert (file.space, file.image.segments) == (Space.CVSRAM, ((4, b"\x01\x02"),))
    assert (nothing.crc, nothing.image, nothing.size) == (None, None, 0)


def test_memory_commands_may_wait_for_an_event(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\x07" * 5)
    text = 'mem_init(pri_mem, 0x0, 0x10, AFIVE);\nmem_init(pri_mem, 0x0, "a.bin", ONES, go);\n'
    text += 'mem_load(sec_mem, 0x20, "a.bin", go);\nmem_reserve(pri_mem, 0x100, 8);\nmem_release(pri_mem, 0x100, go);'
    init, init_file, load, reserve, release = parse(tmp_path, text)
    assert (init.pattern, init.size, init.after) == ("AFIVE", 16, "")
    assert (init_file.pattern, init_file.size, init_file.after) == ("ONES", 5, "go")
    assert (load.image.end, load.after) == (5, "go")
    assert (reserve.pattern, release.size) == (None, 0)


def test_interrupts_are_named_in_either_case(tmp_path):
    first, second, third = parse(tmp_path, "intr_notify(cdma_dat_0, a);\nintr_notify(SDP_1, b);\nintr_notify(c);")
    assert [(each.cause, each.group, each.sync_id) for each in (first, second, third)] == [
        ("CDMA_DAT", 0, "a"),
        ("SDP", 1, "b"),
        (None, 0, "c"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("reg_wirte(NVDLA_PDP.D_CYA_0, 1);", "unknown command 'reg_wirte': must be one of reg_write"),
        ("reg_write(NVDLA_PDP.D_CYA_0, 1)", "is not a command"),
        ("reg_write(NVDLA_PDP.D_CYA_0);", "arguments: must be 2, got 1"),
        ("reg_write(NVDLA_PDP.D_NOTHING_0, 1);", "unit PDP of register map nv_full has no register 'D_NOTHING'"),
        ("reg_write(NVDLA_PPP.D_CYA_0, 1);", "unknown unit 'PPP'"),
        ("reg_write(D_CYA_0, 1);", "is not a register: must be UNIT.REGISTER_0"),
        ("reg_write(NVDLA_PDP.D_CYA_0, 0x1ffffffff);", "must be an unsigned number of at most 32 bits"),
        ("reg_write(NVDLA_PDP.D_CYA_0, minus);", "must be an unsigned number of at most 32 bits, got 'minus'"),
        ("poll_field_equal(NVDLA_PDP.S_STATUS_0, NO, 2);", "register PDP.S_STATUS has no field 'NO'"),
        ("poll_reg_about(NVDLA_PDP.S_STATUS_0, 2);", "unknown command 'poll_reg_about'"),
        ("intr_notify(PDP_2, a);", "unknown interrupt 'PDP_2': must be one of SDP"),
        ("mem_init(pri_mem, 0x0, 16, STRIPES);", "unknown memory pattern 'STRIPES': must be one of ALL_ZERO"),
        ("mem_init(third_mem, 0x0, 16, ONES);", "unknown memory 'third_mem'"),
        ('mem_load(pri_mem, 0x0, "gone.dat");', "file 'gone.dat': must be a regular file"),
        ("mem_load(pri_mem, 0x0, gone.dat);", "not a file name"),
        ("check_crc(a, 1, 0x0, 4, 0x123456789);", "at most 32 bits"),
        ("sync_wait(SDP);", "arguments: must be 2, got 1"),
    ],
)
def test_a_bad_cfg_line_is_named_by_file_and_number(tmp_path, line, message):
    with pytest.raises(TraceError, match=r"^t\.cfg:2: ") as caught:
        parse(tmp_path, f"// fine\n{line}\n")
    assert message in str(caught.value)


def test_txn_registers_have_word_addresses(tmp_path):
    text = "write_reg 0xffff3406 0x6 # PDP\nread_reg 0xffff3406 0x1fff 0x6\nwait\n"
    write, read, wait = parse(tmp_path, text, "input.txn")
    assert (str(write.register), write.value) == ("PDP.D_DATA_CUBE_OUT_WIDTH", 6)
    assert (read.mask, read.expected, read.retry) == (0x1FFF, 6, True)
    assert isinstance(wait, commands.WaitInterrupt)


def test_txn_memory_files_are_hex_lines_after_a_header(tmp_path):
    (tmp_path / "m.dat").write_text("W = 8\nPrecision = INT16\n0x01 0x02 0x03 0x04\n 0x05 0x06\n")
    load, dump = parse(tmp_path, "load_mem 0x50000000 0x5 m.dat\ndump_mem 0x80000000 0x6 m.dat", "input.txn")
    assert (load.space, load.image.segments) == (Space.CVSRAM, ((0, b"\x01\x02\x03\x04\x05"),))
    assert (dump.space, dump.size, dump.sync_id) == (Space.DRAM, 6, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("move 1 2", "unknown command 'move': must be one of write_reg"),
        ("write_reg 0xffff3406", "write_reg: arguments: must be 2, got 1"),
        ("write_reg 0xfffffff0 1", "no register at byte address 0x3ffc0"),
        ("read_reg 0xffff3406 0x1 <= 0x1", "comparison: must be =="),
        ("wait low dla_intr", "wait: condition: must be high, posedge or omitted, got 'low'"),
        ("load_mem 0x0 0x20 m.dat", "must have at least 32 bytes (command), got 2"),
    ],
)
def test_a_bad_txn_line_is_named_by_file_and_number(tmp_path, line, message):
    (tmp_path / "m.dat").write_text("0x01 0x02\n")
    with pytest.raises(TraceError, match=r"^input\.txn:3: ") as caught:
        parse(tmp_path, f"# one\n\n{line}\n", "input.txn")
    assert message in str(caught.value)
    assert "'nvdla csb replay'" in str(caught.value)


def test_a_missing_trace_is_an_error_of_its_own(tmp_path):
    with pytest.raises(TraceError, match=r"gone\.cfg cannot be read"):
        read_trace(tmp_path / "gone.cfg", configuration("nv_full"))
