"""Names from files within generated files: every language reads them back as data, and compiled C runs none of them."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import nvdla
from nvdla.cli.main import main
from nvdla.errors import NvdlaError
from nvdla.experiments import exploration as exploration_page
from nvdla.experiments.evaluation import table as evaluation_page
from nvdla.experiments.vulnerability import summary as vulnerability_page
from nvdla.interop.containers.tvm import mlf_create, tar
from nvdla.registers.printers import printers
from nvdla.util import escaping
from nvdla.util.escaping import text as notebook_text

ROOT = Path(__file__).resolve().parents[2]
LENET = ROOT / "samples" / "lenet.loadable"
PRINTABLE = "".join(map(chr, range(32, 127))) + "äß漢🦀"
INJECTION = (
    'data", 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0.0f}}; extern int system(char const []); '
    '__attribute__((constructor)) static void pwn(void) { (void)system("touch PWNED"); } '
    "static const nvdla_tensor hidden_unused[] = {{"
)
PAYLOADS = {
    "every printable character": PRINTABLE,
    "C table": INJECTION,
    "C comment": '*/ int pwn; /* ??/ ??/" \\',
    "C escapes": "\\n\\x41\\u0041?" + "?=1\\07" + "7%s%n",
    "markup": "</text></title></svg><script>pwn()</script><img src=x onerror='pwn()'>\"><!-- ]]> &amp; &#60;",
    "DOT": '\\"]; pwn [label="\\N\\G <b>x</b>\\',
    "YAML": "!!python/object/apply:os.system ['touch PWNED'] # - {a: &b *b}: |",
    "make and shell": "$(shell touch PWNED) `touch PWNED` %: ; touch PWNED .include \"x\" =HYPERLINK('x')",
}


@pytest.fixture(params=PAYLOADS)
def hostile(request, tmp_path):
    """A loadable whose tensors and layers have a hostile name: (its path, the name)."""
    return written(tmp_path, PAYLOADS[request.param]), PAYLOADS[request.param]


def written(folder: Path, name: str) -> Path:
    loadable = nvdla.load(LENET)
    path = folder / "net.loadable"
    tensors = tuple(replace(each, name=f"{name}{at or ''}") for at, each in enumerate(loadable.tensors))
    path.write_bytes(replace(loadable, tensors=tensors).to_bytes())
    layers = json.loads(LENET.with_name("lenet.loadable.layers.json").read_text())
    for task in layers["tasks"]:
        for operation in task["operations"]:
            operation["layer"] = name + operation["layer"]
    Path(f"{path}.layers.json").write_text(json.dumps(layers | {"tensors": {}}))
    return path


def output_of(capsys, *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def plain_path(tmp_path: Path) -> Path:
    (tmp_path / "plain").mkdir()
    return written(tmp_path / "plain", "x")


PRINT_NAMES = """
#include <stdio.h>
#include "net.h"
int main(void) {
    uint32_t at;
    for (at = 0; at < net.input_count; at++) puts(net.inputs[at].name);
    for (at = 0; at < net.output_count; at++) puts(net.outputs[at].name);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_exported_c_has_names_as_data(hostile, tmp_path, capsys):
    """The program prints the names, byte for byte, and nothing of them runs before."""
    path, name = hostile
    folder = tmp_path / "c"
    output_of(capsys, "program", path, "--format", "c", "-o", folder)
    (folder / "names.c").write_text(PRINT_NAMES)
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    sources = [each.name for each in folder.glob("*.c")]
    subprocess.run(["gcc", *warnings, *sources], cwd=folder, check=True, capture_output=True, text=True)
    subprocess.run(["gcc", "-std=c99", "names.c", "net.c", "-o", "names"], cwd=folder, check=True, capture_output=True)
    printed = subprocess.run(["./names"], cwd=folder, check=True, capture_output=True).stdout.decode()
    assert not (folder / "PWNED").exists()
    tensors = nvdla.load(path)
    wanted = [tensors.tensor(each.tensor_desc_id).name for each in (*tensors.inputs, *tensors.outputs)]
    assert printed.split("\n")[:-1] == wanted
    assert name in printed


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_c_of_a_model_library_has_names_as_data(hostile, tmp_path):
    path, name = hostile
    for member in tar.read(mlf_create.pack([("net", nvdla.load(path))], when=0)).members:
        if member.kind == "file":
            place = tmp_path / "library" / member.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(member.data))
    code = tmp_path / "library" / "codegen" / "host"
    words = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", "include", "-S", "-o", "-", "src/net_lib1.c"]
    assembly = subprocess.run(words, cwd=code, check=True, capture_output=True, text=True).stdout
    assert "pwn" not in re.findall(r"^\s*\.(?:globl|type)\s+(\w+)", assembly, re.M)
    assert ".init_array" not in assembly and ".ctors" not in assembly
    bound = [
        row["name"] for row in json.loads((code.parents[1] / "executor-config/nvdla/net.json").read_text())["inputs"]
    ]
    assert bound[0].startswith(name)
    signature = (code.parents[1] / "src" / "net.relay").read_text()
    assert re.fullmatch(r"/\* [^*/]* \*/\ndef @main\((%\w+: Tensor\[\(\d+\), uint8\](, )?)*\) -> [^;]*;\n", signature)


