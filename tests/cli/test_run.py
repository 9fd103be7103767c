"""``nvdla run`` as a user calls it."""

import json
from pathlib import Path

import numpy as np
import pytest

import nvdla


def test_the_digit_is_printed_with_its_probability(nvdla_command, lenet, digit):
    code, out, err = nvdla_command("run", lenet, "--input", digit)
    assert code == 0
    assert err == ""
    first = out.splitlines()[1].split()
    assert first[0] in digit.rsplit("-", 1)[-1] + digit


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


def test_json_has_stable_keys(nvdla_command, lenet, digit):
    code, out, _ = nvdla_command("run", lenet, "--input", digit, "--json", "--stats", "--labels", __file__)
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
        "warnings",
        "outputs",
        "differences",
        "statistics",
        "profile",
    }
    assert set(document["outputs"][0]["top"][0][0]) == {"index", "value", "label"}
    assert {row["engine"] for row in document["statistics"]} >= {"conv", "sdp"}


def test_what_every_operation_wrote_can_be_dumped(nvdla_command, lenet, digit, tmp_path):
    assert nvdla_command("run", lenet, "--input", digit, "--dump-ops", tmp_path / "ops")[0] == 0
    seen = {}
    runtime = nvdla.Runtime(nvdla.load(lenet))
    runtime.run(digit, on_operation=lambda event: seen.update({event.index: event.destination}))
    dumped = {path.name: path.read_bytes() for path in (tmp_path / "ops").iterdir()}
    wrote = {index: view for index, view in seen.items() if view is not None}
    assert len(dumped) == len(wrote) > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "is missing"),
        (("--input", "nothing.pgm"), "nothing.pgm"),
        (("--input", "x.gif"), "cannot have the ending '.gif'"),
        (("--input", "other=x.pgm"), "names no input"),
        (("--input", "a.pgm", "--input", "b.pgm"), "one too many"),
        (("--input", "a.pgm", "--config", "nv_smal"), "did you mean nv_small?"),
        (("--input", "a.pgm", "--output", "x.tiff"), "cannot have the ending '.tiff'"),
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
    code, _, err = nvdla_command("run", lenet, "--input", tmp_path / "x.pgm")
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
