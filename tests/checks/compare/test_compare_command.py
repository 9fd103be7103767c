"""``nvdla compare`` as a user calls it."""

import json
import re
import shutil

import numpy as np
import pytest


@pytest.fixture
def broken(lenet_loadable, plant_bytes, samples, tmp_path):
    """The lenet sample with a wrong bit in the weights of its second convolution, and its layer file."""

    def flip(data):
        data[32] ^= 0x40

    plant_bytes(lenet_loadable, 3, "weight_data", flip).save(tmp_path / "broken.loadable")
    shutil.copy(samples / "lenet.loadable.layers.json", tmp_path / "broken.loadable.layers.json")
    return tmp_path / "broken.loadable"


def test_a_loadable_equals_itself_on_one_thread(nvdla_command, samples):
    words = (samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--other-threads", 1)
    code, out, err = nvdla_command("compare", *words)
    assert (code, err) == (0, "")
    assert "6 tensors compared: 6 exact, 0 close, 0 different." in out


def test_a_broken_loadable_differs_from_a_good_one(nvdla_command, samples, broken):
    code, out, _ = nvdla_command("compare", broken, samples / "lenet.loadable", "-i", samples / "digit3.pgm")
    assert code == 1
    assert (
        "First divergence: operation 0/5 (PDP after 0/3, 0/4 on the fly, layer pool2): 4 of 256 elements "
        "differ, by at most 11; first at N=0, C=5, H=0, W=2: lenet.loadable 25, this run 35"
    ) in out
    assert "  lenet.loadable\n             0          0        25*" in out
    assert "  this run\n             0          0        35*" in out


def test_values_have_the_name_of_their_source(nvdla_command, samples, tmp_path):
    """Neither a board nor another run is right by its position among the arguments."""
    net, image = samples / "lenet.loadable", ("-i", samples / "digit3.pgm")
    assert nvdla_command("run", net, *image, "--dump-ops", tmp_path / "board")[0] == 0
    dump = tmp_path / "board" / "task0-op0002-pdp.npy"
    tensor = np.load(dump)
    tensor[0, 0, 0, 0] ^= 16
    np.save(dump, tensor)
    board, ours = tensor[0, 0, 0, 0], tensor[0, 0, 0, 0] ^ 16
    out = nvdla_command("compare", net, *image, "--golden", tmp_path / "board")[1]
    assert f"first at N=0, C=0, H=0, W=0: board {board}, this run {ours}" in out
    assert "expected" not in out
    out = nvdla_command("compare", net, *image, "--other-input", samples / "digit7.pgm")[1]
    assert re.search(r": other run -?\d+, this run -?\d+", out)


def test_fail_fast_ends_with_the_first_divergence(nvdla_command, samples, broken):
    words = ("compare", broken, samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--fail-fast", "--json")
    document = json.loads(nvdla_command(*words)[1])
    assert [row["operation"] for row in document["tensors"]] == [2, 5]
    assert document["first"]["name"] == "pool2"


def test_fail_fast_names_golden_files_that_were_not_reached(nvdla_command, samples, broken, tmp_path):
    """They have a tensor; the run ended before it."""
    image = ("-i", samples / "digit3.pgm")
    assert nvdla_command("run", samples / "lenet.loadable", *image, "--dump-ops", tmp_path / "golden")[0] == 0
    words = ("compare", broken, *image, "--golden", tmp_path / "golden")
    out = nvdla_command(*words, "--fail-fast")[1]
    assert "Golden files not reached (--fail-fast): task0-op0007-sdp.npy, " in out
    assert "Golden files" not in nvdla_command(*words)[1]


def test_only_differences_can_be_listed(nvdla_command, samples, broken):
    words = ("compare", broken, samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--different")
    assert "pool1" not in nvdla_command(*words)[1]


def test_other_inputs_make_other_tensors(nvdla_command, samples):
    words = (samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--other-input", samples / "digit4.pgm")
    assert nvdla_command("compare", *words)[0] == 1


def test_a_model_can_be_named_like_another_loadable(nvdla_command, samples):
    words = ("compare", samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--json")
    given = nvdla_command(*words, samples / "lenet.onnx")
    assert given[0] == 0
    assert given == nvdla_command(*words, "--onnx", samples / "lenet.onnx")


@pytest.mark.parametrize("others", [[], ["--trusted"]])
def test_a_model_with_another_input_is_named(others, nvdla_command, samples):
    words = ("compare", samples / "color_digits.loadable", "--onnx", samples / "lenet.onnx", "--random-input")
    code, _, error = nvdla_command(*words, *others)
    assert code == 2
    assert error == (
        f"nvdla compare: {samples / 'lenet.onnx'}: input data: must be 1x3x32x32 as in the network, got 1x1x28x28. "
        "Give the model that the network was compiled from.\n"
    )


def test_a_data_set_is_no_input(nvdla_command, samples):
    for data in ("train:loader", "digits.csv"):
        _, _, error = nvdla_command("compare", samples / "lenet.loadable", "--onnx", samples / "lenet.onnx", "-i", data)
        assert f"{data}: must be an input (.pgm" in error
        assert "got a data set. Save one of its samples in Python: numpy.save('input.npy', sample). " in error
        assert f"'nvdla evaluate NET {data}' runs all of them" in error


def test_random_input_is_the_same_for_the_same_seed(nvdla_command, samples):
    words = ("compare", samples / "lenet.loadable", samples / "lenet_nv_large.loadable", "--random-input", 7)
    assert nvdla_command(*words)[0] == 0


def test_the_json_is_as_documented(nvdla_command, samples, broken, as_documented):
    words = ("compare", broken, samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--json")
    document = json.loads(nvdla_command(*words)[1])
    as_documented(document)
    assert document["first"] == next(row for row in document["tensors"] if not row["passed"])
    assert document["first"]["first"] == {"n": 0, "c": 5, "h": 0, "w": 2}


def test_bad_usage_gives_one_line_and_exit_code_2(nvdla_command, samples, tmp_path):
    lenet, digit = samples / "lenet.loadable", samples / "digit3.pgm"
    np.save(tmp_path / "nothing.npy", np.zeros(3))
    (tmp_path / "names.yaml").write_text("layers: [1]")
    for words in (
        (lenet, "-i", digit),  # nothing to compare with
        (lenet, lenet, "-i", digit, "--golden", tmp_path),  # two things
        (lenet, lenet),  # no input
        (lenet, lenet, "-i", digit, "-i", digit),  # two runs
        (lenet, "-i", digit, "--golden", tmp_path / "missing"),
        (lenet, "-i", digit, "--golden", tmp_path),  # no tensor is called so
        (lenet, "-i", digit, "--float", tmp_path / "nothing.npy"),
        (lenet, "-i", digit, "--onnx", tmp_path / "missing.onnx"),
        (lenet, lenet, "-i", digit, "--layers", tmp_path / "names.yaml"),
        (lenet, lenet, "-i", digit, "--config", "nv_ful"),
        (digit, lenet, "-i", digit),
    ):
        code, out, err = nvdla_command("compare", *words)
        assert (code, out) == (2, ""), words
        assert len(err.splitlines()) == 1, err


def test_what_cannot_run_says_why(nvdla_command, samples):
    words = ("compare", samples / "lenet_nv_full_fp16.loadable", "--config", "nv_small", "--other-threads", 1)
    code, _, err = nvdla_command(*words, "--random-input")
    assert code == 2
    assert "fp16" in err


def test_the_drivers_regression_equals_nvidias_images(nvdla_command, corpus, tmp_path):
    """Loadables without inputs, against the .dimg files that NVIDIA's own client wrote."""
    folder = corpus / "kmd-regression"
    for case in json.loads((folder / "manifest.json").read_text())["cases"]:
        if case["inputs"]:
            continue
        golden = tmp_path / case["name"]
        golden.mkdir()
        shutil.copy(folder / case["golden_dimg"], golden / "o_000000.dimg")
        words = ("compare", folder / case["flatbuf"], "--config", case["config"], "--golden", golden, "--json")
        code, out, err = nvdla_command(*words)
        assert code == 0, (case["name"], err)
        assert [row["exact"] for row in json.loads(out)["tensors"]] == [True]


def test_an_image_of_another_size_is_refused_or_scaled(nvdla_command, samples, tmp_path):
    """What the message advises exists: the commands that run take the images' options of ``nvdla run``."""
    (tmp_path / "small.pgm").write_bytes(b"P5\n3 2\n255\n" + bytes(range(6)))
    words = (samples / "lenet.loadable", "-i", tmp_path / "small.pgm", "--no-preprocess")
    page = tmp_path / "unused.html"
    for command, more in (("compare", ("--other-threads", 1)), ("doctor", ()), ("report", ("-o", page))):
        code, _, err = nvdla_command(command, *words, *more)
        assert code == 2
        assert "--resize" in err
    code, out, err = nvdla_command("compare", *words, "--other-threads", 1, "--resize")
    assert (code, err) == (0, "")  # the layer file states the conversion
    assert "6 tensors compared: 6 exact, 0 close, 0 different." in out


def test_means_and_scales_of_images_are_applied_to_both(nvdla_command, samples):
    words = (samples / "lenet_nv_full_fp16.loadable", "-i", samples / "digit3.pgm", "--mean", 3, "--std", 2)
    assert nvdla_command("compare", *words, "--other-threads", 1)[0] == 0


def test_random_integers_are_the_same_real_numbers_for_a_half_network(nvdla_command, samples, tmp_path):
    lenet, half = samples / "lenet.loadable", samples / "lenet_nv_full_fp16.loadable"
    document = json.loads(nvdla_command("compare", lenet, half, "--random-input", 7, "--json")[1])
    assert document["passed"]
    assert document["tensors"][0]["cosine"] > 0.99 and document["tensors"][0]["snr_db"] > 25
    bare = tmp_path / "bare.loadable"
    shutil.copy(lenet, bare)
    code, _, err = nvdla_command("compare", bare, tmp_path / shutil.copy(half, tmp_path), "--random-input", 7)
    assert code == 2
    words = "compare", bare, tmp_path / half.name, "--random-input", 7
    found = json.loads(nvdla_command(*words, "--input-scale", "data=2.007874", "--json")[1])
    assert found["tensors"][0]["snr_db"] > 25
    assert "input data: unknown scale" in err and "--input-scale data=NUMBER" in err


def test_a_raw_input_of_another_size_is_bad_input(nvdla_command, samples, tmp_path):
    (tmp_path / "short.bin").write_bytes(bytes(100))
    for command, more in (("compare", ("--other-threads", 1)), ("doctor", ()), ("report", ("-o", tmp_path / "r.html"))):
        code, out, err = nvdla_command(command, samples / "lenet.loadable", "-i", tmp_path / "short.bin", *more)
        assert (code, out) == (2, "")
        loadable = samples / "lenet.loadable"
        assert f"short.bin: size: must be 6272 bytes (input data of {loadable}), got 100 (cut off?)" in err


def test_an_input_that_fits_only_the_first_loadable_asks_for_that_of_the_second(nvdla_command, samples, tmp_path):
    """A raw surface of nv_small has other bytes than one of nv_large."""
    (tmp_path / "x.bin").write_bytes(bytes(6272))
    files = samples / "lenet.loadable", samples / "lenet_nv_large.loadable"
    code, _, err = nvdla_command("compare", *files, "-i", tmp_path / "x.bin")
    assert code == 2 and f"(input data of {files[1]}), got 6272" in err
    assert err.endswith(f"Give {files[1]} its own input with --other-input.\n")


def test_a_loadable_of_another_form_of_the_model_gives_no_false_alarm(nvdla_command, samples):
    """The Caffe form calls the layer "ip1+relu3"; the ONNX form calls the result of its ReLU "ip1_relu", and "ip1" is
    the tensor before it."""
    pytest.importorskip("onnxruntime")
    words = (samples / "lenet.loadable", "--onnx", samples / "lenet.onnx", "-i", samples / "digit7.pgm")
    code, out, _ = nvdla_command("compare", *words)
    assert code == 0
    assert "4 tensors compared: 0 exact, 4 close, 0 different" in out
    assert "Without a counterpart: operation 0/7 (SDP, layer ip1+relu3)" in out