@pytest.mark.parametrize("form", sorted(set(printers()) - {"c", "json"}))
def test_no_other_form_of_a_program_contains_a_name(form, tmp_path, capsys):
    """Files are equal, byte for byte, whatever tensors and layers are called."""
    found = []
    for kind, name in (("a", "x"), ("b", INJECTION)):
        (tmp_path / kind).mkdir()
        output_of(capsys, "program", written(tmp_path / kind, name), "--format", form, "-o", tmp_path / kind / "out")
        found.append({each.name: each.read_bytes() for each in (tmp_path / kind / "out").iterdir()})
    assert found[0] == found[1]


def test_json_of_every_command_parses_back(hostile, tmp_path, capsys):
    path, name = hostile
    output_of(capsys, "program", path, "--format", "json", "-o", tmp_path / "p")
    assert json.loads((tmp_path / "p" / "net.json").read_text())["inputs"][0]["name"].startswith(name)
    for words in (["graph", path, "-o", tmp_path / "g.json"], ["timeline", path, "-o", tmp_path / "t.json"]):
        output_of(capsys, *words)
        text = words[-1].read_text()
        assert text.isascii() and name in json.dumps(json.loads(text), ensure_ascii=False).replace(
            "\\\\", "\\"
        ).replace('\\"', '"')
    for words in (["inspect", path, "--all"], ["memory", path], ["layers", path], ["lint", path], ["cycles", path]):
        json.loads(output_of(capsys, *words, "--json"))
    output_of(capsys, "export", path, "--node-data", tmp_path / "n")
    for file in (tmp_path / "n").iterdir():
        json.loads(file.read_text())


def test_yaml_and_csv_parse_back(hostile, capsys):
    import yaml

    path, name = hostile
    as_json = json.loads(output_of(capsys, "inspect", path, "--all", "--json"))
    assert yaml.safe_load(output_of(capsys, "inspect", path, "--all", "--yaml")) == as_json
    rows = list(csv.DictReader(io.StringIO(output_of(capsys, "inspect", path, "--tensors", "--csv"))))
    assert {row["name"] for row in rows} == {row["name"] for row in as_json["tensors"]}
    assert any(row["name"].startswith(name) for row in rows)


