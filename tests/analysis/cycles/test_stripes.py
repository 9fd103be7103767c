"""Stripes of output positions: when CSC sent each on the RTL, and what the accumulator's buffer lets it send."""

import json

import pytest
from support.queued import CYCLES

from nvdla.analysis.cycles.constants import ConvolutionShape, constants, stripes
from nvdla.analysis.cycles.hardware import Delivery, group_time
from nvdla.emulator.hardware.configuration import configuration

PACE = {"nv_small": 9, "nv_large": 3}  # an atom of results, X stages only


def shape_of(measured):
    """The convolution's positions and kernels; what is fetched does not matter here."""
    names = ("out_w", "out_h", "k", "kernel_w", "kernel_h", "kernel_c")
    return ConvolutionShape(*(measured[name] for name in names), 1, 1, 1, 1)


@pytest.mark.parametrize("config", PACE)
@pytest.mark.parametrize("test", ["chain3_odd_weights", "chain3_1x1_64_28x28", "parallel3_128_4"])
def test_last_taps_go_when_they_went_on_the_rtl(config, test):
    """The first convolution of each test, cycle for cycle (that of parallel3_128_4 waits for its second weights)."""
    path = CYCLES / f"queued_{config}.json"
    if not path.is_file():
        pytest.skip("the measured stripes (../shared/corpus/cycles) are not here")
    corpus = json.loads(path.read_text())
    if test not in corpus["stripes"]:
        pytest.skip(f"the stripes of {test} were not measured on {config}")
    values = constants(configuration(config))
    measured = corpus["tests"][test]["operations"][0]["shape"]
    found = sent_by_the_model(shape_of(measured), measured, values)
    on_the_rtl = [(time, length) for time, length, last in corpus["stripes"][test] if last]
    compared = 1 if (config, test) == ("nv_large", "parallel3_128_4") else len(found)
    assert found[:compared] == on_the_rtl[:compared]


def sent_by_the_model(shape, measured, values):
    taps = measured["kernel_w"] * measured["kernel_h"] * -(-measured["kernel_c"] // values.channels)
    delivery, clock, found = Delivery(2 * values.kernels, PACE[values.name]), 0, []
    for _ in range(-(-measured["k"] // values.kernels)):
        for length, count in stripes(shape, values):
            for _ in range(count):
                each = max(length, values.kernels)
                sent = delivery.send(clock + (taps - 1) * each, length)
                found.append((sent, length))
                clock = sent + each
    return found


def test_a_group_of_many_stripes_takes_as_long_as_one_after_the_other():
    """Equal stripes are not gone through one by one."""
    for taps in (1, 2, 9, 30):
        for count in (1, 2, 3, 50):
            fast, slow = Delivery(16, 9), Delivery(16, 9)
            total = group_time([(16, count), (8, 1), (12, 1)], 1, taps, 8, fast)
            clock = 0
            for length in [16] * count + [8, 12]:
                clock = slow.send(clock + (taps - 1) * max(length, 8), length) + max(length, 8)
            assert total == clock
            assert fast.end + total == slow.end


def test_lines_of_an_image_go_one_by_one():
    """As in a loop over the lines, whatever remains in the buffer from the line before."""
    for taps in (1, 3, 15):
        fast, slow = Delivery(16, 9), Delivery(16, 9)
        total, clock = group_time([(16, 1), (8, 1)], 24, taps, 8, fast), 0
        for length in [16, 8] * 24:
            clock = slow.send(clock + (taps - 1) * length, length) + length
        assert total == clock


@pytest.mark.parametrize(
    ("config", "width", "pieces"),
    [
        ("nv_small", 16, [(16, 1)]),
        ("nv_small", 17, [(16, 1), (1, 1)]),
        ("nv_small", 31, [(16, 1), (15, 1)]),
        ("nv_large", 66, [(64, 1), (2, 1)]),
        ("nv_large", 130, [(64, 2), (2, 1)]),
    ],
)
def test_the_rest_of_a_line_of_an_image_is_a_stripe_of_its_own(config, width, pieces):
    shape = ConvolutionShape(width, 12, 16, 1, 3, 12, 1, 1, 1, 1, by_line=True)
    assert stripes(shape, constants(configuration(config))) == pieces
