"""Reading: every real loadable is read whole, from any kind of source, and never loses a number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.errors import LoadableError
from nvdla.loadable import Limits, Loadable, load, to_bytes
from nvdla.loadable.enums import Interface, MemoryFlags, PixelFormat
from nvdla.loadable.generated import loadable_generated as fb


def test_every_corpus_loadable_is_read_and_passes_all_checks(corpus: list[Path]) -> None:
    for path in corpus:
        loadable = load(path)
        assert loadable.tasks and loadable.inputs + loadable.outputs, path


def test_what_is_read_agrees_with_the_generated_bindings(corpus: list[Path]) -> None:
    for path in corpus[::20]:
        loadable = load(path)
        theirs = fb.Loadable.GetRootAs(path.read_bytes(), 0)
        assert [blob.name.encode() for blob in loadable.blobs] == [
            theirs.Blobs(i).Name() for i in range(theirs.BlobsLength())
        ]
        for mine, other in zip(loadable.memories, map(theirs.MemoryList, range(len(loadable.memories))), strict=True):
            assert (mine.id, mine.size, mine.flags, mine.alignment, mine.domain, mine.bind_id) == (
                other.Id(), other.Size(), other.Flags(), other.Alignment(), other.Domain(), other.BindId()
            )  # fmt: skip
            assert mine.offsets == tuple(map(other.Offsets, range(other.OffsetsLength())))
        for mine, other in zip(loadable.tensors, map(theirs.TensorDescList, range(len(loadable.tensors))), strict=True):
            assert (mine.n, mine.c, mine.h, mine.w) == (other.N(), other.C(), other.H(), other.W())
            assert mine.strides[:3] == (other.Stride0(), other.Stride1(), other.Stride2())
            assert (mine.data_format, mine.pixel_format) == (other.DataFormat(), other.PixelFormat())
        for mine, other in zip(loadable.tasks, map(theirs.TaskList, range(len(loadable.tasks))), strict=True):
            assert mine.address_list == tuple(map(other.AddressList, range(other.AddressListLength())))
            assert (mine.interface, mine.instance) == (other.Interface(), other.Instance())


def test_lenet_is_what_its_compiler_made_it(corpus: list[Path]) -> None:
    path = next(path for path in corpus if path.parent.name == "lenet" and "nv_small-int8" in path.name)
    loadable = nvdla.load(str(path))
    assert loadable.identifier == "NVDA" and str(loadable.version) == "0.7.0"
    (source,), (result,) = loadable.inputs, loadable.outputs
    tensor = loadable.tensor(source.tensor_desc_id)
    assert (tensor.n, tensor.c, tensor.h, tensor.w) == (1, 1, 28, 28)
    assert tensor.pixel_format == PixelFormat.FEATURE_X8
    assert loadable.tensor(result.tensor_desc_id).c == 10
    assert {task.interface for task in loadable.tasks} == {Interface.DLA1, Interface.EMU1}


def test_relocations_name_memories_and_bytes_that_hold_the_stride(corpus: list[Path]) -> None:
    """Where address ids and memory ids differ (batches), only memory ids find the tensor's stride in the list."""
    apart = 0
    for path in corpus:
        loadable = load(path)
        for reloc in loadable.relocs:
            tensor = loadable.tensor(loadable.memory(loadable.address(reloc.address_id).mem_id).tensor_desc_id)
            (_, blob), *_ = loadable.contents(loadable.memory(reloc.write_id))
            stored = int.from_bytes(blob.data[reloc.offset : reloc.offset + 4], "little")
            assert stored == tensor.strides[reloc.reloc_type], path
            apart += loadable.address(reloc.write_id).mem_id != reloc.write_id
    assert apart


def test_files_of_2018_have_no_identifier_and_are_read(corpus: list[Path]) -> None:
    by_name = {path.name: load(path) for path in corpus if path.name.endswith("_fbuf")}
    assert by_name["CONV_D_L0_0_fbuf"].identifier == ""
    assert by_name["NN_L0_0_fbuf"].identifier == "NVDA"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_is_a_source(small: Loadable, kind) -> None:
    assert load(kind(to_bytes(small))) == small


def test_a_path_is_a_source(small: Loadable, tmp_path: Path) -> None:
    small.save(tmp_path / "small.nvdla")
    assert load(tmp_path / "small.nvdla") == small
    assert load(str(tmp_path / "small.nvdla")).name.endswith("small.nvdla")


