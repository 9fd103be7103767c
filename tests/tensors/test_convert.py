"""Layouts of tensors: every element lies where the layout says, and every way there and back keeps it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla import FormatError, NvdlaError
from nvdla.tensors.convert import (
    ATOMS,
    DENSE,
    PIXELS,
    Form,
    as_nchw,
    cast,
    dequantize,
    dtype_named,
    pack,
    quantize,
    unpack,
)

SIDES = st.integers(1, 5)
TEN_BITS = [name for name in PIXELS if "A2" in name]


def element_type(layout):
    if layout in ATOMS or layout in DENSE:
        return st.sampled_from(["int8", "int16", "float16"])
    wide = any(bits in layout for bits in ("10", "12", "16"))
    return st.sampled_from(["int16"] if wide else ["int8", "uint8"])


@st.composite
def forms(draw):
    layout = draw(st.sampled_from([*ATOMS, *DENSE, *(set(PIXELS) - set(TEN_BITS))]))
    dtype = dtype_named(draw(element_type(layout)))
    limit = 40 if layout in ATOMS or layout in DENSE else 1 if layout.startswith("R1") or layout == "R8" else 4
    limit = 3 if layout.endswith("N444") else limit
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, limit)), draw(SIDES), draw(SIDES))
    form = Form(layout, shape, dtype).filled()
    if layout in DENSE:
        return form
    line = form.line_stride + draw(st.sampled_from([0, 32, 96]))
    surface = shape[2] * line + draw(st.sampled_from([0, 64])) if layout in ATOMS or layout.endswith("N444") else 0
    return Form(layout, shape, dtype, line, surface)


def numbers(form):
    """A tensor in which neighbours differ."""
    count = int(np.prod(form.shape))
    return (np.arange(count) * 37 % 127).astype(form.dtype).reshape(form.shape)


@given(forms())
def test_every_element_is_at_its_offset(form):
    array = numbers(form)
    data = pack(array, form)
    assert len(data) == form.bytes
    for place in np.ndindex(*form.shape):
        at = form.offset(*place)
        assert data[at : at + form.dtype.itemsize] == array[place].tobytes()


@given(forms())
def test_unpacking_undoes_packing(form):
    array = numbers(form)
    assert np.array_equal(unpack(pack(array, form), form, "t"), array)


@pytest.mark.parametrize("layout", TEN_BITS)
def test_ten_bit_pixels_keep_their_components(layout):
    array = np.array([1023, 512, 7, 3], np.uint16).reshape(1, 4, 1, 1)
    form = Form(layout, array.shape, dtype_named("uint16"))
    assert np.array_equal(unpack(pack(array, form), form, "t"), array)


def test_the_worked_example_of_two_planes():
    """Y of 2 lines of 3 columns, then U and V side by side in lines of twice the stride; in V8U8 U comes first."""
    form = Form("Y8_U8V8_N444", (1, 3, 2, 3), dtype_named("uint8"), 32, 128)
    assert [form.offset(0, channel, 1, 2) for channel in range(3)] == [34, 128 + 64 + 4 + 1, 128 + 64 + 4]
    assert Form("Y8_V8U8_N444", (1, 3, 2, 3), dtype_named("uint8"), 32, 128).offset(0, 1, 0, 0) == 128
    assert Form("Y16_U16V16_N444", (1, 3, 2, 3), dtype_named("int16")).bytes == 2 * 3 * 3 * 2
    with pytest.raises(NvdlaError, match="surface stride: must be at least 64 bytes, got 32"):
        Form("Y8_U8V8_N444", (1, 3, 2, 3), dtype_named("uint8"), 32, 32).make()


def test_the_worked_example_of_a_feature_surface():
    """20 channels of int8 in atoms of 8 bytes: three surfaces; channel 9 is the second byte of the second surface."""
    form = Form("feature-x8", (1, 20, 3, 4), dtype_named("int8"))
    assert (form.surfaces, form.bytes) == (3, 288)
    assert form.offset(0, 9, 1, 2) == 1 * 96 + 1 * 32 + 2 * 8 + 1
    assert Form("feature-x32", (1, 20, 3, 4), dtype_named("float16")).surfaces == 2


@pytest.mark.parametrize(
    "form",
    [
        Form("feature-x9", (1, 1, 1, 1), np.dtype("i1")),
        Form("feature-x8", (1, 0, 1, 1), np.dtype("i1")),
        Form("feature-x8", (1, 1 << 20, 1 << 20, 1), np.dtype("i1")),
        Form("feature-x8", (1, 8, 2, 2), np.dtype("i1"), line_stride=8),
        Form("feature-x8", (1, 16, 2, 2), np.dtype("i1"), surface_stride=16),
        Form("nchw", (1, 1, 1, 1, 1), np.dtype("i1")),
        Form("A8B8G8R8", (1, 5, 1, 1), np.dtype("i1")),
        Form("A8B8G8R8", (1, 3, 1, 1), np.dtype("<i2")),
        Form("R8", (2, 1, 4, 4), np.dtype("u1"), image_stride=8),
    ],
)
def test_forms_that_cannot_be_are_refused(form):
    with pytest.raises(NvdlaError):
        form.make()


def test_too_few_bytes_are_refused_with_both_numbers():
    with pytest.raises(FormatError, match="must have 288 bytes, got 287"):
        unpack(bytes(287), Form("feature-x8", (1, 20, 3, 4), np.dtype("i1")), "t")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(1e-3, 1e3))
@settings(max_examples=50)
def test_quantizing_rounds_halves_away_from_zero_and_saturates(values, scale):
    found = quantize(np.array(values), np.dtype("i1"), scale)
    for value, element in zip(values, found, strict=True):
        exact = value / scale
        rounded = int(abs(exact) + 0.5) * (1 if exact >= 0 else -1)
        assert element == max(-128, min(127, rounded))


def test_elements_come_back_as_real_numbers():
    elements = np.arange(-128, 128).astype(np.int8).reshape(1, 256, 1, 1)
    real = dequantize(elements, 0.25)
    assert real.dtype == np.float32
    assert real[0, 0, 0, 0] == -32
    assert np.array_equal(quantize(real, np.dtype("i1"), 0.25), elements)
    assert dequantize(elements, 0.5, offset=-128)[0, 0, 0, 0] == 0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_scales_are_refused(scale):
    with pytest.raises(FormatError, match="positive number"):
        quantize(np.zeros(1), np.dtype("i1"), scale)


def test_nan_cannot_become_an_integer():
    with pytest.raises(FormatError, match="NaN"):
        quantize(np.array([np.nan]), np.dtype("i1"), 1.0)


def test_values_must_survive_a_cast():
    assert cast(np.array([1.0, -2.0]), np.dtype("i1")).tolist() == [1, -2]
    for bad in ([0.5], [128.0], [np.inf]):
        with pytest.raises(FormatError, match="must be whole numbers"):
            cast(np.array(bad), np.dtype("i1"))


def test_arrays_become_nchw():
    assert as_nchw(np.zeros((2, 3)), None, "t").shape == (1, 1, 2, 3)
    assert as_nchw(np.zeros(6), (1, 6, 1, 1), "t").shape == (1, 6, 1, 1)
    for array, shape in ((np.zeros(5), (1, 6, 1, 1)), (np.zeros((1,) * 5), None), (np.array(["a"]), None)):
        with pytest.raises(FormatError):
            as_nchw(array, shape, "t")
