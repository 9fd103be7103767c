"""Memory images: NVIDIA's packets, raw bytes, and the wall around the trace's folder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace.commands import PATTERNS, TraceFolder, TraceMemory, parse_hex_lines, parse_packets
from nvdla.errors import LinkError, TraceError

LIMIT = 1 << 20


def test_packets_may_have_gaps_and_any_radix():
    text = b"# surface\n{\n{offset:0x20, size:4, payload:0x00 0x10 32 0x30} ,\n"
    text += b"{ offset: 96, size:0x2, payload:0x7 9}\n}\n"
    image = parse_packets(text, "a.dat", LIMIT)
    assert image.segments == ((0x20, bytes([0, 16, 32, 48])), (96, bytes([7, 9])))
    assert image.end == 98


def test_neighbouring_packets_are_one_segment_and_short_payloads_are_filled_up():
    text = b"{offset:0, size:2, payload:0x01 0x02},\n{offset:2, size:3, payload:0x03},\n"
    assert parse_packets(text, "a.dat", LIMIT).segments == ((0, bytes([1, 2, 3, 0, 0])),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{offset:0x0, size:1, payload:0x01 0x02}", "payload: must have at most 1 bytes"),
        (b"{offset:0x0, size:1, payload:0x100}", "payload byte"),
        (b"{offset:zero, size:1, payload:0x00}", "offset"),
        (b"{size:1, payload:0x00}", "must be a packet"),
        (b"{offset:0x0, size:0xffffffff, payload:0x00}", "limit"),
        (b"\xff\xfe", "must be a packet"),
    ],
)
def test_a_bad_packet_is_named_by_file_and_line(line, message):
    with pytest.raises(TraceError, match=r"a\.dat:2") as caught:
        parse_packets(b"{\n" + line + b"\n}", "a.dat", LIMIT)
    assert message in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_a_trace_error(data):
    for parse in (lambda: parse_packets(data, "x", LIMIT), lambda: parse_hex_lines(data, 16, "x")):
        try:
            assert parse().end <= LIMIT + (1 << 64)
        except TraceError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["../secret.dat", "/etc/passwd", "a/../../secret.dat", "sub\\..\\x", "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    inside = tmp_path / "trace"
    inside.mkdir()
    (tmp_path / "secret.dat").write_text("{offset:0, size:1, payload:0x1}")
    with pytest.raises(TraceError, match="must be in the directory of the trace"):
        TraceFolder(inside, LIMIT).image(name)


def test_links_that_leave_the_folder_are_refused(tmp_path):
    inside = tmp_path / "trace"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"x")
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(TraceError, match=r"must be in the directory of the trace .*, got a link to"):
        TraceFolder(inside, LIMIT).image("link.bin")


def test_files_beyond_the_limit_and_folders_are_refused(tmp_path):
    (tmp_path / "big.bin").write_bytes(bytes(100))
    with pytest.raises(TraceError, match="must have at most 99 bytes, got 100"):
        TraceFolder(tmp_path, 99).image("big.bin")
    with pytest.raises(TraceError, match="must be a regular file"):
        TraceFolder(tmp_path, 99).image(".")


def test_images_in_sub_folders_are_fine(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(b"{offset")
    assert TraceFolder(tmp_path, LIMIT).image("sub/a.bin").segments == ((0, b"{offset"),)


def test_ranges_that_touch_become_one_region():
    memory = TraceMemory([(Space.DRAM, 0x80000100, 0x100), (Space.DRAM, 0x80000180, 0x1000), (Space.CVSRAM, 0, 16)])
    assert len(memory.regions(Space.DRAM)) == 1
    assert memory.view(Space.DRAM, 0x80000000, 0x2000).size == 0x2000
    assert memory.used == [(Space.CVSRAM, 0, 16), (Space.DRAM, 0x80000100, 0x1080)]


def test_an_address_that_no_range_foresaw_is_zero_memory():
    memory = TraceMemory([(Space.DRAM, 0x80000000, 16)])
    view = memory.view(Space.DRAM, 0xC0000000, 64)
    view[:] = 7
    assert memory.view(Space.DRAM, 0xC0000010, 4).tolist() == [7] * 4
    assert (Space.DRAM, 0xC0000000, 64) in memory.used


def test_memory_beyond_the_limit_is_refused_with_the_sum():
    with pytest.raises(TraceError, match=r"must be at most 1048576 bytes, got \d+ in 2 ranges"):
        TraceMemory([(Space.DRAM, 0, 1 << 19), (Space.DRAM, 1 << 40, 1 << 19)], 1 << 20)
    memory = TraceMemory([(Space.DRAM, 0, 16)], 1 << 20)
    with pytest.raises(LinkError, match="would exceed the limit"):
        memory.view(Space.DRAM, 1 << 40, 1 << 20)
    with pytest.raises(TraceError, match="must end within 64-bit addresses"):
        TraceMemory([(Space.DRAM, (1 << 64) - 1, 16)])


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([Space.DRAM, Space.CVSRAM]),
            st.one_of(st.integers(0, 1 << 20), st.integers((1 << 64) - (1 << 20), (1 << 64) - 1)),
            st.integers(1, 1 << 16),
        ).filter(lambda each: each[1] + each[2] <= 1 << 64),
        min_size=1,
        max_size=8,
    )
)
def test_every_range_is_in_one_region_and_can_be_read_back(ranges):
    memory = TraceMemory(ranges)
    for number, (space, address, size) in enumerate(ranges):
        memory.view(space, address, size)[:] = number
        assert memory.view(space, address + size - 1, 1)[0] == number


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("ALL_ZERO", [0] * 4), ("ONES", [255] * 4), ("AFIVE", [0xA5] * 4), ("FIVEA", [0x5A] * 4), ("X", [0] * 4)],
)
def test_patterns_fill_memory(pattern, expected):
    memory = TraceMemory([(Space.DRAM, 0, 64)])
    memory.view(Space.DRAM, 0, 64)[:] = 1
    memory.fill(Space.DRAM, 8, 4, pattern)
    assert memory.view(Space.DRAM, 8, 4).tolist() == expected
    assert memory.view(Space.DRAM, 12, 1)[0] == 1


def test_the_address_pattern_and_random_follow_the_address():
    memory = TraceMemory([(Space.DRAM, 0, 0x400)])
    memory.fill(Space.DRAM, 0xFE, 4, "ADDR")
    assert memory.view(Space.DRAM, 0xFE, 4).tolist() == [0xFE, 0xFF, 0, 1]
    memory.fill(Space.DRAM, 0x200, 256, "RANDOM")
    first = memory.view(Space.DRAM, 0x200, 256).copy()
    memory.fill(Space.DRAM, 0x200, 256, "RANDOM")
    assert np.array_equal(first, memory.view(Space.DRAM, 0x200, 256))
    assert len(set(first.tolist())) > 64
    assert "RANDOM" in PATTERNS
