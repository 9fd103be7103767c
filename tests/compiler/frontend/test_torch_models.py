"""Models of PyTorch: compiled from memory and from .pt2 files, calibrated and judged with a DataLoader."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import nvdla  # noqa: E402
from nvdla.cli.main import main  # noqa: E402
from nvdla.errors import FormatError  # noqa: E402
from nvdla.experiments.campaign import Journal, Workers, run  # noqa: E402
from nvdla.experiments.campaign.journal import read  # noqa: E402
from nvdla.experiments.evaluation import Evaluation, open_source, summarize  # noqa: E402


class Net(torch.nn.Module):
    """Convolution, batch normalization and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.drop, self.head = torch.nn.Dropout(0.5), torch.nn.Linear(8 * 4 * 4, 5)

    def forward(self, x):
        y = torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(self.drop(y.flatten(1)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    made = Net()
    made(torch.randn(64, 3, 8, 8))  # statistics of the normalization
    return made


def loader(labels: bool = True):
    images = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    parts = (images, torch.arange(40) % 5) if labels else (images,)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*parts), batch_size=16)


EXAMPLE = (torch.zeros(1, 3, 8, 8),)


def decibels(wanted: np.ndarray, found: np.ndarray) -> float:
    return 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2))


def outputs(compiled, images) -> np.ndarray:
    return np.concatenate([next(iter(compiled.run({"x": each[None]}).values())) for each in images.numpy()])


class Block(torch.nn.Module):
    """A residual block that uses its activation twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.relu = torch.nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.relu(self.norm(self.conv(x))))


def layer_names(compiled) -> list[str]:
    return list(dict.fromkeys(name for row in compiled.nodes for name in row.operations))


def test_layers_have_the_names_of_modules(tmp_path):
    blocks, head = torch.nn.Sequential(Block(), Block()), torch.nn.Conv2d(8, 4, 1)
    sequence = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), blocks, head, torch.nn.Sigmoid(), torch.nn.Tanh())
    example = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)
    options = {"example_inputs": example, "calibration": example[0].numpy(), "keep_on_host": ("node_sigmoid",)}
    compiled = nvdla.compile(sequence, "nv_small", **options)
    blocks = [
        name for block in ("1.0", "1.1") for name in (f"{block}.norm+{block}.relu", f"{block}.add+{block}.relu.2")
    ]
    assert [name for name in layer_names(compiled) if name.startswith("1.")] == blocks
    assert layer_names(compiled)[0] == "0.conv" and layer_names(compiled)[-2:] == ["2.conv", "tanh"], "tanh: an output"
    with torch.no_grad():
        wanted = sequence.eval()(*example).numpy()
    assert decibels(wanted, *compiled.run(example[0]).values()) > 20
    torch.onnx.export(sequence, example, tmp_path / "net.onnx", dynamo=True)
    del options["example_inputs"]
    same = nvdla.compile(tmp_path / "net.onnx", "nv_small", **options | {"keep_on_host": ()})
    assert layer_names(same)[1:5] == blocks
    same.save(tmp_path / "net.loadable")
    table = nvdla.load(tmp_path / "net.loadable").compare(tmp_path / "net.onnx", example[0].numpy())
    assert {row["name"] for row in table if row["result"] == "close"} >= set(blocks)


def test_a_module_at_the_top_keeps_its_name_although_a_value_of_onnx_has_it():
    block, example = Block(), (torch.randn(1, 8, 8, 8, generator=torch.Generator().manual_seed(0)),)
    options = {"example_inputs": example, "calibration": example[0].numpy()}
    names = layer_names(nvdla.compile(block.eval(), "nv_small", **options))
    assert names[0] == "norm+relu"


def test_layers_inside_a_named_normalization_are_found():
    """Its variances are looked up by the name of an inner layer."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(16, 12, 32)) * 6 ** rng.uniform(-1, 1, (16, 12, 1))
    module = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.ReLU())
    options = {"example_inputs": (torch.zeros(1, 12, 32),), "calibration": data.astype(np.float32)}
    (row,) = [row for row in nvdla.compile(module, "nv_large", **options).nodes if row.op == "LayerNormalization"]
    assert row.placement == "host" and "variances of the calibration data: must differ by a factor" in row.reason


