"""Images whose decoding takes longer than their pixels do, and files that end early."""

from __future__ import annotations

import io
import struct
import time

import numpy as np
import pytest
from PIL import Image
from support.tensor_files import read_tensor

from nvdla.errors import FormatError
from nvdla.tensors.images import MAX_PNM_HEADER, MAX_SCANS, image_shape

SHAPE = (1, 1, 64, 64)


def jpeg(progressive: bool, side: int = 64) -> bytes:
    stream = io.BytesIO()
    pixels = np.arange(side * side, dtype=np.uint32).reshape(side, side) % 251
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG", progressive=progressive)
    return stream.getvalue()


def with_scans(count: int, side: int) -> bytes:
    """A progressive JPEG of the size whose last scan is there ``count`` times more."""
    data = jpeg(True, side)
    last = data.rindex(b"\xff\xda")
    scan, end = data[last:-2], data[-2:]
    return data[:-2] + scan * count + end


def refused(path, shape=SHAPE) -> str:
    began = time.process_time()
    with pytest.raises(FormatError) as caught:
        read_tensor(path, shape, np.int8)
    assert time.process_time() - began < 2
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_as_encoders_write_them_are_read(progressive, tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(progressive))
    assert read_tensor(path, SHAPE, np.int8).shape == SHAPE


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(with_scans(5000, 1024))
    assert f"must have at most {MAX_SCANS} scans" in refused(path, (1, 1, 1024, 1024))


def test_many_scans_of_many_pixels_are_refused(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(with_scans(80, 4096))
    assert "pixels in all scans" in refused(path, (1, 1, 4096, 4096))


PNM = {
    "comment_of_megabytes": b"P5\n#" + b"x" * (4 << 20) + b"\n64 64\n255\n" + bytes(4096),
    "megabytes_of_comments": b"P5\n" + b"#\n" * (2 << 20) + b"64 64\n255\n" + bytes(4096),
    "comment_before_the_greatest_value": b"P5 64 64\n" + b"#\n" * (2 << 20) + b"255\n" + bytes(4096),
    "comments_between_numbers": b"P2 64 64 255\n" + (b"#" + b"x" * 999 + b"\n1 ") * 4096,
    "blanks": b"P5" + b" " * (4 << 20) + b"64 64\n255\n" + bytes(4096),
}


@pytest.mark.parametrize("name", PNM)
def test_a_pnm_of_comments_is_refused_at_once(name, tmp_path):
    path = tmp_path / "image.pgm"
    path.write_bytes(PNM[name])
    assert str(MAX_PNM_HEADER) in refused(path) or "as text" in refused(path)


@pytest.mark.parametrize(
    "data",
    [
        b"P5\n# made by hand\n64 64\n# grey\n255\n" + bytes(4096),
        b"P2 64 64 255\n" + b"255\n" * 4096,
        b"P4 64 64\n" + bytes(512),
    ],
)
def test_pnm_files_with_comments_and_text_are_read(data, tmp_path):
    path = tmp_path / "image.pgm"
    path.write_bytes(data)
    assert read_tensor(path, SHAPE, np.int8).shape == SHAPE
    assert image_shape(path) == SHAPE


def png() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(SHAPE, np.int8))
    return stream.getvalue()


WHOLE = {
    "image.jpg": jpeg(False),
    "image.png": png(),
    "image.pgm": b"P5 64 64 255\n" + bytes(4096),
    "tensor.npy": npy(),
    "tensor.dimg": struct.pack("<4sI7I", b"DIMG", 0, 37, 64, 64, 1, 0, 0, 4096) + bytes(4096),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_file_that_ends_early_is_reported_as_cut_off(name, part, tmp_path):
    path = tmp_path / name
    path.write_bytes(WHOLE[name])
    read_tensor(path, SHAPE, np.int8)
    path.write_bytes(WHOLE[name][: max(8, int(len(WHOLE[name]) * part))])
    assert "(cut off?)" in refused(path)


@pytest.mark.parametrize("digits", [4000, 20000])
@pytest.mark.parametrize("field", ["shape", "descr"])
def test_a_header_with_numbers_of_thousands_of_digits_is_refused(digits, field, tmp_path):
    fields = {"shape": "(1,)", "descr": "'|i1'", "fortran_order": "False"}
    number = "0x" + "f" * (digits // 2)
    fields[field] = f"({number},)" if field == "shape" else number
    text = ("{" + ", ".join(f"'{key}': {value}" for key, value in fields.items()) + "}\n").encode()
    path = tmp_path / "tensor.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0")
    assert "npy" in refused(path)
