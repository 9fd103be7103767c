"""Models become loadables and packages whose bytes are those of the integer reference."""

import json
import pickle
import re
import sys

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper

import nvdla
from nvdla.cli.main import parser_of
from nvdla.compiler.builder import SearchLimits
from nvdla.compiler.frontend.model import run_once
from nvdla.compiler.frontend.package import unpack
from tests.compiler.frontend.models import classifier, model, node


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def parts_equal_the_reference(compiled, values):
    for number, part in enumerate(compiled.parts):
        machine = compiled._machine.parts[number]
        if part.built is not None:
            elements = machine.elements(values)
            actual, expected = machine.runtime.run(elements), part.built.expected(elements)
            for name, array in expected.items():
                np.testing.assert_array_equal(actual[name], array)
        values.update(machine.run(values))


@pytest.mark.parametrize("target", ["nv_small:int8", "nv_large:int8", "nv_full:int8"])
def test_the_emulator_equals_the_reference_and_the_package_the_model(target, rng, tmp_path):
    config, precision = target.split(":")
    samples = rng.normal(size=(4, 3, 12, 12)).astype("f4")
    net = classifier(rng)
    compiled = nvdla.compile(net, config, precision, samples)
    found = compiled.run(samples[:1])
    parts_equal_the_reference(compiled, {"x": samples[:1]})
    exact = run_once(net, "net", {"x": samples[:1]})
    assert np.abs(found["y"] - exact[0]).max() < 0.1 * np.abs(exact[0]).max()
    compiled.save(tmp_path / "net.nvpkg")
    again = unpack(tmp_path / "net.nvpkg").machine().run(samples[:1])
    assert all(np.array_equal(again[name], found[name]) for name in found)


def test_every_node_is_placed_and_cuts_are_counted(rng):
    compiled = nvdla.compile(classifier(rng), "nv_small", "int8", rng.normal(size=(2, 3, 12, 12)))
    placed = {row.name: row.placement for row in compiled.nodes}
    assert placed["a"] == placed["m"] == placed["y"] == "accelerator"
    assert placed["f"] == "folded"
    assert placed["i"] == placed["z"] == "host"
    assert compiled.report["cuts"] == 1
    assert compiled.report["bytes_crossing"] == 5 * 4
    with pytest.raises(nvdla.BuildError, match=r"node i \(ArgMax\) would run on the host"):
        nvdla.compile(classifier(rng), "nv_small", "int8", rng.normal(size=(2, 3, 12, 12)), host=False)


def test_the_same_inputs_give_the_same_bytes(rng):
    net, samples = classifier(rng), rng.normal(size=(2, 3, 12, 12))
    one, other = (nvdla.compile(net, "nv_small", "int8", samples).package for _ in range(2))
    assert one == other


# Operators that only move elements, padding and averages: what they give must be exact up to the last step.
EXACT = {
    "transpose": node("Transpose", "r", "y", perm=[0, 2, 3, 1]),
    "slice": node("Slice", "r starts ends axes steps", "y"),
    "depth to space": node("DepthToSpace", "r", "y", blocksize=2),
    "space to depth": node("SpaceToDepth", "r", "y", blocksize=2),
    "reflect": node("Pad", "r pads", "y", mode="reflect"),
    "average": node("AveragePool", "r", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "ceil": node("AveragePool", "r", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "most": node("MaxPool", "r", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "nearest": node("Resize", "r none scales", "y", mode="nearest", coordinate_transformation_mode="asymmetric"),
    "linear": node("Resize", "r none scales", "y", mode="linear"),
    "shuffle": node("Gather", "r order", "y", axis=1),
}
CONSTANTS = {
    "starts": np.array([1, 0]),
    "ends": np.array([6, 6]),
    "axes": np.array([2, 3]),
    "steps": np.array([2, 3]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "none": np.array([], "f4"),
    "scales": np.array([1, 1, 2, 2], "f4"),
    "order": np.array([3, 1, 0, 2]),
}


@pytest.mark.parametrize("name", EXACT)
def test_movements_and_pools_are_within_a_step_of_the_model(name, rng):
    used = {each: CONSTANTS[each] for each in EXACT[name].input if each in CONSTANTS}
    net = model([node("Relu", "x", "r"), EXACT[name]], {"x": (1, 4, 6, 6)}, {}, used)
    net.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    x = rng.integers(-127, 128, (1, 4, 6, 6)).astype("f4")
    x.flat[0] = 127
    compiled = nvdla.compile(net, "nv_small", "int8", x, method="max")
    found = compiled.run(x)["y"]
    parts_equal_the_reference(compiled, {"x": x})
    assert all(row.placement != "host" for row in compiled.nodes), compiled.nodes
    assert np.abs(found - run_once(net, "net", {"x": x})[0]).max() <= 1.01


def test_zero_padding_goes_into_the_convolution(rng):
    nodes = [node("Pad", "x pads", "p"), node("Conv", "p w", "y")]
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": rng.normal(size=(4, 3, 3, 3)).astype("f4")}
    net = model(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8)}, constants)
    compiled = nvdla.compile(net, "nv_small", "int8", rng.normal(size=(2, 3, 8, 8)))
    assert [layer.kind for layer in compiled.imported.network.layers] == ["input", "convolution"]


def bad(change):
    net = classifier(np.random.default_rng(0))
    change(net)
    return net


def _dynamic(net):
    net.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"


def _circle(net):
    net.graph.node[0].input[0] = "m"


def _nan(net):
    net.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((8, 3, 3, 3), np.nan, "f4"), "w"))


