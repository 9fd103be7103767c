"""The extension in Model Explorer itself: its loader finds it, its server shows it, numbers lie over the graph."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nvdla
from nvdla.analysis.cycles.document import cycles_of
from nvdla.analysis.study import Study

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
LENET = str(SAMPLES / "lenet.loadable")
HALF = str(SAMPLES / "lenet_nv_full_fp16.loadable")
DIGIT = str(SAMPLES / "digit7.pgm")


@pytest.fixture(scope="module")
def manager():
    pytest.importorskip("model_explorer", reason="Model Explorer is not installed: pip install 'nvdla[explorer]'")
    from model_explorer.extension_manager import ExtensionManager

    found = ExtensionManager(["nvdla.report.model_explorer"])
    found.load_extensions()
    return found


@pytest.fixture(scope="module")
def graph(manager):
    command = {"cmdId": "convert", "extensionId": "nvdla_adapter", "modelPath": LENET, "settings": {}}
    (found,) = manager.run_cmd(command | {"deleteAfterConversion": False})["graphs"]
    return found


def test_the_loader_finds_adapter_and_providers(manager):
    found = {each["id"]: each for each in manager.get_extensions_metadata()}
    assert found["nvdla_adapter"]["fileExts"] == ["nvdla", "loadable"]
    assert {"nvdla_cycles", "nvdla_saturation", "nvdla_snr"} <= set(found)


def test_a_loadable_becomes_a_graph(graph):
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == 13 + 2
    assert nodes["0/3"]["label"] == "CONV 0/3"
    assert nodes["0/3"]["namespace"] == "conv2+relu2"
    assert [edge["sourceNodeId"] for edge in nodes["0/4"]["incomingEdges"]] == ["0/3"]
    assert [edge["sourceNodeId"] for edge in nodes["0/3"]["incomingEdges"]] == ["0/2"]
    attributes = {each["key"]: each["value"] for each in nodes["0/3"]["attrs"]}
    assert attributes["kernel_channel_csc"] == "6"
    assert attributes["conv_mode"] == "DIRECT"
    assert all(edge["sourceNodeId"] in nodes for node in nodes.values() for edge in node["incomingEdges"])


def data_of(manager, provider, **values):
    command = {"cmdId": "run", "extensionId": provider, "modelPath": LENET, "graphId": "x", "configValues": values}
    return manager.run_cmd(command)


def test_cycles_lie_over_the_graph(manager):
    cycles, use = data_of(manager, "nvdla_cycles")["result"]
    study = Study.of(nvdla.load(LENET))
    wanted = {chain[0].label: cycles_of(study, chain[0]) for chain in study.chains}
    assert {key: each["value"] for key, each in cycles["results"].items()} == {k: v for k, v in wanted.items() if v}
    assert 0 < use["results"]["0/3"]["value"] <= 100
    assert [each["stop"] for each in cycles["gradient"]] == [0, 0.5, 1]


def test_saturation_and_snr_come_from_runs(manager):
    (saturation,) = data_of(manager, "nvdla_saturation", input=DIGIT)["result"]
    assert set(saturation["results"]) == {"0/2", "0/5", "0/7", "0/9", "0/11"}
    (same,) = data_of(manager, "nvdla_snr", input=DIGIT, other=LENET)["result"]
    (half,) = data_of(manager, "nvdla_snr", input=DIGIT, other=HALF)["result"]
    assert {each["value"] for each in same["results"].values()} == {100.0}
    assert all(20 < each["value"] < 60 for each in half["results"].values())


def test_errors_are_in_the_result(manager, tmp_path):
    assert "nothing.pgm" in data_of(manager, "nvdla_saturation", input="nothing.pgm")["error"]
    assert data_of(manager, "nvdla_snr", input=DIGIT, other=str(tmp_path / "none.nvdla"))["error"]


def test_the_command_writes_node_data(nvdla_command, tmp_path):
    """The files that Model Explorer takes with --node_data_paths."""
    code, _, _ = nvdla_command("export", LENET, HALF, "-i", DIGIT, "--node-data", tmp_path / "data")
    assert code == 0
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "cycles.json", "mac_use.json", "saturation.json", "snr.json"
    }  # fmt: skip
    for path in (tmp_path / "data").iterdir():
        document = json.loads(path.read_text())
        assert list(document) == ["lenet.loadable on nv_small"]
        assert all(
            isinstance(each["value"], float) for each in document["lenet.loadable on nv_small"]["results"].values()
        )


@pytest.mark.slow
def test_the_graph_is_shown_in_the_browser(manager, chromium_browser, tmp_path):
    """`model-explorer net.nvdla --extensions=nvdla.report.model_explorer`, and what a browser sees."""
    words = [sys.executable, "-c", "from model_explorer.cmdline import main; main()", LENET]
    words += ["--extensions=nvdla.report.model_explorer", "--no_open_in_browser", "--skip_health_check"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    try:
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://localhost\S+", line)))
        page = chromium_browser.new_page(viewport={"width": 1200, "height": 900})
        page.route(lambda url: url.startswith("http") and "localhost" not in url, lambda route: route.abort())
        page.goto(address)
        page.get_by_text("lenet.loadable on nv_small").first.wait_for()
        page.get_by_text("15 nodes").first.wait_for()
        page.close()
    finally:
        process.terminate()
        process.wait()