@pytest.mark.parametrize("labels", [True, False])
def test_a_module_in_training_mode_compiles_as_in_evaluation_mode(net, labels):
    net.conv.eval()
    compiled = nvdla.compile(net, "nv_small", example_inputs=EXAMPLE, calibration=loader(labels))
    assert compiled.whole and compiled.report["model"] == "Net"
    assert net.training and net.norm.training and net.drop.training and not net.conv.training
    images = loader().dataset.tensors[0][:16]
    with torch.no_grad():
        wanted = net.eval()(images).numpy()
    assert decibels(wanted, outputs(compiled, images)) > 25
    (together,) = compiled.run(images).values()  # a tensor with a batch
    assert np.array_equal(together, outputs(compiled, images))


def test_a_program_compiles_from_memory_and_from_a_trusted_file(net, tmp_path, capsys):
    program = torch.export.export(net.eval(), EXAMPLE)
    images = loader().dataset.tensors[0][:8]
    with torch.no_grad():
        wanted = net(images).numpy()
    compiled = nvdla.compile(program, "nv_full", "fp16")
    assert decibels(wanted, outputs(compiled, images)) > 50
    file = tmp_path / "net.pt2"
    torch.export.save(program, file)
    same = nvdla.compile(file, "nv_full", "fp16", trusted=True)
    assert np.array_equal(outputs(same, images), outputs(compiled, images))
    words = [str(file), "--config", "nv_full", "--precision", "fp16", "-o", str(tmp_path / "net.nvdla")]
    assert main(["compile", *words]) == 2
    assert "can run code: must be trusted. Add --trusted" in capsys.readouterr().err
    assert main(["compile", *words, "--trusted"]) == 0
    assert "torchvision" not in capsys.readouterr().err, "a warning of torch's exporter"
    assert nvdla.load(tmp_path / "net.nvdla").inputs
    assert main([str(file)]) == 0
    said = capsys.readouterr().out
    assert "a PyTorch program (torch.export)" in said
    command = re.search("'nvdla (compile [^']*)'", said)[1].replace("net.nvdla", str(tmp_path / "advised"))
    assert main([*shlex.split(command), "--config", "nv_full", "--precision", "fp16"]) == 0


def test_a_data_loader_is_a_data_set(net, tmp_path):
    compiled = nvdla.compile(net, "nv_small", example_inputs=EXAMPLE, calibration=loader())
    compiled.save(tmp_path / "net.nvpkg")
    source = open_source(loader())
    assert len(source) == 40 and source.sample(7).label == 2
    with torch.no_grad():
        best = net.eval()(loader().dataset.tensors[0]).argmax(1).numpy()
    right = float(np.mean(best == np.arange(40) % 5))
    table = Evaluation(str(tmp_path / "net.nvpkg"), source)
    journal = Journal(tmp_path / "samples.jsonl", table)
    run(table, journal, Workers(count=1))
    journal.close()
    summary = summarize(read(tmp_path / "samples.jsonl")).document(source.classes)
    assert summary["samples"] == 40 and abs(summary["top1"]["value"] - right) <= 0.05


@pytest.mark.parametrize("legacy", [True, False])
def test_a_checkpoint_is_refused_with_the_code_that_exports_it(net, legacy, tmp_path, capsys):
    file = tmp_path / "net.pth"
    torch.save(net.state_dict(), file, _use_new_zipfile_serialization=not legacy)
    assert main(["compile", str(file), "-o", str(tmp_path / "o")]) == 2
    error = capsys.readouterr().err
    assert f"model.load_state_dict(torch.load('{file}'))" in error
    assert "torch.onnx.export(model.eval(), (example_input,), 'model.onnx', dynamo=True)" in error


