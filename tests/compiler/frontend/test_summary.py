"""One screen after ``nvdla compile``, and the same in Python: what one compiles for."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.compiler.frontend.compiler import compile as compile_model
from nvdla.compiler.frontend.summary import summary_lines
from tests.compiler.frontend.models import model, node
from tests.support.packages import write_package


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A directory with host.onnx, its calibration data and the compiled net.nvpkg."""
    folder = tmp_path_factory.mktemp("package")
    return folder, write_package(folder)


CONDITIONS = ("--latency", "200", "--bandwidth", "2", "--clock", "50")


@pytest.fixture
def compiled(samples, nvdla_command, tmp_path, monkeypatch):
    """Documents of ``nvdla compile`` and of the commands that analyze its loadable."""
    monkeypatch.chdir(tmp_path)
    nvdla_command("samples", "digit", "-o", "digits")
    words = ("compile", samples / "lenet.onnx", "--calibrate", "digits", "-o", "net.loadable")
    code, out, err = nvdla_command(*words, *CONDITIONS, "--json")
    assert code == 0, err
    return json.loads(out), words


def test_the_summary_has_the_numbers_of_the_commands(compiled, nvdla_command):
    summary = compiled[0]["summary"]
    cycles = json.loads(nvdla_command("cycles", "net.loadable", *CONDITIONS, "--json")[1])
    (space,) = json.loads(nvdla_command("memory", "net.loadable", "--json")[1])["spaces"]
    assert summary["cycles"] == cycles["total_cycles"]
    assert (summary["memory"], summary["clock_mhz"]) == (cycles["memory"], 50)
    assert summary["frames_per_second"] == cycles["runs_per_second"]
    assert (summary["read_bytes"], summary["written_bytes"]) == (cycles["read_bytes"], cycles["written_bytes"])
    program = json.loads(nvdla_command("program", "net.loadable", "-o", "c", "--json")[1])
    blobs = nvdla.load("net.loadable").blobs
    assert summary["weight_bytes"] == sum(blob.length for blob in blobs if blob.name.startswith("tb-"))
    assert program["data_bytes"] + summary["descriptor_bytes"] == space["constant"]
    assert summary["carve_out_bytes"] == space["carve_out"] == program["memories"][0]["bytes"]
    assert (summary["surface_bytes"], summary["allocated_bytes"]) == (space["peak_live"], space["allocated"])
    assert summary["output_snr"] == {"prob": next(r for r in compiled[0]["accuracy"] if r["tensor"] == "prob")["chain"]}
    assert [row["alone"] for row in summary["worst_layers"]] == sorted(r["alone"] for r in compiled[0]["accuracy"])[:5]
    assert [each["file"] for each in summary["files"]] == ["net.loadable", "net.loadable.layers.json"]


def test_the_summary_states_its_assumptions_within_the_width(compiled, nvdla_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, words = compiled
    _, out, _ = nvdla_command(*words)
    assert re.search(r"^carve-out\s+[\d.]+ KiB to reserve in memory *$", out, flags=re.M)
    assert "nv_small, int8 (configuration assumed" in " ".join(out.split())
    assert "folded" not in out and len(out.splitlines()) <= 36
    for line in re.findall(r"^  (nvdla .*)$", out, flags=re.M):
        assert line.split()[2] == "net.loadable"
    _, out, _ = nvdla_command(*words, "--config", "nv_small", "--nodes")
    assert "assumed" not in out and "folded" in out


def test_next_commands_work(compiled, nvdla_command, samples):
    """Every command that the summary recommends is pasted, with a picture in place of FILE."""
    _, out, _ = nvdla_command(*compiled[1])
    commands = [line.strip() for line in out.splitlines() if line.startswith("  nvdla ")]
    assert len(commands) == 3
    for command in commands:
        code, _, err = nvdla_command(*command.replace("FILE", str(samples / "digit7.pgm")).split()[1:])
        assert code == 0, err


def test_next_commands_name_several_inputs(tmp_path, nvdla_command):
    nodes = [node("Add", "a b", "s"), node("Relu", "s", "y")]
    proto = model(nodes, {"a": (1, 8, 4, 4), "b": (1, 8, 4, 4)}, {"y": (1, 8, 4, 4)}, {})
    (tmp_path / "sum.onnx").write_bytes(proto.SerializeToString())
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones((1, 8, 4, 4), np.float32))
    words = ("compile", tmp_path / "sum.onnx", "--config", "nv_full", "--precision", "fp16")
    _, out, _ = nvdla_command(*words, "-o", tmp_path / "sum.nvdla")
    commands = [line.strip() for line in out.splitlines() if line.startswith("  nvdla ")]
    assert len(commands) == 3
    for command in commands:
        for name in "ab":
            command = command.replace(f"{name}=FILE", f"{name}={tmp_path / name}.npy")
        code, _, err = nvdla_command(*command.split()[1:])
        assert code == 0, err


