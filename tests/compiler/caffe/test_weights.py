"""The .caffemodel: blobs of all forms are read as they were written, and broken bytes are named."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.caffe_writer import blob, caffemodel, field, number, varint

from nvdla import FormatError
from nvdla.compiler.caffe import read_weights

WEIGHTS = {"conv": [np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2), np.array([1.5, -2.0])], "relu": []}


@pytest.fixture
def read(tmp_path):
    def call(data):
        (tmp_path / "net.caffemodel").write_bytes(data)
        return read_weights(tmp_path / "net.caffemodel")

    return call


@pytest.mark.parametrize("old", [False, True], ids=["layer", "layers"])
@pytest.mark.parametrize(
    "form",
    [{}, {"double": True}, {"packed": False}, {"packed_shape": False}, {"legacy": True}],
    ids=["packed", "double", "one by one", "shape one by one", "num channels height width"],
)
def test_every_form_of_a_blob_is_read(read, old, form):
    found = read(caffemodel(WEIGHTS, old, **form))
    assert list(found) == ["conv", "relu"]
    assert found["relu"] == []
    for made, wanted in zip(found["conv"], WEIGHTS["conv"], strict=True):
        assert np.array_equal(made.reshape(wanted.shape), wanted)
        assert made.shape == ((1,) * (4 - wanted.ndim) + wanted.shape if form.get("legacy") else wanted.shape)
        assert made.dtype == (np.float64 if form.get("double") else np.float32)


def test_doubles_go_before_floats_as_in_caffe(read):
    both = field(7, field(1, varint(1))) + field(5, np.float32(1).tobytes()) + field(8, np.float64(2).tobytes())
    assert read(field(100, field(1, b"a") + field(7, both)))["a"][0] == [2.0]


def test_data_in_pieces_are_one_blob(read):
    pieces = field(7, field(1, varint(2))) + field(5, np.float32(1).tobytes()) + field(5, np.float32(2).tobytes())
    assert read(field(100, field(1, b"a") + field(7, pieces)))["a"][0].tolist() == [1.0, 2.0]


def test_a_layer_named_twice_keeps_its_blobs(read):
    data = caffemodel({"data": [np.ones(2)]}) + caffemodel({"data": []})
    assert len(read(data)["data"]) == 1


def test_unknown_fields_are_stepped_over(read):
    extra = number(55, 1 << 63) + varint(56 << 3 | 1) + bytes(8) + varint(57 << 3 | 5) + bytes(4) + field(58, b"x")
    assert list(read(extra + field(100, extra + field(1, b"a") + field(7, extra + blob(np.ones(3)))))) == ["a"]


def layer_with(content):
    return field(100, field(1, b"a") + field(7, content))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "got an empty file"),
        (field(1, b"name"), "got a file without layers"),
        (b"\x0a\x05ab", "1: size: must be at most 2 bytes (rest of the message), got 5"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "size: must be at most 0 bytes"),
        (b"\xff" * 11, "number: must have at most 10 bytes"),
        (b"\x0a\xff", "number: must end within the message"),
        (b"\x03", "got 3 (number 0, wire type 3)"),
        (b"\x0b", "got 11 (number 1, wire type 3)"),
        (b"\x09\x01", "1: size: must be at most 1 bytes (rest of the message), got 8"),
        (number(100, 3), "layer[0]: must be length-delimited, got varint"),
        (field(100, number(1, 3)), "layer[0].name: must be length-delimited, got varint"),
        (field(100, field(7, number(5, 3))), "layer[0].blobs[0].data: must be 32-bit, got varint"),
        (layer_with(field(5, b"abcde")), "data: size: must be a multiple of 4 bytes (element), got 5"),
        (layer_with(field(8, b"abcde")), "data: size: must be a multiple of 8 bytes (element), got 5"),
        (
            layer_with(field(7, field(1, varint(3))) + field(5, bytes(8))),
            ": shape: must have 2 elements (the data), got 3",
        ),
        (
            layer_with(field(7, field(1, varint(1 << 40) * 2))),
            "shape: must have 0 elements (the data), got 1099511627776x1099511627776",
        ),
        (layer_with(field(7, field(1, varint(-1) * 2)) + field(5, bytes(4))), "must not be negative"),
        (
            layer_with(field(7, field(1, b"\1" * 33)) + field(5, bytes(4))),
            "shape.dim: axes of the shape: must be at most 32",
        ),
        (
            layer_with(field(7, number(1, 1) * 33) + field(5, bytes(4))),
            "shape.dim: axes of the shape: must be at most 32",
        ),
        (layer_with(field(7, field(1, b"\1" * 400)) + field(5, bytes(4))), "axes of the shape: must be at most 32"),
        (layer_with(number(1, 2) + field(5, bytes(8))), "shape: must have 2 elements (the data), got 2x0x0x0"),
        (layer_with(field(1, b"")), "num: must be varint, got length-delimited"),
        (field(2, field(1, b"")), "layers[0].layer: layer format: must be V1 or later, got V0"),
    ],
)
def test_broken_bytes_are_named(read, data, said):
    with pytest.raises(FormatError) as raised:
        read(data)
    assert said in str(raised.value)
    assert "net.caffemodel: " in str(raised.value)
    assert "\n" not in str(raised.value)


GOOD = caffemodel(WEIGHTS)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
def test_any_bytes_are_read_or_refused(tmp_path_factory, place, value, length):
    data = bytearray(GOOD)
    data[place] = value
    path = tmp_path_factory.getbasetemp() / "changed.caffemodel"
    path.write_bytes(data[:length])
    with contextlib.suppress(FormatError):
        read_weights(path)
