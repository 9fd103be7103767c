"""Every rule finds the fault that it is about, at the right operation, and nothing in sound loadables."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest
from support.build_checks import two_convolutions
from support.pages import page_module

import nvdla
from nvdla import ConfigError
from nvdla.analysis.views import overview
from nvdla.checks.doctor import examine
from nvdla.checks.lint import lint, lint_file
from nvdla.checks.lint.linter import FIELDS, Order, Rule, rules
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.descriptors.task import DlaTask
from nvdla.loadable.enums import MemoryFlags
from nvdla.program import Operation, Program


def errors(report):
    return {(finding.rule, finding.operation) for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize(
    "name",
    ["lenet", "lenet_nv_large", "lenet_nv_full_fp16", "color_digits", "color_digits_nv_full_fp16"],
)
def test_samples_are_clean(samples, name):
    report = lint_file(samples / f"{name}.loadable")
    assert report.findings == ()


def set_operation(index, path, value):
    """A change of one field, "op.x" or "surface.x_data.y" or "common.x", of an operation."""

    def change(task):
        owner = task.operation(index)
        *names, last = path.split(".")
        for name in names:
            owner = getattr(owner, name)
        setattr(owner, last, value)

    return change


# rule, operation of the lenet sample, field, value
FAULTS = [
    ("precisions-are-supported", 0, "op.in_precision", 2),
    ("winograd-is-supported", 3, "op.conv_mode", 1),
    ("weight-decompression-is-supported", 3, "op.weight_format", 1),
    ("batches-are-supported", 3, "op.batch", 2),
    ("lookup-tables-are-supported", 7, "op.lut_index", 0),
    ("y-stage-is-supported", 7, "op.y_op.enable", 1),
    ("cvsram-is-supported", 7, "surface.dst_data.type", 1),
    ("image-formats-are-supported", 3, "op.data_format", 6),
    ("banks-fit-the-buffer", 3, "op.weight_bank", 40),
    ("values-fit-their-registers", 3, "op.data_bank", 0),
    ("data-fit-their-banks", 3, "op.entry_per_slice", 16000),
    ("weights-fit-their-banks", 6, "op.bytes_per_kernel", 100000),
    ("kernels-have-their-size", 3, "op.bytes_per_kernel", 7),
    ("weights-are-complete", 3, "surface.weight_data.size", 10),
    ("only-used-weights-are-fetched", 3, "surface.weight_data.size", 8192),
    ("slices-have-the-entries-of-the-buffer", 3, "op.entry_per_slice", 23),
    ("single-pixels-of-the-sdp-are-packed", 7, "surface.dst_data.surf_stride", 16),
    ("grains-fit-the-height", 3, "op.fetch_grain", 13),
    ("accumulators-only-truncate", 3, "op.out_cvt.scale", 2),
    ("features-keep-their-width", 3, "op.out_precision", 1),
    ("convolution-results-have-their-size", 3, "surface.dst_data.width", 9),
    ("convolution-results-are-complete", 3, "op.pad_x_left", 1),
    ("single-pixels-are-packed", 6, "surface.dst_data.line_stride", 16),
    ("convolutions-forward-to-the-sdp", 3, "surface.dst_data.type", 0),
    ("sdp-keeps-the-size", 7, "surface.dst_data.channel", 119),
    ("on-the-fly-sizes-agree", 4, "surface.src_data.channel", 15),
    ("operands-have-an-address", 7, "surface.x1_data.address", -1),
    ("operands-have-an-address", 4, "surface.src_data.type", 0),
    ("operands-have-an-address", 5, "surface.src_data.type", 0),
    ("operands-have-an-address", 3, "surface.weight_data.address", -1),
    ("pooling-kernels-are-at-most-8", 5, "op.pool_width", 8),
    ("pooling-windows-fit-the-input", 5, "surface.dst_data.height", 5),
    ("values-fit-their-registers", 3, "op.conv_stride_x", 9),
    ("values-fit-their-registers", 3, "op.pad_x_left", 32),
    ("surfaces-are-aligned", 7, "surface.dst_data.surf_stride", 12),
    ("surfaces-are-in-their-windows", 7, "surface.dst_data.surf_stride", 1 << 20),
    ("inputs-are-written", 3, "surface.src_data.offset", 1600),
    ("inputs-are-written", 1, "surface.x1_data.offset", 400),  # between two blobs
    ("results-are-read", 7, "surface.dst_data.offset", 2048),
    ("lines-do-not-overlap", 5, "surface.dst_data.line_stride", 8),
    ("surfaces-name-their-memory", 7, "surface.dst_data.type", 1),
    ("dependencies-are-counted", 6, "common.dependency_count", 5),
    ("descriptors-can-be-read", 6, "surface.src_data.address", 99),
    ("the-dry-run-finishes", 3, "op.mean_format", 2),
]


@pytest.mark.parametrize(("rule", "operation", "field", "value"), FAULTS)
def test_a_planted_fault_is_found_by_its_rule(lenet_loadable, plant, rule, operation, field, value):
    broken = plant(lenet_loadable, set_operation(operation, field, value))
    found = {(each.rule, each.operation) for each in lint(broken, "nv_small", "new").findings}
    if rule in ("on-the-fly-sizes-agree", "descriptors-can-be-read", "the-dry-run-finishes"):
        assert rule in {name for name, _ in found}
    else:
        assert (rule, operation) in found


def no_such_consumer(task):
    task.operation(0).common.consumers[1].index = 40


def no_such_operation(task):
    task.network.num_operations = 19


no_such_address = set_operation(6, "surface.src_data.address", 99)


@pytest.mark.parametrize("change", [no_such_address, no_such_consumer, no_such_operation])
def test_descriptors_that_cannot_be_read_are_the_only_finding(lenet_loadable, plant, change):
    """They state neither the configuration nor the order of the operations; a layer file can state the former."""
    broken = dataclasses.replace(plant(lenet_loadable, change), name="broken.loadable")
    for stated, config in (("nv_small", "nv_small"), ("nv_large", None), ("tiny", None), (None, None)):
        broken = dataclasses.replace(broken, layer_file={"config": stated} if stated else None)
        for abi in ("auto", "new"):
            report = lint(broken, abi=abi)
            assert {finding.rule for finding in report.findings} == {"descriptors-can-be-read"}
            assert (report.configuration, examine(broken, abi=abi).configuration) == (config, config)


def test_self_dependent_operations_are_found(lenet_loadable, plant):
    def change(task):
        common = task.operation(3).common
        common.consumers[1].index, common.consumers[1].event = 3, 2

    found = errors(lint(plant(lenet_loadable, change)))
    assert ("operations-do-not-wait-for-themselves", 3) in found
    assert ("every-operation-is-reached", 6) in found


def test_rubik_on_a_small_configuration_is_found(cases):
    for case in cases:
        if case.get("error_kind") == "unsupported-operation":
            found = {rule for rule, _ in errors(lint_file(case["file"], case["config"]))}
            assert found == {"rubik-is-supported"}


def test_bdma_is_only_in_nv_full(corpus):
    path = corpus / "kmd-regression" / "BDMA_L0_0_fbuf"
    assert {rule for rule, _ in errors(lint_file(path, "nv_large"))} >= {"bdma-is-supported"}
    assert errors(lint_file(path, "nv_full")) == set()


def test_the_accumulator_reads_no_memory_of_its_own(lenet_loadable):
    report = lint(lenet_loadable, "nv_large")
    assert {rule for rule, _ in errors(report)} == {"atoms-have-the-size-of-the-memory-atom"}


def test_a_module_of_rules_that_was_imported_first_changes_nothing():
    """Rules about atoms are silent where the atoms are others, so their order counts."""
    code = "import {}; from nvdla.checks.lint.linter import rules; print([each.name for each in rules()])"
    said = {
        subprocess.run([sys.executable, "-c", code.format(first)], capture_output=True, text=True, check=True).stdout
        for first in ("nvdla", "nvdla.checks.lint.memory_rules")
    }
    assert len(said) == 1


def test_writing_over_weights_is_found(lenet_loadable, plant):
    def change(task):
        target, weights = task.operation(7).surface.dst_data, task.operation(3).surface.weight_data
        target.address, target.offset = weights.address, weights.offset

    assert ("constants-are-not-overwritten", 7) in errors(lint(plant(lenet_loadable, change)))


def test_unordered_overlaps_are_found(lenet_loadable, plant):
    """The convolution behind a pooling no longer waits for it."""

    def change(task):
        task.operation(5).common.consumers[1].index = -1

    found = [each for each in lint(plant(lenet_loadable, change)).findings if each.severity == "warning"]
    assert {each.rule for each in found} == {"overlapping-surfaces-are-ordered"}
    assert (5, "dst_data overlaps src_data of operation 0/6, and no dependency orders the two") in {
        (each.operation, each.evidence) for each in found
    }


def test_other_banks_without_a_wait_are_found(plant):
    """The builder lets such a convolution wait; one that waits only until the first is enabled is found."""
    net = two_convolutions()
    calibration = calibrate(net, {"in": np.random.default_rng(1).normal(size=(1, 16, 24, 24))})
    loadable = build(net, "nv_small", "int8", calibration, level=0).loadable
    assert lint(loadable).findings == ()

    def change(task):
        task.operation(0).common.consumers[OpType.CONV].event = Event.OP_ENABLED

    (found,) = lint(plant(loadable, change)).findings
    assert (found.severity, found.rule) == ("note", "other-banks-wait-for-the-previous-convolution")
    assert found.evidence == "3 + 7 banks after 3 + 2 of operation 0/0"


def sums_in_a_row():
    """Three inputs: the second sum reads what the first writes."""
    net = Network("sums")
    first, second, third = (net.input(name, (8, 6, 6)) for name in "abc")
    net.output(net.add("t", net.add("s", first, second), third))
    data = {name: np.random.default_rng(1).normal(size=(1, 8, 6, 6)) for name in "abc"}
    return build(net, "nv_small", "int8", calibrate(net, data), level=0).loadable


@pytest.mark.parametrize("event", [Event.OP_PROGRAMMED, Event.OP_ENABLED])
def test_an_sdp_that_reads_a_result_too_early_is_found(plant, event):
    """The builder lets the second sum wait for the first one's completion; one that waits for less is found."""
    loadable = sums_in_a_row()
    assert lint(loadable).findings == ()

    def change(task):
        task.operation(0).common.consumers[OpType.SDP].event = event

    found = [each for each in lint(plant(loadable, change)).findings if "sdp" in each.rule]
    assert [(each.severity, each.operation) for each in found] == [("note", 1)]
    assert found[0].rule == "the-sdp-waits-for-its-input"
    assert found[0].evidence == "reads the result of operation 0/0 without waiting for its completion"


