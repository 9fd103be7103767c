"""Outputs keep their meaning: what has very different ranges does not share one scale of integers."""

from __future__ import annotations

import json

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from nvdla.cli.main import main  # noqa: E402
from nvdla.compiler.builder.accuracy import ChannelRanges, ChannelSums  # noqa: E402
from nvdla.compiler.frontend.compiler import compile as compile_model  # noqa: E402
from nvdla.compiler.frontend.opening import rounded  # noqa: E402
from nvdla.compiler.frontend.package import unpack  # noqa: E402
from nvdla.compiler.frontend.summary import summary_lines  # noqa: E402
from nvdla.errors import FormatError  # noqa: E402
from tests.compiler.frontend.detector import detections, detector, overlap, pictures  # noqa: E402
from tests.compiler.frontend.models import model, node  # noqa: E402


def _floats(proto, images):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    name = session.get_inputs()[0].name
    return [session.run(None, {name: image[None]})[0] for image in images]


def test_a_yolo_head_in_int8_detects_what_the_float_model_detects():
    proto, unseen = detector(), pictures(4, seed=11)
    compiled = compile_model(proto, "nv_small", calibration=pictures(8))
    row = next(each for each in compiled.nodes if each.name == "output0")
    assert row.placement == "host"
    assert "joins ranges" in row.reason
    found = 0
    for image, real in zip(unseen, _floats(proto, unseen), strict=True):
        made = compiled.run({"images": image[None]})["output0"]
        wanted, sure = detections(real), detections(real, 0.6)
        assert len(wanted) > 5
        assert sure.keys() <= detections(made, 0.5).keys() <= detections(real, 0.4).keys()
        for anchor in sure:
            (kind, box), (other, its) = wanted[anchor], detections(made)[anchor]
            ranked = np.sort(real[0, 4:, anchor])
            assert kind == other or ranked[-1] - ranked[-2] < 0.1
            assert overlap(box, its) > 0.85
            found += 1
        assert _snr(real[0, 4:], made[0, 4:]) > 15
        assert _snr(real[0, :4], made[0, :4]) > 30
    assert found > 30


def _two_heads(batch=1, first=100.0, tail=(), last="y", shape=None, seed=0):
    """Two convolutions whose results have ranges of about ``first`` and 1, joined, then the nodes ``tail``."""
    rng = np.random.default_rng(seed)
    constants = {
        "w": (rng.normal(size=(4, 3, 3, 3)) * first / 15).astype("f4"),
        "v": (rng.normal(size=(5, 3, 3, 3)) / 15).astype("f4"),
        "shape": np.array([batch, 9, 64], np.int64),
    }
    nodes = [
        node("Conv", "x w", "large", pads=[1] * 4),
        node("Conv", "x v", "small", pads=[1] * 4),
        node("Concat", "large small", "joined", axis=1),
        *(tail or [node("Reshape", "joined shape", "y")]),
    ]
    return model(nodes, {"x": (batch, 3, 8, 8)}, {last: shape or (batch, 9, 64)}, constants)


def _data(count=8, seed=1):
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype("f4")


def _snr(real, made):
    return 10 * np.log10(np.sum(real**2) / np.sum((real - made) ** 2))


def _placed(compiled):
    return {row.name: row.placement for row in compiled.nodes}


def test_a_last_concat_and_what_moves_its_result_run_on_the_host(tmp_path):
    proto, data = _two_heads(), _data()
    compiled = compile_model(proto, "nv_small", calibration=data)
    placed = _placed(compiled)
    assert (placed["joined"], placed["y"]) == ("host", "host")
    assert (placed["large"], placed["small"]) == ("accelerator", "accelerator")
    assert any(note.startswith("Concat joined runs on the host") for note in compiled.report["notes"])
    path = tmp_path / "net.nvpkg"
    compiled.save(path)
    for image, real in zip(data[:2], _floats(proto, data), strict=False):
        for run in (compiled.run, unpack(path).machine().run):
            assert _snr(real[:, 4:], run({"x": image[None]})["y"][:, 4:]) > 30


@pytest.mark.parametrize("first", [1.0, 10.0])
def test_ranges_that_are_near_each_other_share_a_scale(first):
    compiled = compile_model(_two_heads(first=first), "nv_small", calibration=_data())
    assert compiled.whole
    assert not compiled.report["notes"]


def test_without_a_host_a_note_takes_the_place_of_the_cut():
    compiled = compile_model(_two_heads(first=1000.0), "nv_small", calibration=_data(), host=False)
    assert compiled.whole
    first, second = compiled.report["notes"]
    assert "Concat joined joins ranges" in first
    assert "without --no-host" in first
    assert second.startswith("output y: 5 of 9 channels (4-8) stay below two int8 units")


