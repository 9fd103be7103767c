"""The least cycles that a network can take: its bytes at the memory's bandwidth, its multiplications on the array."""

from nvdla.analysis.cycles.constants import Memory, constants, mac_cycles
from nvdla.analysis.cycles.hardware import bandwidth
from nvdla.analysis.study import Study

MEMORIES = [Memory(100, rate, shared) for rate in (None, 16, 8, 4, 2, 1, 0.5, 0.25) for shared in (False, True)]


def assert_above_the_roofline(loadable, memory, name, config="auto"):
    """Totals of a network that ends are at least those of its traffic and of its MACs. Returns whether it ends."""
    study = Study.of(loadable, config, memory=memory)
    if not study.schedule.complete:
        assert study.schedule.total is None, name
        return False
    estimates = study.estimates
    read = sum(each.read_bytes - each.cvsram_read_bytes for each in estimates.values())
    written = sum(each.written_bytes - each.cvsram_written_bytes for each in estimates.values())
    traffic = read + written if memory.shared else max(read, written)
    convolutions = [each for key, each in estimates.items() if key == each.leader and each.shape and each.shape.conv]
    total = study.schedule.total
    assert total is not None
    # A cycle for rounding, and a ten-millionth for sums of floats.
    least = traffic / bandwidth(constants(study.config), memory)
    assert total + 1 >= least * (1 - 1e-7), (name, study.config.name, memory)
    assert total >= sum(mac_cycles(each.shape.conv, each.constants) for each in convolutions), (name, memory)
    return True
