"""``nvdla lint`` as a user calls it."""

import json
from dataclasses import replace


def test_a_clean_loadable_gives_exit_code_0(nvdla_command, samples):
    code, out, err = nvdla_command("lint", samples / "lenet.loadable", "--config", "nv_small")
    assert (code, err) == (0, "")
    assert out.endswith("lenet.loadable on nv_small: nothing found.\n")


def test_another_configuration_gives_exit_code_1(nvdla_command, samples):
    code, out, _ = nvdla_command("lint", samples / "lenet_nv_full_fp16.loadable", "--config", "nv_large")
    assert code == 1
    assert "error: precision that the configuration lacks [precisions-are-supported]\n" in out
    assert "\n    operation 0/0 (CONV, layer conv1+relu1): computes in fp16" in out
    assert "nv_large has no fp16; configurations with it: nv_full" in out


def test_a_misspelt_configuration_gives_exit_code_2(nvdla_command, samples):
    code, out, err = nvdla_command("lint", samples / "lenet.loadable", "--config", "nv_larg")
    assert (code, out) == (2, "")
    assert "did you mean nv_large?" in err


def test_what_is_no_loadable_gives_exit_code_2(nvdla_command, samples):
    code, _, err = nvdla_command("lint", samples / "digit0.pgm")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert nvdla_command("lint")[0] == 2


def test_warnings_count_with_strict(nvdla_command, lenet_loadable, tmp_path):
    moved = [replace(each, offset=each.offset + 4) for each in lenet_loadable.relocs]
    replace(lenet_loadable, relocs=tuple(moved)).save(tmp_path / "a.loadable")
    assert nvdla_command("lint", tmp_path / "a.loadable")[0] == 0
    assert nvdla_command("lint", tmp_path / "a.loadable", "--warnings-as-errors")[0] == 1


def test_the_json_is_as_documented(nvdla_command, samples, as_documented):
    _, out, _ = nvdla_command("lint", samples / "lenet.loadable", "--config", "nv_full", "--json")
    document = json.loads(out)
    as_documented(document)
    assert document["findings"]


def test_rules_can_be_listed(nvdla_command):
    code, out, _ = nvdla_command("lint", "--rules", "--json")
    assert code == 0
    assert {"rule", "severity", "headline", "text"} == set(json.loads(out)["rules"][0])
    assert "precisions-are-supported" in nvdla_command("lint", "--rules")[1]
