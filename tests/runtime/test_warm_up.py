"""Kernels compiled ahead: afterwards networks that it has not seen compile nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[1]

RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, nvdla
from nvdla.compiler.builder import build, calibrate
from nvdla.kernels.jit.cache_folder import kept_kernels
from nvdla.kernels.jit.compilation import fallback_work
from support.branching import branching_network
fallback_work.end()
kept = kept_kernels()
network = branching_network()
ranges = calibrate(network, np.random.default_rng(1).standard_normal((1, *network.inputs[0].shape)))
for config in ("nv_small", "nv_large"):
    runtime = nvdla.Runtime(build(network, config, "int8", ranges).loadable, config)
    for _ in range(3):
        runtime.run(np.zeros(runtime.inputs[0].shape, runtime.inputs[0].dtype))
print(sorted(path.name for path in set(kept_kernels()) - set(kept)))
"""


@pytest.mark.slow
def test_networks_compile_nothing_after_the_warm_up(tmp_path):
    environment = {**os.environ, "NVDLA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "import sys; from nvdla.cli.main import main; sys.exit(main(sys.argv[1:]))"]

    def output(words):
        return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout

    kept = json.loads(output([*command, "cache", "warm-up", "--json"]))["kernels"]
    files = [path.name.partition(".")[0] for path in tmp_path.rglob("*") if path.suffix in (".kernel", ".object")]
    assert kept == len(files) and {"fast", "sdp", "pdp", "cdp", "winograd_fp16"} <= set(files)
    assert output([sys.executable, "-c", RUN, str(SUPPORT)]) == "[]\n"
