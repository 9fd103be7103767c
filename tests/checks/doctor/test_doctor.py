"""The doctor finds what is planted, where it is planted, and leaves healthy networks alone."""

import json
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.pages import page_module
from support.tflite_writer import FlatWriter

import nvdla
from nvdla.checks.compare.comparison import Observation
from nvdla.checks.doctor.doctor import TensorHealth, checks, examine
from nvdla.checks.doctor.run_checks import outputs_hardly_saturate
from nvdla.cli.doctor import bars
from nvdla.compiler.builder import Network, build, calibrate, floating
from nvdla.compiler.builder.refinement import refine
from nvdla.loadable.descriptors.enums import OpType
from nvdla.program.naming import Names, from_sidecar


@pytest.fixture(scope="module")
def digits(samples):
    """The surfaces of ten digits, for :func:`examine`."""
    return lambda runtime: [runtime.surfaces(path) for path in sorted(samples.glob("digit*.pgm"))]


@pytest.fixture(scope="module")
def examined(samples, digits):
    """``examined(loadable)``: findings as (severity, check, operation) after a run on the digits."""
    names = from_sidecar(samples / "lenet.loadable")

    def call(loadable, run=True, **options):
        found = examine(loadable, "nv_small", names=names, inputs=digits if run else None, **options)
        return {(each.severity, each.rule, each.operation) for each in found.findings}

    return call


@pytest.mark.parametrize("name", ["lenet", "lenet_nv_large", "lenet_nv_full_fp16"])
def test_healthy_networks_are_well(samples, digits, name):
    found = examine(nvdla.load(samples / f"{name}.loadable"), inputs=digits)
    assert found.runs == 10
    assert [each for each in found.findings if each.severity != "note"] == []
    assert found.run_error is None


def test_a_saturating_scale_is_found_at_its_operation(lenet_loadable, plant, examined):
    def change(task):
        task.operation(9).op.out_cvt.truncate -= 6

    assert ("error", "outputs-are-not-cut-off", 9) in examined(plant(lenet_loadable, change))


def test_a_wasteful_scale_is_found_at_its_operation(lenet_loadable, plant, examined):
    def change(task):
        task.operation(9).op.out_cvt.truncate += 4

    found = examined(plant(lenet_loadable, change))
    assert ("warning", "outputs-use-their-range", 9) in found
    assert ("warning", "outputs-use-their-range", 7) not in found


def test_a_lost_scale_is_found_without_a_run(lenet_loadable, plant, examined):
    def change(task):
        task.operation(7).op.out_cvt.scale = 0

    broken = plant(lenet_loadable, change)
    assert ("error", "converter-scales-are-not-zero", 7) in examined(broken, run=False)
    assert ("error", "outputs-are-not-all-zero", 7) in examined(broken)


def test_a_coarse_scale_is_found(lenet_loadable, plant, examined):
    def change(task):
        convert = task.operation(7).op.out_cvt
        convert.scale, convert.truncate = 13, 13

    assert ("warning", "scales-have-enough-bits", 7) in examined(plant(lenet_loadable, change), run=False)


def test_a_power_of_two_is_no_coarse_scale(lenet_loadable, plant, examined):
    def change(task):
        convert = task.operation(7).op.out_cvt
        convert.scale, convert.truncate = 1, 9

    assert "scales-have-enough-bits" not in {name for _, name, _ in examined(plant(lenet_loadable, change), run=False)}


def test_an_amplifying_converter_is_found(lenet_loadable, plant, examined):
    def change(task):
        task.operation(4).op.out_cvt.truncate = 3

    assert ("warning", "accumulators-are-not-amplified", 4) in examined(plant(lenet_loadable, change), run=False)


def test_a_bias_at_the_end_of_its_bits_is_found(lenet_loadable, plant_bytes, examined):
    def change(biases):
        biases[6:8] = struct.pack("<h", -32768)

    broken = plant_bytes(lenet_loadable, 9, "x1_data", change)
    assert ("warning", "biases-fit-16-bits", 9) in examined(broken, run=False)


def test_weights_that_are_gone_are_found(lenet_loadable, plant_bytes, examined):
    def change(data):
        data[:] = bytes(len(data))

    found = examined(plant_bytes(lenet_loadable, 3, "weight_data", change), run=False)
    assert ("error", "weights-are-not-all-zero", 3) in found


def test_a_dead_kernel_is_found(lenet_loadable, plant_bytes, examined):
    """Kernel 9 of the last layer: the second of the second group of 8 (10 kernels, 84 channels in blocks of 8)."""

    def change(data):
        first = 8 * 84
        for block in range(10):
            start = first + block * 2 * 8 + 8
            data[start : start + 8] = bytes(8)
        data[first + 10 * 2 * 8 + 4 : first + 10 * 2 * 8 + 8] = bytes(4)

    found = examine(plant_bytes(lenet_loadable, 10, "weight_data", change), "nv_small").findings
    assert [(each.operation, each.evidence) for each in found if each.rule == "kernels-are-alive"] == [
        (10, "1 of 10 kernels are zero: 9")
    ]


