"""``nvdla explain``: how a convolution uses the buffer and the MAC array."""

import json
import re

import numpy as np
import pytest
from support import compiled

import nvdla
from nvdla.analysis.alternatives import cycles_of
from nvdla.analysis.cycles.constants import Memory, Software, mac_cycles
from nvdla.analysis.explain import USES, accounting, buffer_svg, explanations, stays
from nvdla.analysis.layer_forms import evaluate_layer, layers_of, with_advice
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.errors import DescriptorError


def test_the_first_layer_of_lenet_uses_one_channel_of_eight(lenet_loadable):
    row = explanations(Study.of(lenet_loadable), "0/0")[0]
    assert (row["data_entries"], row["kernel_groups"], row["channel_use"]) == ([784, 1024], 1, 1 / 8)
    assert row["weights_resident"]
    assert row["bound"] == "MAC"


def test_what_would_help_is_computed_for_every_convolution(lenet_loadable):
    """The advice is the best of the changes that the cycle model was asked about, for this memory."""
    for bytes_per_cycle in (None, 1):
        study = Study.of(lenet_loadable, memory=Memory(bytes_per_cycle=bytes_per_cycle))
        rows = with_advice(study, explanations(study))
        for row, layer in zip(rows, layers_of(study), strict=True):
            best = evaluate_layer(study, layer)["changes"][0]
            assert row["advice"].startswith(f"{best['change']}: {best['cycles']:,} instead of {best['before']:,}")
    assert rows[2]["advice"].startswith("weights kept for 4 consecutive images")


def test_tiles_are_counted():
    net = Network("large")
    x = net.input("in", (16, 90, 120))
    net.output(net.convolution("c", x, np.ones((16, 16, 3, 3)), padding=1))
    built = build(net, "nv_small", "int8", calibrate(net, np.ones((1, 16, 90, 120))))
    layers = {(0, number): "c" for number in range(40)}
    rows = explanations(Study.of(built.loadable, "nv_small", layers=layers))
    assert len(rows) > 1
    assert [row["tile"] for row in rows] == [[number, len(rows)] for number in range(1, len(rows) + 1)]


def test_an_unknown_operation_names_those_there_are(lenet_loadable):
    with pytest.raises(DescriptorError, match=r"unknown convolution 0/1: operations are 0/0, 0/3"):
        explanations(Study.of(lenet_loadable), "0/1")


def test_the_command_prints_text_and_json(nvdla_command, samples):
    code, out, err = nvdla_command("explain", samples / "lenet.loadable", "0/3")
    assert (code, err) == (0, "")
    assert "weights: 8 banks, 2,400 bytes, all of them remain in the buffer" in out
    code, out, _ = nvdla_command("explain", samples / "lenet.loadable", "--json")
    assert code == 0
    assert len(json.loads(out)["convolutions"]) == 5


def test_an_operation_of_any_engine_is_on_one_screen(nvdla_command, samples, as_documented):
    """By number, by number of the first task, and by the name of its layer."""
    for name in ("0/5", "5", "pool2"):
        code, out, err = nvdla_command("explain", samples / "lenet.loadable", name)
        assert (code, err) == (0, "")
        assert out.startswith("0/5 PDP pool2: max 2x2, stride 2,2")
        assert "16x8x8 to 16x4x4, int8" in out
        assert "on the fly with 0/3, 0/4" in out
        assert "writes: pool2, 16x4x4, 256 bytes" in out
        assert "pool_mode MAX" in out
        assert out.count("\n") <= 24
    document = json.loads(nvdla_command("explain", samples / "lenet.loadable", "1/0", "--json")[1])
    as_documented(document)
    assert (document["convolutions"], document["operations"][0]["engine"]) == ([], "CPU")


def test_op_is_the_operation_of_other_commands(nvdla_command, samples):
    explain = ("explain", samples / "lenet.loadable")
    assert nvdla_command(*explain, "--op", "0/10") == nvdla_command(*explain, "0/10")
    document = json.loads(nvdla_command(*explain, "--op", "pool1", "--op", "0/10", "--op", "ip3", "--json")[1])
    assert [row["operation"] for row in document["operations"]] == ["0/2", "0/10", "0/11"]
    assert [row["operation"] for row in document["convolutions"]] == ["0/10"]


def test_an_operation_that_is_not_there_is_one_line(nvdla_command, samples):
    code, out, err = nvdla_command("explain", samples / "lenet.loadable", "9/9")
    assert (code, out) == (2, "")
    assert "unknown operation or layer 9/9" in err


