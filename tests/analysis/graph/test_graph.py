"""The graph of a loadable: who feeds whom, what works together, and drawings that no name can break."""

import itertools
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import nvdla
from nvdla.analysis import graph
from nvdla.analysis.cycles.document import cycles_document, trace_document
from nvdla.analysis.graph import dot_program, dot_svg, dot_text, graph_document, layered_svg
from nvdla.analysis.memory import MemoryMap
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.errors import FormatError, NvdlaError
from nvdla.loadable.descriptors.enums import MemType
from nvdla.program.values import _Ledger
from nvdla.util.escaping import dot_string

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))
CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "loadables"
NASTY = 'x"]; evil [label="\\N\\G\\" <b>&amp;</b>\n\r\x00 -->'


@pytest.fixture(scope="module")
def lenet():
    return Study.of(nvdla.load(next(path for path in SAMPLES if path.stem == "lenet")))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_operation_takes_what_the_one_before_makes(path):
    """The samples are chains of layers: the result of each is the input of the next."""
    study = Study.of(nvdla.load(path))
    made = [value for value in study.values if value.kind in ("input", "intermediate", "output") and value.shape]
    for before, after in itertools.pairwise(study.steps):
        result = next(value for value in made if value.writer == before[-1].key)
        assert (after[0].key, "src") in result.readers
        assert result.shape == before[-1].output == after[0].input


def test_chains_are_what_hands_over_on_the_fly(lenet):
    for chain in lenet.chains:
        for before, after in itertools.pairwise(chain):
            assert before.surface.dst_data.type == MemType.HW
            assert after.surface.src_data.type == MemType.HW
        assert chain[-1].writes
    assert sum(len(chain) for chain in lenet.chains) == len(lenet.operations)


def test_the_document_is_consistent(lenet):
    document = graph_document(lenet)
    tensors = {row["id"]: row for row in document["tensors"]}
    nodes = {row["name"]: row for row in document["nodes"]}
    for node in document["nodes"]:
        for each in node["inputs"]:
            assert node["name"] in tensors[each["tensor"]]["consumers"]
        for each in node["outputs"]:
            assert tensors[each]["producer"] == node["name"]
    for row in document["dependencies"]:
        assert {row["from"], row["to"]} <= set(nodes)
    waiting = {name: node["waits_for"] for name, node in nodes.items()}
    for row in document["dependencies"]:
        waiting[row["to"]] -= 1
    assert set(waiting.values()) == {0}
    assert document["groups"][0] == [node.label for node in lenet.chains[0]]


def test_a_concatenation_has_two_producers():
    path = CORPUS / "concat2" / "nv_small-int8-fast-math.nvdla"
    if not path.is_file():
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    study = Study.of(nvdla.load(path))
    written = [value for value in study.values if value.writer and value.kind in ("output", "intermediate")]
    sides = [(a, b) for a in written for b in written if a.id < b.id and a.memory == b.memory and a.end == b.offset]
    assert sides
    assert MemoryMap.of(study).overlaps() == []


def test_drawings_name_every_operation_and_tensor(lenet):
    assert "dashed, weight" not in dot_text(lenet, constants=True)
    text = dot_text(lenet, constants=True, events=True)
    for node in lenet.operations:
        assert f"{node.engine.upper()} {node.label}" in text
    for value in lenet.values:
        assert f"  t{value.id} [" in text
    assert "style=dashed, weight=0" in text
    assert "weight=0" not in dot_text(lenet, events=False)


def test_graphviz_draws_constants_and_events_of_branches(tmp_path):
    """Edges that do not constrain, between boxes, make Graphviz fail where ranks go across the boxes."""
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    rng, net = np.random.default_rng(0), Network()
    x = net.relu("r0", net.convolution("c0", net.input("in", (8, 8, 8)), rng.normal(size=(16, 8, 3, 3)), padding=1))
    y = net.relu("r1", net.convolution("c1", x, rng.normal(size=(16, 16, 3, 3)), padding=1))
    y = net.max_pool("p", net.add("s", net.convolution("c2", y, rng.normal(size=(16, 16, 3, 3)), padding=1), x), 2)
    net.output(net.fully_connected("ip", y, rng.normal(size=(5, 256))))
    built = build(net, "nv_small", "int8", calibrate(net, rng.normal(size=(2, 8, 8, 8))))
    text = dot_text(Study.of(built.loadable), constants=True, events=True)
    subprocess.run(["dot", "-Tsvg", "-o", tmp_path / "graph.svg"], input=text.encode(), check=True, timeout=60)


@pytest.mark.parametrize("text", [NASTY, "\\", '"', "\\N", "\ud800"])
def test_a_quoted_text_is_one_string_of_dot(text):
    """Between the quotes stand only escaped quotes and backslashes, and no line end."""
    inner = dot_string(text)[1:-1]
    at = 0
    while at < len(inner):
        assert inner[at] not in '"\n\r\x00'
        at += 2 if inner[at] == "\\" else 1
    assert at == len(inner)


@pytest.mark.skipif(dot_program() is None, reason="graphviz is not installed (Debian: apt-get install graphviz)")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_graphviz_draws_every_sample_with_all_options(path):
    study = Study.of(nvdla.load(path))
    for constants in (False, True):
        for events in (False, True):
            root = ElementTree.fromstring(dot_svg(dot_text(study, constants, events)))
            titles = {each.text for each in root.iter("{http://www.w3.org/2000/svg}title")}
            assert {"op_" + "_".join(map(str, node.key)) for node in study.operations} <= titles


