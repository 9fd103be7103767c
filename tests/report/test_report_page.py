"""The page as a file: whole, self-contained, small, and telling the truth about the loadable."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import nvdla
from nvdla.analysis.cycles.document import chain_cycles
from nvdla.analysis.explain import explanations
from nvdla.analysis.layer_forms import with_advice
from nvdla.analysis.study import Study
from nvdla.analysis.views import blocks, subgraphs
from nvdla.loadable.descriptors.fields import fields
from nvdla.program.naming import Names, StoredPlace
from nvdla.report.document import (
    MAX_CHANNELS,
    Pictures,
    examine_and_run,
    histogram,
    make_side,
    register_writes,
    thinned,
)
from nvdla.report.page import Data, html_page, pairs

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "samples").glob("*.loadable"))
VOID = {"meta", "link"}


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

    def handle_endtag(self, name):
        if not self.open or self.open.pop() != name:
            self.problems.append(f"</{name}> closes something else")


def problems_of(text):
    checker = Checker()
    checker.feed(text)
    return checker.problems + checker.open


def unpacked(text, name):
    """What lies in the page, as it is taken out by the page's script."""
    data = zlib.decompress(base64.b64decode(re.search(f'<div id="{name}" hidden>([^<]*)</div>', text)[1]))
    return json.loads(data) if name == "document" else data


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_page_is_well_formed_and_needs_nothing(side, path):
    text = html_page(Data.of([side(nvdla.load(path), path)]))
    assert problems_of(text) == []
    outside = re.sub(r"<script>.*</script>", "", text, flags=re.S)
    assert re.findall(r"(?:src|href)=", outside) == []
    for word in ("@import", "url("):
        assert word not in text
    assert set(re.findall(r"https?://[^\s\"']*", text)) <= {"http://www.w3.org/2000/svg"}
    assert "connect-src" not in text


def test_the_page_holds_its_data_whole(page, lenet_data):
    text = page.read_text(encoding="utf-8")
    assert unpacked(text, "elements") == lenet_data.elements
    document = unpacked(text, "document")
    assert [row["label"] for row in document["sides"][0]["operations"]] == [
        *(f"0/{number}" for number in range(12)), "1/0"
    ]  # fmt: skip


def test_operations_are_those_of_the_study(lenet_data, lenet_path):
    study = Study.of(nvdla.load(lenet_path))
    rows = lenet_data.document["sides"][0]["operations"]
    for node, row in zip(study.operations, rows, strict=True):
        estimate = study.estimates[node.key]
        assert (row["macs"], row["cycles"], row["what"]) == (estimate.macs, chain_cycles(study, node), node.what)


def test_register_writes_are_those_of_a_run(lenet_path, digit_path):
    """What going through the motions writes equals what a run writes, operation by operation."""
    runtime = nvdla.Runtime(lenet_path)
    log = []
    runtime.run_raw(runtime.surfaces(str(digit_path)), csb_log=log)
    writes, problem = register_writes(Study.of(nvdla.load(lenet_path)).program)
    assert problem is None
    wanted, mine = {}, None
    for what, *rest in log:
        if what in ("program", "enable"):
            mine = wanted.setdefault((0, 0, rest[0]), [])
        elif what == "W" and mine is not None:
            mine.append(tuple(rest))
        elif what != "W":
            mine = None
    assert {key: [entry[:2] for entry in each] for key, each in writes.items()} == wanted


@pytest.mark.parametrize("runs", [True, False])
def test_a_run_does_not_change_the_register_writes_of_the_page(runs, lenet_path, digit_path):
    """The firmware counts dependencies down in memory, as a dry run does; the page shows the writes of a run from the
    beginning."""
    study = Study.of(nvdla.load(lenet_path))
    inputs = (lambda runtime: [runtime.surfaces(str(digit_path))]) if runs else None
    _, _, linked = examine_and_run(study, Names(), inputs)
    writes, problem = register_writes(study.program, linked)
    assert problem is None
    assert writes == register_writes(study.program)[0]


def test_every_field_of_a_descriptor_is_explained():
    for path in SAMPLES:
        for node in Study.of(nvdla.load(path)).operations:
            for structure in (node.op, node.surface, node.common) if node.type is not None else ():
                assert [each.name for each in fields(structure) if not each.reserved and not each.explanation] == []


