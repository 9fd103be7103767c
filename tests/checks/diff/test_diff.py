"""The structural difference of two loadables: every planted change is found, named and placed."""

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvdla
from nvdla.checks.diff import diff


def test_a_loadable_does_not_differ_from_itself(lenet_loadable, samples):
    found = diff(lenet_loadable, nvdla.load((samples / "lenet.loadable").read_bytes()))
    assert found.identical
    assert found.counts() == {}


def test_a_wrong_shift_is_one_field_of_one_operation(lenet_loadable, plant):
    def change(task):
        task.operation(7).op.out_cvt.truncate += 1

    found = diff(lenet_loadable, plant(lenet_loadable, change))
    before = 23
    operations = [each for each in found.changes if each.area == "operation"]
    assert [(each.where, each.field, each.a, each.b) for each in operations] == [
        ("operation 0/7 (SDP)", "out_cvt.truncate", before, before + 1)
    ]
    assert {each.area for each in found.changes} == {"operation", "blobs"}
    assert not found.operands


def test_a_flipped_weight_byte_is_placed_in_its_kernel(lenet_loadable, plant_bytes):
    def change(data):
        data[8 + 3] ^= 0x40  # nv_small: kernels of a group follow one another, 8 channels each

    found = diff(lenet_loadable, plant_bytes(lenet_loadable, 10, "weight_data", change))
    assert [(each.where, each.operand, each.different) for each in found.operands] == [
        ("operation 0/10 (CONV)", "weight_data", 1)
    ]
    operand = found.operands[0]
    assert operand.first == {"index": 11, "kernel": 1, "channel": 3, "row": 0, "column": 0}
    assert operand.max_abs == 64
    assert operand.cosine < 1
    assert operand.statistics_a["elements"] == operand.statistics_b["elements"]


def test_packing_for_another_configuration_is_no_difference_of_operands(samples, lenet_loadable, plant_bytes):
    """Weights and biases are compared as unpacked, without the zeros that pad them to atoms."""
    other = nvdla.load(samples / "lenet_nv_large.loadable")
    assert not diff(lenet_loadable, other).operands

    def change(data):
        data[11] ^= 64

    (operand,) = diff(plant_bytes(lenet_loadable, 6, "weight_data", change), other).operands
    assert (operand.where, operand.different, operand.note) == ("operation 0/6 (CONV)", 1, None)
    assert {"kernel", "channel", "row", "column"} <= operand.first.keys()


def test_changes_of_tables_are_named(lenet_loadable):
    memories = tuple(
        dataclasses.replace(memory, size=memory.size + 8) if memory.id == 1 else memory
        for memory in lenet_loadable.memories
    )
    other = dataclasses.replace(lenet_loadable, memories=memories, relocs=lenet_loadable.relocs[:-1])
    found = diff(lenet_loadable, other)
    by_area = {each.area: each for each in found.changes}
    assert by_area["memory_list"].where == "memory_list id 1"
    assert by_area["memory_list"].field == "size"
    assert by_area["reloc_list"].what == "only in a"
    assert set(by_area) == {"memory_list", "reloc_list"}


def test_events_of_consumers_carry_their_names(lenet_loadable, plant):
    def change(task):
        task.operation(5).common.consumers[1].event = 2

    found = [each for each in diff(lenet_loadable, plant(lenet_loadable, change)).changes if each.area == "graph"]
    assert [(each.field, each.meaning_a, each.meaning_b) for each in found] == [
        ("consumers[CONV].event", "OP_COMPLETED", "OP_PROGRAMMED")
    ]


def test_differently_fused_networks_are_paired_by_shape(cases):
    names = ("lenet/nv_small-int8-fast-math", "lenet/nv_small-int8-basic")
    files = [next(case["file"] for case in cases if case["id"] == name) for name in names]
    found = diff(*(nvdla.load(path) for path in files))
    assert found.matched_by == {0: "shape", 1: "index"}
    assert {each.what for each in found.changes if each.area == "operation" and each.field is None} == {"only in b"}


def test_biases_are_not_compared_with_biases_and_factors(corpus):
    files = [
        corpus / "loadables" / "conv_relu_pool" / f"{name}.nvdla"
        for name in ("nv_small-int8-fast-math", "nv_large-int8-fast-math-pf")
    ]
    found = diff(*(nvdla.load(path) for path in files))
    (biases,) = (each for each in found.operands if each.operand == "x1_data")
    assert (biases.statistics_a["elements"], biases.statistics_b["elements"]) == (32, 64)
    assert (biases.different, biases.max_abs, biases.cosine, biases.note) == (None, None, None, "other size")


