"""Linked constants are given back when every reader has its own copy, and are loaded again when observers read them."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.memory.address_space import PAGE, Pages, Readers


def is_resident(pages, page):
    """Return whether a page has its contents: a released one reads as zero (Linux)."""
    return bool(pages.data[page * PAGE])


@pytest.fixture
def pages():
    made = Pages(8 * PAGE)
    made.data[:] = 1
    if made._mapping is None:
        pytest.skip("this system takes no memory back")
    return made


def test_a_page_is_given_back_after_its_last_reader(pages):
    first, second = pages.data[100 : 4 * PAGE], pages.data[3 * PAGE : 6 * PAGE]
    readers = Readers([pages], [first, second])
    assert readers.done([first])
    assert [is_resident(pages, page) for page in range(8)] == [False] * 3 + [True] * 5
    assert readers.done([second])
    assert [is_resident(pages, page) for page in range(8)] == [False] * 6 + [True] * 2, "the rest has no counted reader"


def test_what_has_another_reader_stays(pages):
    view = pages.data[:PAGE]
    readers = Readers([pages], [view, view])
    assert not readers.done([view])
    assert is_resident(pages, 0)


def test_views_of_other_memory_count_nothing(pages):
    assert not Readers([pages], [np.ones(9)]).done([np.ones(9), pages.data[:0]])


def wide_network():
    """A layer whose weights fill many pages."""
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3))
    net = Network("wide")
    net.output(net.convolution("conv", net.input("data", (64, 6, 6)), weights, padding=1))
    return net


def test_repeated_runs_give_the_weights_back_and_observers_find_them(tmp_path):
    network = wide_network()
    image = np.random.default_rng(1).standard_normal((1, 64, 6, 6))
    loadable = build(network, "nv_large", "int8", calibrate(network, image)).loadable
    runtime = nvdla.Runtime(loadable, "nv_large")
    surface = [runtime.pack(0, (image * 20).astype(np.int8))]
    before = {index: region.data.tobytes() for index, region in runtime._linked.regions.items()}
    expected = runtime.run_raw(surface)
    assert runtime.run_raw(surface) == expected
    assert runtime.run_raw(surface) == expected
    seen = []
    assert runtime.run_raw(surface, on_operation=lambda event: seen.append(event.destination is not None)) == expected
    assert any(seen)
    log = []
    assert runtime.run_raw(surface, csb_log=log) == expected
    assert log
    assert runtime.run_raw(surface) == expected
    runtime.operations()
    bound = {tensor.memory.id for tensor in (*runtime.inputs, *runtime.outputs)}
    constants = [memory.id for memory in loadable.memories if memory.contents and memory.id not in bound]
    assert constants
    dependencies = runtime._linked.dependency_graphs()  # counted down by the firmware
    for index in set(constants) - dependencies:
        assert runtime._linked.regions[index].data.tobytes() == before[index]


def test_weights_that_several_operations_read_stay_until_the_last(cases):
    """Tiles of one layer share their weights."""
    for case in cases:
        if "conv_splith" not in case["path"] or case["precision"] != "int8" or case["expect"] != "ok":
            continue
        runtime = nvdla.Runtime(nvdla.load(case["file"]), case["config"])
        generator = np.random.default_rng(0)
        image = [generator.integers(0, 256, each.size, np.uint8).tobytes() for each in runtime.inputs]
        expected = runtime.run_raw(image)
        assert runtime.run_raw(image) == runtime.run_raw(image) == expected