@pytest.mark.parametrize("target", ["nv_large:int8", "nv_full:fp16"])
def test_kernels_that_the_compiler_makes_were_not_trained(target, tmp_path):
    """For a Concat of parts of atoms it makes kernels that copy some channels, next to zeros for the others. The layer
    file states the operators of the model: a dead kernel of a Conv, and its dead channel, are found."""
    pytest.importorskip("onnx")
    from tests.compiler.frontend.models import model, node

    config, precision = target.split(":")
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=(8, 8, 5, 5)).astype("f4") for name in ("v", "w")}
    weights["v"][2] = 0
    branches = [node("Conv", f"x {name}", f"y{name}", pads=[2, 2, 2, 2]) for name in weights]
    net = model(
        [*branches, node("Concat", "yv yw", "z", axis=1)], {"x": (1, 8, 12, 12)}, {"z": (1, 16, 12, 12)}, weights
    )
    samples = rng.normal(size=(2, 8, 12, 12)).astype("f4")
    nvdla.compile(net, config, precision, samples).save(tmp_path / "net.loadable")
    loadable, names = nvdla.load(tmp_path / "net.loadable"), from_sidecar(tmp_path / "net.loadable")
    assert [layer for layer in names.layers.values() if layer == "z"]
    found = examine(loadable, config, names=names, inputs=lambda runtime: [runtime.surfaces(samples[:1])]).findings
    layers = {(item.rule, names.layers[0, item.operation]) for item in found if item.operation is not None}
    assert ("kernels-are-alive", "yv") in layers and not {layer for _, layer in layers} & {"z", "yw"}, layers


def test_weights_that_use_little_of_their_range_are_found(lenet_loadable, plant_bytes, examined):
    def change(data):
        weights = np.frombuffer(bytes(data), np.int8) // 8
        data[:] = weights.astype(np.int8).tobytes()

    found = examined(plant_bytes(lenet_loadable, 3, "weight_data", change), run=False)
    assert ("warning", "weights-use-their-range", 3) in found


def test_weights_of_one_magnitude_cannot_use_more_of_their_range(lenet_loadable, plant_bytes, examined):
    """The weights of sums, means and moves that the compiler makes."""

    def change(data):
        weights = np.frombuffer(bytes(data), np.int8)
        data[:] = np.sign(weights).astype(np.int8).tobytes()

    found = examined(plant_bytes(lenet_loadable, 3, "weight_data", change), run=False)
    assert not [each for each in found if each[1] == "weights-use-their-range"]


def test_dead_channels_are_found(lenet_loadable, plant_bytes, digits):
    """A bias far below 0 before the ReLU of the first convolution."""

    def change(biases):
        biases[4:6] = struct.pack("<h", -32000)

    found = examine(plant_bytes(lenet_loadable, 1, "x1_data", change), "nv_small", inputs=digits)
    dead = [each for each in found.findings if each.rule == "channels-are-alive"]
    assert [(each.operation, each.evidence) for each in dead] == [(2, "1 of 6 channels always zero: 2")]
    row = next(each for each in found.tensors if each["operation"] == 2)
    assert (row["dead_count"], row["dead_channels"], row["fused"]) == (1, [2], [0, 1])


def test_an_empty_lookup_table_is_found(cases, plant):
    case = next(case for case in cases if case["id"] == "sigmoid/nv_full-fp16-fast-math")
    loadable = nvdla.load(case["file"])
    assert "lookup-tables-are-filled" not in {each.rule for each in examine(loadable, "nv_full").findings}

    def change(task):
        for table in (task.luts[0].linear_exp_table, task.luts[0].linear_only_table):
            table[:] = [0] * len(table)

    found = examine(plant(loadable, change), "nv_full").findings
    assert "lookup-tables-are-filled" in {each.rule for each in found if each.severity == "error"}


def test_a_table_that_is_not_named_is_found(cases, plant):
    case = next(case for case in cases if case["id"] == "sigmoid/nv_full-fp16-fast-math")

    def change(task):
        for operation in task.operations():
            if operation.engine == "sdp":
                operation.op.lut_index = -1

    found = examine(plant(nvdla.load(case["file"]), change), "nv_full").findings
    assert "lookup-tables-exist" in {each.rule for each in found}


def test_lookups_out_of_range_are_found(cases, plant):
    case = next(case for case in cases if case["id"] == "sigmoid/nv_full-fp16-fast-math")
    data = (case["file"].parents[1] / case["inputs"][0]["file"]).read_bytes()

    def change(task):
        lut = task.luts[0]
        start = struct.unpack("<I", struct.pack("<f", 50.0))[0]
        lut.linear_exp_start = lut.linear_only_start = start

    found = examine(plant(nvdla.load(case["file"]), change), "nv_full", inputs=lambda _: [[data]]).findings
    assert "lookups-stay-in-range" in {each.rule for each in found}


