"""The pages of the tools show what the tools print: every console block is run again.

``NVDLA_UPDATE_DOCS=1 pytest tests/cli/test_documented_output.py`` writes the blocks anew.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("memory", "cycles", "timeline", "graph", "report", "tensor", "layouts")
BLOCK = re.compile(r"```console\n(.*?)```", flags=re.S)
UPDATE = bool(os.environ.get("NVDLA_UPDATE_DOCS"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the samples and the files that the pages speak of."""
    import nvdla

    for path in (ROOT / "samples").iterdir():
        if path.suffix in (".loadable", ".json", ".pgm", ".txt"):
            shutil.copy(path, tmp_path)
    runtime = nvdla.Runtime(nvdla.load(tmp_path / "lenet.loadable"))
    surface = runtime.surfaces(str(tmp_path / "digit7.pgm"))
    (tmp_path / "prob.bin").write_bytes(runtime.run_raw(surface)[0])
    np.save(tmp_path / "input.npy", runtime.inputs[0].layout.unpack(np.frombuffer(surface[0], np.uint8)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_what_is_printed(page, folder, nvdla_command):
    if page == "report" and not shutil.which("dot"):
        pytest.skip("graphviz is not installed, so the report has no drawing (Debian: apt-get install graphviz)")
    path = ROOT / "docs" / f"{page}.md"
    text = path.read_text(encoding="utf-8")

    def again(block):
        commands = [line for line in block[1].splitlines() if line.startswith("$ nvdla ")]
        assert commands
        shown = []
        for command in commands:
            code, out, err = nvdla_command(*shlex.split(command)[2:])
            assert code == 0, err
            lines = [line.rstrip() for line in out.splitlines()]
            while lines and not lines[-1]:
                lines.pop()
            shown += [command, *lines, ""]
        return "```console\n" + "\n".join(shown[:-1]) + "\n```"

    made = BLOCK.sub(again, text)
    if UPDATE:
        path.write_text(made, encoding="utf-8")
    assert settled(made) == settled(text) or UPDATE


def settled(text):
    """Lines, without the size of the report: its pictures depend on the versions of what draws them."""
    return re.sub(r"(report\.html: )[\d,]+ bytes", r"\1N bytes", text).splitlines()
