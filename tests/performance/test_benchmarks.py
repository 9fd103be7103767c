"""The benchmarks measure the same layers on both sides, and print what they say they print."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

SMALL = (3, 32, 32)


@pytest.fixture(scope="module")
def folder(samples):
    return samples.parent / "benchmarks"


@pytest.fixture(scope="module")
def networks(folder):
    sys.path.insert(0, str(folder))
    try:
        import networks

        yield networks
    finally:
        sys.path.remove(str(folder))


# 10^6 multiplications and 10^3 weights of the models in the literature.
PUBLISHED = {
    "resnet50": (3858, 25500),
    "resnet18": (1814, 11679),
    "googlenet": (1582, 6990),
    "squeezenet": (349, 1232),
    "alexnet": (724, 60955),
    "lenet": (2.29, 430),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_size(networks, name):
    network = networks.NETWORKS[name]()
    macs, weights = PUBLISHED[name]
    count = sum(layer.settings.weights.size for layer in network.layers if layer.kind == "convolution")
    assert networks.multiplications(network) / 1e6 == pytest.approx(macs, rel=0.02)
    assert count / 1e3 == pytest.approx(weights, rel=0.02)


def mixture(networks):
    """All kinds of layers that the benchmark networks have, small."""
    m = networks.Maker("mixture", SMALL)
    x = m.net.max_pool("pool1", m.conv_relu("conv1", m.data, 16, 7, stride=2, pad=3), 3, 2, networks.CEIL)
    x = m.net.lrn("norm1", x)
    a = m.conv_relu("a", x, 16, 3, pad=1, groups=2)
    b = m.conv_relu("b", m.net.max_pool("pool2", x, 3, 1, 1), 16, 1)
    x = m.net.concat("joined", m.net.relu("sum", m.net.add("added", a, b)), x)
    return m.done(m.full("fc", m.net.global_average_pool("pool3", x), 10))


@pytest.mark.parametrize("make", [mixture, lambda networks: networks.lenet()], ids=["mixture", "lenet"])
def test_the_onnx_model_computes_what_the_network_computes(networks, make):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx_form import onnx_model

    from nvdla.compiler.builder import floating

    network = make(networks)
    image = np.random.default_rng(3).standard_normal((1, *network.inputs[0].shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(onnx_model(network), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"data": image})
    expected = floating.run(network, image)[network.outputs[0].name]
    np.testing.assert_allclose(got.ravel(), expected.ravel(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_the_loadable_computes_what_the_network_computes(networks, config):
    import nvdla
    from nvdla.compiler.builder import floating

    network = mixture(networks)
    image = np.random.default_rng(1).standard_normal((1, *SMALL))
    built = networks.built(network, config)
    got = nvdla.Runtime(built.loadable, config).run(built.quantize_inputs(image[0]))
    expected = floating.run(network, image)[network.outputs[0].name]
    assert np.corrcoef(next(iter(got.values())).ravel(), expected.ravel())[0, 1] > 0.99


def test_a_row_has_ratio_limits_verdict_and_machine(folder):
    pytest.importorskip("onnxruntime")
    words = [sys.executable, folder / "run.py", "lenet-nv_small", "--json", "--inline", "--seconds", "0.1"]
    document = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    (row,) = document["rows"]
    assert set(row) == {"row", "value", "unit", "limit", "goal", "loadable", "details", "verdict"}
    assert row["verdict"] == ("goal" if row["value"] <= 1 else "limit" if row["value"] <= 3 else "MISSED")
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["versions"]["numba"]


def test_rows_can_be_listed_and_unknown_ones_are_refused(folder):
    words = [sys.executable, str(folder / "run.py")]
    listed = subprocess.run([*words, "--list"], check=True, capture_output=True, text=True).stdout.split()
    assert {"resnet50-nv_large", "resnet50-nv_small", "first-run", "memory-resnet50"} <= set(listed)
    assert subprocess.run([*words, "resnet5"], capture_output=True, check=False).returncode == 2


def test_work_is_measured_in_turns(networks):
    import measure

    order = []

    def work(name):
        order.append(name)
        time.sleep(0.06)

    works = {"a": lambda: work("a"), "b": lambda: work("b")}
    times = measure.interleaved(works, seconds=0, least=3, warm=0)
    assert order == ["a", "a", "b", "b"] * 3
    assert all(0.05 < each < 0.5 for each in times.values())


NAMES = ("slower", "faster", "images", "equal")


def test_two_results_are_compared_within_their_noise(folder, tmp_path):
    def result(name, values, noise):
        rows = [
            {"row": row, "value": value, "unit": unit, "details": {"noise": noise}}
            for row, value, unit in zip(NAMES, values, ("ms", "ms", "x faster", "ms"), strict=True)
        ]
        (tmp_path / name).write_text(json.dumps({"rows": rows}))
        return tmp_path / name

    before, after = result("a.json", (1, 1, 1, 1), 0.1), result("b.json", (1.5, 0.5, 1.5, 1.15), 0.1)
    words = [sys.executable, str(folder / "compare.py")]
    run = subprocess.run([*words, before, after], capture_output=True, text=True)
    found = {line.split()[0]: line.split()[-1] for line in run.stdout.splitlines() if line.strip()}
    assert {name: found[name] for name in NAMES} == {
        "slower": "worse", "faster": "better", "images": "better", "equal": "same"
    }  # fmt: skip
    assert run.returncode == 1
    assert subprocess.run([*words, before, before], capture_output=True).returncode == 0


def test_the_peak_of_a_process_is_its_own(folder):
    """However large the process was that started it."""
    sys.path.insert(0, str(folder))
    try:
        import measure

        large = np.ones(300 << 20, np.uint8)
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); import measure; print(measure.peak_memory())"
        assert int(measure.python(code)) < 200 << 20 < large.size
    finally:
        sys.path.remove(str(folder))


def test_results_become_the_table_of_the_page(folder, tmp_path):
    described = {"cpu": "A processor", "family_model": "25/17", "features": ["avx2"], "cores": 2, "memory_gib": 4.0}
    described |= {"system": "Linux 6", "python": "3.11", "versions": {"numpy": "2.4", "nvdla": "0.1"}}
    row = {"row": "int8-some", "value": 0.97234, "unit": "x int8", "limit": 1.2, "goal": 1, "verdict": "goal"}
    row |= {"details": {"nvdla_ms": 1234.5, "int8_ms": 1269.6, "best_ratio": 0.9}}
    faster = {"row": "batch-some", "value": 1.4, "unit": "x faster", "limit": 1.5, "goal": 3, "verdict": "MISSED"}
    document = {"machine": described, "rows": [row, {**faster, "details": {}}]}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    words = [sys.executable, str(folder / "table.py"), str(path)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] == "A processor (family 25, model 17; avx2), 2 cores, 4.0 GiB, Linux; Python 3.11, numpy 2.4."
    said = "1,234 against 1,270 ms; best against best 0.9"
    assert lines[-2] == f"| `int8-some` | 0.972 × int8 | ≤ 1.2 | ≤ 1 | goal | {said} |"
    assert lines[-1] == "| `batch-some` | 1.4 × faster | ≥ 1.5 | ≥ 3 | missed |  |"
