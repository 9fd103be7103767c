"""Comparing runs: planted faults are found at the right operation, and nothing is found where nothing is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvdla
from nvdla.checks.compare.comparison import Tolerances, compare_run, dense, observe, region_around
from nvdla.checks.compare.runs import RunReference
from nvdla.emulator.memory.surfaces import FeatureLayout, pack_direct
from nvdla.program.naming import from_sidecar


@pytest.fixture(scope="module")
def runtime(lenet_loadable):
    return nvdla.Runtime(lenet_loadable)


@pytest.fixture(scope="module")
def surfaces(runtime, samples):
    return runtime.surfaces(samples / "digit3.pgm")


@pytest.fixture(scope="module")
def compared(runtime, surfaces, samples):
    """``compared(broken)``: the sample against a broken copy of itself."""
    names = from_sidecar(samples / "lenet.loadable")

    def call(broken, **options):
        other = nvdla.Runtime(broken, config="nv_small")
        reference = RunReference(runtime, surfaces, names, other, surfaces, names)
        return compare_run(other, surfaces, reference, names, **options)

    return call


def flip(at):
    """Turn a bit of one byte. It must be a byte that counts: not every weight meets an input that is not 0."""

    def change(data):
        data[at] ^= 0x40

    return change


def test_a_loadable_equals_itself(compared, lenet_loadable):
    found = compared(lenet_loadable)
    assert found.passed
    assert found.first is None
    assert all(row.exact for row in found.rows)
    assert [row.name for row in found.rows][-2:] == ["ip3", "prob"]


@pytest.mark.parametrize(
    ("convolution", "byte", "found_at", "layer"),
    [(0, 32, 2, "pool1"), (3, 32, 5, "pool2"), (6, 2181, 7, "ip1+relu3"), (10, 33, 11, "ip3")],
)
def test_a_flipped_weight_byte_is_found_where_its_convolution_ends(
    compared, lenet_loadable, plant_bytes, convolution, byte, found_at, layer
):
    first = compared(plant_bytes(lenet_loadable, convolution, "weight_data", flip(byte))).first
    assert (first.operation, first.name) == (found_at, layer)
    assert convolution in first.taken_from


@pytest.mark.parametrize("sdp", [7, 9, 11])
def test_a_wrong_shift_is_found_at_its_operation(compared, lenet_loadable, plant, sdp):
    def change(task):
        task.operation(sdp).op.out_cvt.truncate += 1

    first = compared(plant(lenet_loadable, change)).first
    assert first.operation == sdp
    assert first.difference.cosine > 0.99  # half as large, but in the same direction


def test_a_swapped_channel_is_found_with_its_channels(compared, lenet_loadable, plant_bytes):
    """Kernels 2 and 5 of the last layer change places: 10 kernels of 84 channels, in the layout of nv_small."""

    def change(data):
        order = np.frombuffer(pack_direct(np.arange(840, dtype="<i4").reshape(10, 84, 1, 1), 8, 8), "<i4")
        kernels = np.empty(840, np.uint8)
        kernels[order] = np.frombuffer(bytes(data[:840]), np.uint8)
        kernels = kernels.reshape(10, 84)
        kernels[[2, 5]] = kernels[[5, 2]]
        data[:840] = kernels.reshape(-1)[order].tobytes()

    found = compared(plant_bytes(lenet_loadable, 10, "weight_data", change))
    assert found.first.operation == 11
    assert found.first.difference.count == 2
    assert found.first.difference.first == (0, 2, 0, 0)


def test_a_saturating_scale_is_found_at_its_operation(compared, lenet_loadable, plant):
    def change(task):
        task.operation(9).op.out_cvt.truncate -= 6

    first = compared(plant(lenet_loadable, change)).first
    assert first.operation == 9


def test_fail_fast_ends_at_the_first_divergence_and_shows_it_in_both(compared, lenet_loadable, plant_bytes):
    broken = plant_bytes(lenet_loadable, 3, "weight_data", flip(0))
    found = compared(broken, fail_fast=True)
    assert not found.rows[-1].passed
    assert found.rows[-1].operation == 5
    assert len(found.rows) < len(compared(broken).rows)
    region = found.region
    first = found.first.difference
    y, x = first.first[2] - region.origin[0], first.first[3] - region.origin[1]
    assert region.expected[y][x] == first.first_expected
    assert region.actual[y][x] == first.first_actual


def test_a_tolerance_lets_small_differences_pass(compared, lenet_loadable, plant_bytes):
    def change(biases):
        biases[0] ^= 1

    broken = plant_bytes(lenet_loadable, 11, "x1_data", change)
    assert compared(broken, limits=Tolerances(tolerance=2)).passed


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.sampled_from([(8, "i1"), (32, "i1"), (32, "<f2")]))
def test_a_surface_unpacks_by_its_layout(channels, height, width, kind):
    atom, dtype = kind[0], np.dtype(kind[1])
    surfaces = -(-channels * dtype.itemsize // atom)
    size = surfaces * height * width * atom
    layout = FeatureLayout((1, channels, height, width), dtype, atom, width * atom, height * width * atom, size, size)
    data = np.random.default_rng(0).integers(0, 60, size, np.uint8)
    expected = layout.unpack(data)
    assert np.array_equal(dense(data.reshape(surfaces, height, width, atom), dtype, channels), expected)


def test_the_surroundings_of_a_single_pixel_are_channels():
    expected, actual = np.zeros((1, 20, 1, 1), np.int8), np.zeros((1, 20, 1, 1), np.int8)
    actual[0, 7] = 3
    region = region_around(expected, actual, (0, 7, 0, 0))
    assert region.axes == ("n", "c")
    assert region.origin == (0, 4)
    assert region.actual == [[0, 0, 0, 3, 0, 0, 0]]


def test_operations_have_their_on_the_fly_producers(runtime, surfaces):
    observations, _ = observe(runtime, surfaces)
    taken = {each.index: each.taken_from for each in observations}
    assert taken[2] == (0, 1)
    assert taken[7] == (6,)


def test_all_runs_of_the_corpus_equal_their_hashes(cases, nvdla_command):
    """One case of each network, chosen by the number of letters of its name, so that all configurations occur."""
    ready = [case for case in cases if case["expect"] == "ok" and case["size"] < 200_000]
    chosen = {case["network"]: case for case in ready if not case["inputs"][0]["file"].endswith(".gz")}
    for case in list(chosen.values())[::6]:
        folder = case["file"].parent
        words = [word for each in case["inputs"] for word in ("-i", f"{each['name']}={folder.parent / each['file']}")]
        code, out, err = nvdla_command("compare", case["file"], *words, "--golden", folder, "--json")
        assert code == 0, (case["id"], out[-500:], err)