def test_an_sdp_that_reads_something_else_may_follow_at_once(plant):
    """The first sum is enabled alone: what the second reads of inputs is there."""
    loadable = sums_in_a_row()

    def change(task):
        task.operation(0).common.consumers[OpType.SDP].event = Event.OP_ENABLED
        task.operation(1).surface.x2_data.address = task.operation(0).surface.src_data.address

    assert not [each for each in lint(plant(loadable, change)).findings if "sdp-waits" in each.rule]


def test_the_order_of_a_graph_is_that_of_its_arrows(lenet_loadable):
    program = Program.of(lenet_loadable)
    order = Order(program.dla_tasks[0], program.takers)
    joined = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (6, 7), (8, 9), (10, 11)]
    unordered = [pair for pair in itertools.combinations(range(12), 2) if not order.is_ordered(*pair)]
    assert unordered == joined


def test_relocations_elsewhere_are_found(lenet_loadable):
    moved = tuple(dataclasses.replace(each, offset=each.offset + 4) for each in lenet_loadable.relocs)
    found = lint(dataclasses.replace(lenet_loadable, relocs=moved)).findings
    assert {each.rule for each in found} == {"relocations-point-at-strides"}
    assert {each.severity for each in found} == {"warning"}


def test_too_much_memory_is_found(lenet_loadable):
    memories = tuple(
        dataclasses.replace(memory, size=1 << 33) if memory.flags == MemoryFlags.ALLOC else memory
        for memory in lenet_loadable.memories
    )
    found = errors(lint(dataclasses.replace(lenet_loadable, memories=memories)))
    assert ("memory-fits-the-address-bus", None) in found