BAD = {
    "dynamic shape": (_dynamic, "input x: shape must be fixed, .*--shape x="),
    "circle": (_circle, "node 0 \\(Conv\\): its input m is used before it is defined"),
    "NaN": (_nan, "node .*: tensor w: must be finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_one_line_and_write_nothing(name, tmp_path, nvdla_command):
    change, said = BAD[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(bad(change).SerializeToString())
    code, _, err = nvdla_command("compile", str(path), "--calibrate", str(tmp_path), "-o", str(tmp_path / "out"))
    assert code == 2
    assert len(err.splitlines()) == 1
    with pytest.raises(nvdla.NvdlaError, match=said):
        nvdla.compile(path)
    assert not (tmp_path / "out").exists()


def test_external_data_stays_in_the_models_folder(tmp_path):
    net = classifier(np.random.default_rng(0))
    tensor = net.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "../outside.bin")
    tensor.ClearField("raw_data")
    (tmp_path / "outside.bin").write_bytes(bytes(8 * 3 * 9 * 4))
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "net.onnx"
    path.write_bytes(net.SerializeToString())
    with pytest.raises(nvdla.FormatError, match=r"external data '../outside.bin' must be a file in the model's folder"):
        nvdla.compile(path)


def test_check_prints_the_fields_that_scripts_rely_on(tmp_path, nvdla_command, rng):
    path = tmp_path / "net.onnx"
    path.write_bytes(classifier(rng).SerializeToString())
    code, out, _ = nvdla_command("compile", str(path), "--check", "--json")
    assert code == 0
    rows = json.loads(out)["nodes"]
    assert len(rows) == 8
    assert {"name", "op", "placement", "reason", "operations"} <= set(rows[0])


def test_the_backend_runs_a_node():
    from nvdla.interop import onnx_backend

    assert onnx_backend.supports_device("nv_small")
    assert onnx_backend.supports_device("nv_full:fp16")
    assert not onnx_backend.supports_device("nv_small:fp16")
    x = np.linspace(-3, 3, 24, dtype="f4").reshape(2, 3, 4)
    found = onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x], "nv_small")
    assert np.abs(found[0] - np.maximum(x, 0)).max() <= 3 / 127


