"""``nvdla run`` as a user calls it."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate


def test_the_digit_is_printed_with_its_probability(nvdla_command, lenet, digit):
    code, out, err = nvdla_command("run", lenet, "--input", digit)
    assert code == 0
    assert err == ""
    first = out.splitlines()[1].split()
    assert first[0] in digit.rsplit("-", 1)[-1] + digit


def test_running_a_loadable_imports_no_compiler(lenet, digit):
    check = """import sys
from nvdla.cli.main import main
main(sys.argv[1:])
assert not [name for name in sys.modules if name.startswith(("nvdla.compiler.builder", "nvdla.compiler.frontend"))]"""
    words = [sys.executable, "-c", check, "run", lenet, "--input", digit]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("suffix", ["npy", "dimg", "bin"])
def test_an_output_equals_itself(nvdla_command, lenet, digit, tmp_path, suffix):
    golden = tmp_path / f"golden.{suffix}"
    assert nvdla_command("run", lenet, "--input", digit, "--output", golden)[0] == 0
    code, out, _ = nvdla_command("run", lenet, "--input", digit, "--compare", golden)
    assert code == 0
    assert "exact" in out


def test_a_difference_is_placed_and_gives_exit_code_1(nvdla_command, lenet, digit, tmp_path):
    golden = tmp_path / "golden.npy"
    nvdla_command("run", lenet, "--input", digit, "--output", golden)
    array = np.load(golden)
    array[0, 3, 0, 0] += 2
    np.save(golden, array)
    code, out, _ = nvdla_command("run", lenet, "--input", digit, "--compare", golden)
    assert code == 1
    assert "1 of 10 elements differ, by at most 2; first at N=0, C=3, H=0, W=0" in out
    assert nvdla_command("run", lenet, "--input", digit, "--compare", golden, "--tolerance", "2")[0] == 0


@pytest.mark.parametrize(("byte", "words"), [(1, "1 of 10 elements differ"), (12, "padding channels differ")])
def test_a_surface_is_compared_by_elements_as_nvdla_compare_does(nvdla_command, lenet, digit, tmp_path, byte, words):
    golden = tmp_path / "prob.bin"  # 10 channels in two atoms of 8 bytes: byte 12 is padding
    nvdla_command("run", lenet, "--input", digit, "--output", golden)
    surface = bytearray(golden.read_bytes())
    surface[byte] ^= 1
    golden.write_bytes(surface)
    code, out, _ = nvdla_command("run", lenet, "--input", digit, "--compare", golden)
    compared, table, _ = nvdla_command("compare", lenet, "--input", digit, "--golden", golden)
    assert code == compared == (0 if byte == 12 else 1)
    assert words in out and words in table
    if byte == 1:
        assert "first at N=0, C=1, H=0, W=0" in out and "first at N=0, C=1, H=0, W=0" in table


def test_surfaces_of_several_runs_are_compared_by_elements(nvdla_command, lenet, digit, tmp_path):
    golden = tmp_path / "prob.bin"
    nvdla_command("run", lenet, "--input", digit, "--input", digit, "--real", "--output", golden)
    surfaces = bytearray(golden.read_bytes())
    surfaces[16 + 3] ^= 1
    golden.write_bytes(surfaces)
    code, out, _ = nvdla_command("run", lenet, "-i", digit, "-i", digit, "--real", "--compare", golden)
    assert code == 1 and "1 of 20 elements differ, by at most 1; first at N=1, C=3, H=0, W=0" in out


@pytest.mark.parametrize("config", ["nv_large", "nv_small_256", "nv_small_256_full", "nv_full"])
def test_a_configuration_that_cannot_run_a_loadable_names_those_that_run_it(nvdla_command, lenet, digit, config):
    """The buffer of nv_small_256 has entries of another size, so an equal memory atom is not enough."""
    code, _, err = nvdla_command("run", lenet, "--input", digit, "--config", config)
    assert code == 2
    assert err.endswith("The loadable runs without an error on nv_small.\n")
    assert "configuration           nv_small\n" in re.sub(r" +\n", "\n", nvdla_command("inspect", lenet)[1])


def test_json_has_stable_keys(nvdla_command, lenet, digit):
    code, out, _ = nvdla_command("run", lenet, "--input", digit, "--json", "--stats", "--class-names", __file__)
    document = json.loads(out)
    assert code == 0
    assert set(document) == {
        "format",
        "version",
        "loadable",
        "configuration",
        "configuration_reason",
        "abi",
        "seconds",
        "times",
        "warnings",
        "pictures",
        "outputs",
        "differences",
        "statistics",
        "profile",
        "proof",
    }
    assert set(document["outputs"][0]["top"][0][0]) == {"index", "value", "label"}
    assert {row["engine"] for row in document["statistics"]} >= {"conv", "sdp"}


def test_what_every_operation_wrote_can_be_dumped(nvdla_command, lenet, digit, tmp_path):
    code, out, _ = nvdla_command("run", lenet, "--input", digit, "--dump-ops", tmp_path / "ops", "--stats")
    assert code == 0 and "ops: outputs of 5 operations, index.json" in out
    assert "saturated" in out and "nan" not in out, "int8 has no NaN"
    seen = {}
    runtime = nvdla.Runtime(nvdla.load(lenet))
    runtime.run(digit, on_operation=lambda event: seen.update({event.index: event.destination}))
    dumped = {path.name: path.read_bytes() for path in (tmp_path / "ops").iterdir()}
    wrote = {index: view for index, view in seen.items() if view is not None}
    assert len(dumped) == len(wrote) + 1 > 1 and "index.json" in dumped


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "is missing"),
        (("--input", "nothing.pgm"), "nothing.pgm"),
        (("--input", "x.gif"), "got '.gif'"),
        (("--input", "other=x.pgm"), "no such input"),
        (("--input", "a.pgm", "--input", "b.pgm"), "a.pgm"),
        (("--input", "a.pgm", "--input-scale", "other=2"), "no such input: must be one of data, got other"),
        (("--input", "a.pgm", "--input-scale", "two"), "must be a positive number, got 'two'"),
        (("--input", "a.pgm", "--input-scale", "-1"), "must be a positive number"),
        (("--input", "a.pgm", "--config", "nv_smal"), "did you mean nv_small?"),
        (("--input", "a.pgm", "--output", "x.tiff"), "got '.tiff'"),
        (("--input", "a.pgm", "--threads", "0"), "at least 1"),
        (("--input", "a.pgm", "--nonsense"), "--nonsense"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(nvdla_command, lenet, words, message):
    code, out, err = nvdla_command("run", lenet, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_wrong_image_size_is_refused_with_both_sizes(nvdla_command, lenet, tmp_path):
    from PIL import Image

    Image.new("L", (30, 20)).save(tmp_path / "x.pgm")
    code, _, err = nvdla_command("run", lenet, "--input", tmp_path / "x.pgm", "--no-preprocess")
    assert code == 2
    assert "30 x 20" in err
    assert "28 x 28" in err
    assert nvdla_command("run", lenet, "--input", tmp_path / "x.pgm", "--resize")[0] == 0


@pytest.mark.parametrize("cut", [0, 1, 7, 100, -1])
def test_a_truncated_loadable_is_one_line(nvdla_command, lenet, digit, tmp_path, cut):
    broken = tmp_path / "broken.loadable"
    broken.write_bytes(Path(lenet).read_bytes()[:cut])
    code, _, err = nvdla_command("run", broken, "--input", digit)
    assert code == 2
    assert err.count("\n") == 1


def test_another_configuration_is_refused_with_a_reason(nvdla_command, lenet, digit):
    code, _, err = nvdla_command("run", lenet, "--input", digit, "--config", "nv_large")
    assert code == 2
    assert err.startswith("nvdla run: ")


def test_real_numbers_without_a_scale_are_refused_with_the_whole_command(nvdla_command, lenet, tmp_path):
    net = shutil.copy(lenet, tmp_path / "net.nvdla")
    np.save(tmp_path / "in.npy", np.full((1, 1, 28, 28), 0.5))
    words = ("run", net, "--input", tmp_path / "in.npy")
    code, _, err = nvdla_command(*words)
    said = re.search("Run 'nvdla (.*)'", err)
    assert code == 2 and said
    assert shlex.split(said[1])[:4] == [str(word) for word in words]
    assert nvdla_command(*shlex.split(said[1]))[0] == 0


def test_the_unit_of_integers_is_printed_where_it_is_known(nvdla_command, samples):
    run = ("run", samples / "lenet.loadable", "--input", samples / "digit7.pgm")
    last = "prob: one unit is 0.00787402. Add --real for real values."
    assert nvdla_command(*run)[1].splitlines()[-1] == last
    for others in (["--real"], ["--top", "0"]):
        assert last not in nvdla_command(*run, *others)[1]


def test_real_results_need_the_scale_of_the_output(nvdla_command, lenet, digit, tmp_path):
    net = shutil.copy(lenet, tmp_path / "net.nvdla")
    code, _, err = nvdla_command("run", net, "--input", digit, "--real")
    assert code == 2 and "--output-scale prob=NUMBER" in err
    code, out, _ = nvdla_command("run", net, "--input", digit, "--real", "--output-scale", "0.5", "--json")
    real = json.loads(out)["outputs"][0]
    whole = json.loads(nvdla_command("run", net, "--input", digit, "--json")[1])["outputs"][0]
    assert (code, real["dtype"], whole["dtype"]) == (0, "float32", "int8")
    last = nvdla_command("run", net, "--input", digit)[1].splitlines()[-1]
    assert last == "prob: the scale is unknown. Add --real --output-scale prob=X for real values."
    assert real["top"][0][0]["value"] == whole["top"][0][0]["value"] / 2


def test_a_calibration_table_has_the_scales_of_inputs_and_outputs(nvdla_command, lenet, digit, tmp_path):
    net = shutil.copy(lenet, tmp_path / "net.nvdla")
    entry = {"scale": 0.25, "min": 0, "max": 0, "offset": 0}
    (tmp_path / "table.json").write_text(json.dumps({"data": entry, "prob": entry}))
    code, out, _ = nvdla_command("run", net, "-i", digit, "--real", "--scales", tmp_path / "table.json", "--json")
    assert code == 0 and json.loads(out)["outputs"][0]["top"][0][0]["value"] % 0.25 == 0


def test_several_images_run_one_after_the_other(nvdla_command, lenet, digit, tmp_path):
    other = digit.replace("digit0", "digit1")
    both, one = tmp_path / "both.npy", tmp_path / "one.npy"
    code, out, _ = nvdla_command("run", lenet, "-i", digit, "-i", other, "-o", both)
    assert code == 0 and "image 1" in out
    nvdla_command("run", lenet, "-i", other, "-o", one)
    assert np.array_equal(np.load(both)[1:], np.load(one))
    assert nvdla_command("run", lenet, "-i", digit, "-i", other, "--compare", both)[0] == 0
    code, _, err = nvdla_command("run", lenet, "-i", digit, "-i", other, "--stats")
    assert code == 2 and "must have one image, got 2" in err


def test_a_random_input_is_the_same_for_the_same_seed(nvdla_command, lenet):
    first, second, other = (
        json.loads(nvdla_command("run", lenet, "--random-input", seed, "--json")[1])["outputs"] for seed in (3, 3, 4)
    )
    assert first == second != other


def test_the_log_of_register_writes_is_one_for_csb(nvdla_command, lenet, digit, tmp_path):
    log = tmp_path / "csb.log"
    assert nvdla_command("run", lenet, "--input", digit, "--csb-log", log)[0] == 0
    lines = log.read_text().splitlines()
    assert lines[0].startswith("# task 0 addresses=") and "# enable op=0 type=CONV group=0" in lines
    code, out, _ = nvdla_command("csb", log)
    assert code == 0
    assert f"{sum(line.startswith('W ') for line in lines)} register accesses in the format nvdla" in out


def test_what_a_color_picture_is_assumed_to_be_is_printed(nvdla_command, samples, tmp_path):
    net = tmp_path / "net.loadable"  # without a layer file
    net.write_bytes((samples / "color_digits.loadable").read_bytes())
    picture = samples / "color_digit3.ppm"
    halved = f"{picture}: pixels halved to 0..127, order bgr (assumed, as NVIDIA's runtime; see --color)\n"
    program, page = ("--format", "cfg", "-o", tmp_path / "program"), ("-o", tmp_path / "page.html")
    for command, *words in (("run",), ("doctor",), ("program", *program), ("compare", net), ("report", *page)):
        assert nvdla_command(command, net, *words, "--input", picture)[2].count(halved) == 1, command
    stated = nvdla_command("run", net, "--input", picture, "--color", "rgb")[2]
    assert stated.endswith(f"{picture}: pixels halved to 0..127 (assumed, as NVIDIA's runtime)\n")
    document = json.loads(nvdla_command("run", net, "--input", picture, "--json")[1])
    assert halved == "".join(f"{path}: {text}\n" for path, text in document["pictures"].items())


def test_pixels_of_fp16_networks_are_not_normalized_without_a_layer_file(nvdla_command, samples, digit, tmp_path):
    net = tmp_path / "net.loadable"
    net.write_bytes((samples / "lenet_nv_full_fp16.loadable").read_bytes())
    assumed = "pixels 0..255 not normalized (assumed, as NVIDIA's runtime; see --mean, --std)"
    assert assumed in nvdla_command("run", net, "--input", digit)[2]
    assert "assumed" not in nvdla_command("run", net, "--input", digit, "--mean", "0")[2]


def test_commands_for_one_run_refuse_several_with_advice(nvdla_command, lenet, digit, tmp_path):
    assert (
        "must be one run, got 2. Write one program per run." in nvdla_command("program", lenet, "-i", digit, digit)[2]
    )
    assert "got 2. Compare them one by one." in nvdla_command("compare", lenet, lenet, "-i", digit, digit)[2]
    code, _, error = nvdla_command("report", lenet, "-i", digit, digit, "-o", tmp_path / "page.html")
    assert code == 0
    assert f"{digit}: the page shows the values of this run; findings are of 2 runs" in error


def test_files_of_one_image_fill_the_batch_of_a_network(nvdla_command, tmp_path, monkeypatch):
    """A network that takes two images at a time: two files are one run, four are two, and three are refused."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    net = Network("pair")
    x = net.input("in", (3, 4, 4))
    net.output(net.convolution("c", x, rng.normal(size=(2, 3, 4, 4))))
    samples = rng.normal(size=(4, 3, 4, 4)).astype(np.float32)
    build(net, "nv_small", "int8", calibrate(net, samples), images=2).save("net.loadable")
    for number, sample in enumerate(samples):
        np.save(f"{number}.npy", sample[None])
    np.save("all.npy", samples[:2])
    top = {}
    for names in ("all", "0 1", "0 1 2 3"):
        code, out, err = nvdla_command("run", "net.loadable", "-i", *(f"{n}.npy" for n in names.split()), "--json")
        assert code == 0, err
        (output,) = json.loads(out)["outputs"]
        top[names] = output["top"]
    assert top["all"] == top["0 1"] == top["0 1 2 3"][:2] and len(top["0 1 2 3"]) == 4
    code, _, err = nvdla_command("run", "net.loadable", "-i", "0.npy", "1.npy", "2.npy")
    assert code == 2 and "images: must be a multiple of 2 (batch of the network), got 3" in err
    code, _, err = nvdla_command("run", "net.loadable", "-i", "0.npy")
    assert code == 2 and "takes 2 images at a time: give one array, or one file per image" in err