def test_a_layer_weighed_as_it_is_takes_what_its_operations_take(lenet_loadable):
    """What is made of a layer's shapes is the layer: the same cycles, part by part."""
    study = Study.of(lenet_loadable)
    for layer in layers_of(study):
        assert cycles_of(layer.built, layer.geometry, study.config, study.memory) == layer.cycles(study)
        row = evaluate_layer(study, layer)
        assert [form["cycles"] for form in row["forms"] if form["chosen"]] == [row["cycles"]]
        assert all(change["cycles"] < 0.99 * change["before"] for change in row["changes"])
        assert row["terms"]["array"] > 0


def convolution_of(level):
    """256 channels on 64 kernels of 1x1: data come in for as long as the array works."""
    rng = np.random.default_rng(0)
    net = Network("layer")
    x = net.input("in", (256, 28, 28))
    net.output(net.convolution("c", x, rng.normal(size=(64, 256, 1, 1))))
    return build(net, "nv_large", "int8", calibrate(net, rng.normal(size=(1, 256, 28, 28))), level=level)


def test_an_alternative_costs_what_it_takes_when_it_is_built():
    """The plain loadable foretells the cycles of the one in parts, and both know one layer."""
    plain, parts = (Study.of(convolution_of(level).loadable, "nv_large") for level in (0, 1))
    (one,), (other,) = layers_of(plain), layers_of(parts)
    assert (len(one.nodes), len(other.nodes) > 1) == (1, True)
    foretold = [form for form in evaluate_layer(plain, one)["forms"] if form["parts"] == len(other.nodes)]
    found = [form for form in foretold if form["data_banks"] == other.built.data_banks]
    assert found[0]["cycles"] == pytest.approx(other.cycles(parts), rel=0.01)
    assert found[0]["weight_passes"] == 1
    assert found[0]["cycles"] < evaluate_layer(plain, one)["cycles"]


def reading(input_format, shape, kernel, config):
    """A convolution of an input that is a feature cube or an image."""
    rng = np.random.default_rng(0)
    net = Network("layer")
    x = net.input("in", shape)
    net.output(net.convolution("c", x, rng.normal(size=(16, shape[0], kernel, kernel))))
    built = build(net, config, "int8", calibrate(net, rng.normal(size=(1, *shape))), input_format=input_format)
    return Study.of(built.loadable, config)


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
@pytest.mark.parametrize(("shape", "kernel"), [((1, 40, 40), 7), ((3, 64, 64), 5), ((3, 200, 200), 7)])
def test_an_image_as_the_input_costs_what_it_takes_when_it_is_built(config, shape, kernel):
    """The advice is the form that the compiler builds: whole, and in parts only where it does not fit whole."""
    cube, image = (reading(form, shape, kernel, config) for form in ("feature", "image"))
    (layer,), (other,) = layers_of(cube), layers_of(image)
    advice = evaluate_layer(cube, layer)["changes"]
    foretold = next(change for change in advice if change["change"].startswith("an image as the input"))
    assert f"({other.built.form}," in foretold["change"]
    assert foretold["cycles"] == pytest.approx(other.cycles(image), rel=0.01)


def test_an_image_is_not_said_to_be_faster_in_parts_that_the_compiler_does_not_build():
    study = reading("image", (3, 64, 64), 5, "nv_small")
    row = evaluate_layer(study, layers_of(study)[0])
    assert [form["parts"] for form in row["forms"]] == [1] * len(row["forms"])
    assert "divides an image only where it does not fit" in row["why_no_parts"]


def test_what_bounds_a_layer_is_what_helps_it(lenet_loadable):
    """With a slow memory twice the bandwidth saves most; with a fast one the first layer wants an image."""
    slow = Study.of(lenet_loadable, memory=Memory(bytes_per_cycle=0.25))
    last = next(change for change in evaluate_layer(slow, layers_of(slow)[2])["changes"] if not change["per_image"])
    assert last["change"] == "twice the bandwidth (0.5 bytes per cycle)"
    assert last["saves"] > 0.4
    fast = Study.of(lenet_loadable)
    first = evaluate_layer(fast, layers_of(fast)[0])
    assert first["changes"][0]["change"].startswith("an image as the input")
    assert "pooling on the fly" in first["why_no_parts"]


def test_parts_of_nvidias_compiler_are_one_layer(cases):
    """Eight bands of rows with overlap, and four of which NVIDIA fetches a row too many."""
    wanted = {"conv_splith2/nv_small-int8-fast-math.nvdla": 8, "resnet50/nv_large-int8-fast-math.nvdla": 4}
    for case in cases:
        if case["path"] not in wanted:
            continue
        study = Study.of(nvdla.load(case["file"]))
        layer = layers_of(study)[0]
        assert len(layer.nodes) == wanted[case["path"]]
        again = cycles_of(layer.built, layer.geometry, study.config, study.memory)
        assert again == pytest.approx(layer.cycles(study), rel=0.01)