def test_a_node_that_gives_infinity_runs_on_the_host(rng):
    """Scales have no infinity: the node, and the readers of what it makes, are cut with the reason."""
    net = model(
        [node("Relu", "x", "r"), node("Log", "r", "l"), node("GlobalMaxPool", "l", "p"), node("Conv", "p w", "y")],
        {"x": (1, 2, 4, 4)},
        {"y": (1, 3, 1, 1)},
        {"w": rng.normal(size=(3, 2, 1, 1)).astype("f4")},
    )
    x = rng.normal(size=(1, 2, 4, 4)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", x)
    rows = {row.name: row for row in compiled.nodes}
    assert [rows[name].placement for name in ("r", "l", "p", "y")] == ["accelerator", "host", "host", "accelerator"]
    assert "NaN or infinity" in rows["l"].reason
    exact = run_once(net, "net", {"x": x})[0]
    assert np.abs(compiled.run(x)["y"] - exact).max() < 0.05 * np.abs(exact).max()
    with pytest.raises(nvdla.BuildError, match="NaN or infinity"):
        nvdla.compile(net, "nv_small", "int8", x, host=False)


@pytest.mark.parametrize("offset", [(5,), (2, 5)])
def test_a_batch_goes_through_a_fully_connected_layer(rng, offset):
    """Images of a batch lie in channels of their own; each is a group of one convolution."""
    nodes = [node("Conv", "x w", "a"), node("Flatten", "a", "f"), node("Gemm", "f v c", "y")]
    constants = {"w": rng.normal(size=(4, 3, 3, 3)), "v": rng.normal(size=(4 * 16, 5)), "c": rng.normal(size=offset)}
    constants = {name: array.astype("f4") for name, array in constants.items()}
    net = model(nodes, {"x": (2, 3, 6, 6)}, {"y": (2, 5)}, constants)
    samples = rng.normal(size=(8, 3, 6, 6)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", samples, host=False)
    found = compiled.run(samples[:2])["y"]
    parts_equal_the_reference(compiled, {"x": samples[:2]})
    exact = run_once(net, "net", {"x": samples[:2]})[0]
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_a_configuration_of_ones_own_is_compiled_for(rng, tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nbase: nv_small\ncbuf_banks: 16\n")
    samples = rng.normal(size=(2, 3, 12, 12)).astype("f4")
    compiled = nvdla.compile(classifier(rng), str(tmp_path / "mine.yaml"), "int8", samples)
    compiled.run(samples[:1])
    parts_equal_the_reference(compiled, {"x": samples[:1]})
    assert compiled.report["config"] == "mine"
    assert compiled._machine.parts[0].runtime.config.name == "mine"


def test_the_stages_of_a_compilation_are_reported_in_order(rng):
    samples, stages = rng.normal(size=(2, 3, 12, 12)).astype("f4"), []

    def calibrated(done, count):
        assert stages == ["calibrating"] and 0 < done <= count

    nvdla.compile(classifier(rng), "nv_small", "int8", samples, progress=calibrated, on_stage=stages.append)
    assert stages == ["calibrating", "building"]


def test_a_reshape_to_another_number_of_elements_is_refused():
    """onnx infers the shape that it asks for; found by fuzzing."""
    nodes = [node("Transpose", "x", "a", perm=[0, 2, 3, 1]), node("Reshape", "a s", "b"), node("Sigmoid", "b", "y")]
    net = model(nodes, {"x": (1, 2, 4, 4)}, {"y": (1, 136, 4)}, {"s": np.array([1, 136, 4])})
    with pytest.raises(nvdla.FormatError, match=r"node b \(Reshape\): shape: must have 32 elements, got 1x136x4"):
        nvdla.compiler.frontend.compiler.check(net, "nv_small")


def test_pads_of_the_first_opsets_are_read():
    """They were attributes; conversion makes constants of them."""
    net = model(
        [node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 1, 0])], {"x": (1, 3, 4, 4)}, {"y": (1, 3, 6, 6)}, opset=6
    )
    net.ir_version = 3
    compiled = nvdla.compile(net, "nv_small", "int8", np.ones((1, 3, 4, 4), "f4"))
    assert compiled.report["cuts"] == 0
    found = compiled.run(np.ones((1, 3, 4, 4), "f4"))["y"]
    np.testing.assert_allclose(found, np.pad(np.ones((1, 3, 4, 4)), ((0, 0), (0, 0), (1, 1), (2, 0))), atol=1 / 127)


def test_the_backend_takes_infinities():
    from nvdla.interop import onnx_backend

    x = np.array([[np.inf, np.nan, 1.0]], "f4")
    found = onnx_backend.run_node(helper.make_node("IsNaN", ["x"], ["y"]), [x], "nv_small")
    np.testing.assert_array_equal(found[0], np.isnan(x))


def test_without_the_onnx_package_the_message_has_the_command_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(nvdla.FormatError, match=r"package onnx: must be installed .*: pip install 'nvdla\[onnx\]'"):
        nvdla.compile(tmp_path / "net.onnx", "nv_small")


def test_the_page_of_operators_is_current():
    from tools.onnx_operators import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.onnx_operators"


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["nv_small:int8", "nv_small_256:int8", "nv_large:int8", "nv_full:int8", "nv_full:fp16"]
)
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50"])
def test_models_of_the_zoo_equal_the_reference(name, target):
    from benchmarks.zoo import measure

    row = measure(name, target, 2)
    assert row["ok"], row
    assert row["host"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["nv_small:int8", "nv_full:fp16"])
