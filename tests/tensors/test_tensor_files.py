"""Tensor files: what is written is read back, and what does not fit is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.tensor_files import read_tensor

from nvdla import FormatError
from nvdla.tensors.files import dimg_bytes, fit, read_dimg, write_tensor

LAYOUT = SimpleNamespace(atom=32, line_stride=96, surface_stride=192)
SHAPES = st.tuples(st.just(1), *[st.integers(1, 7)] * 3)
TENSORS = st.sampled_from([np.int8, np.int16, np.float16]).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


@given(TENSORS)
def test_dimg_keeps_every_bit(tmp_path_factory, tensor):
    path = tmp_path_factory.mktemp("dimg") / "t.dimg"
    path.write_bytes(dimg_bytes(tensor))
    assert read_dimg(path).tobytes() == tensor.tobytes()


@pytest.mark.parametrize("suffix", [".npy", ".dimg"])
def test_an_output_can_be_an_input(tmp_path, suffix):
    tensor = np.arange(-24, 24, dtype=np.int8).reshape(1, 2, 4, 6)
    write_tensor(tmp_path / f"t{suffix}", tensor, b"", LAYOUT)
    assert np.array_equal(read_tensor(tmp_path / f"t{suffix}", (1, 2, 4, 6), np.int8), tensor)


def test_bin_is_the_raw_surface(tmp_path):
    write_tensor(tmp_path / "t.bin", np.zeros((1, 1, 1, 1), np.int8), b"raw surface")
    assert read_tensor(tmp_path / "t.bin", (1, 1, 1, 1), np.int8) == b"raw surface"


def test_json_holds_shape_values_and_what_json_has_no_numbers_for(tmp_path):
    write_tensor(tmp_path / "t.json", np.array([1.5, np.nan, -np.inf], np.float16).reshape(1, 3, 1, 1), b"")
    document = json.loads((tmp_path / "t.json").read_text())
    assert document == {"shape": [1, 3, 1, 1], "dtype": "float16", "data": [[[[1.5]], [["nan"]], [["-inf"]]]]}


def test_png_shows_every_channel(tmp_path):
    from PIL import Image

    write_tensor(tmp_path / "t.png", np.arange(5 * 6 * 7, dtype=np.int16).reshape(1, 5, 6, 7), b"")
    assert Image.open(tmp_path / "t.png").size == (3 * 8, 2 * 7)


def test_an_unknown_ending_lists_the_known_ones(tmp_path):
    with pytest.raises(FormatError, match=r"\.gif.*\.pgm \.ppm"):
        read_tensor(tmp_path / "t.gif", (1, 1, 1, 1), np.int8)


def test_values_that_do_not_fit_are_refused_not_wrapped(tmp_path):
    np.save(tmp_path / "t.npy", np.array([0, 200]).reshape(1, 2, 1, 1))
    with pytest.raises(
        FormatError,
        match="values for the input's int8: must be whole numbers from -128 to 127, got int64 from 0 to 200",
    ):
        read_tensor(tmp_path / "t.npy", (1, 2, 1, 1), np.int8)


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"t\.npy"):
        read_tensor(tmp_path / "t.npy", (1, 1, 1, 1), np.int8)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dimg_or_a_format_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("dimg") / "t.dimg"
    for content in (data, b"DIMG" + data):
        path.write_bytes(content)
        try:
            read_dimg(path)
        except FormatError as error:
            assert "t.dimg" in str(error)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(FormatError, match="No space left"):
        write_tensor(path, np.zeros((1, 1, 1, 1), np.int8), b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["t.bin"]


def test_an_array_without_the_padding_channel_of_a_picture_is_told_what_lacks():
    with pytest.raises(FormatError, match=r"shape must be 1x4x2x2, got 1x3x2x2\. Its fourth channel is the padding"):
        fit(np.zeros((1, 3, 2, 2), np.int8), (1, 4, 2, 2), np.dtype(np.int8), "data")
    with pytest.raises(FormatError, match=r"shape must be 1x4x2x2, got 1x2x2x2\.$"):
        fit(np.zeros((1, 2, 2, 2), np.int8), (1, 4, 2, 2), np.dtype(np.int8), "data")


@pytest.mark.parametrize("shape", [(4, 1, 8, 8), (1, 4, 8, 8)])
def test_one_picture_for_a_batch_is_refused_with_the_way_out(shape):
    with pytest.raises(FormatError, match=r"got 1x8x8\..* 4.* export the model with a batch of 1"):
        fit(np.zeros((1, 8, 8), np.int8), shape, np.dtype(np.int8), "sample")
