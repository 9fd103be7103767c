"""Calibration files of NVIDIA's compiler, TensorRT and onnxruntime."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.compiler.frontend.quantization.calibrate import read_table
from nvdla.errors import BuildError, FormatError
from tests.compiler.frontend.models import model, node


def _write(tmp_path, text: str):
    path = tmp_path / "table"
    path.write_text(text, encoding="utf-8")
    return path


def test_nvidia_json_has_scales(tmp_path):
    text = json.dumps({"conv1": {"scale": 0.5, "min": 0, "max": 0, "offset": 0}, "data": {"scale": 2.0}})
    table = read_table(_write(tmp_path, text))
    assert table.kind == "NVIDIA JSON"
    assert table.magnitudes == {"conv1": 63.5, "data": 254.0}


def test_a_tensorrt_cache_has_floats_as_bits(tmp_path):
    bits = struct.pack(">f", 0.0123).hex()
    table = read_table(
        _write(tmp_path, f"TRT-8601-EntropyCalibration2\ninput: {bits}\n(Unnamed Layer* 3) [x]: 3f800000\n")
    )
    assert table.kind == "TensorRT cache"
    assert table.magnitudes["input"] == pytest.approx(0.0123 * 127, rel=1e-6)
    assert table.magnitudes["(Unnamed Layer* 3) [x]"] == 127.0


def test_tables_that_onnxruntime_writes_are_read(tmp_path):
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    from onnxruntime.quantization.quant_utils import write_calibration_table

    data = {
        "x": calibrate.TensorData(lowest=np.float32(-1.5), highest=np.float32(3.0)),
        "y": calibrate.TensorData(lowest=np.float32(0), highest=np.float32(6.0)),
    }
    write_calibration_table(data, str(tmp_path))
    table = read_table(tmp_path / "calibration.json")
    assert table.kind == "onnxruntime table"
    assert table.magnitudes == {"x": 3.0, "y": 6.0}
    text = read_table(tmp_path / "calibration.cache")
    assert (text.kind, text.magnitudes) == ("onnxruntime cache", {"x": 3.0, "y": 6.0})


def test_pairs_of_lowest_and_highest_are_read(tmp_path):
    assert read_table(_write(tmp_path, '{"a": [-4.0, 2.0]}')).magnitudes == {"a": 4.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have at least one tensor, got none"),
        ("{}", "must have at least one tensor, got none"),
        ("[1]", "mapping"),
        ("{", "must be JSON"),
        ('{"a": {"scale": "x"}}', "tensor a: must be a number, got 'x'"),
        ('{"a": {"scale": 1, "offset": 3}}', "offset: must be 0 for NVDLA, got 3"),
        ('{"a": {"scale": NaN}}', "magnitude: must be a positive finite number, got nan"),
        ('{"a": [1]}', "must have the lowest and the highest value, got 1"),
        ('{"a": {"scale": 1' + 400 * "0" + "}}", "must be at most 1.8e308"),
        ('{"a": [0, -1' + 400 * "0" + "]}", "must be at most 1.8e308"),
        ('{"a": {"scale": 1, "offset": [' + "1," * 9999 + "1]}}", r"offset: must be 0 for NVDLA, got \[1, 1, .{0,60}$"),
        ('{"a": {"scale": ' + "[" * 900 + "]" * 900 + "}}", "must be a number"),
        ("TRT-1\nabc", "eight hexadecimal digits"),
        ("TRT-1\na: 7f800000", "magnitude: must be a positive finite number, got inf"),
        ("name", "NAME NUMBER"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path, text, message):
    with pytest.raises(FormatError, match=message) as error:
        read_table(_write(tmp_path, text))
    assert "\n" not in str(error.value)


def _of_torch():
    """Two convolutions, as torch.onnx exports the modules "stem" and "head"."""
    made = model(
        [node("Conv", "x w", "conv2d"), node("Conv", "conv2d w", "y")],
        {"x": (1, 4, 5, 5)},
        {"y": (1, 4, 5, 5)},
        {"w": np.ones((4, 4, 1, 1), np.float32)},
    )
    entry = made.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'stem', 'conv2d']"
    return made


@pytest.mark.parametrize("name", ["stem", "conv2d"])
def test_a_table_has_the_names_of_the_layer_file_or_of_onnx(tmp_path, name):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({tensor: {"scale": 0.5} for tensor in ("x", name, "y")}), encoding="utf-8")
    compiled = nvdla.compile(_of_torch(), "nv_small", calibration=path)
    assert compiled.parts[0].built.sidecar["tensors"]["stem"]["scale"] == pytest.approx(0.5)


def test_a_tensor_that_a_table_lacks_has_both_of_its_names_in_the_error(tmp_path):
    path = tmp_path / "table.json"
    path.write_text('{"x": {"scale": 0.5}, "y": {"scale": 0.5}}', encoding="utf-8")
    with pytest.raises(BuildError, match=r"tensor stem \(ONNX value conv2d\) has no scale .*--calibrate; Python: cal"):
        nvdla.compile(_of_torch(), "nv_small", calibration=path)


def test_a_layer_file_is_no_table_as_its_weights_may_be_equalized(tmp_path):
    with pytest.raises(FormatError, match="must be for the model as it is, got a layer file"):
        read_table(_write(tmp_path, '{"format": "nvdla-layers", "tensors": {"x": {"scale": 1}}}'))


@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "ignore"))))
def test_any_bytes_are_a_table_or_one_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("table") / "table"
    path.write_bytes(data)
    with suppress(FormatError):
        read_table(path)
