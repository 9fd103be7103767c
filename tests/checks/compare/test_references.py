"""What can be compared with: golden files by their names, hashes, float tensors, ONNX models, other loadables."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

import nvdla
from nvdla import FormatError
from nvdla.checks.compare.comparison import Observation, compare_run, observe, surface_note
from nvdla.checks.compare.runs import FloatReference, GoldenReference, RunReference, align
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.memory.surfaces import FeatureLayout
from nvdla.program.naming import Names, StoredPlace, from_calibration, from_sidecar, from_yaml, names_for, parts
from nvdla.tensors.files import write_tensor
from nvdla.tensors.npz import read_npz


@pytest.fixture(scope="module")
def runtime(lenet_loadable):
    return nvdla.Runtime(lenet_loadable)


@pytest.fixture(scope="module")
def surfaces(runtime, samples):
    return runtime.surfaces(samples / "digit5.pgm")


@pytest.fixture(scope="module")
def observed(runtime, surfaces):
    return observe(runtime, surfaces, Names({(0, 7): "ip1+relu3", (0, 5): "pool2"}))


@pytest.fixture
def dumps(nvdla_command, samples, tmp_path):
    folder = tmp_path / "ops"
    code, _, _ = nvdla_command(
        "run", samples / "lenet.loadable", "-i", samples / "digit5.pgm", "--dump-ops", folder, "-o", folder / "prob.npy"
    )
    assert code == 0
    return folder


def names_of(found):
    return {row.operation: row.against for row in found.rows if row.operation is not None}


def test_dumps_of_nvdla_run_are_goldens(runtime, surfaces, dumps):
    found = compare_run(runtime, surfaces, GoldenReference(dumps))
    assert found.passed
    assert names_of(found)[7] == "task0-op0007-sdp.npy"
    assert found.rows[-1].against == "prob.npy"


def test_golden_files_of_several_places_are_compared(nvdla_command, samples, dumps, tmp_path):
    """``--golden`` twice: the dumps of operations, and the file of an output."""
    (dumps / "prob.npy").unlink()
    np.save(tmp_path / "prob.npy", np.zeros((1, 10, 1, 1), np.int8))
    words = ("compare", samples / "lenet.loadable", "-i", samples / "digit5.pgm", "--golden", dumps)
    alone = json.loads(nvdla_command(*words, "--json")[1])["tensors"]
    both = json.loads(nvdla_command(*words, "--golden", tmp_path / "prob.npy", "--json")[1])["tensors"]
    assert both[:-1] == alone and (both[-1]["name"], both[-1]["passed"]) == ("prob", False)


def test_a_changed_dump_is_found(runtime, surfaces, dumps):
    path = dumps / "task0-op0005-pdp.npy"
    data = np.load(path)
    data[0, 1, 0, 1] ^= 1
    np.save(path, data)
    first = compare_run(runtime, surfaces, GoldenReference(dumps)).first
    assert first.operation == 5
    assert first.difference.first == (0, 1, 0, 1)


def test_dumps_of_channels_in_another_order_are_compared_in_elements(nvdla_command, tmp_path):
    """An average of two atoms of channels writes them as two pixels; the channels have units of their own."""
    network, rng = Network(), np.random.default_rng(3)
    x = network.convolution("a", network.input("x", (8, 6, 6)), rng.normal(size=(16, 8, 3, 3)))
    average = network.mean("average", x)
    network.output(network.convolution("y", average, rng.normal(size=(8, 16, 1, 1))))
    data = rng.normal(size=(4, 8, 6, 6))
    built = build(network, "nv_small", calibration=calibrate(network, data))
    built.save(net := tmp_path / "net.loadable")
    file = tmp_path / "net.loadable.layers.json"
    document = json.loads(file.read_text())
    document["factors"] = {"average": list(np.linspace(1, 2, 16))}
    file.write_text(json.dumps(document))
    for name, picture in zip(("x.npy", "other.npy"), data[:, None].astype("f4"), strict=False):
        np.save(tmp_path / name, picture)
    assert nvdla_command("run", net, "-i", tmp_path / "x.npy", "--dump-ops", tmp_path / "ops")[0] == 0
    words = ("compare", net, "--golden", tmp_path / "ops", "--json", "-i")
    assert nvdla_command(*words, tmp_path / "x.npy")[0] == 0
    code, out, _ = nvdla_command(*words, tmp_path / "other.npy")
    rows = {tuple(row["shape"]): row["passed"] for row in json.loads(out)["tensors"]}
    assert code == 1 and rows[1, 8, 2, 1] is False


def test_the_index_of_the_dumps_has_the_scales_of_their_elements(runtime, surfaces, samples, dumps):
    """Every operation that writes memory has a file and a row; elements and scales give the real values."""
    rows = json.loads((dumps / "index.json").read_text())["operations"]
    assert [row["operation"] for row in rows] == [2, 5, 7, 9, 11]
    assert {row["file"] for row in rows} == {path.name for path in dumps.glob("task*")}
    names = names_for(samples / "lenet.loadable")
    seen = {each.index: each for each in observe(runtime, surfaces, names)[0]}
    for row in rows:
        elements = np.load(dumps / row["file"])
        assert (list(elements.shape), str(elements.dtype)) == (row["shape"], row["dtype"])
        factors = 1 if row["factors"] is None else np.reshape(row["factors"], (-1, 1, 1))
        real = (elements.astype(float) - row["zero_point"]) * row["scale"] * factors
        each = seen[row["operation"]]
        assert np.array_equal(real, each.units(names).real(each.tensor)) and row["layer"] == names.layers[0, each.index]


def test_a_change_in_padding_channels_is_only_noted(runtime, surfaces, observed, tmp_path):
    data = bytearray(next(each for each in observed[0] if each.index == 2).surface.tobytes())
    data[7] ^= 1  # 6 channels in an atom of 8
    (tmp_path / "task0-op0002-pdp.bin").write_bytes(data)
    found = compare_run(runtime, surfaces, GoldenReference(tmp_path))
    assert found.passed
    assert found.rows[0].note == "padding channels differ"


@pytest.mark.parametrize(("byte", "remark"), [(12, "padding channels differ"), (9, None)])
def test_padding_of_a_bound_output_is_noted_as_that_of_an_operation(runtime, surfaces, tmp_path, byte, remark):
    surface = bytearray(runtime.run_raw(surfaces)[0])  # 10 channels in two atoms of 8 bytes
    surface[byte] ^= 1
    (tmp_path / "prob.bin").write_bytes(surface)
    found = compare_run(runtime, surfaces, GoldenReference(tmp_path))
    assert found.passed == (byte == 12)
    assert found.rows[-1].note == remark


def test_bytes_between_the_lines_of_a_surface_are_no_padding_channels():
    layout = FeatureLayout((1, 8, 2, 1), np.dtype("i1"), 8, 16, 32, 32, 32)
    surface = bytes(range(32))
    assert surface_note(layout, surface, surface[:24] + bytes(8)) == "bytes between lines differ"
    assert surface_note(layout, surface, bytes(8) + surface[8:]) is None


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("seq0003_op7_SDP.bin", 7),
        ("seq0003_task0_op7_SDP.bin", 7),
        ("ip1+relu3.npy", 7),
        ("relu3.npy", 7),
        ("pool2.npy", 5),
        ("task0-op0007-sdp.npy", 7),
    ],
)
def test_golden_files_are_recognized_by_name(runtime, surfaces, observed, tmp_path, name, operation):
    observation = next(each for each in observed[0] if each.index == operation)
    if name.endswith(".bin"):
        (tmp_path / name).write_bytes(observation.surface.tobytes())
    else:
        np.save(tmp_path / name, observation.tensor)
    found = compare_run(runtime, surfaces, GoldenReference(tmp_path), Names({(0, 7): "ip1+relu3", (0, 5): "pool2"}))
    assert names_of(found) == {operation: name}
    assert found.passed


@pytest.mark.parametrize("name", ["o_000000.dimg", "output.dimg", "prob.npy", "out0.bin", "lenet.out0.bin"])
def test_outputs_are_goldens_by_all_their_names(runtime, surfaces, observed, tmp_path, name):
    raw = observed[1][0]
    tensor = runtime.unpack(observed[1])["prob"]
    write_tensor(tmp_path / name, tensor, raw, runtime.outputs[0])
    found = compare_run(runtime, surfaces, GoldenReference(tmp_path, stem="lenet"))
    assert [row.against for row in found.rows] == [name]
    assert found.passed


def test_a_golden_of_another_engine_or_size_is_refused(runtime, surfaces, tmp_path):
    (tmp_path / "task0-op0007-pdp.bin").write_bytes(b"\0" * 120)
    with pytest.raises(FormatError, match=r"engine in the name: must be that of .*, got PDP"):
        compare_run(runtime, surfaces, GoldenReference(tmp_path))
    (tmp_path / "task0-op0007-pdp.bin").rename(tmp_path / "task0-op0007-sdp.bin")
    (tmp_path / "task0-op0007-sdp.bin").write_bytes(b"\0" * 119)
    with pytest.raises(FormatError, match=r"size: must be 120 bytes .*, got 119"):
        compare_run(runtime, surfaces, GoldenReference(tmp_path))


def test_files_that_belong_to_nothing_are_named(tmp_path):
    np.save(tmp_path / "conv9.npy", np.zeros(3))
    assert GoldenReference(tmp_path).unused == ["conv9.npy"]
    with pytest.raises(FormatError, match="not a golden file"):
        (tmp_path / "empty").mkdir()
        GoldenReference(tmp_path / "empty")


def test_hashes_of_the_reference_are_goldens(cases):
    case = next(case for case in cases if case["id"] == "lenet/nv_small-int8-basic")
    runtime = nvdla.Runtime(nvdla.load(case["file"]))
    surfaces = [(case["file"].parents[1] / each["file"]).read_bytes() for each in case["inputs"]]
    reference = GoldenReference(case["file"].with_suffix(".ops.json"))
    assert compare_run(runtime, surfaces, reference).passed
    wrong = [bytes(len(surfaces[0]))]
    assert compare_run(runtime, wrong, reference).first.operation == 1


def test_broken_lists_of_hashes_are_refused(tmp_path):
    for text in ("{", "[1]", '[{"task": 0}]', '{"task": "x"}'):
        (tmp_path / "a.ops.json").write_text(text)
        with pytest.raises(FormatError):
            GoldenReference(tmp_path)


# ---- float tensors


def test_float_tensors_are_compared_after_scaling(runtime, surfaces, observed):
    sdp = next(each for each in observed[0] if each.index == 7)
    real = sdp.tensor.astype(np.float32) * 0.5
    names = Names({(0, 7): "ip1+relu3"}, {"relu3": 0.5})
    found = compare_run(runtime, surfaces, FloatReference({"relu3": real}, names), names)
    assert [row.operation for row in found.rows] == [7]
    assert found.rows[0].exact
    assert found.rows[0].scale == 0.5


def test_an_output_is_compared_with_the_last_layer_that_makes_it(runtime, surfaces):
    """Caffe's blob has the name of the layer before, which the ReLU in place has replaced."""
    names = Names({(1, 0): "prob+relu"}, {"prob": 1.0, "relu": 1.0}, outputs={"prob": "prob+relu"})
    right = runtime.unpack(runtime.run_raw(surfaces))["prob"].astype(np.float32)
    rows = compare_run(runtime, surfaces, FloatReference({"prob": 9 - right, "relu": right}, names), names).rows
    assert [(row.against, row.exact) for row in rows if row.kind == "output"] == [("relu", True)]


