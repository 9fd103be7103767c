"""Weights that lie in CVSRAM take nothing of the memory's bandwidth."""

from __future__ import annotations

from dataclasses import replace

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.estimate import convolution, queue_cycles
from nvdla.emulator.hardware.configuration import configuration


def test_weights_in_cvsram_leave_the_memory_to_others():
    config = configuration("nv_full")
    chain = convolution(config, (256, 8, 8), (256, 8, 8), (1, 1), data_banks=1, weight_banks=3)
    there = replace(chain, cvsram=frozenset({"weights"}))
    narrow, wide = Memory(bytes_per_cycle=4), Memory()
    assert queue_cycles([there], config, wide) <= queue_cycles([chain], config, wide)
    slower, faster = (queue_cycles([each], config, narrow) for each in (chain, there))
    assert slower - faster > 256 * 256 / 4 / 2
