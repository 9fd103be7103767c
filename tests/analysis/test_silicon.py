"""Area, power, FPGA fit and energy: numbers have a source and an error, and what no source covers has none."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.build_checks import build_and_run
from support.build_checks import samples as draws

import nvdla
from nvdla.analysis.silicon import (
    EVENTS,
    FITTED,
    action_counts,
    energy,
    event_counts,
    facts,
    fits,
    fpga_verdicts,
    silicon,
)
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.hardware.configuration import configuration, configurations, proof
from nvdla.errors import FormatError
from nvdla.util.yaml import parse_yaml

ROOT = Path(__file__).resolve().parents[2]


def sized(macs_c, macs_k, banks, name="mine"):
    """nv_small with another array and banks of 4 KiB."""
    return replace(configuration("nv_small"), name=name, mac_atomic_c=macs_c, mac_atomic_k=macs_k, cbuf_banks=banks)


def test_the_fit_has_the_errors_that_it_states():
    """By the normal equations of relative errors, in plain Python; each row left out in turn."""
    rows = facts()["table"]["rows"]
    assert len(rows) == 7
    for key in FITTED:
        fit = fits()[key]
        errors = [fit.at(row["macs"], row["cbuf_kib"]) / row[key] - 1 for row in rows]
        assert max(map(abs, errors)) == pytest.approx(fit.worst)
        assert sum(map(abs, errors)) / 7 == pytest.approx(fit.mean)
        for term in (lambda row: 1, lambda row: row["macs"], lambda row: row["cbuf_kib"]):
            slope = sum(error * term(row) / row[key] for error, row in zip(errors, rows, strict=True))
            scale = sum(abs(term(row) / row[key]) for row in rows)
            assert abs(slope) < 1e-9 * scale
    assert fits()["mm2_28nm"].worst == pytest.approx(0.076, abs=5e-4)
    assert fits()["mw_peak"].left_out == pytest.approx(0.141, abs=5e-4)
    assert all(fit.left_out < 0.15 for fit in fits().values())


@pytest.mark.parametrize(("name", "area", "average"), [("nv_small", 0.55, 21), ("nv_large", 3.3, 291)])
def test_configurations_of_the_table_are_within_the_error_of_the_fit(name, area, average):
    found = silicon(configuration(name))
    assert found["basis"] == "row"
    assert found["mm2_16nm"] == pytest.approx(area, rel=0.1)
    assert found["mw_average"] == pytest.approx(average, rel=0.05)


def test_more_multipliers_and_more_buffer_cost_more():
    small, array, buffer = (silicon(each) for each in (sized(16, 8, 32), sized(16, 16, 32), sized(16, 16, 64)))
    for key in FITTED:
        assert small[key] < array[key] < buffer[key]
    assert (small["basis"], small["refused"]) == ("fit", None)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (sized(4, 4, 32), "16 MAC units are outside the fitted range 32 to 2048"),
        (sized(8, 8, 16), "64 KiB of buffer are outside the fitted range 128 to 512"),
        (configuration("nv_medium_1024_full"), "1024 MAC units with 512 KiB of buffer: no row is near"),
        (configuration("nv_full"), "NVIDIA's table has int8 configurations only"),
    ],
)
def test_outside_the_fitted_range_there_is_no_number(config, reason):
    found = silicon(config)
    assert found["refused"].startswith(reason)
    assert [found[key] for key in (*FITTED, "basis")] == [None] * 5


def test_every_fact_has_a_source():
    known = facts()
    assert known["table"]["source"]
    assert all(each["source"] for kind in ("fpga_reports", "boards") for each in known[kind])


def test_the_command_prints_the_table_next_to_the_estimate(nvdla_command):
    code, out, _ = nvdla_command("configs", "nv_large", "nv_full", "--silicon")
    assert code == 0
    for text in ("5.68", "766", "nvdla.org primer", "worst 7.6%", "nv_full: no estimate"):
        assert text in out
    document = json.loads(nvdla_command("configs", "nv_large", "--silicon", "--json")[1])
    assert document["silicon"]["estimates"][0]["mm2_28nm"] == 5.68
    assert document["silicon"]["table"]["rows"] == facts()["table"]["rows"]


def test_explore_has_area_and_power(nvdla_command, samples, tmp_path):
    table = tmp_path / "t.csv"
    code, out, err = nvdla_command("explore", samples / "lenet.loadable", "--area", "--power", "--table", table)
    assert code == 0
    assert "766" in out
    assert "errors of the fit" in err
    names, values = (line.split(",") for line in table.read_text().splitlines())
    assert dict(zip(names, values, strict=True))["mm2_16nm"] == "0.55"
    assert float(dict(zip(names, values, strict=True))["mW_peak"]) == pytest.approx(55, rel=0.06)
    assert "mm2" not in nvdla_command("explore", samples / "lenet.loadable")[1]


def test_explain_has_area_and_power(nvdla_command, samples):
    lenet = samples / "lenet.loadable"
    for option, numbers in (("--area", ["0.913", "0.55"]), ("--power", ["55.4", "21"])):
        out = nvdla_command("explain", lenet, option)[1]
        assert "NVIDIA's table" in out
        row = next(words for words in map(str.split, out.splitlines()) if words[:1] == ["nv_small"])
        assert row[3:-1] == numbers
    document = json.loads(nvdla_command("explain", lenet, "--area", "--json")[1])
    assert document["silicon"]["estimates"][0]["mm2_16nm"] == 0.55
    assert "silicon" not in json.loads(nvdla_command("explain", lenet, "--json")[1])


EXAMPLES = sorted((ROOT / "samples" / "configurations").glob("macs_*.yaml"))


def test_every_row_of_the_table_has_a_configuration():
    """nv_large, nv_small, and an example for each row for which NVIDIA publishes no spec."""
    found = [silicon(configuration(name)) for name in ("nv_large", "nv_small", *map(str, EXAMPLES))]
    assert {each["basis"] for each in found} == {"row"}
    rows = sorted((row["macs"], row["cbuf_kib"]) for row in facts()["table"]["rows"])
    assert sorted((each["macs"], each["cbuf_kib"]) for each in found) == rows


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_networks_are_built_for_the_examples_and_run_exactly(path):
    """Against the plain numpy model; several kernel groups and channel passes."""
    rng = np.random.default_rng(1)
    net = Network()
    x = net.input("in", (70, 12, 12))
    y = net.relu("r", net.convolution("first", x, rng.normal(size=(40, 70, 3, 3)), padding=1))
    net.output(net.convolution("second", y, rng.normal(size=(24, 40, 1, 1))))
    build_and_run(net, str(path), "int8", False, draws(net, rng))


# ---- FPGA


def verdicts(name):
    return {each["board"]: each["verdict"] for each in fpga_verdicts(configuration(name))}


def test_boards_by_public_reports():
    assert verdicts("nv_small")["ZCU102"] == "fits"
    assert [verdicts("nv_small")[board] for board in ("ZCU104", "Zynq 7045", "AWS F1")] == ["fits"] * 3
    assert verdicts("nv_small")["ZedBoard"] == "does not fit"
    assert verdicts("nv_full")["ZCU102"] == "does not fit"
    assert verdicts("nv_full")["AWS F1"] == "does not fit"


def test_without_a_report_the_answer_is_unknown():
    assert set(verdicts("nv_large").values()) == {"unknown"}
    assert verdicts("nv_small")["ZU19EG"] == "unknown"
    named_alike = replace(configuration("nv_small"), mac_atomic_c=64)
    assert {each["verdict"] for each in fpga_verdicts(named_alike)} == {"unknown"}


def test_a_verdict_from_numbers_states_them():
    board = next(each for each in fpga_verdicts(configuration("nv_small")) if each["board"] == "ZedBoard")
    assert board["reason"] == "needs 76,280 LUT, has 53,200"
    assert "nvdla/hw issue 90" in board["source"]


def test_the_command_prints_boards_and_reports(nvdla_command):
    code, out, _ = nvdla_command("configs", "nv_small", "--fpga")
    assert code == 0
    assert "does not fit" in out and "unknown" in out and "nvdla/hw issue 110" in out


def test_public_reports_are_of_the_named_configurations(nvdla_command):
    reports = json.loads(nvdla_command("configs", "nv_small", "--fpga", "--json")[1])["fpga"]["reports"]
    assert {each["configuration"] for each in reports} == {"nv_small"}


def test_a_terminal_of_30_rows_shows_which_configurations_fit(nvdla_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, _, error = nvdla_command("configs", "--fpga", "zcu102")
    assert (code, "got a board. 'nvdla configs --fpga' lists boards" in error) == (2, True)
    _, out, _ = nvdla_command("configs", "--fpga")
    shown = out.splitlines()[-29:]
    assert any(line.split()[:2] == ["configuration", "board"] for line in shown)
    answered = {line.split()[0] for line in shown if " fits " in line or " fit " in line or " unknown " in line}
    assert answered == set(configurations())


# ---- proof


def test_what_is_proven_is_stated_per_feature(nvdla_command):
    assert proof(configuration("nv_large"))["results"] == {
        "int8": "RTL (104 networks) and C model (3,238)",
        "LUT": "C model (77)",
        "CVSRAM": "RTL and C model (692)",
    }
    assert proof(configuration("nv_large"))["cycles"]["CVSRAM"] is None
    assert proof(configuration("nv_medium_512"))["results"] == {"int8": None}
    out = nvdla_command("configs", "nv_small", "nv_medium_512")[1]
    assert "nv_medium_512: results are extrapolated for int8" in out
    assert "nv_small: results" not in out


def test_a_custom_configuration_is_extrapolated():
    assert set(proof(replace(configuration("nv_small"), cbuf_banks=16))["results"].values()) == {None}


# ---- energy


def test_events_of_a_convolution_are_those_that_one_counts(lenet_loadable):
    """A 3x3 convolution of 8 channels on 8x8 with 16 kernels on nv_small: two kernel groups, nine passes."""
    net = Network("one")
    x = net.input("in", (8, 8, 8))
    net.output(net.convolution("c", x, np.ones((16, 8, 3, 3)), padding=1))
    built = build(net, "nv_small", "int8", calibrate(net, np.ones((1, 8, 8, 8))))
    study = Study.of(built.loadable, "nv_small")
    counts = event_counts(study)
    assert list(counts) == list(EVENTS)
    assert counts["macs"] == 64 * 16 * 8 * 9
    stripes = 4  # of 16 positions
    assert counts["cbuf_read_bytes"] == 64 * 9 * 2 * 8 + stripes * 9 * 16 * 8
    assert counts["cbuf_write_bytes"] == 8 * 8 * 8 + 16 * 8 * 9
    assert counts["sdp_elements"] == 16 * 64
    assert counts["cycles"] == study.schedule.total
    assert counts["cbuf_kib_cycles"] == 128 * study.schedule.total
    assert counts["dram_write_bytes"] == 16 * 64


def test_bytes_are_those_of_the_two_ports(lenet_loadable):
    study = Study.of(lenet_loadable)
    counts = event_counts(study)
    read = sum(each.read_bytes for each in study.estimates.values())
    assert counts["dram_read_bytes"] + counts["cvsram_read_bytes"] == read == 52_576
    assert counts["dram_write_bytes"] == 1_632


def test_the_default_gives_nvidias_average_for_resnet50_on_nv_large():
    """4.1e9 MACs at 269 frames per second on 1 GHz: the terms add up to NVIDIA's 291 mW within the fit's error."""
    from importlib import resources

    table = parse_yaml(resources.files("nvdla.analysis").joinpath("energy.yaml").read_bytes(), "energy.yaml")
    assert all(each["source"] for each in table.values())
    cycles = 1e9 / 269
    picojoules = table["macs"]["pj"] * 4.1e9 + (table["cycles"]["pj"] + 512 * table["cbuf_kib_cycles"]["pj"]) * cycles
    assert picojoules / cycles == pytest.approx(291, rel=0.04)


def test_the_users_coefficients_count(nvdla_command, samples, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("macs: {pj: 2, source: mine}\ndram_read_bytes: {pj: 100, source: a data sheet}\n")
    rows = {row["event"]: row for row in energy(Study.of(nvdla.load(samples / "lenet.loadable")), str(mine))}
    assert rows["macs"]["microjoules"] == pytest.approx(281_640 * 2e-6)
    assert rows["dram_read_bytes"]["microjoules"] == pytest.approx(52_576 * 1e-4)
    assert rows["sdp_elements"]["microjoules"] is None
    code, out, _ = nvdla_command("cycles", samples / "lenet.loadable", "--coefficients", mine)
    assert code == 0
    assert "5.821 microjoules, without cycles" in out
    assert "relative comparisons only" in out
    document = json.loads(nvdla_command("cycles", samples / "lenet.loadable", "--energy", "--json")[1])
    assert document["energy_note"].startswith("energy is for relative comparisons only")


@pytest.mark.parametrize("text", ["[1]", "macs: {pj: -1, source: x}", "macs: {pj: much}", "mac: {pj: 1}", "macs: 3"])
def test_a_wrong_file_of_coefficients_is_refused(text, lenet_loadable, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"bad.yaml: .*must be"):
        energy(Study.of(lenet_loadable), str(path))


def test_action_counts_are_the_events(nvdla_command, samples, tmp_path):
    path = tmp_path / "counts.yaml"
    assert nvdla_command("cycles", samples / "lenet.loadable", "--action-counts", path)[0] == 0
    study = Study.of(nvdla.load(samples / "lenet.loadable"))
    assert path.read_text() == action_counts(study)
    local = parse_yaml(path.read_bytes(), "counts")["action_counts"]["subtree"][0]["local"]
    found = {(each["name"], action["name"]): action["counts"] for each in local for action in each["action_counts"]}
    assert found == {EVENTS[event]: count for event, count in event_counts(study).items() if count}