def test_names_of_inputs_may_have_an_equals_sign(tmp_path, nvdla_command):
    proto = model([node("Add", "a=b b", "y")], {"a=b": (1, 8, 4, 4), "b": (1, 8, 4, 4)}, {"y": None}, {})
    nvdla.compile(proto, "nv_full", "fp16").save(tmp_path / "sum.nvdla")
    np.save(tmp_path / "x.npy", np.ones((1, 8, 4, 4), np.float32))
    words = "--input", f"a=b={tmp_path / 'x.npy'}", "--input", f"b={tmp_path / 'x.npy'}"
    code, out, err = nvdla_command("run", tmp_path / "sum.nvdla", *words)
    assert code == 0 and "2" in out, err


def test_bytes_of_both_memories_are_stated(tmp_path):
    """What is live in DRAM and in CVSRAM, and what is to be reserved in each."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(16, 16, 3, 3)).astype("f4"), "v": rng.normal(size=(16, 16, 3, 3)).astype("f4")}
    nodes = [node("Conv", "x w", "a", pads=[1] * 4), node("Conv", "a v", "b", pads=[1] * 4), node("Add", "a b", "y")]
    proto = model(nodes, {"x": (1, 16, 24, 24)}, {"y": (1, 16, 24, 24)}, constants)
    calibration = rng.normal(size=(4, 16, 24, 24)).astype("f4")
    compiled = nvdla.compile(proto, "nv_large", calibration=calibration, cvsram=1 << 19)
    compiled.save(tmp_path / "net.nvdla")
    document = nvdla.load(tmp_path / "net.nvdla").memory(config="nv_large").document
    spaces = {space["space"]: space for space in document["spaces"]}
    assert compiled.summary["surface_bytes"] == sum(space["peak_live"] for space in spaces.values())
    assert compiled.summary["cvsram_bytes"] == spaces["cvsram"]["carve_out"] > 0
    assert re.search("carve-out .* to reserve in DRAM, .* in CVSRAM", repr(compiled))


def test_host_nodes_have_their_reason_and_no_frame_rate(package):
    _, compiled = package
    summary = compiled.summary
    assert (summary["accelerator_parts"], summary["host_parts"], summary["cuts"]) == (3, 2, 4)
    assert summary["frames_per_second"] is None and summary["cycles"] > 0
    (reason,) = summary["host_reasons"]
    assert len(reason["nodes"]) == summary["host_nodes"] == 2 and reason["operators"] == ["MatMul"]
    assert reason["macs_share"] == pytest.approx(1 - summary["accelerator_macs_share"])
    assert "computed" in reason["reason"]
    assert "frames per second  not known" in repr(compiled)
    assert reason["reason"].split(";")[0] in repr(compiled)
    assert re.search(r"<td[^>]*>frames per second</td><td[^>]*>not known", compiled._repr_html_())
    first, *others = summary["worst_layers"]
    assert len(others) == 2
    assert (
        f"\n  noisiest layers    {first['alone']:.1f} dB alone, {first['chain']:.1f} dB chain: {first['layer']}\n"
        in repr(compiled)
    )
    for row in others:
        assert f"dB chain: {row['layer']}" in repr(compiled) and f"dB chain: {row['layer']}" in compiled._repr_html_()


def test_softmax_is_a_cpu_task(samples, nvdla_command):
    words = ("compile", samples / "lenet.onnx", "--check")
    document = json.loads(nvdla_command(*words, "--json")[1])
    (row,) = [row for row in document["nodes"] if row["placement"] == "cpu"]
    assert row["op"] == "Softmax" and row["reason"] == "CPU task of NVIDIA's runtime"
    assert (document["accelerator_nodes"], document["cpu_nodes"], document["host_nodes"]) == (11, 1, 0)
    assert re.search(r"CPU tasks of NVIDIA's runtime\s+1\b", nvdla_command(*words)[1])
    assert "11 nodes and 1 CPU task in 1 part" in repr(nvdla.compile(samples / "lenet.onnx", "nv_full", "fp16"))


def test_without_measured_noise_no_layer_is_listed(package):
    compiled = nvdla.compile(package[0] / "host.onnx", "nv_full", "fp16")
    assert not compiled.summary["worst_layers"] and "noisiest" not in repr(compiled) + compiled._repr_html_()


def test_the_summary_uses_the_memory_that_was_compiled_for(package):
    from nvdla.analysis.cycles.constants import Memory

    folder, compiled = package
    data = np.load(folder / "calibration.npy")
    slow = nvdla.compile(folder / "host.onnx", "nv_small", "int8", data, memory=Memory(400, 1.0))
    assert slow.summary["cycles"] > compiled.summary["cycles"]
    assert slow.summary["memory"]["latency_cycles"] == 400


@pytest.mark.parametrize(("bandwidth", "text"), [("1", "1 byte per cycle"), ("2.5", "2.5 bytes per cycle")])
def test_the_summary_counts_one_byte(bandwidth, text, compiled, nvdla_command):
    assert f", {text}" in nvdla_command(*compiled[1], "--bandwidth", bandwidth)[1]


def test_the_summary_states_what_the_memory_interface_takes_of_the_bandwidth(compiled, nvdla_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = nvdla_command(*compiled[1], "--bandwidth", "64", "--shared")
    assert re.search(r"latency 100, 64 bytes per cycle \(the memory interface of nv_\w+ takes \d+\), shared\n", out)


def test_the_chain_of_a_package_goes_through_all_parts(package, tmp_path, nvdla_command):
    """compare has the same ratios for the sample that they were measured with, also after host parts."""
    folder, _ = package
    sample = np.load(folder / "calibration.npy")[:1]
    np.save(tmp_path / "x.npy", sample)
    compiled = nvdla.compile(folder / "host.onnx", calibration=sample)
    compiled.save(tmp_path / "net.nvpkg")
    words = ("compare", tmp_path / "net.nvpkg", "--onnx", folder / "host.onnx", "-i", tmp_path / "x.npy", "--json")
    parts = [part["document"] for part in json.loads(nvdla_command(*words)[1])["parts"] if "document" in part]
    compared = {row["name"]: row["snr_db"] for document in parts for row in document["tensors"]}
    rows = {row["layer"]: row["chain"] for row in compiled.report["accuracy"]}
    assert len(parts) == 3 and rows.keys() <= compared.keys()
    assert rows == {layer: pytest.approx(compared[layer], abs=0.01) for layer in rows}


def test_the_outputs_of_the_model_and_the_transfers_are_separate(package, nvdla_command, monkeypatch):
    folder, compiled = package
    monkeypatch.setenv("COLUMNS", "200")
    summary = compiled.summary
    assert set(summary["output_snr"]) == {"y"} and len(summary["transfer_snr"]) == 2
    assert re.search(r"expected SNR +[\d.]+ dB at y,", repr(compiled))
    words = ("compile", folder / "host.onnx", "--calibrate", folder / "calibration.npy", "-o", folder / "again.nvpkg")
    _, out, _ = nvdla_command(*words)
    table = out[out.index("channels of outputs and transfers to the host, by range") :]
    kinds = dict(re.findall(r"^ *(\S+) +(transfer|output) ", table.replace("\t", " "), flags=re.M))
    assert kinds == {"y": "output"} | dict.fromkeys(summary["transfer_snr"], "transfer")


def test_nodes_and_transfers_are_counted_once(package, nvdla_command):
    """The summary, run and cycles have the same nodes and transfers."""
    folder, compiled = package
    summary = compiled.summary
    parts = json.loads(nvdla_command("run", folder / "net.nvpkg", "-i", folder / "x.npy", "--json")[1])["parts"]
    nodes = sum(part["nodes"] for part in parts if part["kind"] == "accelerator")
    assert nodes == summary["accelerator_nodes"] + summary["folded_nodes"]
    totals = json.loads(nvdla_command("cycles", folder / "net.nvpkg", "--json")[1])["totals"]
    assert (totals["transfers"], totals["transferred_bytes"]) == (summary["transfers"], summary["bytes_crossing"])
    assert "4 transfers, 4.0 KiB in total (float32) per inference" in repr(compiled)


def test_few_samples_are_stated(samples, nvdla_command, tmp_path):
    """A directory with one picture among other files is one sample."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "digit.pgm").write_bytes((samples / "digit0.pgm").read_bytes())
    for name in ("net.pt", "net.h5", "notes.txt"):
        (tmp_path / "data" / name).write_bytes(b"x")
    words = ("compile", samples / "lenet.onnx", "-o", tmp_path / "net.loadable", "--calibrate")
    text = " ".join(nvdla_command(*words, tmp_path / "data")[1].split())
    assert "calibration 1 sample (3 files ignored). Give ten or more, for larger networks some hundreds" in text
    np.save(tmp_path / "many.npy", np.random.default_rng(1).normal(size=(10, 1, 28, 28)).astype(np.float32))
    text = " ".join(nvdla_command(*words, tmp_path / "many.npy")[1].split())
    assert "calibration 10 samples time" in text


