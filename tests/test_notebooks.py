"""The notebooks of docs/ and samples/labs/ run in the folder that ``nvdla samples`` writes, and print what they show.

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
LABS = sorted((ROOT / "samples" / "labs").glob("*.ipynb"))
NOTEBOOKS = [*sorted((ROOT / "docs").glob("*.ipynb")), *LABS]
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
            exec(code_of(cell, f"{path.name} cell {count}"), names)
        text = printed.getvalue().splitlines(keepends=True)
        outputs = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
        assert UPDATE or cell["outputs"] == outputs, f"cell {count}"
        cell["outputs"], cell["execution_count"] = outputs, count
    assert count > 3
    if UPDATE:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def code_of(cell, name):
    return compile("".join(cell["source"]), name, "exec")


SUBJECTS = ["loadable", "tiling", "quantization", "cycles", "faults", "bare_metal", "register_traces", "design_space"]


def test_the_course_has_a_lab_per_subject():
    assert [path.stem for path in LABS] == [f"{number}_{name}" for number, name in enumerate(SUBJECTS, 1)]


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_check_of_a_lab_fails_without_its_exercise(path, tmp_path, monkeypatch):
    """Exercises are followed by a check that needs their result: without it, the check raises an error."""
    samples.write(list(samples.CONTENTS), tmp_path)
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    exercises = [number for number, cell in enumerate(cells) if cell["source"][0].startswith("# Exercise")]
    assert exercises
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in cells[: exercises[0]]:
            exec(code_of(cell, path.name), names)
        with pytest.raises((NameError, AssertionError)):
            exec(code_of(cells[exercises[0] + 1], path.name), names)
    assert all("assert" in "".join(cells[number]["source"] + cells[number + 1]["source"]) for number in exercises[:-1])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_one_that_others_open(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["cell_type"] == "markdown" or "outputs" in cell for cell in notebook["cells"])