def test_tensors_of_the_run_are_in_the_page(lenet_data, lenet_path, digit_path):
    """Elements in the page's block are those that the run wrote."""
    seen = {}

    def kept(event):
        return {} if event.destination is None else {event.index: event.destination.copy()}

    runtime = nvdla.Runtime(lenet_path)
    runtime.run(str(digit_path), on_operation=lambda event: seen.update(kept(event)))
    side = lenet_data.document["sides"][0]
    row = side["tensors"][side["run"]["wrote"][2]]  # pool1, 6 channels of 12 x 12
    elements = np.frombuffer(lenet_data.elements, np.int8, 6 * 12 * 12, row["offset"]).reshape(6, 12, 12)
    surface = seen[2].view(np.int8)
    assert (elements == np.moveaxis(surface[0], -1, 0)[:6]).all()
    assert (row["shape"], row["shown"], row["stride"]) == ([6, 12, 12], [6, 12, 12], 1)
    assert row["max"] == elements.max()
    assert sum(row["histogram"]["counts"]) == elements.size


@pytest.mark.parametrize("shape", [(1, 1, 1), (10, 1, 1), (3000, 1, 1), (3, 5, 7), (40, 300, 200), (2048, 7, 7)])
@pytest.mark.parametrize("room", [64, 5000])
def test_tensors_of_any_shape_fit_their_room(shape, room):
    cube = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    shown, step = thinned(cube, room)
    assert 0 < shown.nbytes <= room
    assert shown.shape[0] <= (max(MAX_CHANNELS, shape[0]) if shape[1:] == (1, 1) else MAX_CHANNELS)
    assert (shown == cube[: len(shown), ::step, ::step]).all()


def test_all_tensors_together_fit_the_page():
    pictures = Pictures(size=10_000)
    for number in range(50):
        pictures.add(np.full((1, 16, 60, 60), number, np.int8))
    assert len(pictures.close()) <= 10_000


def test_numbers_that_are_no_numbers_are_counted_apart():
    pictures = Pictures()
    pictures.add(np.array([np.nan, np.inf, 1, -2], np.float16).reshape(1, 1, 2, 2))
    row = pictures.rows[0]
    assert (row["min"], row["max"], row["special"]) == (-2.0, 1.0, 2)
    assert "NaN" not in json.dumps(row)


def test_bins_of_integers_are_whole_numbers():
    found = histogram(np.array([-3, -3, 0, 5], np.int8), -3.0, 5.0)
    assert found["counts"] == [2, 0, 0, 1, 0, 0, 0, 0, 1]
    assert histogram(np.array([7, 7], np.int8), 7.0, 7.0)["counts"] == [2]


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (["res2a_1", "res2a_2+relu", "res2b_1", "res2b_2"], ["res2a", "res2a", "res2b", "res2b"]),
        (["model.0.conv", "model.0.bn", "model.1.conv"], ["model.0", "model.0", None]),
        (["conv1", "conv2", None], [None, None, None]),
        (["/l1/a", "/l1/b", "/l2/a", "/l2/b", "fc"], ["/l1", "/l1", "/l2", "/l2", None]),
        (["m_1/a_1/x;y", "m_1/a_2/x", "m_1/b_1/x", "m_1/b_2/x", "out"], ["m_1/a", "m_1/a", "m_1/b", "m_1/b", None]),
        (["big"] * 5 + ["small"], ["big"] * 5 + [None]),
        (
            [f"m/conv_{kind}_{number}/x" for number in range(4) for kind in ("dw", "pw")] + ["m/mean/x", "fc"],
            ["m/conv_dw", "m/conv_pw"] * 4 + [None, None],
        ),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_blocks_come_from_the_beginnings_of_names(layers, found):
    assert blocks(layers) == found