def test_a_part_that_no_other_part_completes_has_a_note(runtime, surfaces, observed):
    """An operation writes one of four parts of a tensor; the others are not written in this run."""
    part = next(each for each in observed[0] if each.index == 7).tensor.astype(np.float32)
    channels = part.shape[1]
    place = StoredPlace("wide", (4 * channels, 1, 1), (channels, 0, 0), (channels, 1, 1))
    names = Names({(0, 7): "wide"}, {"wide": 1.0}, shapes={"wide": place.shape}, places={(0, 7): place})
    whole = np.concatenate([part + 9, part, part, part], axis=1)
    (row,) = compare_run(runtime, surfaces, FloatReference({"wide": whole}, names), names).rows
    assert row.exact and row.difference.elements == channels
    assert row.note == f"part of wide: {channels} of {4 * channels} elements"


def test_float_tensors_that_point_elsewhere_do_not_pass(runtime, surfaces, observed):
    sdp = next(each for each in observed[0] if each.index == 7)
    real = sdp.tensor.astype(np.float32)[:, ::-1]
    names = Names({(0, 7): "relu3"})
    found = compare_run(runtime, surfaces, FloatReference({"relu3": real}, names), names)
    assert not found.passed
    assert found.rows[0].note == "scale fitted, zero point unknown"


