"""Every term that a command prints as a heading or as a name of a value stands in docs/glossary.md."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from nvdla.cli import output
from nvdla.cli.main import COMMANDS
from nvdla.cli.version import OPTIONAL

ROOT = Path(__file__).resolve().parents[2]
#: what is run to see the headings; a command without tables says so
RUNS = """
inspect lenet.loadable --all
inspect lenet.loadable
hexdump lenet.loadable task-0-op_list
compare lenet.loadable lenet_nv_large.loadable --input digit7.pgm
doctor lenet.loadable --input digit7.pgm
lint --rules
lint lenet.loadable
diff lenet.loadable lenet_nv_large.loadable
memory lenet.loadable
graph lenet.loadable
cycles lenet.loadable
explain lenet.loadable
timeline lenet.loadable -o trace.json
layers lenet.loadable --caffe lenet.prototxt lenet.caffemodel
run lenet.loadable --input digit7.pgm --stats --profile 1
tensor layout --layout feature-x8 --shape 1,20,3,4
tensor info digit7.pgm
program lenet.loadable --format list
program lenet.loadable --format riscv-txn --input digit7.pgm -o txn
csb txn/lenet.txn
csb txn/lenet.txn --operations
csb diff txn/lenet.txn txn/lenet.txn
trace replay missing.cfg --config nv_small
container formats
container list lenet.loadable
container verify lenet.loadable
extract lenet.loadable task-0-op_list -o blob.bin
export lenet.loadable --output net.onnx
report lenet.loadable -o report.html
compile lenet.onnx --config nv_small --check
samples digit -o digits
compile lenet.onnx --calibrate digits -o new.loadable
export lenet.loadable --output graph.onnx
samples
configs
datasheet nv_small lenet.loadable -o page.html
completion bash
version --verbose
cache info
""".strip().splitlines()
ELSEWHERE = {"evaluate", "explore", "faults", "serve", "view"}
"""Commands whose tables are seen on their pages (they start processes), or that have none."""


def terms() -> set[str]:
    """The terms of the glossary: the first cells of its rows."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]+) \|", text, flags=re.M)
    return {term.strip(" `").lower() for cell in cells for term in cell.split(",")}


@pytest.fixture
def headings(monkeypatch) -> list[str]:
    """Headings of all columns that a command has, empty ones included, and names of values, as they are printed."""
    import rich.table

    found: list[str] = []
    shown, add_row = output._shown, rich.table.Table.add_row

    def columns_of(rows, columns):
        found.extend(key.replace("_", " ") for key in columns or rows[0])
        return shown(rows, columns)

    def row_of(table, *cells, **options):
        found.extend(str(cell) for cell in cells[:1] if not table.show_header)
        return add_row(table, *cells, **options)

    monkeypatch.setattr(output, "_shown", columns_of)
    monkeypatch.setattr(rich.table.Table, "add_row", row_of)
    return found


def test_every_heading_is_in_the_glossary(headings, nvdla_command, tmp_path, monkeypatch):
    for path in (ROOT / "samples").iterdir():
        if path.suffix in (".loadable", ".json", ".pgm", ".onnx", ".prototxt", ".caffemodel"):
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in RUNS:
        nvdla_command(*shlex.split(line))
    assert len(set(headings)) > 100
    assert {word for word in (*headings, *OPTIONAL) if word.lower() not in terms()} == set()  # installed here or not


def test_headings_on_pages_are_in_the_glossary():
    """The tables of commands that are not run here, as their pages show them."""
    for name in ("evaluate", "cycles", "faults"):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        found = re.findall(r"^ (\S.*)\n ─+$", text, flags=re.M)
        assert found, name
        words = {word.strip() for line in found for word in re.split(r"\s{2,}", line)}
        assert {word for word in words if word.lower() not in terms()} == set()


def test_every_command_is_looked_at():
    assert {line.split()[0] for line in RUNS} | ELSEWHERE == set(COMMANDS)
