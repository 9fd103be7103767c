"""Comparing with a Caffe network: the samples through the command line, and the networks of NVIDIA's compiler."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra nvdla[onnx]")
pytest.importorskip("onnxruntime", reason="needs the extra nvdla[onnx]")

from nvdla.checks.compare.float_models import caffe_tensors

#: where the corpus' reference is not what Caffe computes, and why
NOT_CAFFE = {
    "conv_dil_asym": "NVIDIA's compiler takes two dilations as width and height",
    "pool_ave_k5x3": "NVDLA divides by the whole window at the end of rows and columns, too",
    "pool_min_k2s2": "a compiler patched to take MAX for MIN",
    "scale_uniform": "one number for all channels, which Caffe refuses",
}


@pytest.fixture
def compare(nvdla_command, samples):
    def call(loadable, *words, prototxt=samples / "lenet.prototxt", caffemodel=samples / "lenet.caffemodel"):
        digit = samples / "digit3.pgm"
        return nvdla_command("compare", loadable, "-i", digit, "--caffe", prototxt, caffemodel, *words)

    return call


@pytest.mark.parametrize("name", ["lenet.loadable", "lenet_nv_large.loadable", "lenet_nv_full_fp16.loadable"])
def test_the_samples_are_close_to_their_caffe_network(compare, samples, name):
    code, out, err = compare(samples / name, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["against"]["kind"] == "caffe"
    assert [row["against"] for row in document["tensors"]] == ["pool1", "pool2", "relu3", "relu4", "ip3", "prob"]
    assert all(row["cosine"] > 0.999 for row in document["tensors"])


def test_the_order_of_the_two_files_does_not_matter(compare, samples):
    swapped = {"prototxt": samples / "lenet.caffemodel", "caffemodel": samples / "lenet.prototxt"}
    assert compare(samples / "lenet.loadable", **swapped)[:2] == compare(samples / "lenet.loadable")[:2]


def test_wrong_weights_are_found_at_their_layer(compare, samples, tmp_path, lenet_loadable, plant_bytes):
    def spoil(data):
        data[0:1200] = bytes(1200)

    plant_bytes(lenet_loadable, 3, "weight_data", spoil).save(tmp_path / "spoilt.loadable")
    shutil.copy(samples / "lenet.loadable.layers.json", tmp_path / "spoilt.loadable.layers.json")
    code, out, _ = compare(tmp_path / "spoilt.loadable")
    assert code == 1
    assert "First divergence: operation 0/5 (PDP after 0/3, 0/4 on the fly, layer pool2)" in out


def test_layers_are_mapped_by_a_file(nvdla_command, samples, tmp_path):
    shutil.copy(samples / "lenet.loadable", tmp_path / "bare.loadable")
    (tmp_path / "names.yaml").write_text("layers: {0/7: relu3, 0/11: ip3}\nscales: {data: 2.007874, ip3: 0.44402}\n")
    words = ("-i", samples / "digit3.pgm", "--caffe", samples / "lenet.prototxt", samples / "lenet.caffemodel")
    code, out, err = nvdla_command(
        "compare", tmp_path / "bare.loadable", *words, "--layers", tmp_path / "names.yaml", "--json"
    )
    assert code == 0, err
    rows = json.loads(out)["tensors"]
    assert [(row["operation"], row["name"], row["note"]) for row in rows] == [
        (7, "relu3", "scale fitted, zero point unknown"),
        (11, "ip3", None),
        (None, "prob", rows[2]["note"]),
    ]


def test_a_network_without_weights_is_refused_by_name(nvdla_command, samples):
    words = ("-i", samples / "digit3.pgm", "--caffe", samples / "lenet.prototxt")
    code, out, err = nvdla_command("compare", samples / "lenet.loadable", *words)
    assert (code, out) == (2, "")
    assert "line 8: layer conv1 (Convolution): weights: must be given." in err
    assert err.endswith("Add the .caffemodel: --caffe NET.prototxt NET.caffemodel.\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_output: 16", "num_output: 17", "weights: must be 17x6x5x5 (network), got 16x6x5x5 in the .caffemodel"),
        ("kernel_size: 2", "kernel_sise: 2", "field: must be in the schema, got kernel_sise; did you mean "),
        ('type: "Softmax"', 'type: "Softmaks"', "; did you mean Softmax?"),
        ("dim: 1 dim: 28", "dim: 3 dim: 27", "input data: must be 1x1x28x28 (loadable), got 1x3x27x28"),
    ],
)
def test_networks_that_do_not_fit_are_refused_with_one_line(compare, samples, tmp_path, old, new, said):
    text = (samples / "lenet.prototxt").read_text()
    assert old in text
    (tmp_path / "net.prototxt").write_text(text.replace(old, new, 1))
    code, out, err = compare(samples / "lenet.loadable", prototxt=tmp_path / "net.prototxt")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_three_files_are_too_many(compare, samples):
    code, _, err = compare(samples / "lenet.loadable", "--caffe", "a", "b", "c")
    assert code == 2
    assert "must be a .prototxt and a .caffemodel, got 5 files" in err


# ---- the corpus


@pytest.fixture(scope="module")
def networks(corpus):
    """Folders of the corpus with a Caffe network, its weights, an input and float results of every layer."""
    found = [path.parent for path in sorted((corpus / "loadables").glob("*/net.caffemodel"))]
    return [each for each in found if (each / "reference.npz").exists() and list(each.glob("input*.np*"))]


def inputs_of(folder):
    if (folder / "input.npy").exists():
        return {"data": np.load(folder / "input.npy").astype(np.float32)}
    with np.load(folder / "inputs.npz") as arrays:
        return {name: arrays[name].astype(np.float32) for name in arrays.files}


def test_every_blob_of_every_network_is_that_of_the_float_reference(networks):
    assert len(networks) > 80
    for folder in networks:
        if folder.name in NOT_CAFFE:
            continue
        tensors, blobs = caffe_tensors(folder / "net.prototxt", folder / "net.caffemodel", inputs_of(folder))
        with np.load(folder / "reference.npz") as reference:
            for name in reference.files:
                wanted, found = reference[name], tensors.get(name, blobs.get(name))
                assert found.size == wanted.size, (folder.name, name)
                difference = np.abs(found.reshape(wanted.shape) - wanted).max()
                assert difference <= 1e-6 * np.abs(wanted).max(), (folder.name, name, difference)


def test_average_pooling_differs_from_the_reference_only_at_the_end(corpus):
    folder = corpus / "loadables" / "pool_ave_k5x3"
    tensors, _ = caffe_tensors(folder / "net.prototxt", folder / "net.caffemodel", inputs_of(folder))
    wanted = np.load(folder / "reference.npz")["pool"]
    np.testing.assert_allclose(tensors["pool"][..., :-1, :-1], wanted[..., :-1, :-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tensors["pool"][..., -1, :-1] * 4 / 5, wanted[..., -1, :-1], rtol=1e-5, atol=1e-6)


def test_loadables_of_nvidias_compiler_are_close_to_their_caffe_networks(nvdla_command, cases):
    """One of each kind; layers are guessed, scales come from the calibration table."""
    chosen = (
        "mini_cnn/nv_small-int8-fast-math",
        "eltwise_proj_block/nv_full-fp16-fast-math",
        "eltwise_chain/nv_small-int8-default",
        "conv_c3/nv_small-int8-fast-math-nhwc",
        "conv_chain/nv_full-fp16-wg",
        "multi_in/nv_small-int8-fast-math",
        "lrn5/nv_full-fp16-fast-math",
    )
    by_id = {case["id"]: case for case in cases}
    for name in chosen:
        case = by_id[name]
        folder = case["file"].parent
        words = [word for each in case["inputs"] for word in ("-i", f"{each['name']}={folder.parent / each['file']}")]
        words += ["--caffe", folder / "net.prototxt", folder / "net.caffemodel", "--scales", folder / "calib.json"]
        code, out, err = nvdla_command("compare", case["file"], "--config", case["config"], *words, "--json")
        assert code == 0, (name, err, out[-2000:])


@pytest.mark.parametrize("name", ["conv_scale/nv_full-int8-basic", "scale_channel/nv_full-fp16-basic"])
def test_a_layer_in_two_operations_is_compared_once_it_is_done(nvdla_command, cases, tmp_path, name):
    """NVIDIA's compiler multiplies and adds in two operations; in place, so the output is the Scale layer's."""
    case = next(each for each in cases if each["id"] == name)
    folder, net = case["file"].parent, shutil.copy(case["file"], tmp_path / "net.nvdla")
    model = ("--caffe", folder / "net.prototxt", folder / "net.caffemodel")
    assert nvdla_command("layers", net, *model, "--scales", folder / "calib.json")[0] == 0
    (given,) = case["inputs"]
    code, out, err = nvdla_command("compare", net, "-i", folder.parent / given["file"], *model, "--json")
    assert code == 0, (out, err)
    *_, scale, output = json.loads(out)["tensors"]
    assert (scale["name"], scale["snr_db"]) == ("scale", output["snr_db"])
    assert [text.partition(", ")[2] for text in json.loads(out)["skipped"]] == ["layer scale, an intermediate result)"]
