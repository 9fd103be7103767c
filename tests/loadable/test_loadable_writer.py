"""Writing: what is written reads back as an equal model, and files appear whole or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.errors import LoadableError
from nvdla.loadable import (
    AddressEntry,
    Blob,
    EventEntry,
    Loadable,
    MemoryEntry,
    RelocEntry,
    SubmitEntry,
    TaskEntry,
    TensorDesc,
    Version,
    enums,
    load,
    to_bytes,
)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([0, 1, (1 << bits) - 1]), st.integers(0, (1 << bits) - 1))


def tuples(element: st.SearchStrategy, size: int = 4) -> st.SearchStrategy[tuple]:
    return st.lists(element, max_size=size).map(tuple)


U8, U16, U32, U64 = unsigned(8), unsigned(16), unsigned(32), unsigned(64)
S16, S32 = st.integers(-(1 << 15), (1 << 15) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(max_size=12)
VERSIONS = st.builds(Version, U8, U8, U8)

TASKS = st.builds(TaskEntry, U16, U32.map(enums.Interface), tuples(U16), S16, tuples(U16), tuples(U16))
MEMORIES = st.builds(
    MemoryEntry,
    U16,
    U64,
    U8.map(enums.MemoryDomain),
    U16.map(enums.MemoryFlags),
    U32,
    tuples(TEXT),
    tuples(U64),
    U16,
    U16,
)
BLOBS = st.builds(
    Blob, TEXT, st.binary(max_size=20), U64, U32.map(enums.Interface), U32.map(enums.SubInterface), st.none() | VERSIONS
)
TENSORS = st.builds(
    TensorDesc,
    TEXT,
    U16,
    U16,
    U64,
    S32,
    S32,
    S32,
    S32,
    offset=U64,
    data_format=U8.map(enums.DataFormat),
    data_type=U8.map(enums.DataType),
    data_category=U8.map(enums.DataCategory),
    pixel_format=U8.map(enums.PixelFormat),
    pixel_mapping=U8.map(enums.PixelMapping),
    strides=st.tuples(*[U32] * 8),
)
EVENTS = st.builds(EventEntry, U16, U8.map(enums.EventType), U16, U32, U8.map(enums.EventOp))
RELOCS = st.builds(
    RelocEntry, U16, U16, U64, U32.map(enums.Interface), U32.map(enums.SubInterface), U8.map(enums.RelocType)
)
LOADABLES = st.builds(
    Loadable,
    version=VERSIONS,
    tasks=tuples(TASKS),
    memories=tuples(MEMORIES),
    addresses=tuples(st.builds(AddressEntry, U16, U16, U64, U64)),
    events=tuples(EVENTS),
    blobs=tuples(BLOBS),
    tensors=tuples(TENSORS),
    relocs=tuples(RELOCS),
    submits=tuples(st.builds(SubmitEntry, U16, tuples(U16))),
    identifier=st.sampled_from(["NVDA", ""]),
)


@settings(max_examples=150, deadline=None)
@given(LOADABLES)
def test_any_model_survives_write_and_read(loadable: Loadable) -> None:
    assert load(to_bytes(loadable), checked=False) == loadable


def test_every_corpus_loadable_survives_write_and_read(corpus: list[Path]) -> None:
    for path in corpus:
        loadable = load(path)
        assert load(to_bytes(loadable)) == loadable, path


def test_writing_twice_gives_the_same_bytes(small: Loadable) -> None:
    assert to_bytes(small) == to_bytes(load(to_bytes(small)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"addresses": (AddressEntry(0, 70000),)},
            r"addresses\[0\].mem_id: must be an integer from 0 to 65535.*, got 70000",
        ),
        ({"addresses": (AddressEntry(0, 0, -1),)}, r"addresses\[0\].offset: must be an integer .*, got -1"),
        ({"tasks": (TaskEntry(0, 1, (70000,)),)}, r"tasks\[0\].address_list\[0\]: must be an integer .*, got 70000"),
        ({"events": (EventEntry("zero"),)}, r"events\[0\].id: must be an integer .*, got 'zero'"),
        ({"version": Version(256, 0, 0)}, r"version.major: must be an integer .*, got 256"),
        ({"blobs": (Blob("\ud800", b""),)}, r"blobs\[0\].name: .*UTF-8"),
        ({"submits": (SubmitEntry(0, (-1,)),)}, r"submits\[0\].task_id\[0\]: must be an integer .*, got -1"),
    ],
)
def test_numbers_that_do_not_fit_their_field_are_refused(small: Loadable, change: dict, message: str) -> None:
    with pytest.raises(LoadableError, match=message):
        to_bytes(dataclasses.replace(small, **change))


def test_a_tensor_has_eight_strides(small: Loadable) -> None:
    tensor = dataclasses.replace(small.tensors[0], strides=(1, 2))
    with pytest.raises(LoadableError, match=r"tensors\[0\].stride_0"):
        to_bytes(dataclasses.replace(small, tensors=(tensor,)))


def test_a_failed_save_leaves_the_old_file_and_nothing_else(small: Loadable, tmp_path: Path) -> None:
    target = tmp_path / "net.nvdla"
    small.save(target)
    before = target.read_bytes()
    broken = dataclasses.replace(small, addresses=(AddressEntry(0, 70000),))
    with pytest.raises(LoadableError):
        broken.save(target)
    with pytest.raises(LoadableError, match="cannot be written"):
        small.save(tmp_path / "no such folder" / "net.nvdla")
    with pytest.raises(LoadableError):
        small.save("nul\0name")
    assert [path.name for path in tmp_path.iterdir()] == ["net.nvdla"]
    assert target.read_bytes() == before