def test_blobs_are_views_into_the_source(small: Loadable) -> None:
    data = bytearray(to_bytes(small))
    blob = load(data).blob("weights")
    place = bytes(data).index(b"\x01\x02\x03")
    data[place] = 99
    assert blob.data[0] == 99 and blob.data.readonly


def test_numbers_without_a_name_are_kept(small: Loadable) -> None:
    data = to_bytes(small)
    theirs = fb.Loadable.GetRootAs(data, 0)
    table = theirs.TensorDescList(0)._tab
    position = table.Pos + table.Offset(4 + 2 * 8)
    assert data[position] == PixelFormat.FEATURE_X8
    changed = load(data[:position] + b"\xc8" + data[position + 1 :])
    pixel_format = changed.tensors[0].pixel_format
    assert (pixel_format, pixel_format.name, pixel_format.known) == (200, "UNKNOWN_200", False)
    assert load(to_bytes(changed)) == changed


def test_lookups_name_what_is_missing(small: Loadable) -> None:
    assert small.memory(3).contents == ("surfaces", "weights")
    for lookup, wanted in ((small.memory, 9), (small.address, 9), (small.tensor, 9), (small.task, 9), (small.event, 9)):
        with pytest.raises(nvdla.LoadableError, match="no entry has id 9"):
            lookup(wanted)
    with pytest.raises(nvdla.LoadableError, match="blobs: no entry has name 'nothing'"):
        small.blob("nothing")


def test_an_address_is_clipped_to_its_memory(small: Loadable) -> None:
    assert [small.address_bytes(address) for address in small.addresses] == [64, 32, 40, 700]


def test_inputs_and_outputs_come_in_bind_order(small: Loadable) -> None:
    assert [memory.id for memory in small.inputs] == [0]
    assert [memory.id for memory in small.outputs] == [1]
    assert small.memories[2].flags == MemoryFlags.ALLOC | MemoryFlags.SET


@pytest.mark.parametrize("source", [5, None, object(), ["a"], np.zeros((4, 4))[:, ::2]])
def test_other_sources_are_refused(source: object) -> None:
    with pytest.raises(nvdla.LoadableError):
        load(source)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, "nul\0name", tmp_path / ("x" * 5000)):
        with pytest.raises(nvdla.LoadableError):
            load(path)


def test_a_pipe_is_read_up_to_the_limit_and_a_device_not_at_all() -> None:
    if not Path("/dev/fd").exists():
        pytest.skip("no /dev/fd here")
    end, beginning = os.pipe()
    os.write(beginning, bytes(8192))
    with pytest.raises(nvdla.LoadableError, match=r"file size: must be at most 4096 bytes \(Limits.file_size\)"):
        load(f"/dev/fd/{end}", limits=Limits(file_size=4096))
    os.close(end)
    os.close(beginning)
    with pytest.raises(nvdla.LoadableError, match="must be a file or a pipe, got a device"):
        load("/dev/zero")


def test_reading_imports_neither_numba_nor_the_engines(small: Loadable, tmp_path: Path) -> None:
    small.save(tmp_path / "small.nvdla")
    code = (
        "import sys, nvdla; nvdla.load(sys.argv[1]); "
        "print([m for m in ('numba', 'numpy', 'flatbuffers', 'nvdla.kernels') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "small.nvdla")], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("data", "kind", "hint"),
    [
        (bytes(257) + b"ustar\x0000" + bytes(250), "a tar archive (a TVM model library?)", "nvdla container list"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "a TFLite model", "nvdla compile"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "an image (PNG, JPEG or PNM)", "--input"),
        (b"\x1f\x8b\x08\0" + bytes(40), "a gzip file", "Decompress"),
    ],
)
def test_another_format_is_named_with_what_to_do(data, kind, hint, tmp_path, monkeypatch):
    from nvdla.loadable import reader

    monkeypatch.setattr(reader, "EXTRACTORS", {})
    path = tmp_path / "net.nvdla"
    path.write_bytes(data)
    with pytest.raises(LoadableError) as refused:
        load(path)
    wanted = f"{path}: must be an NVDLA loadable, got {kind}. "
    assert str(refused.value).startswith(wanted)
    assert hint in str(refused.value).removeprefix(wanted)