def test_broken_containers_are_reported_not_raised(lenet_loadable):
    memories = tuple(dataclasses.replace(memory, contents=("nothing",)) for memory in lenet_loadable.memories)
    broken = dataclasses.replace(lenet_loadable, memories=memories)
    report = lint(broken)  # nothing of its descriptors is left: neither ABI fits
    assert {rule for rule, _ in errors(report)} >= {"the-container-is-consistent", "descriptors-can-be-read"}
    some = tuple(
        dataclasses.replace(tensor, mem_id=99) if tensor.name == "prob" else tensor for tensor in lenet_loadable.tensors
    )
    report = lint(dataclasses.replace(lenet_loadable, tensors=some))
    assert "the-container-is-consistent" in {rule for rule, _ in errors(report)}


@pytest.mark.parametrize("identifier, found", [("NVDX", ["the-identifier-is-known"]), ("NVDA", []), ("", [])])
def test_identifiers_other_than_nvda_are_found_and_shown(lenet_loadable, identifier, found):
    """Files of 2018 have none: their first table is where it would be."""
    data = dataclasses.replace(lenet_loadable, identifier=identifier).to_bytes()
    loadable = nvdla.load(data)
    assert [finding.rule for finding in lint(loadable).findings] == found
    assert overview(Program.of(loadable))["identifier"] == (identifier or None)
    assert loadable.to_bytes() == data


