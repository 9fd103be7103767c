"""The residual add in float32 gives what the specification gives, over all bytes and sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels.fast import sdp_int8_add as fast
from nvdla.kernels.reference import sdp

BYTES = np.arange(-128, 128, dtype=np.int8)
FIRST, SECOND = (np.ascontiguousarray(each.reshape(-1)) for each in np.meshgrid(BYTES, BYTES))


#: the pairs that are compared one by one: every sum, every pair of limits, and random ones
PAIRS = sorted({*range(256), *range(255, 1 << 16, 256), *np.random.default_rng(1).integers(0, 1 << 16, 500).tolist()})


def agree(out, relu, offset, scale, shift, weights=(1, 1), size=1 << 16):
    """Check that the results equal those of X2's ALU and the output converter."""
    pairs = [pair for pair in PAIRS if pair < size]
    totals = [
        sdp.x_block(a * weights[0], b * weights[1], sdp.SUM, 0, None, False, 0, relu)
        for a, b in zip(FIRST[pairs].tolist(), SECOND[pairs].tolist(), strict=True)
    ]
    return out[pairs].tolist() == [sdp.convert_output(x, offset, scale, shift, "int8") for x in totals]


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(),
    st.integers(-200, 200),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.integers(0, 24),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_all_pairs_of_bytes(relu, offset, scale, shift, rows, in_parallel):
    if not fast.fits(offset, scale, shift):
        return
    length = FIRST.size // rows
    out = np.empty(FIRST.size, np.int8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "SHARED_SIZE", 0 if in_parallel else 1 << 60)
        fast.addition(FIRST, SECOND, (length,) * 3, length, rows, relu, (offset, scale, shift), out).run()
    assert agree(out, relu, offset, scale, shift)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("scale, shift", [(25_894, 15), (1 << 14, 15), (32_767, 15), (1, 1), (1, 15), (5, 3), (341, 9)])
def test_all_pairs_of_bytes_in_16_bits(relu, scale, shift):
    assert fast.short_scale(0, scale, shift)
    length = FIRST.size // 2 - 5  # not a whole number of vectors
    out = np.zeros(FIRST.size, np.int8)
    fast.addition(FIRST, SECOND, (length,) * 3, length, 2, relu, (0, scale, shift), out).run()
    assert agree(out, relu, 0, scale, shift, size=2 * length)
    assert not out[2 * length :].any()


def test_16_bits_do_not_suffice_for_factors_of_one_and_more_offsets_and_large_shifts():
    assert not any(
        fast.short_scale(*each) for each in [(0, 1 << 15, 15), (0, 1, 0), (1, 5, 3), (0, 5, 16), (0, -5, 15)]
    )


weights = st.one_of(st.integers(-32768, 32767), st.integers(0, 23).map(lambda shift: 1 << shift))


@settings(max_examples=80, deadline=None)
@given(
    st.booleans(),
    st.one_of(st.just(0), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.integers(0, 40),
    st.sampled_from([1, 4]),
    st.one_of(st.just((1, 1)), st.tuples(weights, weights).filter(fast.sum_fits)),
)
def test_all_pairs_of_bytes_with_any_weights(relu, offset, scale, shift, rows, chosen):
    length = FIRST.size // rows
    out = np.empty(FIRST.size, np.int8)
    converter = (offset, scale, shift)
    fast.addition(FIRST, SECOND, (length,) * 3, length, rows, relu, converter, out, chosen).run()
    assert agree(out, relu, offset, scale, shift, chosen)


def test_weights_whose_sum_the_sdp_would_saturate_do_not_fit():
    assert fast.sum_fits((32767, 1 << 23))
    assert not fast.sum_fits((1 << 23, 1 << 23))
    assert not fast.sum_fits((1, 1 << 24))
    assert not fast.sum_fits((1, 1 << 63))


def test_what_24_bits_cannot_hold_does_not_fit():
    assert fast.fits(0, 32767, 15)
    assert not fast.fits(300, 32767, 15)
    assert not fast.fits(0, 1, 25)
