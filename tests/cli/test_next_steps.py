"""Commands lead on: lists instead of dead ends, the next command with its options, notes on meaningless numbers."""

from __future__ import annotations

import io
import json
import re
import shlex
import zipfile

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from support.tflite_writer import FlatWriter

import nvdla
from nvdla.errors import ArgumentTypeError, FormatError, LoadableError
from nvdla.tensors.inputs import Preprocessing

PICTURE = np.random.default_rng(5).integers(0, 256, (8, 6, 3), np.uint8)


def brightest(kind: str = "float32") -> bytes:
    """Scores of three classes, "red", "green" and "blue": the means of the channels; the label file is packed."""
    writer, real = FlatWriter(), kind == "float32"
    scale = None if real else 1 / 128
    writer.tensor((1, 8, 6, 3), kind, scale, 0, name="data")
    writer.tensor((1, 1, 1, 3), kind, scale, 0, name="mean")
    writer.operator("AVERAGE_POOL_2D", [0], [1], padding=1, stride_w=1, stride_h=1, filter_width=6, filter_height=8)
    labels = io.BytesIO()
    with zipfile.ZipFile(labels, "w") as archive:
        archive.writestr("labels.txt", "red\ngreen\nblue\n")
    return writer.model([0], [1]) + labels.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with net.tflite, and pictures of twice its size in a directory per color."""
    (tmp_path / "net.tflite").write_bytes(brightest())
    for channel, name in enumerate(("red", "green", "blue")):
        (tmp_path / "data" / name).mkdir(parents=True)
        picture = np.zeros((16, 12, 3), np.uint8)
        picture[..., channel] = 250
        Image.fromarray(picture).save(tmp_path / "data" / name / "a.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMPILE = ("compile", "net.tflite", "--calibrate", "data", "--resize", "--scale", "0.00390625", "-o", "net.loadable")


def test_class_names_give_directories_the_numbers_of_the_network(folder, nvdla_command):
    assert nvdla_command(*COMPILE)[0] == 0
    words = ("evaluate", "net.loadable", "data", "--workers", 1, "--json")
    found = [json.loads(nvdla_command(*words, *more)[1])["summary"] for more in ((), ("--class-names", "net.tflite"))]
    assert [each["top1"]["value"] for each in found] == [pytest.approx(1 / 3), 1.0]  # alphabetical: blue, green, red
    assert [row["name"] for row in found[1]["classes"]] == ["red", "green", "blue"]
    (folder / "names.txt").write_text("red\ngreen\n")
    code, _, err = nvdla_command(*words[:-1], "--class-names", "names.txt")
    assert (code, "class names: must contain all classes of the data, got no 'blue'" in err) == (2, True)


def test_compile_recommends_the_class_names_of_the_file(folder, nvdla_command):
    code, out, err = nvdla_command(*COMPILE)
    assert code == 0, err
    (command,) = re.findall(r"  nvdla (run .*)", out)
    code, out, err = nvdla_command(*shlex.split(command.replace("FILE", "data/green/a.png", 1)))
    assert code == 0, err
    assert "green" in out


def test_compile_recommends_the_custom_configuration_that_other_commands_need(folder, nvdla_command):
    (folder / "my tiny.yaml").write_text("base: nv_small\nname: tiny\ncbuf_banks: 16\n")
    code, out, err = nvdla_command(*COMPILE, "--config", "my tiny.yaml")
    assert code == 0, err
    commands = re.findall(r"  nvdla (.*)", out)
    assert [shlex.split(command)[0] for command in commands] == ["run", "cycles", "compare"]
    for command in commands:
        assert command.endswith("--config 'my tiny.yaml'")
        assert nvdla_command(*shlex.split(command.replace("FILE", "data/green/a.png", 1)))[0] == 0
    assert "--config" not in nvdla_command(*COMPILE, "--config", "nv_large")[1]


def test_explore_takes_tflite_and_the_image_options(folder, nvdla_command):
    words = ("explore", "net.tflite", "--calibrate", "data", "--config", "nv_small,nv_large", "--workers", 1, "--json")
    code, out, _ = nvdla_command(*words)
    assert code == 1
    assert all("Scale the image, or use --resize" in point["error"] for point in json.loads(out)["points"])
    more = ("--resize", "--scale", "0.00390625", "--data", "data", "--class-names", "net.tflite")
    code, out, err = nvdla_command(*words, *more)
    assert code == 0, err
    assert [point["accuracy"]["value"] for point in json.loads(out)["points"]] == [1.0, 1.0]
    assert nvdla_command(*COMPILE)[0] == 0
    code, _, err = nvdla_command("explore", "net.loadable", "--resize")
    assert (code, "image options: must be given with a model, got a loadable" in err) == (2, True)


def test_evaluate_recommends_to_scale_arrays_of_another_size(folder, nvdla_command):
    samples = np.random.default_rng(1).uniform(-1, 1, (4, 8, 6, 3)).astype(np.float32)
    nvdla.compile("net.tflite", "nv_small", calibration=samples).save("net.loadable")
    np.savez("large.npz", images=np.zeros((2, 16, 12, 3), np.uint8), labels=np.zeros(2, int))
    code, _, err = nvdla_command("evaluate", "net.loadable", "large.npz")
    assert (code, "got 16x12x3. Scale the images, or use --resize." in err) == (2, True), err
    code, _, err = nvdla_command("evaluate", "net.loadable", "large.npz", "--resize")
    assert code == 0, err


def test_a_picture_outside_the_range_is_refused_by_every_form_of_a_network(folder, nvdla_command):
    Image.fromarray(PICTURE).save("a.png")
    np.save("x.npy", np.random.default_rng(1).uniform(-1, 1, (4, 8, 6, 3)).astype(np.float32))
    made = nvdla.compile("net.tflite", "nv_small", calibration="x.npy")
    made.save("net.loadable")
    made.save("net.nvpkg")
    words = r"input data: a picture must have numbers of about -0.99.* to .*, the calibrated range, got 0 to 25\d"
    for name in ("net.loadable", "net.nvpkg"):
        code, _, err = nvdla_command("run", name, "--input", "a.png")
        assert code == 2
        assert re.search(words, err), err
    with pytest.raises(FormatError, match=words):
        made.run("a.png")


def test_every_form_of_a_network_takes_the_preprocessing_that_the_error_recommends(folder):
    Image.fromarray(PICTURE).save("a.png")
    np.save("x.npy", np.random.default_rng(1).uniform(-1, 1, (4, 8, 6, 3)).astype(np.float32))
    made = nvdla.compile("net.tflite", "nv_small", calibration="x.npy")
    made.save("net.loadable")
    made.save("net.nvpkg")
    given = Preprocessing((127.5,), (1 / 127.5,))
    means = ((PICTURE / 127.5) - 1).mean((0, 1))
    step = 1 / 127
    for net in (made, nvdla.load("net.loadable"), nvdla.load("net.nvpkg"), nvdla.Runtime("net.loadable")):
        real = {} if net is made else {"real": True}
        with pytest.raises(FormatError, match=r"run\(..., preprocessing=nvdla.tensors.inputs.Preprocessing\("):
            net.run("a.png", **real)
        for picture in ("a.png", PICTURE):
            (output,) = net.run(picture, preprocessing=given, **real).values()
            np.testing.assert_allclose(output.ravel(), means, atol=step)
        with pytest.raises(ArgumentTypeError, match=r"preprocessing must be a Preprocessing \(nvdla.tensors.inputs\)"):
            net.run("a.png", preprocessing={"mean": 127.5}, **real)


def test_the_range_of_an_error_is_that_of_the_samples_not_of_symmetric_elements(folder, nvdla_command):
    Image.fromarray(PICTURE).save("a.png")
    np.save("x.npy", np.linspace(0, 1, 4 * 8 * 6 * 3, dtype=np.float32).reshape(4, 8, 6, 3))
    made = nvdla.compile("net.tflite", "nv_small", calibration="x.npy")
    made.save("net.loadable")
    made.save("net.nvpkg")
    words = "a picture must have numbers of about 0 to 1, the calibrated range, got "
    for name in ("net.loadable", "net.nvpkg"):
        assert words in nvdla_command("run", name, "--input", "a.png")[2]
    assert words in nvdla_command("evaluate", "net.loadable", ".", "--predict-only", "--stop-on-error")[2]
    with pytest.raises(FormatError, match=words):
        made.run("a.png")


def test_pixels_outside_of_the_calibration_samples_are_reported(folder, nvdla_command):
    np.save("x.npy", np.linspace(0, 1, 4 * 8 * 6 * 3, dtype=np.float32).reshape(4, 8, 6, 3))
    words = ("compile", "net.tflite", "--calibrate", "x.npy", "-o", "net.loadable")
    out = nvdla_command(*words, "--mean", "127.5", "--std", "127.5")[1]
    assert "pixels 0..255 become -1 to 1 (--mean, --std; Python: preprocessing=)" in out
    assert "but the calibration samples hold 0 to 1: 50% of the" in out
    assert "pixels 0..255" not in nvdla_command(*words, "--std", "255")[1]


def test_pixels_that_calibrate_unchanged_are_in_the_summary(folder, nvdla_command):
    Image.fromarray(PICTURE).save("a.png")
    np.save("x.npy", np.stack([PICTURE] * 2))
    for data in ("a.png", "x.npy"):
        words = ("compile", "net.tflite", "--calibrate", data, "-o", "net.loadable")
        out = nvdla_command(*words)[1]
        assert "pixels 0..255 unchanged (no --mean/--std)" in out
        assert json.loads(nvdla_command(*words, "--json")[1])["summary"]["unscaled_pixels"] == ["data"]
        assert "unchanged" not in nvdla_command(*words, "--std", "255")[1]
    np.save("x.npy", np.stack([PICTURE] * 2).astype(np.float32))
    assert "unchanged" not in nvdla_command(*words)[1]


def test_constant_calibration_data_are_reported(folder, nvdla_command):
    np.save("x.npy", np.zeros((4, 8, 6, 3), np.float32))
    words = ("compile", "net.tflite", "--calibrate", "x.npy", "-o", "net.loadable")
    code, out, err = nvdla_command(*words)
    assert code == 0, err
    note = "calibration data: input data is 0 in all elements of all samples: scales and expected SNR have no meaning."
    assert note in out
    assert "not known: the calibration data of data is constant" in out
    report = json.loads(nvdla_command(*words, "--json")[1])
    assert report["calibration"]["constant_inputs"] == {"data": 0.0}
    assert report["summary"]["constant_inputs"] == ["data"]
    np.save("x.npy", np.linspace(0, 1, 4 * 8 * 6 * 3, dtype=np.float32).reshape(4, 8, 6, 3))
    code, out, err = nvdla_command(*words)
    assert (code, "calibration data" in out.replace("on the calibration data,", "")) == (0, False)


def test_a_fitted_scale_says_that_the_layer_file_is_missing(samples, folder, nvdla_command):
    (folder / "bare.loadable").write_bytes((samples / "lenet.loadable").read_bytes())
    words = ("--onnx", samples / "lenet.onnx", "-i", samples / "digit7.pgm", "--input-scale", 2, "--json")
    rows = json.loads(nvdla_command("compare", "bare.loadable", *words)[1])["tensors"]
    assert rows
    assert all("scale fitted, zero point unknown (no layer file)" in row["note"] for row in rows)
    rows = json.loads(nvdla_command("compare", samples / "lenet.loadable", *words)[1])["tensors"]
    assert not any("scale fitted" in (row["note"] or "") for row in rows)


def test_the_list_of_boards_is_a_word_of_every_board_option(nvdla_command):
    for command, name in (("program", "zynq"), ("cycles", "zcu102-150mhz"), ("timeline", "zcu102-150mhz")):
        try:
            code, out, _ = nvdla_command(command, "--board", "list")
        except SystemExit as end:
            pytest.fail(f"{command}: {end}")
        assert code == 0
        assert name in out


@pytest.mark.parametrize("form", ["cfg", "txn", "riscv-txn"])
def test_program_recommends_the_replay_that_passes(form, samples, tmp_path, nvdla_command):
    words = ("program", samples / "lenet.loadable", "-f", form, "-i", samples / "digit7.pgm", "-o", tmp_path)
    code, out, err = nvdla_command(*words)
    assert code == 0, err
    (command,) = re.findall("Next: nvdla (.*)", out)
    code, out, err = nvdla_command(*shlex.split(command))
    assert code == 0, err
    assert re.search("0 failed|1 range of memory equal, 0 not", out)


def test_hexdump_without_a_blob_lists_them(samples, nvdla_command):
    code, _, err = nvdla_command("hexdump", samples / "lenet.loadable")
    assert code == 2
    assert "blob: must be one of task-0-addr0, " in err
    (command,) = re.findall("Run 'nvdla (.*)'", err)
    assert nvdla_command(*shlex.split(command))[0] == 0


def test_explain_shows_an_image_in_one_line(samples, folder, nvdla_command):
    words = ("compile", samples / "lenet.onnx", "--calibrate", samples / "digit7.pgm", "-o", "net.loadable")
    assert nvdla_command(*words)[0] == 0
    code, out, err = nvdla_command("explain", "net.loadable", "conv1")
    assert code == 0, err
    assert [line for line in out.splitlines() if "src: data" in line] == [
        "    src: data, 1x28x28, 896 bytes at memory 2+0"
    ]


@pytest.fixture
def host_package(folder, nvdla_command):
    """The words of "nvdla compile" about a package whose only part runs on the host."""
    value = onnx.helper.make_tensor_value_info
    ends = ([value(name, onnx.TensorProto.FLOAT, [1, 3, 4, 4])] for name in ("x", "y"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Hardmax", ["x"], ["y"])], "largest", *ends)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), "largest.onnx"
    )
    np.save("x.npy", np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4))
    code, out, err = nvdla_command("compile", "largest.onnx", "--calibrate", "x.npy", "-o", "largest.nvpkg")
    assert code == 0, err
    return out


def test_compile_recommends_only_commands_that_work_on_a_package_of_host_parts(host_package, nvdla_command):
    assert "no part runs on the accelerator; --nodes lists the reasons" in host_package
    (command,) = re.findall(r"  nvdla (.*)", host_package)
    code, _, err = nvdla_command(*shlex.split(command.replace("FILE", "x.npy")))
    assert code == 0, err
    code, _, err = nvdla_command("cycles", "largest.nvpkg")
    assert (code, "must be at least one on the accelerator, got host parts alone. Run 'nvdla" in err) == (2, True)


def test_a_package_for_a_runtime_names_only_loadables_that_it_contains(host_package, nvdla_command):
    with pytest.raises(LoadableError, match=r"Python: nvdla.load\('largest.nvpkg'\).run") as refused:
        nvdla.Runtime("largest.nvpkg")
    assert ".loadable" not in str(refused.value)
    code, _, err = nvdla_command("run", "largest.nvpkg", "--scales", "s", "--input", "x.npy")
    assert (code, ".loadable" in err) == (2, False)
    nvdla.compile("net.tflite", "nv_small", calibration=PICTURE[None]).save("net.nvpkg")
    with pytest.raises(LoadableError, match=r"such as net.nvpkg/part0.loadable"):
        nvdla.Runtime("net.nvpkg")
    assert nvdla.Runtime("net.nvpkg/part0.loadable").inputs
