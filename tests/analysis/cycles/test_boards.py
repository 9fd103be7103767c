"""Boards that others have timed: LeNet is what their presets are fitted to."""

from pathlib import Path

import pytest

import nvdla
from nvdla.analysis.cycles.boards import BOARDS, board
from nvdla.analysis.study import Study
from nvdla.errors import ConfigError
from nvdla.hardware.configuration import configuration

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


def test_every_board_has_a_configuration_that_exists_and_a_source():
    for name, each in BOARDS.items():
        assert name == each.name
        assert configuration(each.config).name == each.config
        assert each.source
        assert each.fitted


def test_an_unknown_board_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean zcu102-150mhz"):
        board("zcu102-150")
