"""The pages show what the tools print: every console block is run again, in the folder that ``nvdla samples`` writes.

``NVDLA_UPDATE_DOCS=1 pytest tests/cli/test_documented_output.py`` writes the blocks anew. A block that is not run has
its reason in front of it: ``<!-- not run: WHY -->``. ``| head -N`` and ``| tail -N``
after a command cut its output.
Excerpts of files that the commands make are made anew, too (``<!-- excerpt: FILE 1-3 9 -->``), and a block may be a
file that commands read (``<!-- file: NAME -->``).
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.pages import WIDTH, wrapped

from nvdla.cli import samples

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ("README", "troubleshooting")
"""Pages whose blocks tests/test_documentation.py runs: they show parts of the output."""
CONSOLE = re.compile(r"(?:<!-- not run: ([^>]+) -->\n)?```console\n(.*?)```", flags=re.S)
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?```console\n(?P<console>.*?)```"
    r"|<!-- (?P<what>file|excerpt): (?P<where>.*?) -->\n```(?P<language>\w*)\n(?P<content>.*?)```",
    flags=re.S,
)
PAGES = sorted(
    path.stem
    for path in (ROOT / "docs").glob("*.md")
    if path.stem not in ELSEWHERE and any(not why for why, _ in CONSOLE.findall(path.read_text(encoding="utf-8")))
)
TEXT_OF_ERRORS = ("$ nvdla lint lenet.loadable --config nv_smal",)
UPDATE = bool(os.environ.get("NVDLA_UPDATE_DOCS"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as a reader has it."""
    samples.write(list(samples.CONTENTS), tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_what_is_printed(page, folder, nvdla_command, monkeypatch):
    path = ROOT / "docs" / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    if re.search(r"^\$ nvdla .*(--caffe|--onnx|\.onnx)", text, flags=re.M):
        pytest.importorskip("onnxruntime", reason="running a float model needs the extra nvdla[onnx]")
    if page == "report" and not shutil.which("dot"):
        pytest.skip("graphviz is not installed, so the report has no drawing (Debian: apt-get install graphviz)")
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def again(block):
        if block["what"]:
            return written_or_read(block["what"], block["where"], block["language"], block["content"])
        if block["reason"]:
            return block[0]
        shown = []
        for command in [line for line in block["console"].splitlines() if line.startswith("$ ")]:
            shown += [command, *printed(command, nvdla_command), ""]
        return "```console\n" + "\n".join(shown[:-1]) + "\n```"

    made = BLOCK.sub(again, text)
    if UPDATE:
        path.write_text(made, encoding="utf-8")
    assert settled(made) == settled(text) or UPDATE


def written_or_read(what, where, language, content):
    """A block that is a file for the commands behind it, or shows lines of one that the commands before it have made:
    ``excerpt: FILE 1-3 9``."""
    name, *ranges = where.split()
    if what == "file":
        Path(name).write_text(content, encoding="utf-8")
    else:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        parts = []
        for each in ranges:
            first, _, last = each.partition("-")
            parts.append("\n".join(shortened(line) for line in lines[int(first) - 1 : int(last or first)]))
        content = "\n...\n".join(parts) + "\n"
    return f"<!-- {what}: {where} -->\n```{language}\n{content}```"


def shortened(line):
    return line if len(line) <= WIDTH else line[: WIDTH - 4] + " ..."


def printed(command, nvdla_command):
    """The lines that a command of a page prints. Blank lines at the end do not count."""
    words = shlex.split(command)[1:]
    cut, count = "", 0
    if "|" in words:
        *words, _, cut, option = words
        assert cut in ("head", "tail"), command
        count = int(option.removeprefix("-"))
    code, out, err = nvdla_command(*words[1:])
    assert words[0] == "nvdla" and (code in (0, 1) or command in TEXT_OF_ERRORS), err
    lines = wrapped(out + err)
    while lines and not lines[-1]:
        lines.pop()
    return {"": lines, "head": [*lines[:count], "..."], "tail": ["...", *lines[-count:]]}[cut]


def test_every_block_is_run_or_has_a_reason():
    """Console blocks begin with a command; what is not run has a reason; no page is left out."""
    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        assert text.count("```console") == len(CONSOLE.findall(text)), path.name
        for reason, block in CONSOLE.findall(text):
            assert block.startswith("$ "), (path.name, block)
            assert not reason or len(reason) > 10, (path.name, block)
            assert reason or path.stem in (*PAGES, *ELSEWHERE), path.name


def settled(text):
    """Lines, without what depends on the machine or on the versions of others: times, the size of the report's
    pictures, seconds in the last column of a table, and the last digits of float models."""
    text = re.sub(r"(report\.html: )[\d,]+ bytes", r"\1N bytes", text)
    text = re.sub(r"in [\d.]+ ms", "in some ms", text)
    text = re.sub(r"\| \d+\.\d\d \|$", "| some |", text, flags=re.M)
    return [rounded(line) if " close " in line or "onnx" in text else line for line in text.splitlines()]


def rounded(line):
    return " ".join(
        f"{float(word):.2g}" if re.fullmatch(r"-?\d+\.\d+(e-\d+)?", word) else word for word in line.split()
    )
