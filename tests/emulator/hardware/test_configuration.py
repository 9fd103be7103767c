"""Configurations: NVIDIA's, one of one's own from a YAML file, and the one text for what is missing."""

from __future__ import annotations

import dataclasses

import pytest

import nvdla
from nvdla.analysis.cycles.constants import constants
from nvdla.emulator.hardware.configuration import FEATURES, configuration, configurations, proof
from nvdla.errors import ConfigError
from nvdla.util.precision import Precision


def test_what_is_missing_is_refused_in_one_way():
    small = configuration("nv_small")
    for feature, words in FEATURES.items():
        if getattr(small, feature):
            small.require(feature)
            continue
        with pytest.raises(ConfigError) as refused:
            small.require(feature, "task 0", "because")
        having = [name for name, each in configurations().items() if getattr(each, feature)]
        text = f"task 0: nv_small has no {words} (because); configurations with it: {', '.join(having)}"
        assert str(refused.value) == text


def test_precisions_are_checked_against_the_configuration():
    assert configuration("nv_full").require_precision(2, "x") is Precision.FP16
    with pytest.raises(ConfigError, match=r"^x: nv_large has no int16; configurations with it: nv_full$"):
        configuration("nv_large").require_precision(1, "x")
    with pytest.raises(ConfigError, match=r"^x: must be 0 \(int8\), 1 \(int16\), 2 \(fp16\), got 3$"):
        configuration("nv_full").require_precision(3, "x")


def test_a_build_of_ones_own_comes_from_a_file(tmp_path, samples):
    """nv_small with twice its convolution buffer runs what nv_small runs, with the same bytes."""
    path = tmp_path / "twice.yaml"
    path.write_text("base: nv_small\ncbuf_bank_depth_entries: 1024\n")
    own = configuration(str(path))
    assert own == dataclasses.replace(configuration("nv_small"), name="twice", cbuf_bank_depth_entries=1024)
    loadable = nvdla.load(samples / "lenet.loadable")
    runs = [nvdla.Runtime(loadable, name) for name in ("nv_small", str(path))]
    data = [bytes(range(256)) * (runs[0].inputs[0].size // 256 + 1)][0][: runs[0].inputs[0].size]
    assert runs[0].run_raw([data]) == runs[1].run_raw([data])
    assert runs[1].config.name == "twice"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("base: nv_huge", "base: must be one of nv_small"),
        ("base: nv_small\nmemory_atom: 12", "must be powers of two"),
        ("base: nv_small\nmemory_atom: many", "memory_atom: must be a whole number from 1 to 1048576, got 'many'"),
        ("base: nv_small\nbdma: 1", "bdma: must be true or false, got 1"),
        ("base: nv_small\nprecisions: [int4]", "must be a list of int8, int16, fp16"),
        ("base: nv_small\nregister_map: nv_huge", "register_map: must be one of nv_small, nv_full, got 'nv_huge'"),
        ("base: nv_small\nrtl_branch: main", "rtl_branch: must be one of nv_small, master, got 'main'"),
        ("base: nv_small\nspeed: 3", "unknown field speed"),
        ("memory_atom: 8", "missing field address_bits"),
        ("base: nv_small\nname: nv_full", "name: must be a text other than"),
        ("- 1", "must be a mapping"),
        ("base: nv_small\nbatch: true", "max_batch must be given"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, text, problem):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        configuration(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        configuration(str(tmp_path / "none.yaml"))


def test_a_configuration_has_the_cycles_of_the_one_that_it_is_based_on(tmp_path, samples):
    """The branch of the RTL comes with the base: SDP, PDP and CDP read ahead as far, and what was measured counts."""
    path = tmp_path / "same.yaml"

    def cycles(name: str) -> tuple[int, bool]:
        document = nvdla.load(samples / "lenet.loadable").cycles(config=name, latency=200).document
        return document["total_cycles"], document["measured"]

    path.write_text("base: nv_small\n")
    assert cycles(str(path)) == cycles("nv_small") and cycles("nv_small")[1]
    assert proof(configuration(str(path)))["cycles"] == proof(configuration("nv_small"))["cycles"]
    small = configuration("nv_small")
    assert constants(configuration(str(path))).queues == constants(small).queues == (80, 61, 61)
    path.write_text("base: nv_small\nrtl_branch: master\n")
    assert constants(configuration(str(path))).queues == (8, 8, 8) and not cycles(str(path))[1]
    assert constants(dataclasses.replace(small, name="banks", cbuf_banks=16)).queues == constants(small).queues
