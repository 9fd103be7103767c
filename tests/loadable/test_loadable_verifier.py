"""The structural verifier: every position is checked before it is read, and every message names what and where."""

from __future__ import annotations

import struct
import time

import flatbuffers
import pytest

from nvdla.errors import LoadableError
from nvdla.loadable import Limits, Loadable, load, to_bytes
from nvdla.loadable.generated import loadable_generated as fb


def patched(data: bytes, position: int, code: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<" + code, changed, position, value)
    return bytes(changed)


def field_position(table: object, slot: int) -> int:
    """Byte at which a field of a generated table lies."""
    return table._tab.Pos + table._tab.Offset(4 + 2 * slot)


def target(data: bytes, position: int) -> int:
    return position + struct.unpack_from("<I", data, position)[0]


def refused(data: bytes, match: str, limits: Limits | None = None) -> None:
    with pytest.raises(LoadableError, match=match) as caught:
        load(data, limits=limits, checked=False)
    assert "\n" not in str(caught.value)


@pytest.fixture
def data(small: Loadable) -> bytes:
    return to_bytes(small)


@pytest.fixture
def root(data: bytes) -> fb.Loadable:
    return fb.Loadable.GetRootAs(data, 0)


@pytest.mark.parametrize("size", range(8))
def test_a_file_has_at_least_a_root_offset(data: bytes, size: int) -> None:
    # The first byte alone is a dollar sign.
    texts = {0: "got an empty file", 1: "got a text file"}
    refused(data[:size], texts.get(size, f"file size: must be at least 8 bytes.*, got {size}"))


def test_every_truncation_is_refused(data: bytes) -> None:
    for size in range(len(data) - 8):
        with pytest.raises(LoadableError):
            load(data[:size])


def test_an_offset_beyond_the_end_is_refused_with_the_size_of_the_file(root: fb.Loadable, data: bytes) -> None:
    end = root.TaskList(0)._tab.Pos
    refused(data[:end], rf"offset: must be between 1 and \d+ \(file size {end}\), got \d+ \(cut off\?\)")


@pytest.mark.parametrize("offset", [0, 1 << 31, (1 << 32) - 1])
def test_the_root_is_inside_the_file(data: bytes, offset: int) -> None:
    refused(
        patched(data, 0, "I", offset), f"Loadable.root offset at byte 0: offset: must be between 1 and.*, got {offset}"
    )


def test_the_root_is_aligned(data: bytes) -> None:
    position = struct.unpack_from("<I", data)[0]
    refused(patched(data, 0, "I", position + 2), "position of table: must be a multiple of 4")


@pytest.mark.parametrize("distance", [1 << 30, -(1 << 30), 1])
def test_vtables_lie_inside_the_file_and_are_aligned(data: bytes, root: fb.Loadable, distance: int) -> None:
    refused(patched(data, root._tab.Pos, "i", distance), r"Loadable at byte \d+: vtable position: must be even")


@pytest.mark.parametrize("size", [0, 2, 7, 0xFFFE])
def test_vtable_sizes_are_possible(data: bytes, root: fb.Loadable, size: int) -> None:
    vtable = root._tab.Pos - struct.unpack_from("<i", data, root._tab.Pos)[0]
    refused(patched(data, vtable, "H", size), f"vtable size: must be even and between 4 and.*, got {size}")


@pytest.mark.parametrize(
    ("offset", "message"),
    [(2, "field offset: must be 0 or at least 4, got 2"), (0xFFFC, "end of table: must be at most")],
)
def test_fields_lie_inside_the_file(data: bytes, root: fb.Loadable, offset: int, message: str) -> None:
    vtable = root._tab.Pos - struct.unpack_from("<i", data, root._tab.Pos)[0]
    refused(patched(data, vtable + 6, "H", offset), message)


def test_the_version_is_required() -> None:
    builder = flatbuffers.Builder(64)
    fb.LoadableStart(builder)
    builder.Finish(fb.LoadableEnd(builder))
    refused(bytes(builder.Output()), "Loadable.version at byte .*: required field: must be present, got absent")


def test_absent_lists_are_empty() -> None:
    builder = flatbuffers.Builder(64)
    fb.LoadableStart(builder)
    fb.LoadableAddVersion(builder, fb.CreateVersion(builder, 0, 7, 0))
    builder.Finish(fb.LoadableEnd(builder))
    assert load(bytes(builder.Output())) == Loadable(identifier="")


@pytest.mark.parametrize("count", [1 << 20, (1 << 32) - 1])
def test_vectors_end_inside_the_file(data: bytes, root: fb.Loadable, count: int) -> None:
    for slot in range(1, 9):
        vector = target(data, field_position(root, slot))
        refused(patched(data, vector, "I", count), f"vector length: must be at most.*, got {count}")


def test_blob_data_end_inside_the_file(data: bytes, root: fb.Loadable) -> None:
    vector = target(data, field_position(root.Blobs(1), 5))
    refused(patched(data, vector, "I", len(data)), r"blobs\[1\].data at byte \d+: vector length: must be at most")


@pytest.mark.parametrize("length", [5000, 1 << 31])
def test_strings_are_not_longer_than_the_limit(data: bytes, root: fb.Loadable, length: int) -> None:
    string = target(data, field_position(root.Blobs(0), 0))
    refused(
        patched(data, string, "I", length),
        rf"blobs\[0\].name at byte {string}: string length: must be at most 4096 .*, got {length}",
    )


def test_strings_end_with_nul(data: bytes, root: fb.Loadable) -> None:
    string = target(data, field_position(root.Blobs(0), 0))
    refused(patched(data, string + 4 + len("network"), "B", 7), "byte after string: must be 0.*, got 7")


def test_strings_are_utf8(data: bytes, root: fb.Loadable) -> None:
    string = target(data, field_position(root.Blobs(0), 0))
    refused(
        patched(data, string + 5, "B", 0xFF), f"at byte {string + 5}: byte in string: must be valid UTF-8.*, got 0xff"
    )


def test_offsets_lie_inside_the_file_and_are_not_zero(data: bytes, root: fb.Loadable) -> None:
    position = field_position(root.Blobs(0), 0)
    for offset in (0, len(data), (1 << 32) - 1):
        refused(
            patched(data, position, "I", offset),
            rf"blobs\[0\].name at byte {position}: offset: must be .*, got {offset}",
        )


def test_numbers_are_aligned(data: bytes, root: fb.Loadable) -> None:
    table = root.MemoryList(0)._tab
    vtable = table.Pos - struct.unpack_from("<i", data, table.Pos)[0]
    size_entry = vtable + 4 + 2 * 3
    changed = patched(data, size_entry, "H", struct.unpack_from("<H", data, size_entry)[0] + 2)
    refused(changed, r"memory_list\[\d\].size at byte \d+: position: must be a multiple of 4.*, got \d+")


def test_every_limit_is_kept_and_can_be_raised(data: bytes) -> None:
    tables = 1 + 1 + 4 + 4 + 1 + 3 + 2 + 1 + 1
    refused(data, rf"table count: must be at most {tables - 1}.*, got {tables}", Limits(tables=tables - 1))
    refused(data, "depth: must be at most 1.*, got 2", Limits(depth=1))
    refused(data, "string length: must be at most 6.*, got 7", Limits(string_bytes=6))
    refused(data, f"size: must be at most 100.*, got {len(data)}", Limits(file_size=100))
    assert load(data, limits=Limits(len(data), tables, 2, 8)).blobs


def shared_strings(memories: int, names: int, length: int) -> bytes:
    """Many memories that share one contents vector whose names are all one string: small file, much to read."""
    builder = flatbuffers.Builder(1024)
    name = builder.CreateString("n" * length)
    builder.StartVector(4, names, 4)
    for _ in range(names):
        builder.PrependUOffsetTRelative(name)
    contents = builder.EndVector()
    entries = []
    for _ in range(memories):
        fb.MemoryListEntryStart(builder)
        fb.MemoryListEntryAddContents(builder, contents)
        entries.append(fb.MemoryListEntryEnd(builder))
    builder.StartVector(4, memories, 4)
    for entry in entries:
        builder.PrependUOffsetTRelative(entry)
    vector = builder.EndVector()
    fb.LoadableStart(builder)
    fb.LoadableAddMemoryList(builder, vector)
    fb.LoadableAddVersion(builder, fb.CreateVersion(builder, 0, 7, 0))
    builder.Finish(fb.LoadableEnd(builder))
    return bytes(builder.Output())


def test_sharing_is_allowed() -> None:
    loadable = load(shared_strings(2, 2, 4), checked=False)
    assert [memory.contents for memory in loadable.memories] == [("nnnn", "nnnn")] * 2


def test_sharing_cannot_make_reading_take_longer_than_the_file_is_large() -> None:
    data = shared_strings(5000, 5000, 4000)
    began = time.perf_counter()
    refused(data, "data read through shared offsets: must be at most 8 times the file size")
    assert time.perf_counter() - began < 2


def test_sharing_one_table_many_times_is_refused() -> None:
    builder = flatbuffers.Builder(1024)
    fb.TensorDescListEntryStart(builder)
    for number in range(8):
        getattr(fb, f"TensorDescListEntryAddStride{number}")(builder, 7)
    entry = fb.TensorDescListEntryEnd(builder)
    builder.StartVector(4, 60000, 4)
    for _ in range(60000):
        builder.PrependUOffsetTRelative(entry)
    vector = builder.EndVector()
    fb.LoadableStart(builder)
    fb.LoadableAddTensorDescList(builder, vector)
    fb.LoadableAddVersion(builder, fb.CreateVersion(builder, 0, 7, 0))
    builder.Finish(fb.LoadableEnd(builder))
    refused(bytes(builder.Output()), "data read through shared offsets: must be at most")