def test_the_scoreboard_has_nothing_wrong(target):
    from tools.onnx_scoreboard import cases, judge

    config, precision = target.split(":")
    results = [each for each in (judge(case, config, precision) for case in cases()) if each is not None]
    assert [each for each in results if each.verdict in ("wrong", "refused")] == []
    done = [each for each in results if each.verdict in ("exact", "tolerance") and each.real and each.rank <= 4]
    assert len(done) >= (200 if precision == "int8" else 240)


@pytest.mark.parametrize(("op", "fill"), [("MaxPool", np.finfo(np.float32).min), ("AveragePool", 0.0)])
def test_a_border_that_a_pool_does_not_see_goes_into_the_pool(op, fill, rng):
    made = model(
        [node("Pad", "x p v", "b"), node(op, "b", "y", kernel_shape=[3, 3], strides=[2, 2])],
        {"x": (1, 8, 8, 8)},
        {"y": (1, 8, 5, 5)},
        {"p": np.array([0, 0, 1, 1, 0, 0, 2, 2], np.int64), "v": np.float32(fill)},
    )
    samples = rng.normal(size=(2, 8, 8, 8)).astype("f4")
    compiled = nvdla.compile(made, "nv_small", "int8", samples, host=False, method="max")
    assert [type(each).__name__ for each in compiled.parts[0].built.program.operations] == ["Pool"]
    exact = run_once(made, "net", {"x": samples[:1]})[0]
    assert np.abs(compiled.run(samples[:1])["y"] - exact).max() < 0.04 * np.abs(exact).max()


