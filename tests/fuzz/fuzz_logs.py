"""Fuzz targets: logs of register accesses (read, told, compared, run), and calibration tables."""

from __future__ import annotations

import atexit
import os
import tempfile

from fuzz_run import LIMITS
from support.handmade import chain, network, pool

import nvdla
from nvdla.checks.doctor.doctor import examine
from nvdla.emulator.firmware.operation import CsbLog
from nvdla.emulator.hardware.configuration import configuration
from nvdla.loadable.descriptors.enums import OpType
from nvdla.program.naming import Names, from_calibration, read_calibration
from nvdla.registers.logs import differences, operations, read_log
from nvdla.registers.replay import replay_log

_HANDLE, _PATH = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
atexit.register(os.unlink, _PATH)
NETWORK = network(chain(2, OpType.PDP, pool))
LAYERS = {(0, 0): "conv1", (0, 1): "pool1"}


def _written(data: bytes) -> str:
    with open(_PATH, "wb") as stream:
        stream.write(data)
    return _PATH


def csb_input(data: bytes) -> None:
    """Two logs, divided by a line of %%: each is read and run; compared with itself a log has no differences."""
    logs = []
    for part in data.split(b"\n%%\n")[:2]:
        try:
            log = read_log(_written(part))
            logs.append(log)
            if len(operations(log)) > len(log.accesses) or differences(log, log):
                raise RuntimeError("a log differs from itself")
            if not isinstance(replay_log(log, configuration(log.map.name), threads=1, limits=LIMITS).passed, bool):
                raise RuntimeError("a replay has neither passed nor failed")
        except nvdla.NvdlaError:
            continue
    if len(logs) == 2 and logs[0].map is logs[1].map:
        differences(*logs, mask_addresses=True)


def calibration_input(data: bytes) -> None:
    """A table read for its scales, and as the doctor reads it beside a network."""
    try:
        table = read_calibration(_written(data))
        examine(NETWORK, "nv_small", names=Names(LAYERS), calibration=table)
        scales = from_calibration(_PATH).scales
        if not all(0 < scale < float("inf") for scale in scales.values()):
            raise RuntimeError("a scale that is not a positive number")
        examine(NETWORK, "nv_small", names=Names(LAYERS, scales), calibration=table)
    except nvdla.NvdlaError:
        pass


def seeds_of_logs() -> list[bytes]:
    """A network's own log in every form; two of them as one input."""
    log: CsbLog = []
    for each in (NETWORK, network(chain(1))):
        runtime = nvdla.Runtime(each, "nv_small")
        runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs], csb_log=log)
    writes = [(each[1], each[2]) for each in log if each[0] == "W"]
    forms = (
        "W 0x{0:05x} 0x{1:x}",
        "csb_adaptor: GP: iswrite=1 addr=0x{0:08x} len=4 data=0x {1:08x}",
        "write_reg 0xffff{2:04x} 0x{1:08x}",
        "0x{0:x} 0x{1:x}",
    )
    made = [
        "\n".join(form.format(address, value, address >> 2) for address, value in writes).encode() for form in forms
    ]
    others = b"dbb_adaptor: GP: iswrite=0 addr=0x80000000 len=8 data=0x 01020304 05060708\n"
    others += b"dbb_adaptor: GP: iswrite=1 addr=0x80000040 len=8 data=0x 01020304 05060708\n"
    waits = b"\nread_reg 0xffff0003 0x00000001 0x00000001 100\nread_reg 0x0000000c 0x00000000\n"
    statements = b"reg_write(NVDLA_PDP_S_POINTER_0, 0x1);\nreg_write(NVDLA_PDP.D_OP_ENABLE_0, 1u);\n"
    return [*made, others + made[1], made[2] + waits, statements, made[0] + b"\n%%\n" + made[3]]


def seeds_of_tables() -> list[bytes]:
    """Tables as NVIDIA's compiler takes them, for the layers of the network that the doctor sees."""
    return [
        b'{"conv1": {"scale": 0.0203, "min": 0, "max": 0, "offset": 0}, "pool1": {"scale": 1.5e-3, "offset": 2}}',
        b'{"data": {"scale": 1, "min": -1.0, "max": 1.0, "offset": 0}, "conv1": {"scale": 0.5}}',
        b"{}",
    ]
