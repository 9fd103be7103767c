"""Boards that others have timed: LeNet is what their presets are fitted to."""

from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.analysis.cycles.constants import BOARDS, board
from nvdla.analysis.study import Study
from nvdla.compiler.builder import build, calibrate
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import ConfigError

LENET = Path(__file__).resolve().parents[4] / "shared/corpus/loadables/lenet/nv_small-int8-fast-math.nvdla"


@pytest.mark.parametrize(
    ("name", "milliseconds", "error"), [("zcu102-150mhz", 1.698, 0.01), ("zcu102-bare-100mhz", 4.8, 0.12)]
)
def test_lenet_takes_what_was_published(name, milliseconds, error):
    if not LENET.is_file():
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    chosen = board(name)
    study = Study.of(nvdla.load(LENET), chosen.config, memory=chosen.memory, software=chosen.software)
    assert study.schedule.cycles / chosen.clock / 1000 == pytest.approx(milliseconds, rel=error)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "milliseconds"), [("zcu102-150mhz", 497.77), ("zcu102-bare-100mhz", 1055.94)])
def test_resnet_50_takes_the_cycles_of_the_page(name, milliseconds, tmp_path):
    """As NVIDIA's compiler makes it, with sums of their own: within 5 % of 507.72 ms and of 1.1 s as published."""
    networks = pytest.importorskip("benchmarks.networks")
    network = networks.resnet50()
    image = np.random.default_rng(1).standard_normal((1, *network.inputs[0].shape))
    built = build(network, "nv_small", "int8", calibrate(network, image), level=0)
    chosen = board(name)
    built.save(tmp_path / "resnet50.nvdla")
    study = Study.of(
        nvdla.load(tmp_path / "resnet50.nvdla"), chosen.config, memory=chosen.memory, software=chosen.software
    )
    assert study.schedule.cycles / chosen.clock / 1000 == pytest.approx(milliseconds, rel=0.001)


def test_every_board_has_a_configuration_that_exists_and_a_source():
    for name, each in BOARDS.items():
        assert name == each.name
        assert configuration(each.config).name == each.config
        assert each.source
        assert each.fitted


def test_an_unknown_board_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean zcu102-150mhz"):
        board("zcu102-150")