def test_levels_and_the_form_of_inputs_are_options(tmp_path, nvdla_command, rng):
    net = model(
        [node("Conv", "x w", "y", pads=[1, 1, 1, 1])],
        {"x": (1, 3, 8, 8)},
        {"y": (1, 4, 8, 8)},
        {"w": rng.normal(size=(4, 3, 3, 3)).astype("f4")},
    )
    onnx.save(net, tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", rng.normal(size=(2, 3, 8, 8)).astype("f4"))
    formats = {}
    for words in (["-O", "0"], ["-O", "1"], ["-O", "2"], ["--input-format", "feature"], ["--weights-effort", "0"]):
        out = tmp_path / "out.nvdla"
        files = [str(tmp_path / "net.onnx"), "--calibrate", str(tmp_path / "data.npy"), "-o", str(out)]
        code, _, err = nvdla_command("compile", *files, *words)
        assert code == 0, err
        formats[" ".join(words)] = nvdla.load(out).tensors[0].pixel_format.name
    assert formats.pop("-O 0") == formats.pop("--input-format feature") == "FEATURE_X8"
    assert set(formats.values()) == {"A8B8G8R8"}


def _choices(option):
    """Choices of an option of the command."""
    return next(item.choices for item in parser_of("compile")._actions if option in item.option_strings)


@pytest.mark.parametrize(
    "keywords, expected",
    [
        ({"level": 5}, f"level: must be one of {', '.join(map(str, _choices('-O')))}, got 5"),
        ({"level": -3}, "level: must be one of 0, 1, 2, got -3"),
        ({"method": "least"}, f"must be one of {', '.join(_choices('--method'))}, got 'least'"),
        ({"precision": "int4"}, "no int4"),
        ({"percentile": 101}, "percentile: must be above 0 and at most 100, got 101"),
        ({"percentile": "high"}, "percentile must be a number, got str 'high'"),
        ({"equalize": "no"}, "equalize must be True or False, got str 'no'"),
        ({"max_drop": 7}, "max_drop: must be 0 to 1, got 7"),
        ({"max_drop": float("nan")}, "max_drop: must be 0 to 1, got nan"),
        ({"search": SearchLimits()}, "level: must be 2 with search, got 1"),
        ({"search": 3, "level": 2}, "search must be a SearchLimits"),
    ],
)
def test_keywords_have_the_values_of_the_options(keywords, expected, rng):
    """Before anything is read or calibrated, and also for fp16, which needs no calibration."""
    for config, precision in (("nv_small", "int8"), ("nv_full", "fp16")):
        with pytest.raises(nvdla.NvdlaError, match=re.escape(expected)):
            nvdla.compile(classifier(rng), **{"config": config, "precision": precision, **keywords})


def test_the_search_of_level_2_has_its_options(tmp_path, nvdla_command, rng):
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("MaxPool", "x", "b", kernel_shape=[1, 1])]
    net = model(
        [*nodes, node("Add", "a b", "y")],
        {"x": (1, 8, 8, 8)},
        {"y": (1, 8, 8, 8)},
        {"w": rng.normal(size=(8, 8, 3, 3)).astype("f4")},
    )
    onnx.save(net, tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", rng.normal(size=(2, 8, 8, 8)).astype("f4"))
    out = tmp_path / "out.nvdla"
    files = [str(tmp_path / "net.onnx"), "--calibrate", str(tmp_path / "data.npy"), "-o", str(out)]
    memory = ["--bandwidth", "4", "--shared", "--latency", "50"]
    code, _, err = nvdla_command("compile", *files, "-O", "2", "--workers", "2", "--search-steps", "2", *memory)
    assert code == 0, err
    evaluated = json.loads((tmp_path / "out.nvdla.layers.json").read_text())["evaluated"]
    assert evaluated["memory"] == {"latency": 50, "bytes_per_cycle": 4.0, "shared": True}
    assert (evaluated["level"], evaluated["search"]["steps"]) == (2, 2)
    for words, message in (
        (["--time-limit", "1"], "--time-limit belongs to the search of level 2. Add -O 2."),
        (["-O", "2", "--time-limit", "0"], "time limit 0 s: must be more than 0"),
        (["-O", "2", "--workers", "0"], "0 workers: must be 1 .. 256"),
        (["--bandwidth", "0"], "memory bandwidth: must be 0.001 .. 1000000 bytes per cycle, got 0.0"),
    ):
        code, _, err = nvdla_command("compile", *files, *words)
        assert code == 2 and message in err


@pytest.mark.parametrize(("kind", "points"), [("Abs", {"a": -128}), ("Transpose", {})])
def test_outputs_use_all_elements_and_what_the_host_only_moves_between_parts_keeps_its_steps(kind, points):
    rows = ("Exp", "x", "a", "first"), (kind, "a", "b", "middle"), ("Relu", "b", "y", "last")
    nodes = [helper.make_node(kind, [source], [made], name) for kind, source, made, name in rows]
    shapes = {"x": [1, 4, 5, 6], "y": [6, 5, 4, 1] if kind == "Transpose" else [1, 4, 5, 6]}
    ends = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)] for name, shape in shapes.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "three", *ends), ir_version=9, opset_imports=[helper.make_opsetid("", 17)]
    )
    data = np.linspace(-2, 2, 120, dtype="f4").reshape(1, 4, 5, 6)
    compiled = nvdla.compile(model, "nv_small", "int8", data, keep_on_host=("middle",))
    first, last = (part.built for part in compiled.parts if part.built is not None)
    assert first.zero_points == points
    assert last.zero_points == {"y": -128}
    expected = np.exp(data.T if kind == "Transpose" else data)
    assert np.abs(compiled.run(data)["y"] - expected).max() < 2 * last.output_scales["y"] + first.output_scales["a"]
    with pytest.raises(nvdla.NvdlaError, match=r"keep_on_host: .* got 'midle'\. Did you mean 'middle'"):
        nvdla.compile(model, "nv_small", "int8", data, keep_on_host=("midle",))


@pytest.mark.parametrize("name", ["/conv1/Conv", "conv1", "conv1+conv1_relu"])
def test_nodes_that_stay_on_the_host_are_named_as_nodes_values_or_layers(samples, name):
    images = np.random.default_rng(0).random((4, 1, 28, 28), "f4")
    compiled = nvdla.compile(samples / "lenet.onnx", calibration=images, keep_on_host=(name,))
    hosted = {row.name for row in compiled.nodes if row.reason == "kept on the host as requested"}
    assert hosted == {"/conv1/Conv", *(["/conv1_relu/Relu"] if "+" in name else [])}


def test_a_truncated_model_is_reported_as_cut_off(samples, tmp_path):
    (tmp_path / "cut.onnx").write_bytes((samples / "lenet.onnx").read_bytes()[:3000])
    with pytest.raises(nvdla.NvdlaError, match=r"cut\.onnx: must be an intact ONNX model \(cut off\?\)"):
        nvdla.compile(str(tmp_path / "cut.onnx"), "nv_small")
    (tmp_path / "noise.tflite").write_bytes(np.random.default_rng(0).bytes(3000))
    with pytest.raises(
        nvdla.NvdlaError, match=r"noise\.tflite: must be a TFLite model, got data without its identifier"
    ):
        nvdla.compile(tmp_path / "noise.tflite")