def test_parts_of_a_block_that_share_no_data_are_subgraphs_of_their_own(lenet_path):
    """An activation that is used twice encloses nothing of what is between."""

    def found(layer_of):
        layers = {(0, index): layer_of(index) for index in range(12)}
        study = Study.of(nvdla.load(lenet_path), layers=layers)
        return subgraphs(study.program, study.values)[:12]

    assert found(lambda index: f"hs_{index // 2}" if index not in (6, 7) else "ip1") == (
        ["hs"] * 6 + [None] * 2 + ["hs (2)"] * 4
    )
    assert found(lambda index: f"hs_{index // 3}" if index < 3 or index > 9 else f"{index}") == [None] * 12


def test_the_command_writes_the_page(nvdla_command, lenet_path, digit_path, tmp_path, as_documented):
    page = tmp_path / "r.html"
    code, out, err = nvdla_command("report", lenet_path, "-i", digit_path, "-o", page, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    as_documented(document)
    assert document["ran"] is True
    assert document["bytes"] == len(page.read_bytes())
    assert {"Graph", "Overview", "Operations", "Memory", "Values"} <= set(document["sections"])


def test_the_page_has_every_table_of_the_file(nvdla_command, lenet_path, tmp_path):
    nvdla_command("report", lenet_path, "-o", tmp_path / "r.html")
    (side,) = unpacked((tmp_path / "r.html").read_text(), "document")["sides"]
    document = json.loads(nvdla_command("inspect", lenet_path, "--all", "--json")[1])
    names = {"tasks", "submits", "events", "memory", "addresses", "blobs", "tensors", "relocs"}
    assert side["tables"] == {name: document[name] for name in names}


def test_without_an_input_nothing_is_run(nvdla_command, lenet_path, tmp_path):
    document = json.loads(nvdla_command("report", lenet_path, "-o", tmp_path / "r.html", "--json")[1])
    assert document["ran"] is False
    assert "Values" not in document["sections"]


def test_the_page_states_board_memory_and_firmware(nvdla_command, lenet_path, tmp_path):
    nvdla_command("report", lenet_path, "--board", "zcu102-150mhz", "--latency", "60", "-o", tmp_path / "r.html")
    (side,) = unpacked((tmp_path / "r.html").read_text(), "document")["sides"]
    firmware = "firmware 80 us, 50 cycles per register write (board zcu102-150mhz; latency overridden)"
    assert f"memory: latency 60 cycles, 8 bytes per cycle; {firmware}." in side["notes"]


def test_the_overview_states_the_carve_out_to_reserve(nvdla_command, lenet_path, lenet_data):
    (space,) = json.loads(nvdla_command("memory", lenet_path, "--json")[1])["spaces"]
    figures = lenet_data.document["sides"][0]["figures"]
    assert ["bytes of carve-out to reserve", f"{space['carve_out']:,}"] in figures


def test_bandwidth_beyond_the_memory_interface_is_stated_with_what_the_interface_takes(
    nvdla_command, lenet_path, tmp_path
):
    nvdla_command("report", lenet_path, "--bandwidth", "16", "-o", tmp_path / "r.html")
    (side,) = unpacked((tmp_path / "r.html").read_text(), "document")["sides"]
    assert any("16 bytes per cycle (the memory interface of nv_small takes 8)" in note for note in side["notes"])
    assert side["roof"]["bytes"] == 8 and side["memory"]["offered"] == 16


def test_a_loadable_that_cannot_run_is_reported_all_the_same(nvdla_command, lenet_path, digit_path, tmp_path):
    words = ("-i", digit_path, "--config", "nv_large", "-o", tmp_path / "r.html")
    code, out, _ = nvdla_command("report", lenet_path, *words)
    assert code == 1
    assert "It could not run" in out
    assert unpacked((tmp_path / "r.html").read_text(), "document")["sides"][0]["run"]["error"]


def test_two_loadables_and_two_runs_stand_side_by_side(nvdla_command, lenet_path, digit_path, tmp_path):
    half = lenet_path.with_name("lenet_nv_full_fp16.loadable")
    other = ("--other-input", digit_path.with_name("digit3.pgm"))
    for words, equal in (((half,), False), (other, False), (("--other-config", "auto"), True)):
        page = tmp_path / "r.html"
        code, out, _ = nvdla_command("report", lenet_path, *words, "-i", digit_path, "-o", page, "--json")
        assert code == 0
        assert "Compare" in json.loads(out)["sections"]
        found = unpacked(page.read_text(), "document")
        titles, partners = [side["title"] for side in found["sides"]], found["pairs"]
        if words == other:
            assert titles == [f"lenet.loadable on nv_small, digit{number}.pgm" for number in (7, 3)]
        assert [pair["left"] for pair in partners] == list(range(13))
        differences = [pair["equal"] for pair in partners if "equal" in pair]
        assert len(differences) == 5
        assert (min(differences) == 1.0) is equal


def test_layers_of_both_sides_are_compared_as_a_whole(tmp_path, nvdla_command):
    """Level 0 computes a sum in an operation of its own, level 1 with its convolution, which it divides into rows."""
    pytest.importorskip("onnx")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(16, 16, 3, 3)).astype("f4") for name in "uv"}
    nodes = [node("Conv", "x u", "a", pads=[1] * 4), node("Conv", "a v", "b", pads=[1] * 4), node("Add", "b a", "c")]
    network = model([*nodes, node("Relu", "c", "y")], {"x": (1, 16, 32, 32)}, {"y": (1, 16, 32, 32)}, weights)
    data = rng.normal(size=(4, 16, 32, 32)).astype("f4")
    paths = [tmp_path / f"{level}.nvdla" for level in (0, 1)]
    for level, path in enumerate(paths):
        nvdla.compile(network, calibration=data, level=level).save(path)
    assert nvdla_command("report", *paths, "-o", tmp_path / "r.html")[0] == 0
    found = unpacked((tmp_path / "r.html").read_text(), "document")
    sums = {}
    for row in found["layers"]:
        sides = zip(("left", "right"), found["sides"], strict=True)
        sums[row["name"]] = [
            sum(side["operations"][at]["cycles"] or 0 for at in row[key] if side["operations"][at]["leads"])
            for key, side in sides
        ]
    assert set(sums) == {"a", "b+c+y"}
    for number, path in enumerate(paths):
        rows = nvdla.load(path).cycles()
        assert sum(row["cycles"] or 0 for row in rows) == sum(pair[number] for pair in sums.values())


