"""The fused convolution and SDP give what the specification gives, rounding and clamps included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolution_sums import reference_sums, some

from nvdla.kernels.fast import conv_int8_dot as dot
from nvdla.kernels.fast import conv_sdp_int8 as fused
from nvdla.kernels.reference import sdp

pytestmark = pytest.mark.skipif(not dot.available(), reason="this processor has no instructions for it")


def reference_result(total, alu, mul, stage, other, summand):
    """One element through X1, X2 and the output converter."""
    shift = stage.shift if stage.multiply else 0
    x = sdp.x_block(total, alu, sdp.SUM, 0, mul if stage.multiply else None, False, shift, stage.low == 0)
    x = sdp.x_block(x, other, sdp.SUM, summand.shift, None, False, 0, summand.low == 0)
    return sdp.convert_output(x, stage.offset, stage.scale, stage.out_shift, "int8")


def fused_results(cube, channels, weights, geometry, alu, mul, stage, gap, others, summand):
    """Compute with the blocked cube, the packed weights and the tiles; surfaces are ``gap`` bytes apart.

    ``others`` (kernels in whole atoms, pixels) is X2's summand, or None.
    """
    (top, left, bottom, right), stride, dilation, pad_value = geometry
    kernels, _, rows, columns = weights.shape
    atom = cube.shape[3]
    group = dot.channel_group(channels)
    groups = -(-channels // group)
    height, width = cube.shape[1] + top + bottom, cube.shape[2] + left + right
    flat = np.zeros(groups * height * width * group + 4, np.uint8)
    blocked = flat[:-4].reshape(1, groups, height, width, group)
    strides = (0, *cube.strides[:2])
    dot.blocked_cubes(cube.reshape(-1), cube.shape, strides, top, left, pad_value, blocked).run()
    packed, correction = dot.pack_weights(weights, dilation > 1, group)
    out_height = (height - (rows - 1) * dilation - 1) // stride + 1
    out_width = (width - (columns - 1) * dilation - 1) // stride + 1
    pixels = ((np.arange(out_height) * width)[:, None] + np.arange(out_width)).reshape(-1) * (stride * group)
    taps = dot.tap_offsets(groups, (rows, columns), (dilation, dilation), (height, width), group)
    surfaces, plane = -(-kernels // atom), out_height * out_width * atom
    full_alu = np.zeros(correction.size, np.int64)
    full_alu[:kernels] = alu
    full_mul = np.ones(correction.size, np.int32)
    full_mul[:kernels] = mul
    out = np.full(surfaces * (plane + gap), 99, np.int8)
    place = fused.Place(surfaces, plane + gap, atom, atom, 0, 1, 0, flat.size, 0)
    operand = (full_alu - correction).astype(np.int32)
    narrow, other = fused.narrow_settings(stage), None
    if others is not None:
        narrow, other = np.empty(0, np.int64), np.zeros((surfaces, plane + gap), np.int8)
        other[:, :plane] = others.reshape(surfaces, atom, -1).transpose(0, 2, 1).reshape(surfaces, plane)
        summand, other = summand._replace(surface_stride=plane + gap, pixel_stride=atom), other.reshape(-1)
    fused.convolution(
        flat, pixels, taps, packed.shape[2], packed, operand, full_mul, stage, narrow, out, place, other, summand
    ).run()
    by_surface = out.reshape(surfaces, plane + gap)
    assert (by_surface[:, plane:] == 99).all(), "bytes between surfaces are not touched"
    return by_surface[:, :plane].reshape(surfaces, -1, atom).transpose(0, 2, 1).reshape(-1, out_height, out_width)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.booleans())
def test_results_equal_the_specification(data, in_parallel):
    draw = data.draw
    channels, kernels = draw(st.integers(1, 70)), draw(st.integers(1, 100))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 2))
    height, width = draw(st.integers(5, 9)), draw(st.integers(5, 9))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    geometry = (pads, draw(st.integers(1, 2)), dilation, draw(st.integers(-128, 127)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    atom = draw(st.sampled_from([8, 32]))
    cube = random.integers(-128, 128, (-(-channels // atom), height, width, atom), dtype=np.int8)
    weights = random.integers(-128, 128, (kernels, channels, rows, columns), dtype=np.int8)
    stage = fused.FusedStage(
        multiply=draw(st.integers(0, 1)),
        shift=draw(st.integers(0, 40)),
        low=draw(st.sampled_from([0, -(1 << 31)])),
        offset=draw(st.integers(-(1 << 31), (1 << 31) - 1)) if draw(st.booleans()) else draw(st.integers(-999, 999)),
        scale=draw(st.integers(-(1 << 15), (1 << 15) - 1)),
        out_shift=draw(st.integers(0, 40)),
    )
    alu = random.integers(-(1 << 15), 1 << 15, kernels)
    mul = random.integers(-(1 << 15), 1 << 15, kernels)
    chosen = some(random, kernels)
    sums = reference_sums(cube, channels, weights[chosen], *geometry)
    others, summand = None, fused.NO_SUMMAND
    if draw(st.booleans()):
        others = random.integers(-128, 128, (-(-kernels // atom) * atom, sums[0].size), dtype=np.int8)
        shift = draw(st.integers(0, fused.LARGEST_X2_SHIFT))
        summand = summand._replace(shift=shift, low=draw(st.sampled_from([0, -(1 << 31)])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "SHARED_WORK", 0 if in_parallel else 1 << 60)
        patch.setattr(dot, "SHARED_BYTES", 0 if in_parallel else 1 << 60)
        gap = draw(st.sampled_from([0, 64]))
        results = fused_results(cube, channels, weights, geometry, alu, mul, stage, gap, others, summand)
    expected = [
        [
            reference_result(
                int(total), int(alu[k]), int(mul[k]), stage, 0 if others is None else int(others[k, i]), summand
            )
            for i, total in enumerate(plane.reshape(-1))
        ]
        for k, plane in zip(chosen, sums, strict=True)
    ]
    assert results[chosen].reshape(len(chosen), -1).tolist() == expected


def test_sums_that_could_leave_int32_are_not_fused():
    weights = np.full((1, 100_000), -128, np.int8)
    assert fused.sums_fit(weights, np.array([0]))
    assert not fused.sums_fit(weights, np.array([1 << 29]))


def sums_of_one_tap(values, stage, other=None, summand=fused.NO_SUMMAND):
    """Results of sums that are the ``values`` (pixels, 64 kernels): ALU operands of a convolution with zeros."""
    results = np.empty(values.shape, np.int8)
    data, pixels, taps, packed = np.zeros(64, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64), None
    packed = dot.pack_weights(np.zeros((64, 4, 1, 1), np.int8), False)[0]
    place = fused.Place(1, 64, 64, 64, 0, 1, 0, 64, 0)
    for row, alu in enumerate(values.astype(np.int32)):
        theirs = None if other is None else other[row]
        arrays = (data, pixels, taps, 1, packed, alu, np.full(64, 20_000, np.int32))
        none = np.empty(0, np.int64)
        fused.convolution(*arrays, stage, none, results[row], place, theirs, summand).run()
    return results


STAGES = [
    fused.FusedStage(1, 9, fused.INT32_LOW, 0, 20_090, 29),
    fused.FusedStage(1, 9, fused.INT32_LOW, -3_000_000, 20_090, 29),
    fused.FusedStage(0, 0, fused.INT32_LOW, 5, 1, 14),  # every number of bits 0 to 13 is as likely: many ties
    fused.FusedStage(0, 0, 0, 0, 32_309, 25),
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("with_other", [False, True])
def test_numbers_near_a_boundary_of_rounding_are_not_decided_by_an_estimate(stage, with_other):
    random = np.random.default_rng(5)
    summand = fused.Summand(64, 64, 0, 10, random.choice([0, fused.INT32_LOW])) if with_other else fused.NO_SUMMAND
    assert fused.estimate_error(stage._replace(low=fused.INT32_LOW), summand) < 1, "there is an estimate"
    other = random.integers(-128, 128, (400, 64), dtype=np.int8)
    unit = 20_000 / 512 if stage.multiply else 1
    # Sums whose results are as near to halves as they come.
    wanted = (random.integers(-130, 130, (400, 64)) + 0.5) * 2**stage.out_shift / stage.scale + stage.offset
    wanted -= other * 1024.0 if with_other else 0
    values = np.clip(np.rint(wanted / unit) + random.integers(-1, 2, wanted.shape), -(1 << 31), (1 << 31) - 1)
    results = sums_of_one_tap(values, stage, other if with_other else None, summand)
    expected = [
        [
            reference_result(int(v), 0, 20_000, stage, int(o) if with_other else 0, summand)
            for v, o in zip(*row, strict=True)
        ]
        for row in zip(values, other, strict=True)
    ]
    assert results.tolist() == expected