def test_faults_of_the_compiler_are_recognized(cases):
    """What the corpus says is wrong in these loadables is what the doctor says."""
    for name, rule, severity in (
        ("eltwise_prod/nv_small-int8-fast-math", "products-have-the-scale-of-both", "warning"),
        ("eltwise_prod/nv_small-int8-fast-math", "outputs-are-not-cut-off", "error"),
        ("scale_uniform/nv_small-int8-fast-math", "outputs-are-not-all-zero", "error"),
        ("power_scale/nv_full-fp16-fast-math", "power-layers-have-an-effect", "warning"),
        ("conv_c1/nv_large-int8-fast-math-nhwc", "wide-image-kernels-have-their-weights", "warning"),
        ("pool_ave_k3s2p1/nv_small-int8-fast-math", "averages-count-the-padding", "note"),
        ("deconv_k2s2/nv_small-int8-fast-math", "rubik-is-supported", "error"),
        ("conv_power_conv/nv_small-int8-basic", "operations-do-not-wait-for-themselves", "error"),
        ("cifar_quick/nv_small-int8-onfly", "pooling-windows-fit-the-input", "error"),
    ):
        case = next((case for case in cases if case["id"] == name), None)
        assert case is not None, name
        surfaces = [(case["file"].parents[1] / each["file"]).read_bytes() for each in case["inputs"]]
        loadable = nvdla.load(case["file"])
        found = examine(loadable, case["config"], inputs=lambda _, surfaces=surfaces: [surfaces]).findings
        assert (severity, rule) in {(each.severity, each.rule) for each in found}, name


def test_a_pool_of_nine_is_recognized(lenet_loadable, plant, examined):
    def change(task):
        task.operation(5).op.pool_width = 8

    assert ("error", "pooling-kernels-are-at-most-8", 5) in examined(plant(lenet_loadable, change), run=False)


# ---- CPU layers


def test_a_softmax_over_an_image_is_found(lenet_loadable, plant_cpu):
    def change(operation):
        operation.src.width = 4

    found = {each.rule for each in examine(plant_cpu(lenet_loadable, change), "nv_small").findings}
    assert "softmax-input-is-one-pixel" in found


def test_a_lost_scale_of_a_cpu_layer_is_found(lenet_loadable, plant_cpu):
    def change(operation):
        operation.op.common.output_scale_factor = 0.0

    found = {each.rule for each in examine(plant_cpu(lenet_loadable, change), "nv_small").findings}
    assert "cpu-layers-have-scales" in found


# ---- calibration


def entry(scale, **other):
    return {"scale": scale, "min": 0, "max": 0, "offset": 0, **other}


GOOD = {"data": 2.0, "pool1": 0.02, "pool2": 0.03, "relu3": 0.06, "relu4": 0.1, "ip3": 0.18, "prob": 0.0079}
GOOD |= {"relu1": 0.017, "relu2": 0.029}


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({**GOOD, "pool1": 0}, "scales-are-positive-numbers"),
        ({**GOOD, "pool1": None}, "scales-are-positive-numbers"),
        ({**GOOD, "pool1": float("nan")}, "scales-are-positive-numbers"),
        ({name: scale for name, scale in GOOD.items() if name != "pool2"}, "layers-have-a-scale"),
        ({name: scale for name, scale in GOOD.items() if name != "prob"}, "layers-have-a-scale"),
        ({**GOOD, "relu3": 1.0}, "scales-are-measured"),
        (dict.fromkeys(GOOD, 0.5), "scales-are-measured"),
        ({**GOOD, "data": 1e6}, "input-scales-fit-the-images"),
    ],
)
def test_a_bad_calibration_table_is_found(lenet_loadable, examined, table, rule):
    calibration = {name: entry(scale) for name, scale in table.items()}
    assert rule in {name for _, name, _ in examined(lenet_loadable, run=False, calibration=calibration)}


def test_a_good_calibration_table_is_left_alone(lenet_loadable, examined):
    calibration = {name: entry(scale) for name, scale in GOOD.items()}
    assert examined(lenet_loadable, run=False, calibration=calibration) == set()
    calibration["pool1"]["offset"] = 3
    assert examined(lenet_loadable, run=False, calibration=calibration) == {
        ("warning", "calibration-is-symmetric", None)
    }


# ---- figures


