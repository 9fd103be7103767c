"""The table of docs/evaluate.md runs as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_example_of_the_page_runs(tmp_path):
    text = (ROOT / "docs" / "evaluate.md").read_text()
    (tmp_path / "scales.py").write_text(re.search(r"```python\n(# scales\.py.*?)```", text, re.S)[1])
    for name in ("lenet.loadable", "digit7.pgm"):
        shutil.copy(ROOT / "samples" / name, tmp_path)
    for _ in range(2):  # the second time everything is there
        done = subprocess.run(
            [sys.executable, "scales.py"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found = eval(done.stdout)
        assert len(found) == 20 and found.count(7) >= 15
