"""What the tests of the builder share: build, verify, run, and compare with plain numpy."""

from __future__ import annotations

import numpy as np

import nvdla
from nvdla.checks.lint import lint
from nvdla.compiler.builder import Built, Calibration, Network, build, calibrate, layer_errors

# Configuration, precision, one weight scale a channel.
TARGETS = [
    ("nv_small", "int8", False),
    ("nv_small", "int8", True),
    ("nv_large", "int8", False),
    ("nv_full", "int8", False),
    ("nv_full", "int16", False),
    ("nv_full", "fp16", False),
]
# Least signal to noise ratio (dB) against the float network that one layer on random data must keep.
LEAST_SNR = {"int8": 28.0, "int16": 50.0, "fp16": 50.0}


def samples(network: Network, rng: np.random.Generator, count: int = 2) -> dict[str, np.ndarray]:
    """Random inputs (count, C, H, W) for every input."""
    return {tensor.name: rng.normal(size=(count, *tensor.shape)) for tensor in network.inputs}


def two_convolutions() -> Network:
    """Two convolutions of one input, which need other numbers of banks and nothing of one another."""
    rng = np.random.default_rng(0)
    net = Network()
    x = net.input("in", (16, 24, 24))
    net.output(net.convolution("first", x, rng.normal(size=(32, 16, 3, 3)), padding=1))
    net.output(net.convolution("second", x, rng.normal(size=(64, 16, 5, 5)), padding=2))
    return net


def build_and_run(
    network: Network,
    config: str,
    precision: str,
    per_channel: bool,
    data: dict[str, np.ndarray],
    calibration: Calibration | None = None,
    level: int = 1,
) -> Built:
    """Build, lint, write, read back (which verifies), run, and compare with the plain numpy model of the quantized
    network.

    Integers must be equal; halves within 1% of the largest magnitude, for the hardware shortens mantissas.
    """
    built = build(network, config, precision, calibration or calibrate(network, data), per_channel, level=level)
    if not per_channel and precision != "int16":
        findings = lint(built.loadable, config).findings
        assert not findings, [str(finding) for finding in findings]
    runtime = nvdla.Runtime(nvdla.load(built.loadable.to_bytes()), config=config)
    elements = built.quantize_inputs({name: values[0] for name, values in data.items()})
    found, expected = runtime.run(elements), built.expected(elements)
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype
        if precision == "fp16":
            exact = wanted.astype(np.float64)
            np.testing.assert_allclose(found[name].astype(np.float64), exact, atol=0.01 * np.abs(exact).max() + 1e-6)
        else:
            np.testing.assert_array_equal(found[name], wanted, err_msg=f"{name} on {config}")
    return built


def signal_to_noise(network: Network, built: Built, data: dict[str, np.ndarray]) -> float:
    """dB of the first output against the float network."""
    return layer_errors(network, built, data)[network.outputs[0].name]["snr_db"]


def engines(built: Built) -> list[str]:
    """Engines of all operations in order, from the sidecar."""
    return [operation["engine"] for task in built.sidecar["tasks"] for operation in task["operations"]]
