"""``nvdla datasheet``: one page about a configuration; what is not proven or not known is marked, never invented."""

import html
import json
import re
from dataclasses import fields

import pytest

from nvdla.cli.datasheet import FIELDS
from nvdla.emulator.hardware.configuration import Configuration


def written(nvdla_command, tmp_path, *words, code=0):
    """The page without markup, with one space between words, and the JSON document."""
    found, out, err = nvdla_command("datasheet", *words, "-o", tmp_path / "page.html", "--json")
    assert found == code, err
    text = html.unescape(re.sub(r"<[^>]*>", " ", (tmp_path / "page.html").read_text().partition("</style>")[2]))
    return " ".join(text.split()), json.loads(out)


def test_a_configuration_and_its_networks(nvdla_command, tmp_path, samples):
    words = ("nv_small", samples / "lenet.loadable", samples / "color_digits.loadable")
    shown, document = written(nvdla_command, tmp_path, *words)
    for text in (
        "nv_small: datasheet",
        "MAC array, channels 8",
        "largest hardware batch 1",
        "memory latency that its queues are made for, cycles 64",
        "int8 RTL (77 networks) and C model (2,627)",
        "nv_small 0.913 0.55 55.4 21 row",
        "nvdla.org primer",
        "ZedBoard XC7Z020 does not fit needs 76,280 LUT, has 53,200 nvdla/hw issue 90",
        "lenet.loadable nv_small int8, full bus, latency 100 28,867 34,641.6",
        "energy is for relative comparisons only",
    ):
        assert text in shown
    assert [each["network"] for each in document["networks"]] == ["lenet.loadable", "color_digits.loadable"]
    assert all(sum(each["accounting"].values()) == each["cycles"] for each in document["networks"])
    assert (
        "carve-out to reserve in bytes microjoules top-1 lenet.loadable" in shown and "Fault sensitivity" not in shown
    )


def test_without_a_network(nvdla_command, tmp_path):
    shown, document = written(nvdla_command, tmp_path, "nv_large")
    assert document["networks"] == [] and "Networks" not in shown


def test_every_field_of_a_configuration_is_in_words_or_internal():
    """Fields that only the emulator needs are not on the page."""
    internal = {"name", "cbuf_entry_bytes", "weight_alignment", "image_offset_atom", "c_model_stops"}
    internal |= {"cbuf_bank_depth_entries"}  # the page has the bytes of a bank
    assert {field.name for field in fields(Configuration)} - internal == set(FIELDS) - {"cbuf_bank_bytes"}


def test_clock_memory_and_firmware_are_those_of_a_board(nvdla_command, tmp_path, samples):
    """The page, the table of explore and the cycles of a network agree, and each states the board."""
    lenet, board = samples / "lenet.loadable", ("--board", "zcu102-150mhz")
    shown, document = written(nvdla_command, tmp_path, "nv_small", lenet, *board, "--latency", "60")
    stated = "latency 60 cycles, 8 bytes per cycle; firmware 80 us, 50 cycles per register write"
    assert f"Networks clock 149.985 MHz; memory: {stated} (board zcu102-150mhz; latency overridden)." in shown
    cycles = json.loads(nvdla_command("cycles", lenet, *board, "--latency", "60", "--json")[1])
    _, out, _ = nvdla_command("explore", lenet, *board, "--latency", "60", "--json", "--report", tmp_path / "e.html")
    for point in (*document["networks"], *json.loads(out)["points"]):
        assert (point["latency"], point["bandwidth"]) == (60, 8)
        assert point["cycles"] == cycles["total_cycles"]
        assert point["frames_per_second"] == cycles["runs_per_second"]
    said = "clock 149.985 MHz; firmware 80 us, 50 cycles per register write (board zcu102-150mhz)."
    assert said in (tmp_path / "e.html").read_text()
    assert f"Note: {said}" in nvdla_command("explore", lenet, *board)[1]


def test_bandwidth_beyond_the_memory_interface_is_stated_with_what_the_interface_takes(
    nvdla_command, tmp_path, samples
):
    lenet, stated = samples / "lenet.loadable", "16 bytes per cycle (the memory interface of nv_small takes 8)"
    shown, _ = written(nvdla_command, tmp_path, "nv_small", lenet, "--bandwidth", "16", "--shared")
    assert f"latency 100 cycles, {stated}, shared" in shown
    words = ("explore", lenet, "--bandwidth", "8,16")
    slow, fast = json.loads(nvdla_command(*words, "--json")[1])["points"]
    assert slow["cycles"] == fast["cycles"]
    assert nvdla_command(*words)[2].count(stated) == 1


