"""Loadables of NVIDIA's compiler and driver regression, edited: the results stay those of the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder.edit import convert_abi, merge, strip
from nvdla.loadable.descriptors.detect import detect

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
FILES = [
    *(f"kmd-regression/{name}_fbuf" for name in ("BDMA_L0_0", "CDP_L0_0", "CONV_D_L0_0_small", "PDP_L0_0_large")),
    *(f"kmd-regression/{name}_fbuf" for name in ("RBK_L0_0", "SDP_X1_L0_0", "NN_L0_0")),
    "loadables/concat2/nv_small-int8-fast-math.nvdla",
    "loadables/lrn5/nv_full-fp16-fast-math.nvdla",
    "loadables/multi_in/nv_small-int8-fast-math.nvdla",
    "loadables/multi_out/nv_small-int8-fast-math.nvdla",
]


@pytest.fixture(params=FILES)
def original(request):
    """(loadable, configuration, random inputs, the outputs they give)."""
    path = CORPUS / request.param
    if not path.exists():
        pytest.skip(f"the corpus has no {request.param} here")
    loadable = nvdla.load(path)
    runtime = nvdla.Runtime(loadable)
    rng = np.random.default_rng(1)
    inputs = [rng.integers(0, 60, tensor.size, np.uint8).tobytes() for tensor in runtime.inputs]
    return loadable, runtime.config.name, inputs, runtime.run_raw(inputs)


def _outputs(loadable: nvdla.Loadable, config: str, inputs: list[bytes]) -> list[bytes]:
    return nvdla.Runtime(nvdla.load(loadable.to_bytes()), config=config).run_raw(inputs)


def test_the_other_abi_and_back_gives_the_same_results(original):
    loadable, config, inputs, outputs = original
    first = detect(loadable)[0].name
    other = {"old": "new", "new": "old"}[first]
    converted = convert_abi(loadable, other)
    assert detect(nvdla.load(converted.to_bytes()))[0].name == other
    assert _outputs(converted, config, inputs) == outputs
    back = convert_abi(nvdla.load(converted.to_bytes()), first)
    assert detect(back)[0].name == first
    assert _outputs(back, config, inputs) == outputs


def test_stripped_and_merged_loadables_give_the_same_results(original):
    loadable, config, inputs, outputs = original
    assert _outputs(strip(loadable), config, inputs) == outputs
    assert _outputs(merge(loadable, loadable), config, inputs * 2) == outputs * 2
