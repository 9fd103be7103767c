"""The example of docs/build.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "build.md"


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)[1]
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert (tmp_path / "example.loadable").exists()
    assert (tmp_path / "example.loadable.layers.json").exists()