def test_a_misspelt_configuration_gets_a_suggestion(lenet_loadable):
    with pytest.raises(ConfigError, match="did you mean nv_small"):
        lint(lenet_loadable, "nv-small")


def test_many_findings_of_one_rule_are_counted_not_listed(lenet_loadable, plant, monkeypatch):
    def change(task):
        for index in range(12):
            task.operation(index).common.dependency_count = 77

    monkeypatch.setattr("nvdla.checks.lint.linter.MOST_OF_A_RULE", 5)
    report = lint(plant(lenet_loadable, change))
    assert [each.rule for each in report.findings].count("dependencies-are-counted") == 5
    assert report.left_out == 7
    assert report.as_dict()["left_out"] == 7


def test_a_rule_is_added_by_adding_a_file(lenet_loadable, tmp_path, monkeypatch):
    """A module ``*_rules.py`` is all: no list names it."""
    import sys

    import nvdla.checks.lint
    from nvdla.checks.lint.linter import RULES

    (tmp_path / "extra_rules.py").write_text(
        "from nvdla.checks.lint.linter import rule\n\n\n"
        '@rule("note", "Nothing.", headline="something")\n'
        "def names_are_short(context):\n"
        '    """Names of loadables are short."""\n'
        '    yield "it has a name"\n'
    )
    before = list(rules())
    monkeypatch.setattr(nvdla.checks.lint, "__path__", [*nvdla.checks.lint.__path__, str(tmp_path)])
    try:
        assert [rule.name for rule in rules() if rule not in before] == ["names-are-short"]
        assert ("names-are-short", "it has a name") in {(e.rule, e.evidence) for e in lint(lenet_loadable).findings}
    finally:
        RULES[:] = before
        sys.modules.pop("nvdla.checks.lint.extra_rules", None)