@pytest.mark.parametrize("begin, end", [(0, 8), (2, 6)])
def test_a_loadable_with_other_elements_than_the_model_s_output_has_a_note(begin, end):
    """A Slice at the end needs no operation in a package; a loadable has all channels."""
    rng = np.random.default_rng(0)
    held = {"w": rng.normal(size=(8, 3, 1, 1)).astype("f4"), "b": np.array([begin]), "e": np.array([end])}
    nodes = [node("Conv", "x w", "y"), node("Slice", "y b e a", "z")]
    proto = model(nodes, {"x": (1, 3, 4, 4)}, {"z": (1, end - begin, 4, 4)}, {**held, "a": np.array([1])})
    compiled = compile_model(proto, "nv_small", calibration=rng.normal(size=(4, 3, 4, 4)).astype("f4"))
    noted = any("output z: the model takes its elements (1x4x4x4)" in note for note in compiled.report["notes"])
    assert compiled.whole and noted == (end - begin < 8)


def test_saturation_without_a_loss_asks_for_no_mean():
    """One number before a sigmoid may be beyond its range where the sigmoid is flat."""
    data = np.random.default_rng(0).integers(0, 256, (4, 1, 8, 8)).astype("f4")
    weights = {"w": np.random.default_rng(0).normal(size=(4, 1, 3, 3)).astype("f4")}
    graph = model([node("Conv", "x w", "y")], {"x": (1, 1, 8, 8)}, {"y": (1, 4, 6, 6)}, weights)
    summary = dict(nvdla.compile(graph, "nv_small", calibration=data).summary)
    summary["unscaled_pixels"] = ["x"]
    row = summary["worst_layers"][0]
    for snr, is_noted in ((44.0, False), (12.0, True)):
        summary["worst_layers"] = [{**row, "alone": snr, "saturated": 0.3}]
        text = summary_lines(summary)["pictures"]
        assert text.startswith("pixels 0..255 unchanged") and ("30% of a layer is saturated" in text) == is_noted
