"""No total is below what the memory's bandwidth and the MAC array allow."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.roofline import MEMORIES, assert_above_the_roofline

import nvdla
from nvdla.analysis.cycles.constants import ChainShape, ConvolutionShape, Memory, SdpShape, constants
from nvdla.analysis.cycles.estimate import chain_time
from nvdla.analysis.cycles.hardware import bandwidth
from nvdla.emulator.hardware.configuration import configuration

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))

sizes = st.integers(1, 24)
traffic = st.integers(0, 1 << 16)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_on_eight_bandwidths(path):
    loadable = nvdla.load(path)
    for memory in MEMORIES:
        assert assert_above_the_roofline(loadable, memory, path.name)


@given(st.sampled_from(["nv_small", "nv_large"]), sizes, sizes, sizes, traffic, traffic, traffic, traffic, traffic)
def test_operands_of_the_sdp_are_traffic(name, width, height, kernels, read, weights, operands, tables, written):
    """Of every element and of every kernel, behind a convolution and from memory."""
    values = constants(configuration(name))
    for rate in (0.01, 1.0):
        memory = Memory(100, rate)
        conv = ConvolutionShape(width, height, kernels, 1, 1, 8, read, weights, 1, 1)
        sdp = SdpShape(width, height, 1, 2, False, 0, operands, written, 1, tables)
        alone = SdpShape(width, height, 1, 2, False, read, operands, written, 1, tables)
        for chain, bytes_read in (
            (ChainShape(conv=conv, sdp=sdp), read + weights + operands + tables),
            (ChainShape(sdp=alone), read + operands + tables),
        ):
            least = max(bytes_read, written) / bandwidth(values, memory)
            assert chain_time(chain, values, memory).total + 1 >= least * (1 - 1e-7)