def test_dot_has_names_in_strings_alone(hostile, tmp_path, capsys):
    """With its strings taken out, the text is that of a network with harmless names."""
    shapes = []
    for path in (hostile[0], plain_path(tmp_path)):
        text = output_of(capsys, "graph", path)
        assert not any(ord(each) < 32 for each in text.replace("\n", ""))
        shapes.append(re.sub(r'"(?:\\.|[^"\\])*"', '""', text))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "words", [["graph", "-o"], ["timeline", "-o"], ["memory", "--svg"], ["explain", "--svg"]], ids=str
)
def test_drawings_are_xml_of_the_same_elements(hostile, words, tmp_path, capsys):
    found = []
    for number, path in enumerate((hostile[0], plain_path(tmp_path))):
        target = tmp_path / f"{number}.svg"
        output_of(capsys, words[0], path, *words[1:], target)
        root = ElementTree.fromstring(target.read_text())
        found.append([(each.tag, sorted(each.attrib)) for each in root.iter()])
    assert {tag for tag, _ in found[0]} == {tag for tag, _ in found[1]}
    assert {(tag, *keys) for tag, keys in found[0]} == {(tag, *keys) for tag, keys in found[1]}


class Page(HTMLParser):
    """The elements of a page with their attributes' names, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[tuple[str, ...]] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.add((tag, *sorted(key for key, _ in attrs)))
        self.texts += [value or "" for _, value in attrs]

    def handle_data(self, data):
        self.texts.append(data)


def evaluated(name: str) -> dict:
    share = {"value": 0.5, "standard_error": 0.1, "low": 0.1, "high": 0.9}
    classes = [{"class": at, "name": f"{name}{at}", "samples": 2, "precision": share, "recall": share} for at in (0, 1)]
    confusion = [{"label": 0, "found": 1, "count": 2}]
    problems = [{"id": name, "error": name}]
    return {"samples": 4, "damaged": 1, "top1": share, "classes": classes, "confusion": confusion, "problems": problems}


def faulty(name: str) -> dict:
    share = {"value": 0.5, "low": 0.1, "high": 0.9}
    outcomes = dict.fromkeys(vulnerability_page.OUTCOMES, 1)
    row = {"faults": 6, "outcomes": outcomes, "sdc1": share, "stopped": share}
    groups = {f"by_{group}": [{group: name, **row}] for group in vulnerability_page.GROUPS}
    cells = [{"layer": name, "bit": 3, **row}, {"layer": name, "bit": None, **row}]
    return {
        "all": row,
        "cells": cells,
        **groups,
        "problems": [{"fault": name, "error": name}],
        "not_tried": 1,
        "confidence": 0.95,
    }


@cache
def explored_point() -> dict:
    table = exploration_page.Exploration(str(LENET), [exploration_page.Point("auto")])
    (point,) = table.open()(list(table.tasks()))
    return point


def explored(name: str) -> list[dict]:
    point = explored_point() | {"config": name, "deadlock": name, "host_nodes": 2, "host_macs_percent": 5.0}
    return [
        point,
        point | {"mac_units": 16, "frames_per_second": 2.0},
        {"config": name, "precision": "x", "error": name},
    ]


PAGES = {
    "evaluation": lambda name: evaluation_page.page({"summary": evaluated(name)}, name),
    "vulnerability": lambda name: vulnerability_page.page({"summary": faulty(name)}, name),
    "exploration": lambda name: exploration_page.page({"points": explored(name)}, name),
    "notebook": lambda name: f"<p title='{notebook_text(name)}'>{notebook_text(name)}</p>",
}


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("name", [*PAYLOADS.values(), "\x00\x1b[2J\ud800\u202e"], ids=[*PAYLOADS, "control characters"])
def test_pages_have_names_as_text(kind, name):
    shown, harmless = Page(PAGES[kind](name)), Page(PAGES[kind]("x"))
    assert shown.elements == harmless.elements
    if name.isprintable():
        assert any(name in text for text in shown.texts)
    else:
        assert not any(each in "".join(shown.texts) for each in "\x00\x1b\ud800\u202e")


def test_the_report_has_names_as_text(hostile, tmp_path, capsys):
    pages = []
    for number, path in enumerate((hostile[0], plain_path(tmp_path))):
        output_of(capsys, "report", path, "-o", tmp_path / f"{number}.html")
        pages.append(Page((tmp_path / f"{number}.html").read_text()))
    assert pages[0].elements == pages[1].elements


@pytest.mark.parametrize("name", [*PAYLOADS.values(), "\x00\r\n\ud800"], ids=[*PAYLOADS, "control characters"])
def test_each_language_reads_back_what_was_escaped(name):
    """Against independent readers: Python's own literals are C's here, and XML's parser."""
    literal = escaping.c_string(name)
    assert literal.isascii() and literal.isprintable() and "??" not in literal
    octal = re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), literal[1:-1].encode())
    assert octal == name.encode("utf-8", "replace")
    assert not re.search(r'(?<!\\)["\n\r]', literal[1:-1])
    comment = escaping.c_comment(name)
    assert comment.isascii() and comment.isprintable() and not set(comment) & set("*/\\")
    identifier = escaping.c_identifier(name)
    assert identifier.isascii() and identifier.isidentifier()
    element = f"<a b={escaping.xml_attribute(name)} c='{escaping.xml_text(name)}'>{escaping.xml_text(name)}</a>"
    root = ElementTree.fromstring(element)
    wanted = escaping.clean(name)
    assert root.attrib["b"] == wanted
    assert root.text == wanted.replace("\r\n", "\n").replace("\r", "\n")
    assert json.loads(escaping.json_text({name: [name, float("nan")]})) == {name: [name, None]}