def test_layers_with_other_names_are_compared_as_their_operations_are(samples, tmp_path, nvdla_command):
    """Files of one model from two exporters: the operations agree, the names do not."""
    left, right = tmp_path / "a.loadable", tmp_path / "b.loadable"
    for path in (left, right):
        path.write_bytes((samples / "lenet.loadable").read_bytes())
    names = json.loads((samples / "lenet.loadable.layers.json").read_text())
    (tmp_path / "a.loadable.layers.json").write_text(json.dumps(names))
    for operation in names["tasks"][0]["operations"]:
        operation["layer"] = "+".join(f"{part}/other" for part in operation["layer"].split("+"))
    (tmp_path / "b.loadable.layers.json").write_text(json.dumps(names))
    assert nvdla_command("report", left, right, "-o", tmp_path / "r.html")[0] == 0
    document = unpacked((tmp_path / "r.html").read_text(), "document")
    assert [row["name"] for row in document["layers"]][:2] == ["conv1+relu1", "pool1"]
    assert all(row["left"] == row["right"] for row in document["layers"])
    assert sum(len(row["left"]) for row in document["layers"]) == len(document["pairs"])


def test_an_index_has_the_cycles_of_its_pages(lenet_path, tmp_path, nvdla_command):
    words = ["report", lenet_path.parent, "-o", tmp_path / "pages", "--latency", 400, "--bandwidth", 1, "--json"]
    row = next(row for row in json.loads(nvdla_command(*words)[1])["loadables"] if row["name"] == lenet_path.name)
    page = unpacked((tmp_path / "pages" / row["page"]).read_text(), "document")
    assert (
        row["cycles"]
        == page["sides"][0]["total"]
        == nvdla.load(lenet_path).cycles(latency=400, bandwidth=1).document["total_cycles"]
    )


