"""The memory map: addresses as the linker's, lifetimes as the run's, nothing lost and nothing counted twice."""

import itertools
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import nvdla
from nvdla.analysis.memory import MemoryMap, memory_svg
from nvdla.analysis.study import Study
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.emulator.memory.placement import place
from nvdla.errors import LinkError
from nvdla.loadable.enums import MemoryFlags
from nvdla.program.accesses import Footprint, merged

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.stem)
def loadable(request):
    return nvdla.load(request.param)


def test_addresses_are_those_of_a_run(loadable):
    linked = LinkedLoadable(loadable)
    assert {each.memory.id: each.address for each in place(loadable)} == {
        memory: region.base for memory, region in linked.regions.items()
    }
    assert {each.memory.id: each.reserved for each in place(loadable)} == {
        memory: region.size for memory, region in linked.regions.items()
    }


def test_operations_write_at_the_addresses_of_the_map(loadable):
    """Every byte that a run changes in an intermediate or output memory lies in a buffer of the map."""
    runtime = nvdla.Runtime(loadable)
    generator = np.random.default_rng(1)
    inputs = [generator.integers(0, 100, tensor.size, np.uint8).tobytes() for tensor in runtime.inputs]
    runtime.run_raw(inputs)
    study = Study.of(loadable)
    for memory, region in runtime._linked.regions.items():
        entry = loadable.memory(memory)
        if entry.contents or entry.is_input:
            continue
        told = np.zeros(region.size, bool)
        for value in study.values:
            if value.memory == memory:
                for start, end in value.pieces:
                    told[start:end] = True
        assert not region.data[~told].any()


def test_the_first_write_comes_before_the_last_read(loadable):
    study = Study.of(loadable)
    for value in study.values:
        assert value.first <= value.last
        assert value.kind != "unset"
        if value.writer:
            assert value.first == study.step_of[value.writer]
        for key, _ in value.readers:
            assert study.step_of[key] >= value.first


def test_every_operand_in_memory_is_a_value(loadable):
    study = Study.of(loadable)
    for node in study.operations:
        read = {role for value in study.values for key, role in value.readers if key == node.key}
        assert read == {access.role for access in node.reads}
        assert sum(value.writer == node.key for value in study.values) == len(node.writes)


def test_live_bytes_are_those_counted_one_by_one(loadable):
    study = Study.of(loadable)
    memory = MemoryMap.of(study)
    spaces = {each.memory.id: each.space for each in memory.allocations}
    for space, live in memory.usage.items():
        for step, amount in enumerate(live):
            pieces = {}
            for value in study.values:
                if value.kind != "constant" and spaces[value.memory] == space and value.first <= step <= value.last:
                    pieces.setdefault(value.memory, []).extend(value.pieces)
            assert amount == sum(end - start for each in pieces.values() for start, end in merged(sorted(each)))


def test_no_sample_overwrites_what_is_still_needed(loadable):
    assert MemoryMap.of(Study.of(loadable)).overlaps() == []


def test_totals_add_up(loadable):
    memory = MemoryMap.of(Study.of(loadable))
    rows = memory.allocation_rows()
    for space in memory.spaces():
        mine = [row for row in rows if row["space"] == space["space"]]
        assert space["allocated"] == sum(row["size"] for row in mine)
        assert space["allocated"] == space["constant"] + space["bound"] + space["intermediate"]
        assert space["carve_out"] >= sum(row["reserved"] for row in mine)
        assert space["peak_live"] <= space["bound"] + space["intermediate"]


def _with_surfaces(loadable, change):
    """The loadable with its first task's surfaces changed by ``change(position, containers)``."""
    study = Study.of(loadable)
    task = study.tasks[loadable.tasks[0].id]
    change(task)
    address = loadable.address(task.task.address_list[task.network.surface_desc_index])
    memory = loadable.memory(address.mem_id)
    data = bytes(task.surface_containers)
    blobs = tuple(replace(b, data=memoryview(data)) if b.name == memory.contents[0] else b for b in loadable.blobs)
    return replace(loadable, blobs=blobs)


def test_a_buffer_that_is_overwritten_too_early_is_found():
    """The third layer's result goes over part of the second's, which the fourth layer then reads as a whole."""
    loadable = nvdla.load(next(path for path in SAMPLES if path.stem == "lenet"))
    chains = Study.of(loadable).steps
    second, third, fourth = chains[1][-1], chains[2][-1], chains[3][0]

    def read_too_late(task):
        result = task.surface_containers[second.index].pdp_surface.dst_data
        target = task.surface_containers[third.index].sdp_surface.dst_data
        source = task.surface_containers[fourth.index].conv_surface.src_data
        for cube in (target, source):
            cube.address, cube.offset = result.address, result.offset
        for name in ("width", "height", "channel", "line_stride", "surf_stride"):
            setattr(source, name, getattr(result, name))

    study = Study.of(_with_surfaces(loadable, read_too_late))
    victim = next(value for value in study.values if value.writer == second.key)
    (row,) = MemoryMap.of(study).overlaps()
    assert (row["earlier"], row["operation"], row["bytes"]) == (victim.id, third.label, 120)
    assert victim.damaged_by == [third.key]


@pytest.mark.parametrize("first", [3000, 20480], ids=["across the end", "beyond the end"])
def test_a_result_that_leaves_its_memory_is_an_error(lenet_loadable, nvdla_command, tmp_path, first):
    """It overwrites what follows in the address space, such as the input, which is read afterwards."""
    chain = Study.of(lenet_loadable).steps[0]

    def move(task):
        task.surface_containers[chain[-1].index].pdp_surface.dst_data.offset = first

    broken = _with_surfaces(lenet_loadable, move)
    row = {"operation": "0/2", "field": "dst_data", "writes": True, "memory": 1}
    assert MemoryMap.of(Study.of(broken)).outside() == [row | {"first": first, "end": first + 1152, "size": 1536}]
    broken.save(path := tmp_path / "broken.nvdla")
    code, out, _ = nvdla_command("memory", path)
    assert code == 1 and f"OUTSIDE: dst_data of operation 0/2 writes bytes {first:,} to " in out
    assert MemoryMap.of(Study.of(lenet_loadable)).outside() == []


