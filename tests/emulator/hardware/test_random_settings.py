"""Whatever stands in the registers, an engine runs or raises one error, and stays inside its memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.engine_bench import SOURCE, TARGET, Bench

from nvdla.emulator.execution.plan import checked
from nvdla.errors import NvdlaError

SIZE = 1 << 13
ADDRESSES = [SOURCE, TARGET, SOURCE + 0x1000, TARGET + SIZE - 32, 0x50000000, 0]
UNITS = [("PDP", "PDP_RDMA"), ("CDP", "CDP_RDMA"), ("RBK",), ("BDMA",)]
SKIPPED = ("S_POINTER", "S_STATUS", "D_OP_ENABLE", "CFG_OP", "CFG_LAUNCH0", "CFG_LAUNCH1")


def wild(register):
    """Any value of each field, the small ones and the largest more often."""
    fields = list(register.fields.values())
    values = [st.one_of(st.integers(0, each.mask), st.sampled_from([0, 1, 2, 3, each.mask])) for each in fields]
    return st.tuples(*values).map(
        lambda numbers: sum((n & f.mask) << f.low for n, f in zip(numbers, fields, strict=True))
    )


def tame(register):
    """Values with which an operation can run: small cubes, memory that exists, no padding, no split."""
    name = register.name
    if "ADDR_LOW" in name:
        return st.just(SOURCE if "SRC" in name or "DAIN" in name else TARGET)
    if "RAM" in name or "DMA_CFG" in name or name == "CFG_CMD":
        return st.just(0x3 if name == "CFG_CMD" else 1)
    if str(register) == "PDP.D_OPERATION_MODE_CFG":
        return st.integers(0, 2).map(lambda method: method | 1 << 4)
    if any(word in name for word in ("KERNEL", "PADDING_CFG", "HIGH", "OPERATION_MODE", "DECONV", "PARTIAL")):
        return st.just(0)
    if "STRIDE" in name or "CFG_SRC_" in name or "CFG_DST_" in name:
        return st.sampled_from([64, 128, 256])
    if name == "D_DATA_FORMAT":
        return st.just(0)
    return wild(register) if "LUT" in name or "VALUE" in name else st.integers(0, 2)


def fence(bench):
    """Put each region between guard bytes; returns the guards."""
    guards = []
    for region in bench.memory.regions():
        whole = np.full(3 * SIZE, 0xA5, np.uint8)
        object.__setattr__(region, "data", whole[SIZE : 2 * SIZE])
        guards += [whole[:SIZE], whole[2 * SIZE :]]
    return guards


def fill_registers(bench, units, data):
    """Tame values, but for up to three registers; a cube has one size in all units."""
    registers = [each for unit in units for each in bench.machine.registers.map.units[unit].values()]
    registers = [each for each in registers if each.name not in SKIPPED]
    odd = data.draw(st.sets(st.sampled_from([str(each) for each in registers]), max_size=3), label="odd registers")
    shared = {}
    for register in registers:
        if str(register) in odd:
            drawn = data.draw(st.sampled_from(ADDRESSES) if "ADDR_LOW" in register.name else wild(register))
        else:
            same = "CUBE" in register.name or register.name == "D_DATA_FORMAT"
            key = register.name.replace("CUBE_OUT", "CUBE_IN") if same else str(register)
            drawn = shared.setdefault(key, data.draw(tame(register)))
        bench.machine.registers.write_register(register, drawn)


@pytest.mark.parametrize("name", ["nv_small", "nv_full"])
@pytest.mark.parametrize("units", UNITS, ids=lambda units: units[0])
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_registers_run_or_raise_one_error(name, units, data):
    bench = Bench(name, SIZE)
    guards = fence(bench)
    fill_registers(bench, units, data)
    try:
        if units == ("BDMA",):
            bench.write(BDMA__CFG_OP=1, BDMA__CFG_LAUNCH0=1)
        else:
            bench.write(**{f"{unit}__D_OP_ENABLE": 1 for unit in units})
        event("ran" if bench.machine.step() else "nothing to run")
    except NvdlaError as error:
        event(f"{type(error).__name__}")
        assert "\n" not in str(error)
    assert all((guard == 0xA5).all() for guard in guards)


@pytest.mark.parametrize("name", ["nv_small", "nv_full"])
@pytest.mark.parametrize("units", UNITS[:3], ids=lambda units: units[0])
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_whatever_runs_writes_what_is_specified(name, units, data, seed):
    bench, random = Bench(name, SIZE), np.random.default_rng(seed)
    bench.machine.run_job = checked
    for region in bench.memory.regions():
        region.data[:] = random.integers(0, 256, SIZE)
    fill_registers(bench, units, data)
    tables = bench.machine.engine("cdp").tables
    for words in (tables.le, tables.lo):
        words[:] = random.integers(-32768, 32768, words.size)
    try:
        bench.write(**{f"{unit}__D_OP_ENABLE": 1 for unit in units})
        event("ran" if bench.machine.step() else "nothing to run")
    except NvdlaError as error:
        assert "NVDLA_VALIDATE" not in str(error)
