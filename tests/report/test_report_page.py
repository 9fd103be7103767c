"""The report as a file: whole, self-contained, well-formed, and telling the truth about the loadable."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.analysis.graph import dot
from nvdla.analysis.study import Study
from nvdla.report import sections
from nvdla.report.html import Html, number, table, tag
from nvdla.report.pictures import feature_maps, histogram

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "samples").glob("*.loadable"))
VOID = {"br", "col", "img", "input", "meta", "link"}


class Checker(HTMLParser):
    """Every element that is opened is closed, in order; ids are unique."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.problems = [], set(), []

    def handle_starttag(self, name, attributes):
        found = dict(attributes).get("id")
        if found in self.ids:
            self.problems.append(f"id {found} twice")
        self.ids |= {found} - {None}
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.handle_starttag(name, attributes)
        if name not in VOID:
            self.open.pop()

    def handle_endtag(self, name):
        if not self.open or self.open.pop() != name:
            self.problems.append(f"</{name}> closes something else")


def problems_of(text):
    checker = Checker()
    checker.feed(text)
    return checker.problems + checker.open


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_report_is_well_formed_and_needs_nothing(make, path):
    text = make(nvdla.load(path), path).text
    assert problems_of(text) == []
    assert re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*\"", text) == []
    assert "@import" not in text
    assert "url(" not in text


def test_a_report_with_a_run_is_well_formed(page):
    text = page.read_text()
    assert problems_of(text) == []
    for word in ("conv1+relu1", "pool2", "prob", "Feature maps of", "Histogram of"):
        assert word in text


def test_the_operations_are_those_of_the_study(page, lenet_path):
    study = Study.of(nvdla.load(lenet_path))
    text = page.read_text()
    body = text[text.index('id="operations-table"') :].partition("</table>")[0]
    assert body.count("<tr>") == len(study.operations) + 1
    for node in study.operations:
        estimate = study.estimates[node.key]
        if estimate.macs:
            assert f'data-value="{estimate.macs}"' in body


def test_without_graphviz_the_graph_is_a_table(make, lenet_path, monkeypatch):
    monkeypatch.setattr(dot.shutil, "which", lambda name: None)
    monkeypatch.setattr(sections, "dot_program", dot.dot_program)
    report = make(nvdla.load(lenet_path), lenet_path)
    assert report.graph == "table"
    assert "graphviz (dot) is not installed" in report.text
    assert "on the fly" in report.text
    assert problems_of(report.text) == []


@pytest.mark.skipif(dot.dot_program() is None, reason="graphviz is not installed (Debian: apt-get install graphviz)")
def test_with_graphviz_the_graph_is_drawn(make, lenet_path):
    report = make(nvdla.load(lenet_path), lenet_path)
    assert report.graph == "drawing"
    assert "<!--" not in report.text


def test_text_is_escaped_and_markup_is_not():
    assert tag("b", "<i>&\"'") == "<b>&lt;i&gt;&amp;&quot;&#x27;</b>"
    assert tag("b", tag("i", "x")) == "<b><i>x</i></b>"
    assert tag("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'
    assert tag("b", "a\x00b\ud800") == "<b>a\ufffdb\ufffd</b>"
    assert isinstance(tag("p"), Html)


def test_tables_carry_their_numbers_for_sorting():
    text = table([{"a": 1234, "b": "x"}, {"a": ("0x10", 16), "b": None}], {"a": "A", "b": "B"}, "t")
    assert 'data-value="1234">1,234<' in text
    assert 'data-value="16">0x10<' in text
    assert problems_of(text) == []


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (0.5, "0.5"), (None, ""), (True, "yes"), ("x", "x")]
)
def test_numbers_are_for_people(value, text):
    assert number(value) == text


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 10, 1, 1), (1, 3000, 1, 1), (1, 3, 5, 7), (1, 40, 300, 200)])
def test_feature_maps_of_any_shape_are_small_pictures(shape):
    tensor = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor.reshape(-1)[0] = np.nan
    text = feature_maps(tensor, "x")
    width = int(re.search(r'width="(\d+)"', text)[1])
    assert 0 < width <= 8 * 65
    assert len(text) < 200_000


def test_a_histogram_says_its_counts():
    text = histogram([0, 5, 1], [0, 1, 2, 3], "x<y")
    assert "1 to 2: 5" in text
    assert "x&lt;y" in text
    assert problems_of(text) == []


def test_the_command_writes_the_page(nvdla_command, lenet_path, digit_path, tmp_path, as_documented):
    page = tmp_path / "r.html"
    code, out, err = nvdla_command("report", lenet_path, "-i", digit_path, "-o", page, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    as_documented(document)
    assert document["ran"] is True
    assert document["bytes"] == len(page.read_bytes())
    assert {"Overview", "Result", "Operations", "Memory", "Values", "Graph"} <= set(document["sections"])


def test_without_an_input_nothing_is_run(nvdla_command, lenet_path, tmp_path):
    document = json.loads(nvdla_command("report", lenet_path, "-o", tmp_path / "r.html", "--json")[1])
    assert document["ran"] is False
    assert "Values" not in document["sections"]


def test_a_loadable_that_cannot_run_is_reported_all_the_same(nvdla_command, lenet_path, digit_path, tmp_path):
    words = ("-i", digit_path, "--config", "nv_large", "-o", tmp_path / "r.html")
    code, out, _ = nvdla_command("report", lenet_path, *words)
    assert code == 1
    assert "It could not run" in out
    assert "It cannot run" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "r.pdf"), ".html"),
        (("-i", "nothing.pgm"), "nothing.pgm"),
        (("--labels", "nothing.txt"), "nothing.txt"),
        (("--config", "nv_smal"), "did you mean nv_small?"),
    ],
)
def test_bad_usage_is_one_line_and_writes_nothing(nvdla_command, lenet_path, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = nvdla_command("report", lenet_path, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