def test_the_index_of_dumps_states_where_parts_and_averages_are(nvdla_command, tmp_path):
    """Put together at the places that it states, they are the tensors of the layers."""
    pytest.importorskip("onnxruntime")
    onnx, rng = pytest.importorskip("onnx"), np.random.default_rng(0)
    helper = onnx.helper
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 16, 40, 40]), ("y", [1, 24, 1, 1]))]
    weights = onnx.numpy_helper.from_array(rng.normal(size=(24, 16, 3, 3)).astype(np.float32), "w")
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    images = rng.normal(size=(4, 16, 40, 40)).astype(np.float32)
    compiled = nvdla.compile(model, "nv_small", calibration=images)
    compiled.save(tmp_path / "net.nvdla")
    np.save(tmp_path / "x.npy", images[:1])
    assert (
        nvdla_command("run", tmp_path / "net.nvdla", "-i", tmp_path / "x.npy", "--dump-ops", tmp_path / "ops")[0] == 0
    )
    index = json.loads((tmp_path / "ops" / "index.json").read_text())
    row = [row for row in index["operations"] if row["layer"] == "y"][-1]
    assert row["shape"] == [1, 8, 3, 1] and row["writes"]["atoms"] and row["writes"]["shape"] == [24, 1, 1]
    dumped = np.load(tmp_path / "ops" / row["file"])
    channels = np.array([dumped[0, channel % 8, channel // 8, 0] for channel in range(24)], np.float32)
    real = (channels - row["zero_point"]) * row["scale"]
    np.testing.assert_allclose(real, compiled.run(images[:1])["y"].ravel(), rtol=1e-5)
