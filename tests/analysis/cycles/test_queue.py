"""The model without a loadable: what a compiler asks it."""

import pytest

from nvdla.analysis.cycles.constants import Memory, Software
from nvdla.analysis.cycles.queue import convolution, operation_cycles, queue_cycles
from nvdla.errors import ConfigError
from nvdla.hardware.configuration import configuration

SMALL, LARGE = configuration("nv_small"), configuration("nv_large")
FREE = Software(0, 0.0, 0.0, 0.0)


def square(config, channels, side, kernels, data_banks, weight_banks, **more):
    """A 3 x 3 convolution with padding."""
    shapes = (channels, side, side), (kernels, side, side)
    return convolution(config, *shapes, (3, 3), data_banks=data_banks, weight_banks=weight_banks, **more)


def test_a_chain_of_convolutions_takes_what_it_took_on_the_rtl():
    """Three of 16 channels on 8 x 8 at latency 100: 9,216 cycles on nv_small from the first enabling."""
    chain = [square(SMALL, 16, 8, 16, 1, 1)] * 3
    found = queue_cycles(chain, SMALL, after=[[], [0], [1]])
    assert found == pytest.approx(9216 + 637, abs=40)  # the first two programmed before


def test_an_independent_convolution_is_fetched_while_the_one_before_multiplies():
    one = square(LARGE, 64, 14, 64, 1, 2)
    alone = operation_cycles(one, LARGE).total
    assert queue_cycles([one, one], LARGE, software=FREE) < 2 * alone - 500
    assert queue_cycles([one, one], LARGE, after=[[], [0]], software=FREE) == pytest.approx(2 * alone, abs=4)


def test_other_weight_banks_stop_the_prefetch_of_weights():
    first, same, other = (square(SMALL, 16, 14, 8, 2, banks) for banks in (1, 1, 2))
    assert queue_cycles([first, other], SMALL) > queue_cycles([first, same], SMALL) + 100


def test_data_that_the_buffer_still_has_need_no_fetch():
    read = square(SMALL, 32, 14, 8, 2, 1)
    again = square(SMALL, 32, 14, 8, 2, 1, reads_data=False)
    assert queue_cycles([read, again], SMALL) < queue_cycles([read, read], SMALL) - 300


def test_a_sum_on_the_fly_costs_little_of_what_a_sum_alone_costs():
    plain, summed = square(SMALL, 16, 14, 32, 1, 2), square(SMALL, 16, 14, 32, 1, 2, sums=True)
    more = operation_cycles(summed, SMALL).total - operation_cycles(plain, SMALL).total
    assert 100 < more < 400  # +142 to +320 on the RTL; a sum of its own takes 6,442 to 8,662


def test_two_operations_share_the_port():
    """Fetching ahead takes its share of a narrow memory from nobody but time."""
    one = square(LARGE, 128, 8, 32, 1, 2)
    slow = Memory(100, 2.0)
    alone = operation_cycles(one, LARGE, slow).total
    traffic = 2 * (8 * 8 * 128 + 128 * 32 * 9)
    assert traffic / 2.0 <= queue_cycles([one, one], LARGE, slow, software=FREE) <= 2 * alone


@pytest.mark.parametrize("after", [[[0], []], [[], [1]], [[], [-1]]])
def test_a_queue_that_waits_for_itself_is_refused(after):
    one = square(SMALL, 8, 8, 8, 1, 1)
    with pytest.raises(ConfigError, match="must be one before it"):
        queue_cycles([one, one], SMALL, after=after)


def test_a_convolution_is_modelled_in_a_millisecond_or_two():
    """A compiler asks for thousands: a layer of ResNet-50 with 196 stripes and 32 groups of kernels on nv_small."""
    import time

    layer = convolution(SMALL, (64, 56, 56), (256, 56, 56), (1, 1), data_banks=30, weight_banks=2)
    start = time.perf_counter()
    for _ in range(20):
        operation_cycles(layer, SMALL)
    assert (time.perf_counter() - start) / 20 < 0.05