def test_what_cannot_be_exported_is_named(net):
    with pytest.raises(nvdla.ArgumentTypeError, match="example_inputs must be a sequence, got a value of type Tensor"):
        nvdla.compile(net, "nv_small", example_inputs=torch.zeros(1))
    with pytest.raises(
        FormatError, match="Net: example_inputs: must be a tuple with the arguments of forward, got none"
    ):
        nvdla.compile(net)
    with pytest.raises(FormatError, match=r"Net: torch\.onnx\.export: "):
        nvdla.compile(net, example_inputs=(torch.zeros(1, 4, 8, 8),))
    assert net.training
    with pytest.raises(FormatError, match=r"example_inputs: must be given for a torch\.nn\.Module only, got bytes"):
        nvdla.compile(b"", example_inputs=EXAMPLE)
    with pytest.raises(FormatError, match="DataLoader: batches must be tensors"):
        open_source(torch.utils.data.DataLoader([{"a": 1}], collate_fn=lambda rows: rows))


class Values(torch.nn.Module):
    """Singular values, which torch.onnx does not know."""

    def forward(self, x):
        return torch.linalg.svd(x)[1]


def test_errors_name_the_file(net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(net.eval(), EXAMPLE), "net.pt2")
    torch.onnx.export(net, EXAMPLE, "net.onnx", dynamo=True)
    torch.export.save(torch.export.export(Values(), (torch.zeros(3, 4),)), "values.pt2")
    for file, options, message in [
        ("net.pt2", {"shapes": {"y": (1, 2)}}, "shape for y: input: must be one of x"),
        ("net.pt2", {"weights": "net.caffemodel"}, "weights (--weights; Python: weights=): must be given with"),
        ("net.pt2", {}, "scales: must be given for int8"),
        ("values.pt2", {}, "torch.onnx.export: No ONNX function found for <OpOverload(op='aten._linalg_svd'"),
        ("net.onnx", {"shapes": {"y": (1, 2)}}, "shape for y: input: must be one of x"),
        ("net.onnx", {}, "scales: must be given for int8"),
    ]:
        with pytest.raises(nvdla.NvdlaError) as error:
            nvdla.compile(file, trusted=file.endswith(".pt2"), **options)
        assert str(error.value).startswith(f"{file}: {message}") and "\x1b" not in str(error.value)
    net.conv.weight.data[0] = np.nan
    torch.export.save(torch.export.export(net, EXAMPLE), "net.pt2")
    with pytest.raises(FormatError, match=r"^net\.pt2: node \S+: tensor \S+: must be finite"):
        nvdla.compile("net.pt2", trusted=True)


def test_pytorch_is_not_imported_for_other_models(tmp_path):
    code = (
        "import sys, numpy, nvdla; nvdla.compile(sys.argv[1], calibration=numpy.zeros((1, 1, 28, 28), 'f')); "
        "assert 'torch' not in sys.modules"
    )
    from pathlib import Path

    sample = Path(nvdla.__file__).resolve().parents[1] / "samples" / "lenet.onnx"
    subprocess.run([sys.executable, "-c", code, str(sample)], check=True)


class Trained(torch.nn.Module):
    """Convolutions, a residual sum and a classifier between the stubs of torch.ao.quantization."""

    def __init__(self) -> None:
        super().__init__()
        quantization = torch.ao.quantization
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.norm, self.relu = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        self.again, self.sum = torch.nn.Conv2d(8, 8, 3, padding=1), torch.ao.nn.quantized.FloatFunctional()
        self.head = torch.nn.Linear(8 * 6 * 6, 5)

    def forward(self, x):
        y = self.relu(self.norm(self.conv(self.quant(x))))
        y = self.sum.add_relu(self.again(y), y)
        return self.dequant(self.head(y.flatten(1)))