def test_both_abis_can_be_compared(corpus, samples):
    old = nvdla.load(corpus / "kmd-regression" / "CONV_D_L0_0_small_fbuf")
    found = diff(old, nvdla.load(samples / "lenet.loadable"))
    assert (found.abi_a, found.abi_b) == ("old", "new")
    assert not found.identical


@given(data=st.data())
def test_any_flipped_bit_of_any_blob_is_a_difference(lenet_loadable, data):
    index = data.draw(st.integers(0, len(lenet_loadable.blobs) - 1))
    blob = lenet_loadable.blobs[index]
    at = data.draw(st.integers(0, len(blob.data) - 1))
    content = bytearray(blob.data)
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    blobs = list(lenet_loadable.blobs)
    blobs[index] = dataclasses.replace(blob, data=memoryview(bytes(content)))
    with contextlib.suppress(nvdla.NvdlaError):  # descriptors that cannot be read any more
        assert not diff(lenet_loadable, dataclasses.replace(lenet_loadable, blobs=tuple(blobs))).identical


# ---- through the command line


def test_equal_files_give_exit_code_0(nvdla_command, samples):
    code, out, _ = nvdla_command("diff", samples / "lenet.loadable", samples / "lenet.loadable")
    assert (code, out) == (0, "The loadables are equal.\n")


def test_different_files_give_exit_code_1(nvdla_command, samples):
    code, out, _ = nvdla_command("diff", samples / "lenet.loadable", samples / "lenet_nv_large.loadable")
    assert code == 1
    assert "operation 0/0 (CONV)" in out
    assert "entry_per_slice" in out
    code, out, _ = nvdla_command("diff", samples / "lenet.loadable", samples / "lenet_nv_large.loadable", "--summary")
    assert (code, len(out.splitlines())) == (1, 1)


def test_what_is_no_loadable_gives_exit_code_2(nvdla_command, samples):
    assert nvdla_command("diff", samples / "lenet.loadable", samples / "digit0.pgm")[0] == 2


def test_the_json_is_as_documented(nvdla_command, samples, as_documented, plant_bytes, tmp_path):
    def change(data):
        data[0] ^= 1

    plant_bytes(nvdla.load(samples / "lenet_nv_large.loadable"), 6, "weight_data", change).save(tmp_path / "b.loadable")
    _, out, _ = nvdla_command("diff", samples / "lenet.loadable", tmp_path / "b.loadable", "--json")
    document = json.loads(out)
    as_documented(document)
    assert document["changes"]
    assert document["operands"]


def test_loadables_of_the_corpus_differ_from_one_another(cases):
    by_network = {}
    for case in cases:
        if case["size"] < 100_000:
            by_network.setdefault(case["network"], []).append(case["file"])
    for files in list(by_network.values())[::4]:
        one, other = nvdla.load(files[0]), nvdla.load(files[-1])
        assert diff(one, one).identical
        assert files[0] == files[-1] or not diff(one, other).identical


@pytest.fixture(autouse=True)
def _no_deadline():
    from hypothesis import settings

    settings.register_profile("diff", deadline=None, max_examples=40)
    settings.load_profile("diff")
    yield
    settings.load_profile("default")


def test_nothing_is_compiled_to_compare_files(samples):
    script = (
        "import sys; from nvdla.cli.main import main; main(['diff', *sys.argv[1:]]); sys.exit('numba' in sys.modules)"
    )
    files = [str(samples / name) for name in ("lenet.loadable", "lenet_nv_large.loadable")]
    assert subprocess.run([sys.executable, "-c", script, *files], capture_output=True, timeout=60).returncode == 0


def test_operations_of_fused_and_single_layers_are_paired(corpus, nvdla_command, tmp_path):
    """NVIDIA's default profile does a ReLU alone, fast-math with the convolution: these ReLUs have no counterpart."""
    folder = corpus / "loadables" / "mini_cnn"
    files = [
        shutil.copy(folder / f"nv_small-int8-{profile}.nvdla", tmp_path / f"{profile}.nvdla")
        for profile in ("default", "fast-math")
    ]
    for file in files:
        assert nvdla_command("layers", file, "--caffe", folder / "net.prototxt", folder / "net.caffemodel")[0] == 0
    _, out, _ = nvdla_command("diff", *files)
    assert re.findall(r"operation (\S+) \(\w+\).*only in", out) == ["0/2", "0/6"], out