def test_halves_and_sixteen_bits_hold_such_ranges():
    for settings in ({"precision": "fp16"}, {"precision": "int16", "calibration": _data()}):
        compiled = compile_model(_two_heads(), "nv_full", **settings)
        assert compiled.whole
        assert not compiled.report["notes"]
    real = compile_model(_two_heads(), "nv_full", "fp16", calibration=_data()).report["accuracy"]
    assert all(group["units"] is None for row in real for group in row["channels"])


def test_each_image_of_a_batch_keeps_its_scales():
    proto, data = _two_heads(batch=2), _data()
    compiled = compile_model(proto, "nv_small", calibration=data)
    assert [part.kind for part in compiled.parts] == ["accelerator", "host"]
    assert [part.images for part in compiled.parts] == [2, 2]
    machine = unpack(compiled.package).machine()
    real = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": data[:2]})[0]
    for made in (compiled.run({"x": data[:2]})["y"], machine.run({"x": data[:2]})["y"]):
        assert made.shape == real.shape
        assert _snr(real[:, 4:], made[:, 4:]) > 30
    with pytest.raises(FormatError, match="must have 2 images, got 3x4x8x8"):
        machine.parts[1].run({"large": np.zeros((3, 4, 8, 8)), "small": np.zeros((2, 5, 8, 8))})


def test_a_concat_inside_the_network_is_noted():
    tail = [node("Relu", "joined", "active"), node("MaxPool", "active", "y", kernel_shape=[2, 2], strides=[2, 2])]
    proto = _two_heads(tail=tail, shape=(1, 9, 4, 4))
    compiled = compile_model(proto, "nv_small", calibration=_data(), equalize=False)
    assert compiled.whole
    assert any(note.startswith("Concat joined joins ranges") for note in compiled.report["notes"])