def test_every_view_states_the_same_carve_out_to_reserve(nvdla_command, tmp_path, samples):
    lenet = samples / "lenet.loadable"
    (space,) = json.loads(nvdla_command("memory", lenet, "--json")[1])["spaces"]
    overview = nvdla_command("inspect", lenet)[1]
    assert re.search(rf"allocated dram bytes\s+{space['allocated']:,} ", overview)
    shown, document = written(nvdla_command, tmp_path, "nv_small", lenet)
    (network,) = document["networks"]
    assert (network["memory_bytes"], network["carve_out_bytes"]) == (space["allocated"], space["carve_out"])
    assert f"{space['carve_out']:,}" in shown and f"{space['allocated']:,}" not in shown
    words = ("explore", lenet, "--instances", "1,2", "--json")
    one, two = json.loads(nvdla_command(*words)[1])["points"]
    assert space["carve_out"] == one["carve_out_bytes"] < two["carve_out_bytes"] < 2 * one["carve_out_bytes"]


def test_the_run_time_is_not_called_a_latency(nvdla_command, tmp_path, samples):
    table = tmp_path / "points.csv"
    written(nvdla_command, tmp_path, "nv_small", samples / "lenet.loadable", "--table", table)
    assert {"latency", "run time cycles"} <= set(table.read_text().splitlines()[0].split(","))
    assert "latency cycles" not in table.read_text()


def test_what_is_not_proven_is_marked(nvdla_command, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: nv_small\nname: mine\ncbuf_banks: 8\n")
    shown, _ = written(nvdla_command, tmp_path, mine)
    assert "int8 extrapolated extrapolated" in shown
    assert "mine: no estimate: 32 KiB of buffer are outside the fitted range 128 to 512" in shown
    assert "ZCU102 XCZU9EG unknown no public report" in shown


def test_accuracy_and_faults_where_they_are_given(nvdla_command, tmp_path, samples):
    code, out, _ = nvdla_command(
        "faults", samples / "lenet.loadable", samples / "digits.npz", "--count", "8", "--where", "weight", "--json"
    )
    assert code == 0
    (tmp_path / "faults.json").write_text(out)
    words = ("nv_small", samples / "lenet.loadable", "--data", samples / "digits.npz", "--limit", "20")
    shown, document = written(nvdla_command, tmp_path, *words, "--faults", tmp_path / "faults.json")
    assert document["networks"][0]["accuracy"]["value"] == 1.0
    assert "100.00%" in shown
    found = json.loads(out)["summary"]["all"]
    share = f"{found['faults']} {found['samples']} {found['sdc1']['value']:.2%} {found['sdc1']['low']:.2%} to"
    assert f"interval stopped {json.loads(out)['network']} {share}" in shown


def test_a_network_that_cannot_run_on_it_is_named(nvdla_command, tmp_path, samples):
    shown, document = written(nvdla_command, tmp_path, "nv_small", samples / "lenet_nv_large.loadable", code=1)
    assert "Impossible lenet_nv_large.loadable on nv_small: the loadable cannot run on it" in shown
    assert "cannot run on it" in document["networks"][0]["error"]


@pytest.mark.parametrize(("text", "problem"), [("[", "must be the JSON"), ('{"format": "x"}', "must be nvdla-faults")])
def test_another_file_than_one_of_faults_is_refused(text, problem, tmp_path, nvdla_command):
    (tmp_path / "f.json").write_text(text)
    code, _, err = nvdla_command("datasheet", "nv_small", "--faults", tmp_path / "f.json", "-o", tmp_path / "p.html")
    assert (code, len(err.splitlines())) == (2, 1)
    assert problem in err
    assert not (tmp_path / "p.html").exists()


def test_models_are_compared_on_other_configurations(nvdla_command, tmp_path, samples):
    """On one plot, and as CSV; a loadable keeps its own configuration."""
    import csv

    pytest.importorskip("onnxruntime")
    words = ("nv_small", samples / "lenet.onnx", samples / "lenet.loadable", "--calibrate", samples / "digits.npz")
    words += ("--others", "nv_small_256,nv_full", "--table", tmp_path / "points.csv")
    shown, document = written(nvdla_command, tmp_path, *words)
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    expected = [("lenet.onnx", name) for name in ("nv_small", "nv_small_256", "nv_full")]
    assert [(row["network"], row["config"]) for row in rows] == [*expected, ("lenet.loadable", "nv_small")]
    assert [row["area, 16 nm, estimated mm2"] for row in rows] == ["0.55", "0.757", "", "0.55"]
    assert [float(row["frames/s"]) for row in rows] == [each["frames_per_second"] for each in document["networks"]]
    assert [each["configuration"] for each in document["proof"]] == ["nv_small", "nv_small_256", "nv_full"]
    assert 'id="plot-data"' in (tmp_path / "page.html").read_text()
    assert "nv_full: no estimate: NVIDIA's table has int8 configurations only" in shown


def test_the_users_coefficients_are_those_of_the_page(nvdla_command, tmp_path, samples):
    mine = tmp_path / "mine.yaml"
    mine.write_text("macs: {pj: 2, source: mine}\n")
    _, document = written(nvdla_command, tmp_path, "nv_small", samples / "lenet.loadable", "--coefficients", mine)
    assert document["networks"][0]["microjoules"] == pytest.approx(281_640 * 2e-6)