def test_every_rule_is_documented_and_has_an_advice():
    for rule in rules():
        assert rule.text.endswith((".", ")")), rule.name
        assert rule.advice.endswith((".", ")")), rule.name
        assert rule.chapter in page_module("rules").CHAPTERS["lint"], rule.name
    assert len({rule.name for rule in rules()}) == len(rules())


def test_every_rule_of_an_operation_is_tried_here():
    tried = {fault[0] for fault in FAULTS}
    here = tried | {
        "rubik-is-supported",
        "the-identifier-is-known",
        "bdma-is-supported",
        "atoms-have-the-size-of-the-memory-atom",
        "constants-are-not-overwritten",
        "overlapping-surfaces-are-ordered",
        "memory-fits-the-address-bus",
        "relocations-point-at-strides",
        "the-container-is-consistent",
        "compressed-weights-have-mask-and-sizes",
        "operations-do-not-wait-for-themselves",
        "every-operation-is-reached",
        "slices-have-the-entries-of-the-buffer",
        "weights-are-fetched-in-whole-pieces",
        "only-used-weights-are-fetched",
        "wide-data-have-wide-operands",
        "other-banks-wait-for-the-previous-convolution",
        "the-sdp-waits-for-its-input",
        "single-pixels-of-the-sdp-are-packed",
        "fp16-pools-pad-with-zero",
        "normalization-spans-are-supported",
    }
    assert {rule.name for rule in rules()} == here


def test_rules_of_nv_full_find_their_faults(samples, plant):
    loadable = nvdla.load(samples / "lenet_nv_full_fp16.loadable")
    pool = next(each for each in operations(loadable) if each.type == 3)

    def change(task):
        task.operation(0).surface.weight_data.size += 1
        task.operation(pool.index).op.padding_value[0] = 1
        task.operation(0).op.entry_per_slice += 1

    found = {each.rule for each in lint(plant(loadable, change), "nv_full").findings}
    assert found >= {
        "weights-are-fetched-in-whole-pieces",
        "fp16-pools-pad-with-zero",
        "slices-have-the-entries-of-the-buffer",
    }


def operations(loadable) -> list[Operation]:
    return Program.of(loadable, checked=False).hardware_operations


def test_operands_of_the_sdp_from_memory_are_checked(cases, plant):
    case = next(case for case in cases if case["id"] == "eltwise_chain/nv_full-fp16-basic")
    loadable = nvdla.load(case["file"])
    subject = next(each for each in operations(loadable) if each.type == 2 and each.surface.src_data.type == 0)

    def change(task):
        found = task.operation(subject.index)
        found.op.x2_op.enable, found.op.x2_op.type, found.op.x2_op.mode, found.op.x2_op.precision = 1, 2, 2, 0
        source = found.surface.src_data
        source.width, source.height, source.channel = 1, 1, 40
        source.surf_stride = 64

    found = {each.rule for each in lint(plant(loadable, change), "nv_full").findings}
    assert found >= {"wide-data-have-wide-operands", "single-pixels-of-the-sdp-are-packed"}


def test_normalization_spans_are_checked(cases, plant):
    case = next(case for case in cases if case["id"] == "lrn5/nv_full-fp16-fast-math")
    loadable = nvdla.load(case["file"])
    broken = plant(loadable, set_operation(operations(loadable)[0].index, "op.local_size", 4))
    assert "normalization-spans-are-supported" in {rule for rule, _ in errors(lint(broken, "nv_full"))}


def test_register_fields_of_the_table_exist():
    from nvdla.emulator.hardware.register_file import register_map

    for name in ("nv_small", "nv_full"):
        units = register_map(name).units
        for fields in FIELDS.values():
            for unit, register, field, _ in fields.values():
                assert field in units[unit][register].fields, (name, unit, register, field)


def test_the_page_of_rules_is_current(samples):
    text = (samples.parent / "docs" / "lint.md").read_text(encoding="utf-8")
    assert text == page_module("rules").with_rules("lint", text), "python tools/pages/rules.py"