def test_every_convolution_of_every_loadable_can_be_weighed(cases):
    """One of each network and mode; no operation is lost or counted twice."""
    for case in cases[::12]:
        study = Study.of(nvdla.load(case["file"]))
        layers = layers_of(study)
        nodes = [node.key for layer in layers for node in layer.nodes]
        assert sorted(nodes) == sorted(node.key for node in study.operations if node.engine == "conv")
        for layer in layers[:3]:
            row = evaluate_layer(study, layer)
            assert all(form["data_banks"] + form["weight_banks"] <= study.config.cbuf_banks for form in row["forms"])


def test_the_command_prints_what_was_weighed(nvdla_command, samples, as_documented):
    code, out, err = nvdla_command("explain", samples / "lenet.loadable", "0/0")
    assert (code, err) == (0, "")
    assert "Variants of 0/0, each timed alone" in out
    assert "(the array needs 14,400)" in out
    code, out, _ = nvdla_command("explain", samples / "lenet.loadable", "--alternatives", "--json")
    document = json.loads(out)
    as_documented(document)
    assert [row["operations"] for row in document["evaluated"]] == [["0/0"], ["0/3"], ["0/6"], ["0/8"], ["0/10"]]
    assert json.loads(nvdla_command("explain", samples / "lenet.loadable", "--json")[1])["evaluated"] == []


def test_the_buffer_holds_what_the_descriptors_say(lenet_loadable):
    """Data of 784 entries in banks 0 and 1, weights in eight behind, as ip1 needs; nothing before its fetch."""
    study = Study.of(lenet_loadable)
    first = [stay for stay in stays(study) if stay.node.label == "0/0"]
    assert [(stay.kind, stay.first, stay.banks) for stay in first] == [("data", 0, 2), ("weights", 2, 8)]
    assert list(first[0].pieces()) == [(0.0, 784 / 512)]
    assert all(stay.begin <= stay.there and stay.begin < stay.end for stay in stays(study))


def test_data_go_round_in_their_banks_and_kept_weights_are_marked():
    study = Study.of(convolution_of(1).loadable, "nv_large")
    found = stays(study)
    data = [stay for stay in found if stay.kind == "data"]
    ends = [stay.start + stay.count for stay in data]
    assert [stay.start for stay in data[1:]] == [end % data[0].capacity for end in ends[:-1]]
    assert [stay.kind for stay in found if stay.first == data[0].banks] == ["weights"] + ["used again"] * (
        len(data) - 1
    )


def test_the_buffer_is_drawn(nvdla_command, samples, tmp_path):
    path = tmp_path / "buffer.svg"
    code, out, err = nvdla_command("explain", samples / "lenet.loadable", "--svg", path)
    assert (code, err) == (0, "")
    assert "buffer.svg" in out
    text = path.read_text(encoding="utf-8")
    assert "CONV 0/3 conv2+relu2: weights" in text
    assert "never used: 22 banks" in text


def test_banks_that_the_buffer_does_not_have_are_drawn_too(lenet_loadable, plant):
    """40 data and 8 weight banks of 32: a wrong descriptor is shown as it is, and nothing is drawn outside the rows."""

    def change(task):
        task.operation(0).op.data_bank = 40

    text = buffer_svg(Study.of(plant(lenet_loadable, change), "nv_small"))
    rows = [int(each) for each in re.findall(r">bank (\d+)<", text)]
    assert rows[-1] in (46, 47)


def test_the_banks_of_a_convolution_are_those_of_its_descriptor_also_where_its_row_shares_them(nvdla_command, samples):
    """ip3 alone needs 1 data and 1 weight bank; a change of banks between convolutions would be a wait."""
    _, out, _ = nvdla_command("explain", samples / "lenet.loadable", "0/10")
    assert "data: 2 banks" in out and "weights: 8 banks" in out
    said = "(built with the 2 data and 8 weight banks that convolutions in a row share)"
    assert f"whole, 1 data and 1 weight banks: 985 cycles {said}" in " ".join(out.split())
    assert "taken" not in out


