"""docs/support.md says what the code does: the page is current, and cells are true when operations really run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.pages import page_module

from nvdla.emulator.hardware.configuration import configuration, configurations
from nvdla.emulator.hardware.support import DATA, OUTPUT, ask, prepare, probes
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import NvdlaError

SUPPORTED = page_module("supported")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "support.md"
PROBES = {(probe.engine, probe.mode, probe.precision): probe for probe in probes()}


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == SUPPORTED.support_page(), (
        "python tools/pages/supported.py > docs/support.md"
    )


@pytest.mark.parametrize("config", configurations().values(), ids=lambda config: config.name)
def test_units_and_precisions_are_those_of_the_configuration(config):
    features = {"rubik": config.rubik, "bdma": config.bdma}
    modes = {
        "Winograd": config.winograd,
        "compressed weights": config.weight_compression,
        "hardware batch": config.batch,
        "Winograd order after the convolution": config.winograd,
        "input in CVSRAM": config.cvsram,
        "output in CVSRAM": config.cvsram,
        "Y (element-wise)": config.sdp_ew_throughput is not None,
        "Y lookup tables": config.sdp_lut,
        "Y compares (EQL)": config.sdp_ew_throughput is not None,
    }
    for probe in PROBES.values():
        expected = features.get(probe.engine, True) and modes.get(probe.mode, True)
        expected = expected and probe.precision in config.precisions
        if probe.mode.startswith("to ") and probe.mode.endswith(" in memory"):
            expected = expected and probe.mode.split()[1] in config.precisions
        assert ask(probe, config).supported == expected, probe


@pytest.mark.parametrize(
    ("field", "lost"),
    [
        ("sdp_bs_throughput", {("sdp", "X1 (bias, scale, ReLU, PReLU)")}),
        ("sdp_bn_throughput", {("sdp", "X2 (bias, scale, ReLU, PReLU)")}),
        ("sdp_ew_throughput", {("sdp", "Y (element-wise)"), ("sdp", "Y lookup tables"), ("sdp", "Y compares (EQL)")}),
        ("pdp_throughput", {("sdp", "on the fly to the PDP"), *((key[:2]) for key in PROBES if key[0] == "pdp")}),
        ("cdp_throughput", {key[:2] for key in PROBES if key[0] == "cdp"}),
    ],
)
def test_a_configuration_without_a_unit_lacks_its_modes(field, lost):
    whole = configuration("nv_large")
    less = replace(whole, **{field: None})
    modes = {
        config: {key[:2] for key, probe in PROBES.items() if ask(probe, config).supported} for config in (whole, less)
    }
    assert modes[whole] - modes[less] == lost


def test_refusals_of_what_is_not_built_name_who_has_it():
    for probe in PROBES.values():
        refusal = ask(probe, configuration("nv_small")).refusal
        assert not refusal or "nv_full" in refusal or "CVSRAM" in refusal or "cvsram" in refusal, refusal


COPIES = [("sdp", "memory to memory", "int8"), ("sdp", "memory to memory", "int16")]
ALONE = [
    *COPIES,
    ("pdp", "maximum pooling", "int8"),
    ("pdp", "split width", "int8"),
    ("rubik", "contract", "int8"),
    ("bdma", "DRAM to DRAM", "int8"),
]


@pytest.mark.parametrize("key", ALONE, ids=" ".join)
@pytest.mark.parametrize("name", ["nv_small", "nv_medium_512", "nv_full"])
def test_what_the_page_promises_runs_and_what_it_refuses_does_not(name, key):
    config, probe = configuration(name), PROBES[key]
    if not ask(probe, config).supported:
        with pytest.raises(NvdlaError):
            prepare(probe, config)
        return
    machine = prepare(probe, config)
    source = machine.memory.view(Space.DRAM, DATA, 4096)
    source[:] = np.random.default_rng(1).integers(0, 256, 4096)
    completion = machine.step()
    assert completion is not None
    written = machine.memory.view(Space.DRAM, OUTPUT, 4096)
    assert written.any()
    if key in COPIES:
        np.testing.assert_array_equal(written, source)


def test_a_convolution_that_the_page_promises_computes():
    machine = prepare(PROBES["conv", "direct", "int8"], configuration("nv_small"))
    machine.memory.view(Space.DRAM, DATA, 4096)[:] = 1
    machine.memory.view(Space.DRAM, 0x90000000, 1024)[:] = 2
    groups = {unit: machine.unit(unit).current for unit in ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")}
    accumulators = machine.engine("conv").prepare(groups).run(None)
    assert np.unique(accumulators).tolist() == [128]  # 64 channels of 1 times 2


@pytest.mark.parametrize("limit", [limit for limit in SUPPORTED.limits() if limit.probe], ids=lambda limit: limit.what)
def test_features_that_are_not_modeled_behave_as_on_the_page(limit):
    assert ask(limit.probe, configuration("nv_full")).supported != limit.refused


def test_the_firmware_refuses_the_y_stage_where_there_is_none():
    change = SUPPORTED.FIRMWARE_CASES["a Y (element-wise) stage in its SDP"]
    assert "nv_small has no Y" in SUPPORTED.firmware_refusal(configuration("nv_small"), change)
    assert not SUPPORTED.firmware_refusal(configuration("nv_large"), change)