@pytest.mark.filterwarnings("ignore")  # torch.ao warns that it is old, and of its observers
@pytest.mark.parametrize("backend", ["x86", "qnnpack"])  # 7 and 8 bits of activations
def test_quantizers_of_torch_ao_give_the_scales_and_stay_in_the_module(backend):
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    net = quantization.fuse_modules_qat(Trained(), [["conv", "norm", "relu"]])
    net.qconfig = quantization.get_default_qat_qconfig(backend)
    quantization.prepare_qat(net, inplace=True)
    images = torch.randn(64, 3, 8, 8)
    net(images)
    net.eval().apply(quantization.disable_observer)
    before = [*net.modules()]
    compiled = nvdla.compile(net, "nv_small", example_inputs=(images[:1],), host=False)
    assert [*net.modules()] == before
    wanted = net(images).detach().numpy()
    step = float(net.head.activation_post_process.calculate_qparams()[0])
    assert np.abs(outputs(compiled, images).reshape(wanted.shape) - wanted).max() < 2.01 * step


class Wide(torch.nn.Module):
    """Two layers with as many weights as PyTorch's exporter does not fold."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.conv, self.norm = torch.ao.quantization.QuantStub(), *_convolution(3, 128)
        self.again, self.last = _convolution(128, 128)

    def forward(self, x):
        return self.last(self.again(self.norm(self.conv(self.quant(x)))))


def _convolution(channels: int, kernels: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    return torch.nn.Conv2d(channels, kernels, 3), torch.nn.BatchNorm2d(kernels)


def _trained(module: torch.nn.Module, setting: object) -> torch.nn.Module:
    """A module with quantizers that have seen numbers."""
    module.qconfig = setting
    torch.ao.quantization.prepare_qat(module, inplace=True)
    module(torch.randn(16, 3, 8, 8))
    return module.eval().apply(torch.ao.quantization.disable_observer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channels", ["", "per_channel_"])
def test_weights_from_minus_127_to_127_are_those_of_the_fake_quantization(channels, tmp_path):
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    fused = quantization.fuse_modules_qat(Wide(), [["conv", "norm"], ["again", "last"]])
    net = _trained(fused, getattr(quantization.qconfig, f"default_{channels}symmetric_qnnpack_qat_qconfig"))
    compiled = nvdla.compile(net, "nv_small", example_inputs=(torch.zeros(1, 3, 8, 8),), host=False)
    compiled.export_qdq(tmp_path / "net.onnx")
    integers = [*map(onnx.numpy_helper.to_array, onnx.load(tmp_path / "net.onnx").graph.initializer)]
    for module in (net.conv, net.again):
        factors = module.bn.weight / torch.sqrt(module.bn.running_var + module.bn.eps)
        weights = module.weight * factors.reshape(-1, 1, 1, 1)
        scales = module.weight_fake_quant.scale.reshape(-1, 1, 1, 1)
        elements = torch.round(module.weight_fake_quant(weights) / scales).detach().numpy()
        ties = (weights / scales % 1 - 0.5).abs().detach().numpy() < 1e-4  # PyTorch multiplies by 1 / scale
        alike = [array for array in integers if array.shape == elements.shape]
        assert any(np.array_equal(array[~ties], elements[~ties]) for array in alike)
        assert ties.mean() < 1e-3


@pytest.mark.filterwarnings("ignore")
def test_a_quantizer_of_more_than_8_bits_is_refused_with_its_name_and_the_module_stays():
    quantization = torch.ao.quantization
    observer = {"observer": quantization.MovingAverageMinMaxObserver, "dtype": torch.qint32}
    wide = quantization.FakeQuantize.with_args(**observer, quant_min=-32768, quant_max=32767)
    net = _trained(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), quantization.QConfig(wide, wide))
    before = [*net.modules()]
    with pytest.raises(FormatError, match=r"0\.weight_fake_quant: range: must be within -128.* got -32768"):
        nvdla.compile(net, "nv_small", example_inputs=(torch.zeros(1, 3, 8, 8),))
    assert [*net.modules()] == before
