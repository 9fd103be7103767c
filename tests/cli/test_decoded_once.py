"""Each command decodes a loadable once and links it at most once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvdla.cli.main import main
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.program import Program

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
COMMANDS = {
    "inspect": "inspect NET",
    "cycles": "cycles NET",
    "explain": "explain NET",
    "memory": "memory NET",
    "graph": "graph NET -o g.svg",
    "timeline": "timeline NET",
    "lint": "lint NET",
    "doctor": "doctor NET",
    "doctor with a run": "doctor NET --input digit7.pgm",
    "report": "report NET -o r.html",
    "report with a run": "report NET --input digit7.pgm -o r.html",
    "evaluate": "evaluate NET digits.npz --limit 4 --workers 1",
    "program": "program NET --config nv_small --format cfg -o out",
}


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """Counts of decodes and links; the current directory has the samples."""
    for path in SAMPLES.iterdir():
        if path.name.startswith(("lenet.loadable", "digit")):
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    counts = {"decodes": 0, "links": 0}
    decode, link = Program.of.__func__, LinkedLoadable.__init__

    def decode_counted(*args, **named):
        counts["decodes"] += 1
        return decode(*args, **named)

    def link_counted(*args, **named):
        counts["links"] += 1
        return link(*args, **named)

    monkeypatch.setattr(Program, "of", classmethod(decode_counted))
    monkeypatch.setattr(LinkedLoadable, "__init__", link_counted)
    return counts


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_decodes_once_and_links_at_most_once(command, counted, capsys):
    assert main(COMMANDS[command].replace("NET", "lenet.loadable").split()) in (0, 1), capsys.readouterr().err
    assert counted["decodes"] == 1 and counted["links"] <= 1, counted
