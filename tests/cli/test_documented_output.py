"""The pages of the tools show what the tools print: every console block is run again.

``NVDLA_UPDATE_DOCS=1 pytest tests/cli/test_documented_output.py`` writes the blocks anew. Excerpts of files that the
commands make are made anew, too, and a block may be a file that commands read.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "compare", "csb", "cycles", "diff", "doctor", "evaluate", "explore", "graph", "layers", "layouts", "lint", "memory",
    "program-formats", "register-programs", "report", "tensor", "timeline"
)  # fmt: skip
BLOCK = re.compile(r"```console\n(?P<console>.*?)```|<!-- (file|excerpt): (.*?) -->\n```(\w*)\n(.*?)```", flags=re.S)
TEXT_OF_ERRORS = ("$ nvdla lint lenet.loadable --config nv_smal",)
UPDATE = bool(os.environ.get("NVDLA_UPDATE_DOCS"))


@pytest.fixture
def folder(tmp_path, monkeypatch, plant, plant_bytes):
    """A folder with the samples and the files that the pages speak of."""
    import nvdla

    for path in (ROOT / "samples").iterdir():
        if path.suffix in (".loadable", ".json", ".npz", ".pgm", ".txt", ".prototxt", ".caffemodel"):
            shutil.copy(path, tmp_path)
    lenet = nvdla.load(tmp_path / "lenet.loadable")
    plant_bytes(lenet, 3, "weight_data", flip_a_bit).save(tmp_path / "flipped.loadable")
    plant(lenet, shorten_a_shift).save(tmp_path / "saturating.loadable")
    for name in ("flipped", "saturating"):
        shutil.copy(tmp_path / "lenet.loadable.layers.json", tmp_path / f"{name}.loadable.layers.json")
    runtime = nvdla.Runtime(lenet)
    write_goldens(runtime, tmp_path)
    surface = runtime.surfaces(str(tmp_path / "digit7.pgm"))
    (tmp_path / "prob.bin").write_bytes(runtime.run_raw(surface)[0])
    np.save(tmp_path / "input.npy", runtime.inputs[0].layout.unpack(np.frombuffer(surface[0], np.uint8)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flip_a_bit(weights):
    weights[32] ^= 0x40


def shorten_a_shift(task):
    task.operation(9).op.out_cvt.truncate -= 6


def write_goldens(runtime, folder):
    """What every operation of a run on digit3.pgm wrote, and its output, as ``nvdla run --dump-ops`` writes them."""
    (folder / "golden").mkdir()

    def keep(event):
        if event.destination is not None:
            name = f"task{event.task}-op{event.index:04d}-{event.engine}.bin"
            (folder / "golden" / name).write_bytes(event.destination.tobytes())

    outputs = runtime.unpack(runtime.run_raw(runtime.surfaces(str(folder / "digit3.pgm")), keep))
    np.save(folder / "golden" / "prob.npy", outputs["prob"])


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_what_is_printed(page, folder, nvdla_command):
    if "--caffe" in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"):
        pytest.importorskip("onnxruntime", reason="comparing with a Caffe network needs the extra nvdla[onnx]")
    if page == "report" and not shutil.which("dot"):
        pytest.skip("graphviz is not installed, so the report has no drawing (Debian: apt-get install graphviz)")
    path = ROOT / "docs" / f"{page}.md"
    text = path.read_text(encoding="utf-8")

    def again(block):
        if block["console"] is None:
            return written_or_read(*block.groups()[1:])
        commands = [line for line in block["console"].splitlines() if line.startswith("$ nvdla ")]
        assert commands
        shown = []
        for command in commands:
            code, out, err = nvdla_command(*shlex.split(command)[2:])
            assert code in (0, 1) or command in TEXT_OF_ERRORS, err
            lines = [line.rstrip() for line in (out + err).splitlines()]
            while lines and not lines[-1]:
                lines.pop()
            shown += [command, *lines, ""]
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


def shortened(line, limit=110):
    return line if len(line) <= limit else line[: limit - 4] + " ..."


def settled(text):
    """Lines, without what depends on the versions of others: the size of the report's pictures, and the last digits of
    float models."""
    text = re.sub(r"(report\.html: )[\d,]+ bytes", r"\1N bytes", text)
    return [rounded(line) if " close " in line else line for line in text.splitlines()]


def rounded(line):
    return " ".join(f"{float(word):.3g}" if re.fullmatch(r"\d+\.\d+(e-\d+)?", word) else word for word in line.split())