def test_a_value_of_unknown_rank_is_no_scalar(rng):
    """onnxruntime gives both an empty shape."""
    normalize = node("GroupNormalization", "x s s", "t", num_groups=1)
    one = helper.make_node("Constant", [], ["e"], value=onnx.numpy_helper.from_array(np.ones(1, np.float32)))
    branches = {
        "then_branch": helper.make_graph([normalize], "then", [], [onnx.ValueInfoProto(name="t")]),
        "else_branch": helper.make_graph([one], "else", [], [onnx.ValueInfoProto(name="e")]),
    }
    nodes = [helper.make_node("If", ["c"], ["i"], **branches), node("Sigmoid", "i", "y")]
    shape = (1, 4, 3, 3)
    net = model(nodes, {"x": shape}, {"y": None}, {"c": np.asarray(True), "s": np.ones(4, np.float32)}, opset=21)
    assert nvdla.compile(net, "nv_full", "fp16").run(rng.normal(size=shape).astype("f4"))["y"].shape == shape


def test_a_shape_that_is_inferred_wrongly_is_named_in_calibration(rng, monkeypatch):
    """As onnx infers it: windows that begin behind the input count, which onnxruntime leaves out."""
    from nvdla.compiler.frontend import attributes

    monkeypatch.setattr(attributes, "_rounds_up", lambda node: False)
    nodes = [node("AveragePool", "x", "p", ceil_mode=1, kernel_shape=[1, 2], strides=[3, 3]), node("Abs", "p", "y")]
    net = model(nodes, {"x": (1, 4, 9, 9)}, {"y": None})
    with pytest.raises(nvdla.FormatError, match=r"tensor p: .* must be 1x4x4x4 .*, got 1x4x3x3"):
        nvdla.compile(net, "nv_small", "int8", rng.normal(size=(2, 4, 9, 9)), trusted=True)


def test_a_runtime_and_run_take_what_was_compiled(samples, tmp_path):
    """``Runtime(compiled)`` is the runtime of the saved file, and ``Compiled.run`` takes paths, pictures and lists."""
    from PIL import Image

    seven, three = samples / "digit7.pgm", samples / "digit3.pgm"
    pixels = np.stack([np.asarray(Image.open(path), "f4")[None] for path in (seven, three)])
    compiled = nvdla.compile(samples / "lenet.onnx", "nv_small", "int8", pixels)
    compiled.save(tmp_path / "lenet.nvdla")
    made, saved = nvdla.Runtime(compiled), nvdla.Runtime(tmp_path / "lenet.nvdla")
    assert made.config.name == "nv_small" and made.names.scales == saved.names.scales
    for runtime in (made, pickle.loads(pickle.dumps(made))):
        found = runtime.run(seven, real=True)["prob"]
        assert np.array_equal(found, saved.run(seven, real=True)["prob"]) and found.argmax() == 7
    with pytest.raises(nvdla.ConfigError, match="nv_full"):
        nvdla.Runtime(compiled, "nv_full")
    expected = compiled.run(pixels[:1])["prob"]
    np.save(tmp_path / "seven.npy", pixels[:1])
    for given in (seven, str(seven), Image.open(seven), np.asarray(Image.open(seven)), tmp_path / "seven.npy"):
        assert np.array_equal(compiled.run(given)["prob"], expected)
        assert np.array_equal(compiled.run({"data": given})["prob"], expected)
    colors = np.stack([np.asarray(Image.open(path).convert("L"))[..., None] for path in (seven, three)])
    for several in ([seven, three], pixels, [pixels[:1], three], colors):
        both = compiled.run(several)["prob"]
        assert both.shape == (2, 10) and np.array_equal(both[:1], expected) and both[1].argmax() == 3
    with pytest.raises(nvdla.FormatError, match=r"seven\.txt"):
        compiled.run(tmp_path / "seven.txt")


def test_a_model_with_host_nodes_is_not_one_loadable(rng):
    compiled = nvdla.compile(classifier(rng), "nv_small", "int8", rng.normal(size=(2, 3, 12, 12)))
    with pytest.raises(nvdla.FormatError, match=r"must be one accelerator part, got .*host.*Use Compiled\.run"):
        nvdla.Runtime(compiled)