def test_the_command_lists_the_candidates_of_the_builder(nvdla_command, tmp_path, as_documented):
    """From the layer file; a broken one is one line."""
    path = tmp_path / "net.loadable"
    built = convolution_of(2)
    built.save(path)
    code, out, err = nvdla_command("explain", path, "c", "--config", "nv_large")
    assert (code, err) == (0, "")
    assert "the compiler evaluated (-O2, latency 100, the width of the bus):" in out
    (layer,) = built.sidecar["evaluated"]["layers"]
    taken = layer["forms"][layer["taken"]]
    assert re.search(rf"{taken['form']}, .*: {taken['cycles']:,} cycles \(built", out)
    assert "then the whole network was searched" in out
    document = json.loads(nvdla_command("explain", path, "--config", "nv_large", "--alternatives", "--json")[1])
    as_documented(document)
    assert document["evaluated"][0]["by_the_builder"]["forms"] == layer["forms"]
    broken = built.sidecar | {"evaluated": {"layers": 3}}
    (tmp_path / "net.loadable.layers.json").write_text(json.dumps(broken))
    code, out, err = nvdla_command("explain", path, "c", "--config", "nv_large")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "evaluated candidates" in err


def assert_every_cycle_is_accounted_for(study, name):
    """The uses are disjoint and add up to the total; multiplications take what the array needs for them."""
    found = accounting(study)
    assert list(found) == list(USES), name
    assert sum(found.values()) == study.schedule.total, name
    assert min(found.values()) >= 0, (name, found)
    convolutions = [each for key, each in study.estimates.items() if key == each.leader and each.shape]
    least = [mac_cycles(each.shape.conv, each.constants) for each in convolutions if each.shape.conv]
    assert abs(found["mac"] - sum(least)) <= 2 * len(least), (name, found, sum(least))
    cpu = sum(span.end - span.start for span in study.schedule.spans.values() if span.engine == "cpu")
    assert found["cpu"] == cpu, name
    operations = len(study.operations)
    assert found["idle"] <= 60 * operations + study.memory.latency, (name, found)
    return found


@pytest.mark.parametrize(
    "memory", [Memory(), Memory(20, 32), Memory(300, 1), Memory(100, 2, True), Memory(50, 0.25)], ids=str
)
def test_every_cycle_of_a_sample_is_accounted_for(samples, memory):
    paths = sorted(samples.glob("*.loadable"))
    assert paths
    for path in paths:
        assert_every_cycle_is_accounted_for(Study.of(nvdla.load(path), memory=memory), path.name)


def test_every_cycle_of_networks_that_ran_on_the_rtl_is_accounted_for():
    names = {run.name: assert_every_cycle_is_accounted_for(run.study, run.name) for run in compiled.runs()}
    if not names:
        pytest.skip("no corpus")
    assert sum(found["mac"] for found in names.values()) > 0


def test_what_slows_a_run_is_what_grows(lenet_loadable):
    """Half the bandwidth is time for memory and fetching, a slow bus of registers is programming."""
    usual = accounting(Study.of(lenet_loadable))
    narrow = accounting(Study.of(lenet_loadable, memory=Memory(bytes_per_cycle=1)))
    assert narrow["memory"] + narrow["fetch"] > 5 * (usual["memory"] + usual["fetch"])
    assert narrow["mac"] == usual["mac"]
    slow = accounting(Study.of(lenet_loadable, software=Software(answer=12_000, write=50.0, read=200.0)))
    assert slow["programming"] > 50_000 > usual["programming"]
    assert all(abs(slow[use] - usual[use]) <= 5 for use in ("mac", "weight_loading", "memory", "fetch", "cpu"))


def test_a_run_that_never_ends_has_no_accounting(lenet_loadable):
    stuck = Study.of(lenet_loadable)
    stuck.schedule.stuck.append(stuck.operations[0].key)
    assert accounting(stuck) is None


def test_the_command_accounts_for_every_cycle(nvdla_command, samples):
    code, out, _ = nvdla_command("explain", samples / "lenet.loadable")
    assert code == 0
    assert "28,867 cycles of a run:" in out
    assert "mac: the MAC array multiplies" in out
    document = json.loads(nvdla_command("explain", samples / "lenet.loadable", "--json")[1])
    assert sum(document["accounting"].values()) == 28_867


def test_a_table_of_the_cdp_is_not_called_a_normalization():
    """Both bypass bits leave only the lookup table of the CDP."""
    net = Network("table")
    net.output(net.sigmoid("sig", net.input("x", (8, 4, 4))))
    samples = {"x": np.random.default_rng(3).normal(size=(2, 8, 4, 4)).astype(np.float32)}
    built = build(net, "nv_small", "int8", calibrate(net, samples))
    (node,) = [node for node in Study.of(built.loadable, "nv_small").operations if node.engine == "cdp"]
    assert node.what == "lookup table"