def observation(tensor):
    surfaces = np.zeros((1, tensor.shape[2], tensor.shape[3], 32 // tensor.itemsize), tensor.dtype)
    surfaces[..., : tensor.shape[1]] = np.moveaxis(tensor, 1, -1)
    view = surfaces.view(np.uint8)
    return Observation((0, 0, 1), "sdp", None, tensor.dtype, tensor.shape[1], view, {"saturated": 2})


@pytest.mark.parametrize("elements, at_ends, is_found", [(64, 1, False), (64, 5, False), (64, 6, True), (640, 7, True)])
def test_few_elements_at_the_ends_are_no_saturation(elements, at_ends, is_found):
    """The share of one or two elements of a small tensor says nothing."""
    tensor = np.zeros((1, elements // 16, 4, 4), np.int8)
    tensor.reshape(-1)[:at_ends] = 127
    health = TensorHealth.of(observation(tensor[:, :4]), Names())
    for part in np.split(tensor, elements // 64, axis=1):
        health.add(observation(part))
    context = SimpleNamespace(measured=lambda: [(SimpleNamespace(op=None, lut=None, type=OpType.SDP), health)])
    assert bool([*outputs_hardly_saturate(context)]) == is_found


RANGE_RULES = {"outputs-are-not-cut-off", "outputs-hardly-saturate", "lookups-stay-in-range"}
BOUNDED = {
    "HardSwish": (["HardSwish"], {"low"}),
    "SiLU": (["Sigmoid", "Mul"], {"low"}),
    "Sigmoid": (["Sigmoid"], {"low", "high"}),
    "Tanh": (["Tanh"], {"low", "high"}),
    "Elu": (["Elu"], {"low"}),
    "HardSigmoid": (["HardSigmoid"], {"low", "high"}),
    "ReLU6": (["Clip"], {"low", "high"}),
}


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
@pytest.mark.parametrize("name", BOUNDED)
def test_results_at_the_bounds_of_their_function_do_not_saturate(name, config, tmp_path):
    """Half of the results of a sigmoid may be its 1: nothing is cut off, and no scale is too small."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    operators, ends = BOUNDED[name]
    first = node(operators[0], "c low six" if name == "ReLU6" else "c", "f" if len(operators) > 1 else "y")
    nodes = [node("Conv", "x w", "c"), first, *(node("Mul", "c f", "y") for _ in operators[1:])]
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(8, 3, 3, 3)).astype("f4") * 4}
    if name == "ReLU6":
        constants |= {"low": np.float32(0), "six": np.float32(6)}
    net = model(nodes, {"x": (1, 3, 16, 16)}, {"y": None}, constants)
    samples = rng.normal(size=(4, 3, 16, 16)).astype("f4")
    compiled = nvdla.compile(net, config, calibration=samples)
    compiled.save(str(tmp_path / "net.loadable"))
    net, names = nvdla.load(tmp_path / "net.loadable"), from_sidecar(tmp_path / "net.loadable")
    assert set(names.limited["y"]) == ends
    report = examine(net, names=names, inputs=lambda runtime: [runtime.surfaces(samples[:1])])
    assert not {each.rule for each in report.findings} & RANGE_RULES, report.findings
    # The same elements without the knowledge of the bounds. Those of the tangent end at 126.
    unknown = replace(names, limited={})
    report = examine(net, names=unknown, inputs=lambda runtime: [runtime.surfaces(samples[:1])])
    assert name == "Tanh" or {each.rule for each in report.findings} & RANGE_RULES


def _findings(compiled, samples, folder, known=True):
    """Rules of findings of a run of the first sample; without ``known`` as if the layer file stated no bounds."""
    compiled.save(folder / "net.loadable")
    net, names = nvdla.load(folder / "net.loadable"), from_sidecar(folder / "net.loadable")
    names = names if known else replace(names, limited={})
    report = examine(net, names=names, inputs=lambda runtime: [runtime.surfaces(samples[:1])])
    return {finding.rule for finding in report.findings}


def test_channels_at_the_six_of_a_relu6_do_not_saturate_where_channels_are_equalized(tmp_path):
    """An equalized channel that reaches 6 is at the end of the range; those of other channels reach less."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(16)
    sizes = rng.uniform(0.5, 6, 8).astype("f4")[:, None, None, None]
    constants = {"a": rng.normal(size=(8, 3, 3, 3)).astype("f4") * sizes / 2, "low": np.float32(0)}
    constants |= {"b": rng.normal(size=(8, 8, 1, 1)).astype("f4"), "six": np.float32(6)}
    nodes = [node("Conv", "x a", "c"), node("Clip", "c low six", "f"), node("Conv", "f b", "y")]
    samples = rng.normal(size=(4, 3, 16, 16)).astype("f4")
    network = model(nodes, {"x": (1, 3, 16, 16)}, {"y": None}, constants)
    compiled = nvdla.compile(network, "nv_small", calibration=samples)
    row = compiled.parts[0].built.sidecar["tensors"]["f"]
    assert row["limited"] == ["low"] and 0 < len(row["limited_channels"]["high"]) < 8
    assert not _findings(compiled, samples, tmp_path) & RANGE_RULES
    assert _findings(compiled, samples, tmp_path, known=False) & RANGE_RULES


def test_a_gate_at_its_bound_that_is_spread_over_a_map_is_no_finding(tmp_path):
    """Squeeze and excite with a hard sigmoid: all positions of a channel are multiplied by one number, often by 1."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    constants = {
        "w": 20 * rng.normal(size=(16, 3, 1, 1)).astype("f4"),
        "k": rng.normal(size=(16, 3, 3, 3)).astype("f4"),
    }
    constants |= {"low": np.float32(0), "six": np.float32(6), "sixth": np.float32(1 / 6), "three": np.float32(3)}
    nodes = [node("GlobalAveragePool", "x", "m"), node("Conv", "m w", "e"), node("Add", "e three", "h")]
    nodes += [node("Clip", "h low six", "r"), node("Mul", "r sixth", "g")]
    nodes += [node("Conv", "x k", "c"), node("Mul", "c g", "y")]
    samples = rng.normal(size=(6, 3, 18, 18)).astype("f4") + 0.5
    compiled = nvdla.compile(
        model(nodes, {"x": (1, 3, 18, 18)}, {"y": None}, constants), "nv_small", calibration=samples
    )
    (limited,) = [row["limited"] for name, row in compiled.parts[0].built.sidecar["tensors"].items() if name == "g"]
    assert limited == ["low", "high"]
    assert not _findings(compiled, samples, tmp_path) & (RANGE_RULES | {"channels-change"})


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_the_six_of_a_fused_relu6_in_a_tflite_file_is_no_saturation(kind, tmp_path):
    """Its quantized range ends there, so the converter leaves the limit out."""
    pytest.importorskip("onnxruntime")
    rng, point = np.random.default_rng(0), np.iinfo(kind).min
    writer = FlatWriter()
    writer.tensor((1, 16, 16, 3), kind, 0.02, point + 128, name="x")
    writer.constant(rng.integers(-127, 128, (8, 3, 3, 3)).astype("i1"), 0.05)
    writer.constant(np.zeros(8, "i4"), 0.001)
    writer.tensor((1, 16, 16, 8), kind, 6 / 255, point, name="y")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=0, stride_w=1, stride_h=1, fused_activation_function=3)
    compiled = nvdla.compile(writer.model([0], [3]), "nv_small")
    (row,) = [row for name, row in compiled.parts[0].built.sidecar["tensors"].items() if name == "y"]
    assert row["limited"] == ["low", "high"]
    samples = rng.normal(size=(1, 16, 16, 3)).astype("f4")
    assert not _findings(compiled, samples, tmp_path) & RANGE_RULES
    assert _findings(compiled, samples, tmp_path, known=False) & RANGE_RULES


def test_black_is_no_saturation_of_rescaled_pixels(tmp_path):
    """Rescaling(1 / 127.5, -1) of Keras: 0 becomes -1, half a unit below the range, and no element is lower."""
    pytest.importorskip("onnxruntime")
    writer = FlatWriter()
    x = writer.tensor((1, 16, 16, 3), scale=1.0, zero=-128, name="x")
    product = writer.tensor((1, 16, 16, 3), scale=3 / 255, zero=-43, name="product")
    scaled = writer.tensor((1, 16, 16, 3), scale=2 / 255, zero=-1, name="scaled")
    y = writer.tensor((1, 14, 14, 4), scale=0.5, name="y")
    rng = np.random.default_rng(0)
    weights = [
        writer.constant(rng.integers(-127, 128, (4, 3, 3, 3)).astype("i1"), 0.05),
        writer.constant(np.zeros(4, "i4"), 1e-3),
    ]
    writer.operator("MUL", [x, writer.constant(np.array(127, "i1"), 1 / 127.5 / 127)], [product])
    writer.operator("ADD", [product, writer.constant(np.array(-127, "i1"), 1 / 127)], [scaled])
    writer.operator("CONV_2D", [scaled, *weights], [y], padding=1, stride_w=1, stride_h=1)
    compiled = nvdla.compile(writer.model([x], [y]), "nv_small")
    (row,) = [row for name, row in compiled.parts[0].built.sidecar["tensors"].items() if name == "scaled"]
    assert "low" in row["limited"]
    assert "limited" not in compiled.parts[0].built.sidecar["tensors"]["x"]
    assert not _findings(compiled, np.zeros((1, 16, 16, 3), "f4"), tmp_path) & RANGE_RULES


@pytest.mark.parametrize("config", ["nv_small", "nv_full", "nv_large"])
def test_an_intermediate_result_of_a_concat_is_not_judged(config, tmp_path):
    """Its -128 are the zeros of the ReLUs; nothing states its zero point."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    nodes = [node("Conv", "x a", "c"), node("Relu", "c", "p"), node("Conv", "x b", "d"), node("Relu", "d", "q")]
    nodes += [node("Concat", "p q", "cat", axis=1), node("Conv", "cat w", "y")]
    constants = {name: rng.normal(size=(8, 3, 3, 3)).astype("f4") for name in "ab"}
    constants["w"] = rng.normal(size=(8, 16, 1, 1)).astype("f4")
    samples = rng.normal(size=(4, 3, 10, 10)).astype("f4")
    network = model(nodes, {"x": (1, 3, 10, 10)}, {"y": None}, constants)
    assert not _findings(nvdla.compile(network, config, calibration=samples), samples, tmp_path)


def test_a_small_branch_of_a_concat_has_the_scale_of_the_large_one(tmp_path):
    """A tanh gives -1..1, the other branch up to 20: no calibration gives them two scales."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    nodes = [node("Conv", "x a", "c"), node("Tanh", "c", "p"), node("Conv", "x b", "q")]
    nodes += [node("Concat", "p q", "cat", axis=1), node("Conv", "cat w", "y")]
    constants = {"a": rng.normal(size=(8, 3, 3, 3)).astype("f4"), "b": 3 * rng.normal(size=(8, 3, 3, 3)).astype("f4")}
    constants["w"] = rng.normal(size=(8, 16, 1, 1)).astype("f4")
    samples = rng.normal(size=(4, 3, 10, 10)).astype("f4")
    network = model(nodes, {"x": (1, 3, 10, 10)}, {"y": None}, constants)
    compiled = nvdla.compile(network, "nv_small", calibration=samples)
    assert "outputs-use-their-range" not in _findings(compiled, samples, tmp_path)
    names = from_sidecar(tmp_path / "net.loadable")
    apart = replace(names, scales=names.scales | {"p": 1.0})
    report = examine(
        nvdla.load(tmp_path / "net.loadable"), names=apart, inputs=lambda runtime: [runtime.surfaces(samples[:1])]
    )
    assert "outputs-use-their-range" in {finding.rule for finding in report.findings}


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_no_calibration_gives_a_final_tanh_another_range(config, tmp_path):
    network = Network()
    network.output(network.tanh("t", network.convolution("c", network.input("in", (3, 9, 9)), np.ones((8, 3, 1, 1)))))
    samples = np.random.default_rng(0).normal(size=(4, 3, 9, 9)) / 100
    refined = refine(network, lambda: [floating.run(network, {"in": sample[None]}) for sample in samples])
    built = build(refined.network, config, calibration=refined.calibration)
    built.save(tmp_path / "net.loadable")
    names = from_sidecar(tmp_path / "net.loadable")
    net = nvdla.load(tmp_path / "net.loadable")
    report = examine(net, names=names, inputs=lambda runtime: [runtime.surfaces(samples[:1])])
    assert "outputs-use-their-range" not in {finding.rule for finding in report.findings}
    assert max(abs(row["max"]) for row in report.tensors if row["layer"].endswith("t")) < 32


def test_image_kernels_of_this_toolkit_have_their_weights(tmp_path):
    """NVIDIA's compiler packs kernels of 5 columns with joined lines incorrectly."""
    rng, network = np.random.default_rng(0), Network()
    network.output(network.convolution("conv", network.input("in", (1, 28, 28)), rng.normal(size=(8, 1, 5, 5))))
    samples = rng.normal(size=(2, 1, 28, 28))
    built = build(network, "nv_large", calibration=calibrate(network, samples), input_format="image")
    built.save(tmp_path / "net.loadable")
    names, rule = from_sidecar(tmp_path / "net.loadable"), "wide-image-kernels-have-their-weights"
    assert rule not in {each.rule for each in examine(built.loadable, names=names).findings}
    assert rule in {each.rule for each in examine(built.loadable, names=Names()).findings}


def test_a_tensor_that_several_operations_write_is_judged_as_a_whole(tmp_path):
    """Every operation writes some kernels, and those of the first have small results: the range is not wasted."""
    rng = np.random.default_rng(0)
    network = Network()
    weights = rng.normal(size=(64, 64, 3, 3)) * np.where(np.arange(64) < 8, 0.01, 1)[:, None, None, None]
    conv = network.convolution("conv", network.input("data", (64, 30, 30)), weights, padding=1)
    network.output(conv)
    samples = rng.normal(size=(2, 64, 30, 30))
    built = build(network, "nv_small", calibration=calibrate(network, samples))
    built.save(tmp_path / "net.loadable")
    net, names = nvdla.load(tmp_path / "net.loadable"), from_sidecar(tmp_path / "net.loadable")
    report = examine(net, names=names, inputs=lambda runtime: [runtime.surfaces(samples[:1])])
    (tensor,) = (each for each in report.tensors if each["layer"] == "conv")
    assert tensor["shape"] == [1, 64, 30, 30]
    assert sum(each["layer"] == "conv" for each in report.scales) > 2  # one of each operation
    assert not {each.rule for each in report.findings} & {"outputs-use-their-range"}


def test_health_is_counted_over_runs():
    one = np.array([[[[0, 127], [-128, 3]], [[0, 0], [0, 0]]]], np.int8)
    other = np.array([[[[5, 5], [5, 5]], [[0, 0], [0, 0]]]], np.int8)
    health = TensorHealth.of(observation(one), Names())
    for tensor in (one, other):
        health.add(observation(tensor))
    assert (health.runs, health.elements, health.per_channel) == (2, 16, 8)
    assert health.range == (-128, 127)
    assert health.saturated == 2 / 16
    assert health.dead == [1]
    assert health.constant == []
    assert health.statistics == {"saturated": 4}
    assert sum(health.histogram()["counts"]) == 16
    assert health.share_of(5) == 4 / 16


def test_health_of_halves_leaves_nan_and_infinities_out():
    tensor = np.array([[[[1.5, np.nan], [np.inf, -2.0]]]], np.float16)
    health = TensorHealth.of(observation(tensor), Names())
    health.add(observation(tensor))
    assert health.special == 2
    assert health.range == (-2.0, 1.5)
    assert sum(health.histogram()["counts"]) == 2


def test_nan_is_found(cases):
    case = next(case for case in cases if case["id"] == "relu/nv_full-fp16-fast-math")
    data = np.frombuffer((case["file"].parents[1] / case["inputs"][0]["file"]).read_bytes(), np.uint16).copy()
    data[3] = 0x7E00
    found = examine(nvdla.load(case["file"]), "nv_full", inputs=lambda _: [[data.tobytes()]]).findings
    assert "numbers-are-finite" in {each.rule for each in found}


def test_bars_show_everything_that_is_not_zero():
    assert bars([0, 1, 500, 1000]) == " ▁▄█"
    assert bars([0, 0]) == ""


# ---- documentation and command line


def test_every_check_is_documented_and_has_an_advice():
    for check in checks():
        assert check.text.rstrip().endswith((".", ")")), check.name
        assert check.chapter in page_module("rules").CHAPTERS["doctor"], check.name


def test_the_page_of_checks_is_current(samples):
    text = (samples.parent / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert text == page_module("rules").with_rules("doctor", text), "python tools/pages/rules.py"


def test_a_healthy_network_gives_exit_code_0(nvdla_command, samples):
    words = [word for path in sorted(samples.glob("digit*.pgm")) for word in ("-i", path)]
    code, out, err = nvdla_command("doctor", samples / "lenet.loadable", *words)
    assert (code, err) == (0, "")
    assert "outputs of 10 runs" in out
    assert "nothing found" in out


def test_a_damaged_layer_file_is_reported_and_the_loadable_is_checked_without_it(nvdla_command, samples, tmp_path):
    (tmp_path / "net.loadable").write_bytes((samples / "saturating.loadable").read_bytes())
    layers = (samples / "saturating.loadable.layers.json").read_bytes()
    (tmp_path / "net.loadable.layers.json").write_bytes(layers[:500])
    code, out, err = nvdla_command("doctor", tmp_path / "net.loadable")
    assert code == 2 and "net.loadable.layers.json: layer file: must be JSON" in err
    assert "net.loadable on nv_small:" in out


def test_an_error_gives_exit_code_1(nvdla_command, lenet_loadable, plant, samples, tmp_path):
    def change(task):
        task.operation(9).op.out_cvt.scale = 0

    plant(lenet_loadable, change).save(tmp_path / "a.loadable")
    code, out, _ = nvdla_command("doctor", tmp_path / "a.loadable")
    assert code == 1
    assert "error: converter with scale 0 [converter-scales-are-not-zero]\n" in out
    assert "\n    operation 0/9 (SDP): out_cvt: scale 0 >> 23" in out
    assert "Static checks only." in out


def test_what_cannot_run_says_why(nvdla_command, samples):
    words = ("doctor", samples / "lenet_nv_full_fp16.loadable", "--config", "nv_small", "--random-input", "--json")
    code, out, _ = nvdla_command(*words)
    document = json.loads(out)
    assert code == 1
    assert document["runs"] == 0
    assert "fp16" in document["run_error"]


def test_bad_input_gives_exit_code_2(nvdla_command, samples, tmp_path):
    (tmp_path / "table.json").write_text("[1]")
    for words in (
        (samples / "digit0.pgm",),
        (samples / "lenet.loadable", "--scales", tmp_path / "table.json"),
        (samples / "lenet.loadable", "-i", "data=missing.pgm"),
        (samples / "lenet.loadable", "-i", f"nothing={samples / 'digit0.pgm'}"),
    ):
        code, _, err = nvdla_command("doctor", *words)
        assert code == 2
        assert len(err.splitlines()) == 1


def test_a_scale_table_is_checked_too(nvdla_command, samples, tmp_path):
    (tmp_path / "table.json").write_text('{"conv1": {"scale": 0, "min": 0, "max": 0, "offset": 0}}')
    _, out, _ = nvdla_command("doctor", samples / "lenet.loadable", "--scales", tmp_path / "table.json", "--json")
    assert "scales-are-positive-numbers" in {finding["rule"] for finding in json.loads(out)["findings"]}


def test_the_json_is_as_documented(nvdla_command, samples, as_documented, lenet_loadable, plant, tmp_path):
    def change(task):
        task.operation(9).op.out_cvt.truncate -= 6

    plant(lenet_loadable, change).save(tmp_path / "a.loadable")
    _, out, _ = nvdla_command("doctor", tmp_path / "a.loadable", "-i", samples / "digit0.pgm", "--json")
    document = json.loads(out)
    as_documented(document)
    assert all(document[name] for name in ("findings", "scales", "tensors"))


def test_the_loadables_of_the_corpus_are_examined(cases, nvdla_command):
    """One case of each network: no exception, and an error for all that cannot run."""
    for case in list({case["network"]: case for case in cases if case["size"] < 100_000}.values())[::3]:
        code, out, err = nvdla_command("doctor", case["file"], "--config", case["config"], "--random-input", "--json")
        assert code in (0, 1), (case["id"], err)
        assert json.loads(out)["configuration"] == case["config"]
        if case["expect"] != "ok":
            assert code == 1


def test_random_numbers_give_no_advice_about_real_ones(nvdla_command, samples):
    """What only data show (saturation, range, dead channels) is not judged from random input, and that is said."""
    from nvdla.checks.doctor.doctor import checks

    judged = {check.name for check in checks() if check.of_data}
    assert {"outputs-use-their-range", "channels-are-alive", "outputs-are-not-cut-off"} <= judged
    for name in ("lenet", "color_digits", "lenet_nv_large"):
        words = ("doctor", samples / f"{name}.loadable", "--random-input")
        found = json.loads(nvdla_command(*words, "--json")[1])
        assert found["runs"] == 1
        assert judged.isdisjoint(each["rule"] for each in found["findings"])
        assert "The input was random" in nvdla_command(*words)[1]


def test_a_relu_that_ends_at_the_lowest_element_is_not_cut_off():
    """A tensor with a zero point: the layer file says that -128 stands for 0."""
    tensor = np.full((1, 2, 8, 8), -128, np.int8)
    tensor[0, 1] = np.arange(64).reshape(8, 8) - 100
    seen = replace(observation(tensor), layer="relu")
    for names, saturated, dead, zeros in (
        (Names(), 0.5, [], 0.0),
        (Names(scales={"relu": 0.1}, zero_points={"relu": -128}), 0.0, [0], 0.5),
    ):
        health = TensorHealth.of(seen, names)
        health.add(seen)
        found = health.as_dict()
        assert (found["saturated_share"], found["dead_channels"], found["zero_share"]) == (saturated, dead, zeros)
        assert found["constant_channels"] == ([0] if not dead else [])


def test_zeros_and_products_of_the_compiler_of_this_toolkit_are_no_faults(tmp_path):
    """PReLU with slopes of 0, zeros around a map, and a product that has the scales of both of its factors."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    nodes = [node("Conv", "x w", "c"), node("PRelu", "c slope", "a"), node("Mul", "a x", "m")]
    held = {
        "w": np.ones((4, 4, 1, 1), "f4"),
        "slope": np.zeros((4, 1, 1), "f4"),
        "p": np.array([0, 0, 2, 0, 0, 0, 1, 3]),
    }
    net = model([*nodes, node("Pad", "m p", "y")], {"x": (1, 4, 20, 20)}, {"y": (1, 4, 23, 23)}, held)
    samples = np.random.default_rng(4).normal(size=(3, 4, 20, 20)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", samples)
    compiled.save(tmp_path / "net.nvdla")

    def inputs(runtime):
        return [[runtime.pack(0, np.arange(1600, dtype=np.int64).astype(np.int8).reshape(1, 4, 20, 20))]]

    def rules(names):
        return {
            row.rule
            for row in examine(nvdla.load(tmp_path / "net.nvdla"), "nv_small", names=names, inputs=inputs).findings
        }

    zero, product = {"converter-scales-are-not-zero", "outputs-are-not-all-zero"}, "products-have-the-scale-of-both"
    assert rules(from_sidecar(tmp_path / "net.nvdla")).isdisjoint({*zero, product})
    assert product in rules(Names())


def test_outputs_of_a_run_that_did_not_end_are_titled_so(lenet_loadable, plant, samples, tmp_path, nvdla_command):
    def change(task):
        task.operation(0).common.consumers[1].index = -1

    file = tmp_path / "stuck.loadable"
    plant(lenet_loadable, change).save(file)
    code, out, _ = nvdla_command("doctor", file, "-i", samples / "digit7.pgm")
    assert code == 1
    assert "outputs of a run that did not end\n" in out and "0 runs" not in out
    assert "outputs of 1 run\n" in nvdla_command("doctor", samples / "lenet.loadable", "-i", samples / "digit7.pgm")[1]