def test_the_corpus_networks_are_close_to_their_float_models(cases):
    for name in ("lenet/nv_small-int8-fast-math", "lenet/nv_full-fp16-fast-math", "lenet/nv_large-int8-default"):
        case = next(case for case in cases if case["id"] == name)
        folder = case["file"].parent
        runtime = nvdla.Runtime(nvdla.load(case["file"]), case["config"])
        surfaces = [(folder.parent / each["file"]).read_bytes() for each in case["inputs"]]
        reference = FloatReference(read_npz(folder / "reference.npz"), from_calibration(folder / "calib.json"))
        found = compare_run(runtime, surfaces, reference)
        assert found.passed
        assert min(row.difference.cosine for row in found.rows) > 0.98


def test_broken_npz_files_are_refused(tmp_path):
    for data in (b"", b"PK\3\4 nonsense", b"abc"):
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(FormatError):
            read_npz(tmp_path / "a.npz")


# ---- ONNX


def convolution_model(path, weights, bias):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Conv", ["data", "w", "b"], ["conv_out"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv_out"], ["relu_out"], name="relu"),
        helper.make_node("MaxPool", ["relu_out"], ["pool_out"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("data", float32, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("pool_out", float32, [1, 8, 4, 4])],
        [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def built(tmp_path):
    """A small network as a loadable with its layer file, and as an ONNX model."""
    from nvdla.compiler.builder import Network, build, calibrate

    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
    bias = rng.normal(0, 0.1, 8).astype(np.float32)
    network = Network("small")
    tensor = network.convolution("conv", network.input("data", (3, 8, 8)), weights, bias, padding=1)
    network.output(network.max_pool("pool", network.relu("relu", tensor), 2))
    images = rng.uniform(-1, 1, (16, 3, 8, 8)).astype(np.float32)
    build(network, "nv_small", "int8", calibrate(network, images)).save(tmp_path / "small.loadable")
    convolution_model(tmp_path / "small.onnx", weights, bias)
    scale = from_sidecar(tmp_path / "small.loadable").scales["data"]
    np.save(tmp_path / "image.npy", np.clip(np.rint(images[:1] / scale), -127, 127).astype(np.int8))
    return tmp_path


def test_a_loadable_is_close_to_its_onnx_model(nvdla_command, built):
    code, out, err = nvdla_command(
        "compare", built / "small.loadable", "-i", built / "image.npy", "--onnx", built / "small.onnx", "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    assert document["against"]["kind"] == "onnx"
    assert [row["against"] for row in document["tensors"]] == ["pool", "pool"]
    assert all(row["cosine"] > 0.99 for row in document["tensors"])


def test_a_wrong_onnx_model_is_noticed(nvdla_command, built):
    rng = np.random.default_rng(2)
    convolution_model(
        built / "other.onnx", rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32), np.zeros(8, np.float32)
    )
    code, out, _ = nvdla_command(
        "compare", built / "small.loadable", "-i", built / "image.npy", "--onnx", built / "other.onnx"
    )
    assert code == 1
    assert "DIFFERENT" in out


def test_what_is_no_onnx_model_is_refused(nvdla_command, built):
    pytest.importorskip("onnxruntime")
    (built / "broken.onnx").write_bytes(b"\x08nonsense")
    words = ("compare", built / "small.loadable", "-i", built / "image.npy", "--onnx", built / "broken.onnx")
    code, _, err = nvdla_command(*words)
    assert code == 2
    assert len(err.splitlines()) == 1


# ---- names


def test_names_come_from_the_layer_file_the_table_and_yaml(samples, tmp_path):
    (tmp_path / "names.yaml").write_text("layers: {0/7: dense}\nscales: {dense: 0.25}\n")
    (tmp_path / "table.json").write_text('{"pool1": {"scale": 2.0, "min": 0, "max": 0, "offset": 0}}')
    names = names_for(samples / "lenet.loadable", tmp_path / "names.yaml", tmp_path / "table.json")
    assert names.layers[0, 7] == "dense"
    assert names.layers[0, 5] == "pool2"
    assert names.scale("dense") == 0.25
    assert names.scale("pool1") == 2.0
    assert names.scale("conv1+relu1") == pytest.approx(0.02273, abs=1e-4)
    assert names.scale("nothing") is None
    assert parts("a+b+c") == ["a+b+c", "c", "b", "a"]


@pytest.mark.parametrize(
    "text",
    [
        "layers: 3",
        "layers: {conv1: 0/1}",
        "scales: {a: -1}",
        "scales: {a: .nan}",
        "scales: {a: true}",
        "other: {}",
        "- 1",
        "layers: {0/1: [a]}",
        "layers: !!python/object/apply:os.system ['true']",
        ": : :",
        "\x00",
    ],
)
def test_broken_layer_files_are_refused(tmp_path, text):
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(FormatError):
        from_yaml(tmp_path / "names.yaml")


# ---- other loadables


def test_loadables_of_two_configurations_are_matched_by_position(samples, surfaces, observed):
    other = nvdla.Runtime(nvdla.load(samples / "lenet_nv_large.loadable"))
    theirs, _ = observe(other, other.surfaces(samples / "digit5.pgm"))
    match, how = align(observed[0], theirs)
    assert how == "position"
    assert all(np.array_equal(each.tensor, match[each.key].tensor) for each in observed[0] if each.surface is not None)


def test_differently_fused_loadables_are_matched_by_shape(cases):
    names = ("lenet/nv_small-int8-fast-math", "lenet/nv_small-int8-basic")
    runs = []
    for name in names:
        case = next(case for case in cases if case["id"] == name)
        runtime = nvdla.Runtime(nvdla.load(case["file"]))
        surfaces = [(case["file"].parents[1] / each["file"]).read_bytes() for each in case["inputs"]]
        runs.append(observe(runtime, surfaces)[0])
    match, how = align(*runs)
    assert how == "shape"
    assert all(np.array_equal(each.tensor, match[each.key].tensor) for each in runs[0] if each.surface is not None)
    back, _ = align(*reversed(runs))  # the last of bias and ReLU is what one operation computes, on either side
    assert {other.key: key for key, other in back.items()} == {key: other.key for key, other in match.items()}


@pytest.mark.parametrize("after", [True, False])
def test_unnamed_operations_of_one_shape_are_matched_by_their_elements(observed, after):
    """One compiler fuses ReLU, the other does not: the operation with the same elements is the right one."""
    ours = [dataclasses.replace(each, layer=None) for each in observed[0] if each.surface is not None]
    theirs = []
    for each in ours:
        shuffled = np.random.default_rng(1).permuted(each.surface.reshape(-1)).reshape(each.surface.shape)
        task, roi, index = each.key
        other = dataclasses.replace(each, key=(task, roi, index + 100), surface=shuffled)
        theirs += [each, other] if after else [other, each]
    for one, two in ((ours, theirs), (theirs, ours)):
        match, how = align(one, two)
        assert how == "shape"
        assert {key: other.key for key, other in match.items()} == {each.key: each.key for each in ours}


def test_unnamed_operations_behind_the_first_difference_are_matched_by_shape(observed):
    ours = [dataclasses.replace(each, layer=None) for each in observed[0] if each.surface is not None]
    wrong = [dataclasses.replace(each, surface=np.ascontiguousarray(each.surface[..., ::-1])) for each in ours[2:]]
    match, _ = align(ours, [ours[0], ours[0], ours[1], *wrong])
    assert {key: other.key for key, other in match.items()} == {each.key: each.key for each in ours}


def test_fused_layers_are_matched_by_their_last_layer(samples):
    runtime = nvdla.Runtime(nvdla.load(samples / "lenet.loadable"))
    fused, _ = observe(runtime, runtime.surfaces(samples / "digit5.pgm"), from_sidecar(samples / "lenet.loadable"))
    alone = [dataclasses.replace(each, layer=str(each.layer).split("+")[-1]) for each in fused[3:]]
    for runs in ((fused, alone), (alone, fused)):
        match, how = align(*runs)
        assert how == "layer"
        assert set(match) == {each.key for each in alone if each.surface is not None}


def test_differently_built_loadables_are_matched_by_layer(samples):
    names = from_sidecar(samples / "lenet.loadable")
    runtime = nvdla.Runtime(nvdla.load(samples / "lenet.loadable"))
    ours, _ = observe(runtime, runtime.surfaces(samples / "digit5.pgm"), names)
    match, how = align(ours[:-1], ours)
    assert how == "layer"
    assert all(match[each.key] is each for each in ours[:-1] if each.surface is not None)


def test_integers_and_halves_are_compared_as_real_numbers(nvdla_command, samples):
    for words in (("lenet.loadable", "lenet_nv_full_fp16.loadable"), ("lenet_nv_full_fp16.loadable", "lenet.loadable")):
        files = [samples / name for name in words]
        code, out, _ = nvdla_command("compare", *files, "-i", samples / "digit3.pgm", "--json")
        document = json.loads(out)
        assert code == 0
        assert all(row["cosine"] > 0.999 for row in document["tensors"])
        assert all("against" in row["note"] for row in document["tensors"])


def test_a_quantized_input_that_only_the_host_reads_is_compared_in_its_own_elements(tmp_path, nvdla_command):
    """A kernel of 33 rows runs on the host, so the layer file of the Relu after it states no units of the input."""
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, save_model

    from tests.compiler.frontend.models import model, node

    scales = {"s": np.float32(0.01), "z": np.int8(-100), "t": np.float32(0.3)}
    nodes = [node("DequantizeLinear", "x s z", "d"), node("Conv", "d w", "c"), node("Relu", "c", "r")]
    ends = [node("QuantizeLinear", "r t z", "q"), node("DequantizeLinear", "q t z", "y")]
    held = {"w": np.ones((8, 8, 33, 1), "f4"), **scales}
    net = model([*nodes, *ends], {"x": (1, 8, 33, 1)}, {"y": (1, 8, 1, 1)}, held)
    net.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    save_model(net, tmp_path / "net.onnx")
    sample = np.random.default_rng(5).uniform(0, 0.2, (1, 8, 33, 1)).astype("f4")
    nvdla.compile(tmp_path / "net.onnx", "nv_small", "int8", sample).save(tmp_path / "net.nvpkg")
    np.save(tmp_path / "x.npy", sample)
    words = ("compare", tmp_path / "net.nvpkg", "--onnx", tmp_path / "net.onnx", "-i", tmp_path / "x.npy")
    code, out, err = nvdla_command(*words)
    assert code == 0 and "0 different" in out, out + err


def column(index, first, whole=False):
    """Operation ``index``, which writes every second column of a tensor, from column ``first`` on (None: it writes an
    intermediate result)."""
    place = StoredPlace(None if first is None else "up", (8, 4, 4), (0, 0, first or 0), (8, 4, 2), (1, 2))
    surface = np.full((1, 4, 2, 8), index, np.int8).view(np.uint8)
    tensor = np.zeros((1, 8, 4, 4), np.int8) if whole else None
    return Observation((0, 0, index), "sdp", "up", np.dtype(np.int8), 8, surface, place=place, whole=tensor)


@pytest.mark.parametrize("before", [[], [column(9, None)]], ids=["as many operations", "one more"])
def test_parts_of_a_tensor_are_matched_by_what_they_write(before):
    """Two compilers write the columns of a transposed convolution in another order; the last part completes it."""
    ours = [column(0, 0), column(1, 1, whole=True)]
    theirs = [*before, column(0, 1), column(1, 0, whole=True)]
    match, how = align(ours, theirs)
    assert how == "layer"
    assert {key[-1]: other.index for key, other in match.items()} == {0: 1, 1: 1}


@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_intermediate_results_are_compared_where_all_scales_are_equal(runtime, surfaces, samples, scale):
    """Nothing states their scales: integers of two calibrations are no error of the hardware."""
    inside = StoredPlace(None, (0, 0, 0))
    sides = [Names({(0, 7): "ip1"}, {"ip1": each}, places={(0, 7): inside}) for each in (0.5, scale)]
    other = nvdla.Runtime(nvdla.load(samples / "lenet_nv_large.loadable"))
    reference = RunReference(other, other.surfaces(samples / "digit5.pgm"), sides[1], runtime, surfaces, sides[0])
    found = compare_run(runtime, surfaces, reference, sides[0])
    is_compared = 7 in names_of(found)
    assert is_compared == (scale == 0.5)
    assert ("operation 0/7 (SDP, layer ip1, an intermediate result)" in found.skipped) != is_compared


def test_equal_elements_are_exact_whatever_their_scales(runtime, surfaces):
    """Those of a loadable and of its exported QDQ model, which has the equalized channels."""
    sides = [Names({(0, 7): "ip1"}, {"ip1": scale}) for scale in (0.5, 0.25)]
    reference = RunReference(runtime, surfaces, sides[1], runtime, surfaces, sides[0])
    (row,) = (row for row in compare_run(runtime, surfaces, reference, sides[0]).rows if row.operation == 7)
    assert row.exact and row.note == "equal elements, but their scales differ"


def convolution_in_parts(level):
    """256 channels on 64 kernels of 1x1: in parts of rows at level 1."""
    rng = np.random.default_rng(0)
    net = Network("rows")
    x = net.input("in", (256, 28, 28))
    net.output(net.relu("r", net.convolution("c", x, rng.normal(size=(64, 256, 1, 1)))))
    return build(net, "nv_large", "int8", calibrate(net, rng.normal(size=(1, 256, 28, 28))), level=level)


def test_a_wrong_part_is_the_only_one_of_its_tensor_that_differs(nvdla_command, plant, tmp_path):
    """Where both loadables write the same parts, the last is compared alone, though it completes the tensor."""
    built = convolution_in_parts(1)
    built.save(tmp_path / "right.loadable")

    def change(task):
        sdp = next(operation for operation in task.operations() if operation.engine == "sdp")
        sdp.op.out_cvt.truncate += 1

    plant(built.loadable, change).save(tmp_path / "wrong.loadable")
    shutil.copy(tmp_path / "right.loadable.layers.json", tmp_path / "wrong.loadable.layers.json")
    words = ("compare", tmp_path / "wrong.loadable", tmp_path / "right.loadable", "--random-input", "--json")
    *rows, _ = json.loads(nvdla_command(*words)[1])["tensors"]
    assert [row["exact"] for row in rows] == [False] + [True] * (len(rows) - 1) and len(rows) > 1
    assert {tuple(row["shape"][:2]) for row in rows} == {(1, 64)} and sum(row["shape"][2] for row in rows) == 28


def test_parts_are_compared_with_the_whole_tensor_that_another_loadable_writes_at_once(nvdla_command, tmp_path):
    """Parts of rows have no counterpart alone; the last completes the tensor."""
    for level, name in enumerate(("whole.loadable", "parts.loadable")):
        convolution_in_parts(level).save(tmp_path / name)
    words = ("compare", tmp_path / "parts.loadable", tmp_path / "whole.loadable", "--random-input")
    code, out, err = nvdla_command(*words, "--json")
    first, output = json.loads(out)["tensors"]
    assert code == 0 and first["shape"] == output["shape"] == [1, 64, 28, 28], err
    assert re.fullmatch(r"with [1-9] other parts?", first["note"]) and not json.loads(out)["skipped"]


def test_intermediate_results_of_one_layer_and_shape_have_no_counterpart():
    """The layer file does not state which of them is which; one alone is."""
    first, last = column(0, None), column(5, 0)
    match, _ = align([first, column(1, None), last], [column(2, None), column(3, None), column(6, None), last])
    assert {key[-1]: other.index for key, other in match.items()} == {5: 5}
    match, _ = align([first, last], [column(2, None), column(4, 1), last])
    assert {key[-1]: other.index for key, other in match.items()} == {0: 2, 5: 5}


def test_branches_in_another_order_are_compared_with_each_other(nvdla_command, tmp_path):
    """The same model, whose two convolutions of one shape come in the other order: no divergence is told."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    constants = {name: rng.normal(size=(8, 8, 3, 3)).astype("f4") / 8 for name in ("a", "b")}
    first = [node("Conv", "x a", "p", pads=[1] * 4), node("Relu", "p", "q")]
    second = [node("Conv", "x b", "r", pads=[1] * 4), node("Relu", "r", "s")]
    joined = [node("Concat", "q s", "c", axis=1), node("GlobalAveragePool", "c", "g"), node("Flatten", "g", "y")]
    data = rng.normal(size=(8, 8, 6, 6)).astype("f4")
    np.save(tmp_path / "x.npy", data[:1])
    for name, branches in (("one", [*first, *second]), ("two", [*second, *first])):
        graph = model([*branches, *joined], {"x": (1, 8, 6, 6)}, {"y": (1, 16)}, constants)
        nvdla.compile(graph, "nv_small", calibration=data).save(tmp_path / f"{name}.nvdla")
    files = [tmp_path / f"{name}.nvdla" for name in ("one", "two")]
    code, out, _ = nvdla_command("compare", *files, "--input", tmp_path / "x.npy")
    assert code == 0 and "0 different" in out and "DIFFERENT" not in out
