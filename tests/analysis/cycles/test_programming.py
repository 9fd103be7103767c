"""Register accesses that the schedule counts, against those of the firmware."""

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.analysis.cycles.schedule import SDP_TABLE_WRITES, program_accesses
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.hardware.register_file import register_map
from nvdla.program.program import Program


@pytest.mark.parametrize("table", [False, True], ids=["plain", "sigmoid"])
def test_the_table_of_an_sdp_operation_is_written_with_it(table):
    rng = np.random.default_rng(0)
    net = Network("curve")
    x = net.convolution("c", net.input("in", (8, 8, 8)), rng.normal(size=(16, 8, 1, 1)))
    net.output(net.sigmoid("s", x) if table else x)
    data = samples(net, rng, 1)
    built = build(net, "nv_large", "int8", calibrate(net, data))
    log: list = []
    runtime = nvdla.Runtime(built.loadable, "nv_large")
    runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs], csb_log=log)
    registers = [register_map("nv_small").at(line[1]).name for line in log if line[0] == "W"]
    nodes = [each for each in Program.of(built.loadable, "nv_large").operations if each.engine == "sdp"]
    tables = []
    for node in nodes:
        stages = sum(getattr(node.op, f"{name}_op").enable for name in ("x1", "x2", "y"))
        tables.append(program_accesses(node).writes - 31 - 8 * stages)
    assert sum(tables) == sum(name.startswith("S_LUT") for name in registers)
    assert [each for each in tables if each] == ([SDP_TABLE_WRITES] if table else [])
