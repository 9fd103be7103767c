"""Example: a trace of the toolkit drives copier.v. The variable TRACE names the trace."""

from __future__ import annotations

import os

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from nvdla_bus import Csb, Dbb, play


@cocotb.test()
async def a_trace_copies_memory(dut):
    """Play the trace: it loads memory, programs the block, waits for its interrupt, and compares memory."""
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    csb, memory = Csb(dut, dut.clk), Dbb(dut, dut.clk)
    dut.rst_n.value = 0
    await ClockCycles(dut.clk, 4)
    dut.rst_n.value = 1
    compared = await play(os.environ["TRACE"], csb, memory)
    assert compared > 0
    assert int(dut.dla_intr.value) == 0
