"""Worker processes start with Python's modules and the toolkit's, whatever files the current directory has."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from nvdla.util import processes

PROGRAM = """
import threading
from nvdla.experiments.campaign.pool import LocalPool
from nvdla.util.processes import may_fork, pool

def begin(name, parent):
    print(name, parent, flush=True)

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # so that processes are new interpreters
    assert not may_fork()
    with pool(1, begin, "first") as executor:
        print(executor.submit(abs, -5).result())
"""


@pytest.mark.parametrize("module", ["multiprocessing", "pickle", "numpy", "signal"])
def test_new_workers_import_nothing_from_the_current_directory(module, tmp_path):
    program, work = tmp_path / "program.py", tmp_path / "work"
    work.mkdir()
    program.write_text(PROGRAM)
    (work / f"{module}.py").write_text("import os; os.write(2, b'hostile'); os._exit(3)")
    path = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, program], cwd=work, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr, done.returncode) == ("first None\n5\n", "", 0)


@pytest.mark.parametrize("name", ["nvdla.compiler.builder.search", "nvdla.experiments.campaign.pool"])
def test_pools_of_the_toolkit_are_made_in_one_place(name):
    assert importlib.import_module(name).pool is processes.pool