@pytest.mark.skipif(dot_program() is None, reason="graphviz is not installed (Debian: apt-get install graphviz)")
def test_hostile_names_stay_text(lenet):
    tensors = tuple(replace(tensor, name=NASTY) for tensor in lenet.loadable.tensors)
    study = Study.of(replace(lenet.loadable, tensors=tensors, name=NASTY), layers={(0, 0): NASTY, (0, 2): NASTY})
    root = ElementTree.fromstring(dot_svg(dot_text(study)))
    titles = {each.text for each in root.iter("{http://www.w3.org/2000/svg}title")}
    assert not any("evil" in (title or "") for title in titles)
    texts = "".join(each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text"))
    assert 'evil [label="\\N' in texts


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("events", [False, True])
def test_rows_show_every_operation_below_what_it_takes(path, events):
    study = Study.of(nvdla.load(path))
    root = ElementTree.fromstring(layered_svg(study, constants=True, events=events))
    groups = {each[0].text: each[1] for each in root.iter("{http://www.w3.org/2000/svg}g")}
    names = {node.key: "op_" + "_".join(map(str, node.key)) for node in study.operations}
    assert {*names.values(), *(f"t{value.id}" for value in study.values)} == set(groups)
    top = {name: float(box.get("y")) for name, box in groups.items()}
    for value in study.values:
        assert all(top[names[key]] > top[f"t{value.id}"] for key, _ in value.readers)
        assert not value.writer or top[names[value.writer]] < top[f"t{value.id}"]
    places = [(box.get("x"), box.get("y")) for box in groups.values()]
    assert len(set(places)) == len(places)


def test_hostile_names_stay_text_in_rows(lenet):
    tensors = tuple(replace(tensor, name=NASTY) for tensor in lenet.loadable.tensors)
    study = Study.of(replace(lenet.loadable, tensors=tensors, name=NASTY), layers={(0, 0): NASTY, (0, 2): NASTY})
    root = ElementTree.fromstring(layered_svg(study))
    assert "evil" in "".join(each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("why", ["missing", "in trouble"])
def test_a_graph_is_drawn_where_graphviz_fails(why, nvdla_command, tmp_path, monkeypatch):
    """graphviz gives up on some graphs ("trouble in init_rank"): here a program that always does."""
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho 'Error: trouble in init_rank' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(graph.shutil, "which", lambda name: None if why == "missing" else str(program))
    out = tmp_path / "net.svg"
    code, _, error = nvdla_command("graph", SAMPLES[0], "-o", out)
    assert code == 0
    assert "drawn in rows, without graphviz: " in error
    assert ElementTree.parse(out).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_without_graphviz_the_message_has_the_remedy(lenet, monkeypatch):
    monkeypatch.setattr(graph.shutil, "which", lambda name: None)
    with pytest.raises(FormatError, match="apt-get install graphviz"):
        dot_svg(dot_text(lenet))


def test_what_graphviz_cannot_draw_is_an_error():
    if dot_program() is None:
        pytest.skip("graphviz is not installed (Debian: apt-get install graphviz)")
    with pytest.raises(FormatError, match="graphviz did not draw"):
        dot_svg("digraph {")


def test_the_last_writer_of_every_byte_is_recorded():
    """Against a plain list of bytes."""
    generator = random.Random(7)
    for _ in range(200):
        ledger, plain = _Ledger(), [None] * 60
        for name in range(generator.randrange(1, 12)):
            start = generator.randrange(59)
            end = generator.randrange(start + 1, 61)
            ledger.write(start, end, name)
            plain[start:end] = [name] * (end - start)
            low = generator.randrange(59)
            high = generator.randrange(low + 1, 61)
            found = [None] * 60
            for first, last, owner in ledger.at(low, high):
                found[first:last] = [owner] * (last - first)
            assert found[low:high] == plain[low:high]
            gaps = {byte for first, last in ledger.gaps(low, high) for byte in range(first, last)}
            assert gaps == {byte for byte in range(low, high) if plain[byte] is None}


@pytest.mark.parametrize("seed", range(60))
def test_broken_descriptors_are_refused_or_shown_but_never_crash(seed):
    """Random bytes in the descriptor lists: an NvdlaError, or an answer that can be printed."""
    generator = random.Random(seed)
    loadable = nvdla.load(generator.choice(SAMPLES))
    blobs = list(loadable.blobs)
    lists = [place for place, blob in enumerate(blobs) if blob.sub_interface]
    for place in generator.sample(lists, 2):
        data = bytearray(blobs[place].data)
        for _ in range(generator.choice([1, 2, 8])):
            data[generator.randrange(len(data))] = generator.choice([0, 1, 127, 128, 255, generator.randrange(256)])
        blobs[place] = replace(blobs[place], data=memoryview(bytes(data)))
    try:
        study = Study.of(replace(loadable, blobs=tuple(blobs)))
        memory = MemoryMap.of(study)
        memory.document()
        graph_document(study)
        dot_text(study)
        trace_document(study, 1000.0, memory.usage)
        cycles_document(study, 1000.0)
    except NvdlaError:
        return
    assert set(study.schedule.order) == {node.key for node in study.operations}