def test_a_buffer_after_the_end_of_its_memory_is_shown_where_its_page_reaches(lenet_loadable):
    """Memories are allocated in whole pages, so that a surface after the last byte of one is still in it."""
    chain = Study.of(lenet_loadable).steps[0]

    def move(task):
        task.surface_containers[chain[-1].index].pdp_surface.dst_data.offset = 1600

    rows = MemoryMap.of(Study.of(_with_surfaces(lenet_loadable, move))).buffer_rows()
    assert [(row["offset"], row["bytes"], row["kind"]) for row in rows if row["written_by"] == chain[-1].label] == [
        (1600, 1152, "intermediate")
    ]
    assert [row["bytes"] for row in rows if row["kind"] == "unset"] == [1152]


def test_a_base_off_a_page_or_beyond_64_bits_is_refused():
    loadable = nvdla.load(SAMPLES[0])
    for base in (1, -4096, (1 << 64) - 4096):
        with pytest.raises(LinkError):
            place(loadable, base)


def test_memories_that_are_not_allocated_have_no_address():
    loadable = nvdla.load(SAMPLES[0])
    first = loadable.memories[0]
    bare = replace(loadable, memories=(replace(first, flags=MemoryFlags.NONE), *loadable.memories[1:]))
    assert first.id not in {each.memory.id for each in place(bare)}
    rows = MemoryMap.of(Study.of(bare)).buffer_rows()
    assert any(row["address"] is None for row in rows if row["memory"] == first.id)


def test_the_drawing_is_well_formed_and_has_a_bar_a_buffer(loadable):
    memory = MemoryMap.of(Study.of(loadable))
    root = ElementTree.fromstring(memory_svg(memory))
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(memory.buffer_rows())


def test_table_drawing_and_peak_count_a_picture_with_the_padding_of_its_lines(nvdla_command, samples, tmp_path):
    """A picture of 28 pixels in lines of 32 bytes: 28 x 32 bytes everywhere, as the application gives them."""
    digits = np.load(samples / "digits.npz")["images"][:4, None].astype("f4")
    path, drawing = tmp_path / "net.nvdla", tmp_path / "memory.svg"
    nvdla.compile(str(samples / "lenet.onnx"), "nv_small", "int8", digits).save(path)
    study = Study.of(nvdla.load(path))
    picture = next(row for row in MemoryMap.of(study).buffer_rows() if row["kind"] == "input")
    assert (picture["bytes"], picture["line_stride"]) == (28 * 32, 32)
    code, shown, _ = nvdla_command("memory", path, "--svg", drawing)
    buffers = shown.partition("\nbuffers\n")[2].splitlines()
    row = next(line for line in buffers if picture["name"] in line.split())
    assert code == 0 and "896" in row.split()
    assert f"{picture['name']}: 896 bytes at" in drawing.read_text()
    assert MemoryMap.of(study).usage["dram"][0] == 896 + sum(
        value.bytes for value in study.values if value.kind == "intermediate" and value.first == 0
    )


def test_hostile_names_stay_text_in_the_drawing():
    loadable = nvdla.load(SAMPLES[0])
    nasty = "</title><script>alert(1)</script>\x00\ud800"
    blobs = tuple(
        replace(blob, name=nasty) if blob.name == loadable.memories[0].contents[0] else blob for blob in loadable.blobs
    )
    memories = tuple(
        replace(m, contents=tuple(nasty if c == loadable.memories[0].contents[0] else c for c in m.contents))
        for m in loadable.memories
    )
    text = memory_svg(MemoryMap.of(Study.of(replace(loadable, blobs=blobs, memories=memories, name=nasty))))
    assert "<script" not in text
    ElementTree.fromstring(text.encode())


@pytest.mark.parametrize(
    ("block", "pieces"),
    [
        (Footprint(8), [(10, 18)]),
        (Footprint(8, ((3, 8),)), [(10, 34)]),
        (Footprint(8, ((2, 16),)), [(10, 18), (26, 34)]),
        (Footprint(8, ((2, 8), (2, 100))), [(10, 26), (110, 126)]),
        (Footprint(8, ((2, 12), (2, 100))), [(10, 18), (22, 30), (110, 118), (122, 130)]),
        (Footprint(8, ((2, 4),)), [(10, 22)]),
        (Footprint(4, ((2, 8), (2, 4))), [(10, 26)]),
        (Footprint(8, ((3, 0), (2, 0))), [(10, 18)]),
        (Footprint(8, ((2, 8), (2, 16), (3, 1000))), [(10, 42), (1010, 1042), (2010, 2042)]),
    ],
)
def test_footprints_are_the_bytes_touched(block, pieces):
    steps = itertools.product(*(range(0, count * stride, stride) if stride else [0] for count, stride in block.loops))
    touched = {10 + sum(step) + byte for step in steps for byte in range(block.length)}
    found = block.pieces(10)
    assert found == pieces
    assert {byte for start, end in found for byte in range(start, end)} == touched
    assert block.extent == max(touched) - 9


def test_a_footprint_of_very_many_pieces_is_taken_as_one():
    assert Footprint(8, ((1 << 20, 16),)).pieces(10) == [(10, 10 + 16 * ((1 << 20) - 1) + 8)]