def test_pairs_have_the_snr_that_compare_prints(nvdla_command, lenet_path, digit_path, tmp_path):
    half = lenet_path.with_name("lenet_nv_full_fp16.loadable")
    assert nvdla_command("report", lenet_path, half, "-i", digit_path, "-o", tmp_path / "r.html")[0] == 0
    pairs = unpacked((tmp_path / "r.html").read_text(), "document")["pairs"]
    rows = nvdla.load(lenet_path).compare(half, digit_path)
    expected = {row["operation"]: row["snr_db"] for row in rows if row["kind"] == "operation"}
    assert {pair["left"]: pair["snr"] for pair in pairs if pair.get("snr")} == pytest.approx(expected, rel=1e-6)


def test_two_files_of_one_name_get_different_titles(nvdla_command, lenet_path, tmp_path):
    paths = [tmp_path / each / "net.nvdla" for each in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(lenet_path.read_bytes())
    assert nvdla_command("report", *paths, "-o", tmp_path / "r.html")[0] == 0
    found = unpacked((tmp_path / "r.html").read_text(), "document")["sides"]
    assert [side["title"] for side in found] == [f"net.nvdla on nv_small ({path})" for path in paths]


def test_a_folder_becomes_pages_and_an_index(nvdla_command, lenet_path, tmp_path, as_documented):
    folder = tmp_path / "nets"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.nvdla").write_bytes(lenet_path.read_bytes())
    (folder / "broken.nvdla").write_bytes(b"no loadable")
    code, out, _ = nvdla_command("report", folder, "-o", tmp_path / "pages", "--json")
    document = json.loads(out)
    assert code == 0
    as_documented(document)
    broken, good = document["loadables"]
    assert broken["error"]
    assert broken["page"] is None
    assert good["page"] == "deep__a.nvdla.html"
    assert (tmp_path / "pages" / good["page"]).is_file()
    assert unpacked((tmp_path / "pages" / "index.html").read_text(), "document")["rows"] == document["loadables"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "r.pdf"), ".html"),
        (("-i", "nothing.pgm"), "nothing.pgm"),
        (("--class-names", "nothing.txt"), "nothing.txt"),
        (("--config", "nv_smal"), "did you mean nv_small?"),
        (("--clock", "0"), "clock: must be"),
    ],
)
def test_what_cannot_be_is_one_line_and_no_file(nvdla_command, lenet_path, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = nvdla_command("report", lenet_path, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_convolutions_show_what_would_help_with_the_expected_gain(lenet_loadable):
    """The advice of ``nvdla explain``, which the side panel lists under Execution."""
    study = Study.of(lenet_loadable)
    side, _ = make_side(study, Names(), 1000.0)
    lines = [line for row in side.document["operations"] for line in row.get("ways", ()) if "what would help" in line]
    assert all("(the layer alone, from its first register write to its interrupt)" in line for line in lines)
    assert lines == [f"what would help: {row['advice']}" for row in with_advice(study, explanations(study))]
    assert any(re.search(r"instead of [\d,]+ cycles, \d+% less", line) for line in lines)


def test_a_page_without_input_takes_one_dry_run(monkeypatch, lenet_path):
    from nvdla.emulator.execution import dry_run

    count, rehearse = [0], dry_run._rehearse

    def counting(*args, **options):
        count[0] += 1
        rehearse(*args, **options)

    monkeypatch.setattr(dry_run, "_rehearse", counting)
    study = Study.of(nvdla.load(lenet_path))
    report, run, _ = examine_and_run(study, Names(), None)
    assert (report.count("error"), run, study.deadlock, count[0]) == (0, None, None, 1)


def test_pairs_are_matched_by_what_they_write():
    """Two compilers write the columns of a transposed convolution in another order."""

    def side(*columns):
        places = {
            (0, index): StoredPlace("up", (8, 4, 4), (0, 0, first), (8, 4, 2), (1, 2)) for index, first in columns
        }
        nodes = [
            SimpleNamespace(key=(0, 0, index), task=0, index=index, engine="sdp", output=(8, 4, 2), layer="up")
            for index, _ in columns
        ]
        study = SimpleNamespace(operations=nodes, chains=[[node] for node in nodes])
        return SimpleNamespace(study=study, names=Names(places=places), view=None)

    rows = pairs(side((0, 0), (1, 1), (2, 3)), side((0, 1), (1, 0), (2, 3)))
    assert [(row["left"], row["right"]) for row in rows] == [(0, 1), (1, 0), (2, 2)]