def _quantized(proto, values):
    """The model with QuantizeLinear and DequantizeLinear behind values, by their scales."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    nodes = []
    for each in proto.graph.node:
        nodes.append(each)
        for value in each.output:
            if value in values:
                name = f"{value}.float"
                each.output[0] = name
                nodes.append(node("QuantizeLinear", f"{name} {value}.scale {value}.zero", f"{value}.q"))
                nodes.append(node("DequantizeLinear", f"{value}.q {value}.scale {value}.zero", value))
    if "x" in values:
        nodes[0:0] = [
            node("QuantizeLinear", "x x.scale x.zero", "x.q"),
            node("DequantizeLinear", "x.q x.scale x.zero", "x.real"),
        ]
        for each in nodes[2:]:
            for number, name in enumerate(each.input):
                each.input[number] = "x.real" if name == "x" else name
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(copies)
    for value, scale in values.items():
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(scale), f"{value}.scale"))
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.int8(0), f"{value}.zero"))
    return copy


def test_a_model_with_scales_keeps_that_of_its_concat():
    scales = {"x": 4 / 127, "large": 2.0, "small": 0.02}
    own = compile_model(_quantized(_two_heads(), scales | {"joined": 2.0}), "nv_small")
    assert own.whole
    assert any("Concat joined.float joins ranges" in note for note in own.report["notes"])
    free = compile_model(_quantized(_two_heads(), scales), "nv_small")
    assert _placed(free)["joined"] == "host"
    assert free.parts[0].scales["small.float_requantized"] == pytest.approx(0.02)


def _uneven_convolution():
    weights = np.random.default_rng(5).normal(size=(6, 3, 3, 3)).astype("f4") / 5
    weights *= np.array([100, 90, 1, 0.9, 0.01, 0], "f4")[:, None, None, None]
    return model([node("Conv", "x w", "y", pads=[1] * 4)], {"x": (1, 3, 8, 8)}, {"y": (1, 6, 8, 8)}, {"w": weights})


def test_channels_of_an_output_are_measured_by_their_ranges():
    proto, data = _uneven_convolution(), _data()
    compiled = compile_model(proto, "nv_small", calibration=data)
    (row,) = (row for row in compiled.report["accuracy"] if row["tensor"] == "y")
    groups = row["channels"]
    assert [group["channels"] for group in groups] == ["0-1", "2-3", "4", "5"]
    every = np.concatenate(_floats(proto, data))
    taken = [rounded(compiled.parts, {"x": image[None]})["x"] for image in data]  # errors of the network alone
    real = np.concatenate(_floats(proto, np.concatenate(taken)))
    made = np.concatenate([compiled.run({"x": image[None]})["y"] for image in data])
    for group, channels in zip(groups[:2], (slice(0, 2), slice(2, 4)), strict=True):
        assert group["range"] == pytest.approx(np.abs(every[:, channels]).max(), rel=1e-4)
        assert group["units"] == pytest.approx(group["range"] / row["scale"])
        assert group["snr"] == pytest.approx(_snr(real[:, channels], made[:, channels]), abs=0.1)
    assert groups[0]["snr"] > 30 > 15 > groups[1]["snr"] > groups[2]["snr"]
    assert (groups[3]["range"], groups[3]["snr"], groups[3]["weak"]) == (0, None, "")
    (note,) = compiled.report["notes"]
    weak = [channel for channel in range(5) if np.abs(every[:, channel]).max() < 2 * row["scale"]]
    assert 4 in weak
    assert f"output y: {len(weak)} of 6 channels" in note


def test_a_score_that_no_sample_has_is_no_loss():
    """A class that the calibration data do not show: its sigmoid may reach 1, whatever they hold."""
    rng = np.random.default_rng(0)
    for bias, noted in ((3.0, False), (-6.0, True)):
        constants = {"w": rng.normal(size=(3, 3, 1, 1)).astype("f4") / 9, "b": np.array([bias, bias, -9], "f4")}
        nodes = [node("Conv", "x w b", "logits"), node("Sigmoid", "logits", "y")]
        proto = model(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 3, 8, 8)}, constants)
        compiled = compile_model(proto, "nv_small", calibration=_data())
        assert "2" in compiled.report["accuracy"][-1]["channels"][-1]["weak"]
        assert bool(compiled.report["notes"]) == noted


@pytest.mark.parametrize("planes", [True, False])
def test_ranges_and_sums_are_those_of_each_channel(planes):
    """Where a plane of the cube is a channel of the value, and where the value is in another order."""
    rng = np.random.default_rng(0)
    shape = (5, 4, 3)
    labels = np.broadcast_to(np.array([1, 0, -1, 2, 0])[:, None, None], shape) if planes else rng.integers(-1, 3, shape)
    exact = rng.normal(size=(2, *shape)) * np.array([1, 90, 1, 0.01, 3])[:, None, None]
    found = exact + rng.normal(size=exact.shape) / 9
    ranges = ChannelRanges(labels)
    for sample in exact:
        ranges.see(sample[None])
    for channel in range(3):
        assert ranges.largest[channel] == np.abs(exact[:, labels == channel]).max()
    sums = ChannelSums(ranges)
    for one, other in zip(exact, found, strict=True):
        sums.add(one, other)
    for group in sums.groups(0.5):
        ends = [[int(each) for each in run.split("-")] for run in group.channels.split(", ")]
        chosen = np.isin(labels, [each for run in ends for each in range(run[0], run[-1] + 1)])
        assert group.snr == pytest.approx(_snr(exact[:, chosen], found[:, chosen]))
        assert group.range == np.abs(exact[:, chosen]).max() == group.units * 0.5


def test_the_command_prints_the_channels_and_the_notes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    path, data = tmp_path / "net.onnx", tmp_path / "data.npy"
    onnx.save(_uneven_convolution(), path)
    np.save(data, _data())
    command = ["compile", str(path), "--calibrate", str(data), "-o", str(tmp_path / "net.nvdla"), "-q"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "channels of outputs, by range" in text
    assert "note: output y: " in text
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["accuracy"]
    assert [group["channels"] for group in rows[-1]["channels"]] == ["0-1", "2-3", "4", "5"]


@pytest.mark.parametrize("chain", ["Reciprocal", "Reciprocal Exp", "Sqrt Reciprocal", "Tan"])
def test_a_pole_is_no_bound_of_an_output(chain):
    """Where a function has a pole, its range is that of the samples, not how near to the pole it was looked at."""
    ops = chain.split()
    names = ["x", *(f"t{number}" for number in range(1, len(ops))), "y"]
    nodes = [node(op, start, end) for op, start, end in zip(ops, names, names[1:], strict=False)]
    net = model(nodes, {"x": (1, 1, 8, 8)}, {"y": (1, 1, 8, 8)})
    data = np.linspace(0.9, 1.3, 256, dtype=np.float32).reshape(4, 1, 8, 8)
    exact = max(float(np.abs(each).max()) for each in _floats(net, data))
    assert compile_model(net, "nv_small", "int8", data).parts[0].scales["y"] < 1.2 * exact / 127


def test_the_expected_noise_is_of_samples_from_all_the_data():
    """Sorted by class the first samples are of one class; the summary states how many are measured."""
    proto = _uneven_convolution()
    images = np.concatenate([_data(), 20 * _data(), 0.05 * _data()])
    data = np.concatenate([images] * (1 + 64 // len(images)))
    chance = np.random.default_rng(0).permutation(len(data))
    summaries = [compile_model(proto, "nv_small", calibration=data[order]).summary for order in (slice(None), chance)]
    first, second = (summary["output_snr"]["y"] for summary in summaries)
    assert first == pytest.approx(second, abs=1.0)
    assert (summaries[0]["samples"], summaries[0]["measured_samples"]) == (len(data), 32)
    assert f"on 32 of {len(data)} calibration samples" in summary_lines(summaries[0])["expected SNR"]
