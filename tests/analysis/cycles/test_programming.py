"""Register accesses that the schedule counts, against those of the firmware."""

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.analysis.cycles.constants import Memory, Software
from nvdla.analysis.cycles.schedule import SDP_TABLE_WRITES, program_accesses
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.hardware.register_file import register_map
from nvdla.program.program import Program

LUT_ENTRIES = 334  # registers of a table and its bounds; SDP_TABLE_WRITES is what they take on the bus
AGAIN = 2  # the pointers of an engine are set before its first operation is programmed, and before it is enabled


def network(table):
    rng = np.random.default_rng(0)
    net = Network("curve")
    x = net.convolution("c", net.input("in", (8, 8, 8)), rng.normal(size=(16, 8, 1, 1)))
    x = net.add("sum", x, net.convolution("d", net.inputs[0], rng.normal(size=(16, 8, 1, 1))))
    net.output(net.max_pool("p", net.sigmoid("s", x) if table else net.relu("r", x), 2))
    return build(net, "nv_large", "int8", calibrate(net, samples(net, rng, 1))).loadable


def programmed(loadable):
    """Writes of the SDP's and the PDP's operations between their beginning and their enabling, as the firmware does."""
    log: list = []
    runtime = nvdla.Runtime(loadable, "nv_large")
    runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs], csb_log=log)
    counts, index, units = {}, None, ()
    for line in log:
        if line[0] == "program":
            index, units = line[1], (line[2], f"{line[2]}_RDMA")
            counts[index] = 0
        elif line[0] == "enable" and line[1] == index:
            index = None
        elif line[0] == "W" and index is not None:
            register = register_map("nv_small").at(line[1])
            counts[index] += register.unit in units or register.name == "S_INTR_MASK"
    return counts


@pytest.mark.parametrize("table", [False, True], ids=["plain", "sigmoid"])
def test_writes_are_those_of_the_firmware(table):
    loadable = network(table)
    counts = programmed(loadable)
    nodes = [each for each in Program.of(loadable, "nv_large").operations if each.engine in ("sdp", "pdp")]
    tables = 0
    for node in nodes:
        counted = program_accesses(node).writes
        if node.engine == "sdp" and node.op.lut_index >= 0:
            tables += 1
            counted += LUT_ENTRIES - SDP_TABLE_WRITES
        assert counts[node.key[2]] - counted in (0, AGAIN), (node.label, counts[node.key[2]], counted)
    assert tables == table


def test_a_run_is_counted_from_its_first_write():
    study = Study.of(network(False), "nv_large")
    assert min(step.time for step in study.schedule.steps) == 0


def test_a_driver_that_reads_states_takes_longer():
    loadable = network(False)
    cycles = [
        Study.of(loadable, "nv_large", memory=Memory(), software=Software(status=status)).schedule.total
        for status in (False, True)
    ]
    assert cycles[1] > cycles[0] + 100  # five reads of each convolution
