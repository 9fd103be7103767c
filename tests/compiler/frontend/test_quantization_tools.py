"""Models that the quantization packages of PyTorch export, where these are installed."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_reference import exact_session

pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

import nvdla  # noqa: E402


def images() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 3, 8, 8) for _ in range(8)]


def compared(path: str, hosted: set[str], calibration: np.ndarray | None = None) -> tuple[float, float]:
    """The largest and the mean squared difference to onnxruntime, relative to the largest and mean squared output."""
    session = exact_session(path)
    name = session.get_inputs()[0].name
    compiled = nvdla.compile(path, "nv_small", calibration=calibration)
    assert {row.op for row in compiled.nodes if row.placement == "host"} == hosted
    wanted = np.concatenate([session.run(None, {name: each.numpy()})[0] for each in images()])
    found = np.concatenate([next(iter(compiled.run({name: each.numpy()}).values())) for each in images()])
    worst = np.abs(found - wanted).max() / np.abs(wanted).max()
    return float(worst), float(np.sum((found - wanted) ** 2) / np.sum(wanted**2))


def test_a_model_of_pt2e_runs_whole(tmp_path):
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    quantizers = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1, groups=8),
        torch.nn.ReLU6(),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    ).eval()
    given = (images()[0],)
    settings = quantizers.get_symmetric_quantization_config(is_per_channel=True)
    prepared = pt2e.prepare_pt2e(
        torch.export.export(net, given).module(), quantizers.XNNPACKQuantizer().set_global(settings)
    )
    for each in images():
        prepared(each)
    program = torch.export.export(pt2e.convert_pt2e(prepared), given)
    torch.onnx.export(program, dynamo=True).save(tmp_path / "net.onnx")
    worst, energy = compared(str(tmp_path / "net.onnx"), set())
    assert worst < 0.03
    assert energy < 1e-3


def test_a_model_of_brevitas_runs_whole_with_data_for_the_layer_without_a_scale(tmp_path):
    layers = pytest.importorskip("brevitas.nn")
    export = pytest.importorskip("brevitas.export")
    pytest.importorskip("onnxoptimizer")
    net = torch.nn.Sequential(
        layers.QuantIdentity(),
        layers.QuantConv2d(3, 8, 3, padding=1),
        layers.QuantReLU(),
        layers.QuantConv2d(8, 8, 3, padding=1, groups=8),
        layers.QuantReLU(),
        torch.nn.Flatten(),
        layers.QuantLinear(512, 10, bias=True),
    )
    for each in images():
        net(each)
    net.eval()
    path = str(tmp_path / "net.onnx")
    export.export_onnx_qcdq(net, args=images()[0], export_path=path, dynamo=False, opset_version=17)
    for calibration in (None, np.concatenate([each.numpy() for each in images()])):
        worst, energy = compared(path, {"Gemm"} if calibration is None else set(), calibration)
        assert worst < 0.02
        assert energy < 1e-3


def test_a_model_of_nncf_runs_whole(tmp_path):
    """The input of its depthwise convolution has a scale per channel; the last layer needs data for its range."""
    nncf, onnx = pytest.importorskip("nncf"), pytest.importorskip("onnx")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1, groups=8),
        torch.nn.ReLU6(),
        torch.nn.Conv2d(8, 8, 1),
        torch.nn.Hardswish(),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    ).eval()
    path = str(tmp_path / "net.onnx")
    torch.onnx.export(net, (images()[0],), path, dynamo=False, opset_version=17)
    model = onnx.load(path)
    data = [{model.graph.input[0].name: each.numpy()} for each in images()]
    onnx.save(nncf.quantize(model, nncf.Dataset(data)), path)
    for calibration in (None, np.concatenate([each.numpy() for each in images()])):
        worst, energy = compared(path, {"Gemm"} if calibration is None else set(), calibration)
        assert worst < 0.03
        assert energy < 1e-3
