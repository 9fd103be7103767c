"""Bus models of NVDLA for cocotb: registers (CSB), memory (DBB), and a player of register traces.

Ports have NVDLA's names. A trace is anything that ``nvdla csb`` reads: ``.txn`` files, logs of drivers and simulators.
"""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from nvdla.emulator.memory.address_space import Space
from nvdla.registers.logs import LoggedAccess, read_log


class Csb:
    """Master of the configuration space bus; addresses count bytes."""

    def __init__(self, dut, clock):
        self.dut, self.clock = dut, clock
        dut.csb2nvdla_valid.value = 0

    async def write(self, address: int, value: int) -> None:
        """Write a register, and wait for the completion."""
        await self._request(address, value, write=1)
        await self._answer(self.dut.nvdla2csb_wr_complete)

    async def read(self, address: int) -> int:
        """Return the value of a register."""
        await self._request(address, 0, write=0)
        await self._answer(self.dut.nvdla2csb_valid)
        return int(self.dut.nvdla2csb_data.value)

    async def _request(self, address: int, value: int, write: int) -> None:
        dut = self.dut
        await FallingEdge(self.clock)
        dut.csb2nvdla_valid.value = 1
        dut.csb2nvdla_addr.value = address >> 2
        dut.csb2nvdla_wdat.value = value
        dut.csb2nvdla_write.value = write
        dut.csb2nvdla_nposted.value = write
        await RisingEdge(self.clock)
        while not int(dut.csb2nvdla_ready.value):
            await RisingEdge(self.clock)
        await FallingEdge(self.clock)
        dut.csb2nvdla_valid.value = 0

    async def _answer(self, signal) -> None:
        while not int(signal.value):
            await FallingEdge(self.clock)


class Dbb:
    """Memory at a port of NVDLA, such as ``nvdla_core2dbb``: bytes by address, with pauses from ``seed``."""

    def __init__(self, dut, clock, port: str = "nvdla_core2dbb", seed: int = 1):
        self.clock, self.bytes = clock, {}
        self._dut, self._port, self._random = dut, port, random.Random(seed)
        for channel, name in (("ar", "arready"), ("aw", "awready"), ("w", "wready"), ("r", "rvalid"), ("b", "bvalid")):
            self._signal(channel, name).value = 0
        cocotb.start_soon(self._serve_reads())
        cocotb.start_soon(self._serve_writes())

    def load(self, address: int, data: bytes) -> None:
        """Put bytes into the memory."""
        self.bytes.update(enumerate(data, address))

    def dump(self, address: int, size: int) -> bytes:
        """Return bytes of the memory; unknown ones are 0."""
        return bytes(self.bytes.get(at, 0) for at in range(address, address + size))

    def _signal(self, channel: str, name: str):
        return getattr(self._dut, f"{self._port}_{channel}_{name}")

    async def _accept(self, channel: str, valid: str, ready: str, names: tuple[str, ...]) -> list[int]:
        """Wait for a transfer of a channel, accept it, and return its signals."""
        await FallingEdge(self.clock)
        while not int(self._signal(channel, valid).value) or self._random.random() < 0.3:
            await FallingEdge(self.clock)
        self._signal(channel, ready).value = 1
        values = [int(self._signal(channel, name).value) for name in names]
        await FallingEdge(self.clock)
        self._signal(channel, ready).value = 0
        return values

    async def _give(self, channel: str, valid: str, ready: str, **values: int) -> None:
        """Offer a transfer until the other side accepts it."""
        for name, value in values.items():
            self._signal(channel, name).value = value
        self._signal(channel, valid).value = 1
        await RisingEdge(self.clock)
        while not int(self._signal(channel, ready).value):
            await RisingEdge(self.clock)
        await FallingEdge(self.clock)
        self._signal(channel, valid).value = 0

    async def _serve_reads(self) -> None:
        width = len(self._signal("r", "rdata")) // 8
        while True:
            number, length, address = await self._accept("ar", "arvalid", "arready", ("arid", "arlen", "araddr"))
            for beat in range(length + 1):
                data = int.from_bytes(self.dump(address + beat * width, width), "little")
                await self._give("r", "rvalid", "rready", rid=number, rdata=data, rlast=int(beat == length))

    async def _serve_writes(self) -> None:
        width = len(self._signal("w", "wdata")) // 8
        while True:
            number, length, address = await self._accept("aw", "awvalid", "awready", ("awid", "awlen", "awaddr"))
            for beat in range(length + 1):
                data, strobe = await self._accept("w", "wvalid", "wready", ("wdata", "wstrb"))
                for at, value in enumerate(data.to_bytes(width, "little")):
                    if strobe >> at & 1:
                        self.bytes[address + beat * width + at] = value
            await self._give("b", "bvalid", "bready", bid=number)


async def play(trace: str, csb: Csb, memory: Dbb, polls: int = 10_000) -> int:
    """Play a register trace; return the number of bytes that were compared.

    Raises AssertionError for a register or memory that has another value than the trace states.
    """
    compared = 0
    for event in read_log(trace).events:
        if not isinstance(event, LoggedAccess):
            assert event.space is Space.DRAM, f"line {event.line}: this memory port is DRAM"
            if not event.write:
                memory.load(event.address, event.data)
                continue
            assert memory.dump(event.address, len(event.data)) == event.data, f"line {event.line}: memory differs"
            compared += len(event.data)
        elif event.kind == "write":
            await csb.write(event.address, event.value)
        elif event.kind == "wait":
            for _ in range(event.looks or polls):
                if await csb.read(event.address) & event.mask == event.value & event.mask:
                    break
            else:
                raise AssertionError(f"line {event.line}: register 0x{event.address:x} never has its value")
        else:
            await csb.read(event.address)
    return compared