def test_only_one_module_escapes():
    """A second function for a language would be one that a defect of the first is not corrected in."""
    known = re.compile(r"^\s*(from|import) (html|xml\.sax\.saxutils)\b", re.M)
    found = [path.name for path in (ROOT / "nvdla").rglob("*.py") if known.search(path.read_text(encoding="utf-8"))]
    assert found == ["escaping.py"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize(
    "name", ["int", "main", "7 nets", "nvdla", "network", "data", "reg_write", "steps2", "nvdla_net"]
)
def test_a_file_of_any_name_exports_c_that_compiles(name, tmp_path, capsys):
    path = tmp_path / f"{name}.loadable"
    shutil.copy(LENET, path)
    output_of(capsys, "program", path, "-o", tmp_path / "c")
    words = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    for source in (tmp_path / "c").glob("*.c"):
        subprocess.run([*words, source.name], cwd=tmp_path / "c", check=True, capture_output=True, text=True)


@pytest.mark.parametrize(
    "name", ["steps", "inputs", "segment_0", "program", "nvdla_runner", "nvdla_run", "nvdla_device", "uint8_t", "int"]
)
def test_a_name_that_the_c_code_uses_itself_is_refused(name, tmp_path, capsys):
    assert main(["program", str(LENET), "--name", name, "-o", str(tmp_path / "c")]) == 2
    assert "--name" in capsys.readouterr().err
    assert not list((tmp_path / "c").glob("*"))


def test_the_name_of_a_configuration_ends_no_comment(tmp_path, capsys):
    """It comes from a YAML file."""
    from nvdla.emulator.hardware.configuration import configuration

    values = {key: getattr(configuration("nv_small"), key) for key in configuration("nv_small").__dataclass_fields__}
    values["precisions"] = [str(each) for each in values["precisions"]]
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items() if key != "name"]
    (tmp_path / "mine.yaml").write_text("\n".join(["name: '*/ int pwn; /*'", *lines]))
    try:
        configuration(str(tmp_path / "mine.yaml"))
    except NvdlaError as error:
        pytest.fail(str(error))
    output_of(capsys, "program", LENET, "--config", tmp_path / "mine.yaml", "-o", tmp_path / "c")
    assert "*/ int pwn" not in (tmp_path / "c" / "lenet.h").read_text()
