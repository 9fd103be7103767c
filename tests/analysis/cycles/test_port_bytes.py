"""Bytes that cross NVDLA's memory ports: nothing of what stays in the buffer, whole atoms of an image's lines."""

from pathlib import Path

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.analysis.cycles.document import cycles_document
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate

LENET = Path(__file__).resolve().parents[3] / "samples" / "lenet.loadable"


def network(shape, *layers):
    """Convolutions of (kernels, size) of one input, no bias."""
    rng = np.random.default_rng(0)
    net = Network("measured")
    x = net.input("in", shape)
    for at, (kernels, size) in enumerate(layers):
        weights = rng.normal(size=(kernels, shape[0], size, size))
        net.output(net.convolution(f"c{at}", x, weights, padding=size // 2))
    return net


def studied(net, config, **options):
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    return Study.of(build(net, config, "int8", scales, **options).loadable, config)


def read(study):
    """Bytes that each convolution reads."""
    return [study.estimates[node.key].read_bytes for node in study.operations if node.engine == "conv"]


def test_re_used_data_are_not_read_again():
    net = network((16, 8, 8), (16, 3), (16, 1))
    data, weights = 16 * 8 * 8, (16 * 16 * 9, 16 * 16)
    assert read(studied(net, "nv_small")) == [data + weights[0], weights[1]]
    assert read(studied(net, "nv_small", level=0)) == [data + weights[0], data + weights[1]]


def test_re_used_weights_are_not_read_again():
    study = studied(network((256, 28, 28), (64, 1)), "nv_large")
    parts = [node for node in study.operations if node.engine == "conv"]
    assert len(parts) > 1 and parts[1].op.weight_reuse
    rows = [node.surface.src_data.height for node in parts]
    weights = 64 * 256
    assert read(study) == [256 * 28 * count + (0 if at else weights) for at, count in enumerate(rows)]


@pytest.mark.parametrize(
    ("config", "width", "line"),
    [("nv_small", 17, 72), ("nv_small", 24, 96), ("nv_large", 66, 288), ("nv_large", 72, 288)],
)
def test_a_line_of_an_image_is_read_in_whole_atoms(config, width, line):
    """Pixels of 4 bytes; atoms of 8 and 32 bytes."""
    study = studied(network((3, 12, width), (16, 3)), config, input_format="A8B8G8R8")
    (node,) = [each for each in study.operations if each.engine == "conv"]
    assert node.is_image
    (weights,) = [access.traffic for access in node.reads if access.role == "weights"]
    assert read(study) == [12 * line + weights]


def test_what_the_processor_reads_and_writes_crosses_no_port():
    study = Study.of(nvdla.load(LENET))
    document = cycles_document(study, 1000)
    cpu = [row for row in document["operations"] if row["engine"] == "cpu"]
    assert [(row["read_bytes"], row["written_bytes"]) for row in cpu] == [(0, 0)]
    for key in ("read_bytes", "written_bytes"):
        assert document[key] == sum(row[key] for row in document["operations"])
    assert (document["read_bytes"], document["written_bytes"]) == (52576, 1632)  # as on the RTL
