"""The notebooks of docs/ run, cell after cell, in the folder that ``nvdla samples`` writes, and print what they show.

``NVDLA_UPDATE_DOCS=1 pytest tests/test_notebooks.py`` writes their outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from nvdla.cli import samples

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
UPDATE = bool(os.environ.get("NVDLA_UPDATE_DOCS"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path, monkeypatch):
    samples.write(list(samples.CONTENTS), tmp_path)
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("".join(cell["source"]), f"{path.name} cell {count}", "exec"), names)
        text = printed.getvalue().splitlines(keepends=True)
        outputs = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
        assert UPDATE or cell["outputs"] == outputs, f"cell {count}"
        cell["outputs"], cell["execution_count"] = outputs, count
    assert count > 3
    if UPDATE:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_one_that_others_open(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["cell_type"] == "markdown" or "outputs" in cell for cell in notebook["cells"])
