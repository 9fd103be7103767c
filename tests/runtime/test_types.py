"""Types of the public functions, as mypy reveals them in a user's program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

PROGRAM = """
import numpy as np
import nvdla

runtime = nvdla.Runtime(nvdla.load("lenet.nvdla"), "nv_small", threads=2, strides={"data": (1, 32)})
image = np.zeros((1, 1, 28, 28), np.int8)
compiled = nvdla.compile("net.onnx", "nv_small", calibration=np.zeros((8, 3, 32, 32)), per_channel=True)
reveal_type(nvdla.load(b"..."))
reveal_type(runtime.run(image))
reveal_type(runtime.run({"data": "digit.pgm"}, real=True)["prob"])
reveal_type(runtime.run_raw([b"..."]))
reveal_type(runtime.run_many(["a.png", "b.png"]))
reveal_type(runtime.run_many([[b"..."], [b"..."]]))
reveal_type(runtime.run_many(np.zeros((8, 1, 28, 28))))
reveal_type(runtime.inputs[0].shape)
reveal_type(compiled)
reveal_type(compiled.loadable)
reveal_type(compiled.run({"x": image}))
net = nvdla.load("lenet.nvdla")
reveal_type(net.operations)
reveal_type(net.cycles(by="layer").to_pandas())
reveal_type(net.memory())
reveal_type(net.memory(1))
reveal_type(net.run(image))
reveal_type(net.compare("net.onnx", image)[0])
reveal_type(net.report("page.html"))
nvdla.load(7)
runtime.run(7)
runtime.run_raw(7)
nvdla.compile(7, "nv_small")
"""
ARRAY = "ndarray[tuple[Any, ...], dtype[Any]]"
REVEALED = [
    "nvdla.cli.network.LoadedNetwork",
    f"dict[str, {ARRAY}]",
    ARRAY,
    "list[bytes]",
    f"list[dict[str, {ARRAY}]]",
    "list[list[bytes]]",
    f"list[dict[str, {ARRAY}]]",
    "tuple[int, int, int, int]",
    "nvdla.compiler.frontend.compiler.Compiled",
    "nvdla.loadable.model.Loadable | None",
    f"dict[str, {ARRAY}]",
    "nvdla.cli.network.ResultTable",
    "Any",
    "nvdla.cli.network.ResultTable",
    "nvdla.loadable.model.MemoryEntry",
    f"dict[str, {ARRAY}]",
    "Mapping[str, Any]",
    "None",
]


def test_a_type_checker_sees_the_types_of_the_public_functions(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--follow-imports=silent", str(program)]
    command += ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=600)
    assert "error: No overload" not in result.stdout
    revealed = re.findall(r'note: Revealed type is "(.*)"', result.stdout)
    plain = [re.sub(r"builtins\.|numpy\.|typing\.|_typeshed\.", "", each) for each in revealed]
    assert [
        each.replace("Union[nvdla.loadable.model.Loadable, None]", "nvdla.loadable.model.Loadable | None")
        for each in plain
    ] == REVEALED
    errors = [int(line) for line in re.findall(r"program\.py:(\d+): error: .*\[arg-type\]", result.stdout)]
    assert errors == [27, 28, 29, 30], result.stdout