def test_all_loadables_of_the_corpus(cases):
    """What runs on the reference has no error on its own configuration; what does not run has one."""
    for case in cases:
        report = lint_file(case["file"], case["config"])
        assert report.clean == (case["expect"] == "ok"), (case["id"], report.findings)


def test_all_loadables_of_the_drivers_regression(corpus):
    import json

    folder = corpus / "kmd-regression"
    for case in json.loads((folder / "manifest.json").read_text())["cases"]:
        report = lint_file(folder / case["flatbuf"], case["config"])
        assert report.clean, (case["name"], report.findings)


def test_a_rule_is_plain_data():
    assert all(isinstance(rule, Rule) and rule.severity in ("error", "warning", "note") for rule in rules())


def test_every_rule_and_check_is_headed_by_what_is_wrong():
    from nvdla.checks.doctor.doctor import checks

    for each in [*rules(), *checks()]:
        assert 0 < len(each.headline) < 60 and each.headline != each.name.replace("-", " "), each.name
    headlines = [each.headline for each in [*rules(), *checks()]]
    assert len(set(headlines)) == len(headlines)


def test_a_buffer_of_a_cpu_operation_outside_its_memory_fails_the_dry_run(lenet_loadable):
    """A run refuses it before it begins."""
    blob = next(blob for blob in lenet_loadable.blobs if blob.name.startswith("task-1-") and "buf" in blob.name)
    data = bytearray(blob.data)
    data[0x102:0x104] = (4096).to_bytes(2, "little")  # address_index_offset of the destination
    blobs = [dataclasses.replace(each, data=bytes(data)) if each is blob else each for each in lenet_loadable.blobs]
    broken = dataclasses.replace(lenet_loadable, blobs=tuple(blobs))
    (finding,) = lint(broken, "nv_small", "new").findings
    assert finding.rule == "the-dry-run-finishes"
    assert "CPU operation 0 (SOFTMAX) destination: offset: must be within address" in finding.evidence


def test_data_that_only_a_later_operation_writes_are_found(plant):
    """The first convolution writes elsewhere; the third writes where it should have, after the second has read."""
    network, rng = Network(), np.random.default_rng(0)
    x = network.input("x", (8, 6, 6))
    for name in ("a", "b", "c", "d"):
        x = network.convolution(name, x, rng.normal(size=(8, 8, 3, 3)), padding=1)
    network.output(x)
    built = build(network, "nv_small", calibration=calibrate(network, rng.normal(size=(2, 8, 6, 6))), level=0)
    (task,) = [task for task in Program.of(built.loadable).tasks.values() if isinstance(task, DlaTask)]
    places = [task.operation(index).surface.dst_data for index in (1, 3, 5)]
    assert (places[0].address, places[0].offset) == (places[2].address, places[2].offset)

    def change(task):
        target, other = task.operation(1).surface.dst_data, task.operation(3).surface.dst_data
        target.address, target.offset = other.address, other.offset

    assert not lint(built.loadable, "nv_small").findings
    findings = lint(plant(built.loadable, change), "nv_small").findings
    (late,) = [finding for finding in findings if finding.rule == "inputs-are-written"]
    assert late.operation == 2 and "only a later operation writes" in late.evidence


def test_a_result_is_unread_where_its_reader_reads_old_data_of_an_ended_operation(lenet_loadable, plant):
    """The address of the reader is that of the first pooling, whose data are complete, but needed no more."""

    def change(task):
        target, other = task.operation(10).surface.src_data, task.operation(2).surface.dst_data
        target.address, target.offset = other.address, other.offset

    assert not lint(lenet_loadable, "nv_small").findings
    findings = lint(plant(lenet_loadable, change), "nv_small").findings
    assert [finding.operation for finding in findings if finding.rule == "results-are-read"] == [9]
    assert "inputs-are-written" not in {finding.rule for finding in findings}
