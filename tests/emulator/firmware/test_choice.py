"""The configuration is found from what the file asks for."""

from __future__ import annotations

from support.handmade import INPUT, OUTPUT, Op, chain, copy, network
from support.small_operations import bdma

from nvdla.loadable.descriptors import NEW
from nvdla.loadable.descriptors.enums import OpType
from nvdla.program import Program


def choose(loadable):
    program = Program.of(loadable, abi=NEW)
    return program.config.name, program.config_reason


def test_atoms_of_8_bytes_are_nv_small():
    name, reason = choose(network(chain(2)))
    assert name == "nv_small"
    assert "atoms of 8 bytes (tensor data is FEATURE_X8), int8" in reason


def test_half_precision_and_bdma_are_nv_full():
    def half(op, surface):
        copy((INPUT, 0), (OUTPUT, 0), atom=32)(op, surface)
        op.src_precision = op.dst_precision = 2

    assert choose(network([Op(OpType.SDP, half)], "nv_full"))[0] == "nv_full"
    name, reason = choose(network([Op(OpType.BDMA, bdma(1))], "nv_full"))
    assert name == "nv_full"
    assert "operation 0/0 is a BDMA operation" in reason


def test_a_file_that_fits_no_configuration_gets_the_nearest_with_a_reason():
    name, reason = choose(network([Op(OpType.BDMA, bdma(1))]))
    assert name == "nv_small"
    assert reason.endswith("no configuration has all of this")


def test_lines_too_short_for_large_atoms_are_of_small_ones(corpus):
    """NVIDIA's driver regression calls tensors FEATURE (atoms of 32 bytes) for nv_small, too."""
    import json

    import nvdla

    folder = corpus / "kmd-regression"
    for case in json.loads((folder / "manifest.json").read_text())["cases"]:
        loadable = nvdla.load(folder / case["flatbuf"])
        assert case["config"] != "nv_small" or nvdla.Runtime(loadable).config.name == "nv_small", case["name"]
        if case["name"] == "CDP_L0_0_small":
            assert "lines of 8 atoms 64 bytes long" in nvdla.Runtime(loadable).config_reason


def test_a_deconvolution_laid_out_for_nv_large_is_nv_larges(cases):
    """NVIDIA's compiler emits Rubik for nv_large, which has none; the entries per slice say whom it meant."""
    import nvdla

    for case in cases:
        if case["config"] in ("nv_large", "nv_full") and "deconv" in case["id"] and case["precision"] == "int8":
            program = Program.of(nvdla.load(case["file"]))
            assert program.config.name == case["config"], case["id"]
            if case["config"] == "nv_large":
                assert program.config_reason.endswith(
                    "CBUF entries of 64 bytes (nv_full would have 128); nv_large has no Rubik"
                )
