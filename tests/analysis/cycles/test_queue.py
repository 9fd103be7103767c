"""The model without a loadable: what a compiler asks it."""

from dataclasses import replace

import pytest

from nvdla.analysis.cycles.constants import Memory, PdpShape, Software, constants
from nvdla.analysis.cycles.estimate import convolution, operation_cycles, queue_cycles
from nvdla.analysis.cycles.hardware import Hardware
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import ConfigError

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


@pytest.mark.parametrize("config", [SMALL, LARGE], ids=["small", "large"])
def test_a_convolution_without_operands_waits_for_no_write_response(config):
    """A second convolution with a bias waits for the interrupt of the one before; a plain one does not."""
    first = convolution(config, (32, 16, 16), (32, 16, 16), (1, 1), data_banks=6, weight_banks=2)
    plain = replace(first, sdp=replace(first.sdp, stages=0, table_bytes=0))

    def link(latency, chain):
        memory = Memory(latency)
        return queue_cycles([first, chain], config, memory, software=FREE)

    saved = [link(latency, first) - link(latency, plain) for latency in (100, 300)]
    assert saved[1] - saved[0] == pytest.approx(200, abs=2)
    assert saved[0] == pytest.approx(100 - 11, abs=20)  # on the RTL


def test_a_pool_on_the_fly_takes_its_atoms_without_a_gap():
    """28 x 28 of 16 kernels, 1 x 1, max 2 x 2: 4 cycles for each atom, not 4 and a gap for each stripe."""
    whole = convolution(LARGE, (32, 28, 28), (16, 28, 28), (1, 1), data_banks=4, weight_banks=1)
    pdp = PdpShape(28, 28, 14, 14, 1, write_bytes=14 * 14 * 32)
    pooled = replace(whole, sdp=replace(whole.sdp, write_bytes=0), pdp=pdp)
    time = operation_cycles(pooled, LARGE)
    stripe = 64 * 3 + 38
    assert time.bound == "PDP"
    assert time.total - time.first_mac == pytest.approx(4 * 28 * 28 + 38 + 16 + 100, abs=32)
    assert operation_cycles(whole, LARGE).total - time.first_mac == pytest.approx(28 * 28 / 64 * stripe + 100, abs=64)


def test_weights_that_are_used_again_leave_the_buffer_group_by_group():
    """The next convolution's weights have no room before that: none at all while the banks are full."""
    values = constants(LARGE)
    shapes = (1024, 7, 14), (256, 7, 14), (1, 1)
    kept = convolution(LARGE, *shapes, data_banks=8, weight_banks=8)
    again = convolution(LARGE, *shapes, data_banks=8, weight_banks=8, reads_weights=False)
    hardware = Hardware(values, Memory())
    _, second, third = (hardware.start(each, values) for each in (kept, again, kept))
    hardware.simulation.run()
    assert third.group_in[0].time > second.group_out[0].time


def test_the_operand_of_a_sum_has_its_share_of_the_port():
    """The last of four parts of a sum of ResNet-50 (res3a) on the RTL takes 10,718 cycles, as the others do, although
    the next layer is fetched at the same time, from the interrupt of the part before: SDP and CDMA share alike."""
    values, hardware = constants(LARGE), Hardware(constants(LARGE), Memory())
    part = convolution(LARGE, (128, 7, 28), (512, 7, 28), (1, 1), data_banks=7, weight_banks=5, sums=True)
    following = convolution(LARGE, (512, 7, 28), (128, 7, 28), (1, 1), data_banks=7, weight_banks=5)
    first, second = (hardware.start(part, values) for _ in range(2))

    def waiting():
        yield first.sdp_done
        hardware.start(following, values)

    hardware.simulation.start(waiting())
    hardware.simulation.run()
    assert second.sdp_done.time - first.sdp_done.time == pytest.approx(10718, rel=0.01)
