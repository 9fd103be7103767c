"""The machine: register files, memory and engines, and the links between them.

A caller (the firmware layer, or a register trace) writes registers; nothing happens at a write but what a register
does by itself. :meth:`Machine.step` then runs one chain of engines whose units are all enabled (convolution -> SDP ->
PDP on the fly, or a single engine between memories), and raises the interrupts of all its units at once. When no chain
can run, ``step`` returns None: units that are still enabled deadlock.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, cast

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import Handed, Job
from nvdla.emulator.hardware.register_file import RegisterFile, RegisterGroup, UnitRegisters, register_map
from nvdla.emulator.memory.address_space import AddressSpace, LeavesRegion
from nvdla.limits import Limits, Meter


class Engine(Protocol):
    """One engine of the machine. Constructed once per machine; may install register hooks and keep state."""

    def prepare(self, groups: dict[str, RegisterGroup]) -> Job:
        """Decode and check the registers of the engine's units (by unit name). Raises NvdlaError."""


class FetchingEngine(Engine, Protocol):
    """An engine that can fetch before its results find a taker."""

    def fetch(self, groups: dict[str, RegisterGroup]) -> None:
        """Read the inputs of the next job."""

    def close(self) -> None:
        """Note that no further job is prepared."""


@dataclass(frozen=True)
class Link:
    """One engine of the machine: its name, units (all must be enabled), class, interrupt bits of group 0.

    The interrupt bit of group 1 is the next higher bit (GLB.S_INTR_STATUS).
    """

    name: str
    units: tuple[str, ...]
    implementation: str
    interrupts: tuple[str, ...]


ENGINES = {
    link.name: link
    for link in (
        Link(
            "conv",
            ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA"),
            "nvdla.emulator.hardware.convolution.engine:Convolution",
            ("CACC_DONE", "CDMA_DAT_DONE", "CDMA_WT_DONE"),
        ),
        Link("sdp", ("SDP", "SDP_RDMA"), "nvdla.emulator.hardware.sdp.engine:Sdp", ("SDP_DONE",)),
        Link("pdp", ("PDP", "PDP_RDMA"), "nvdla.emulator.hardware.pdp:Pdp", ("PDP_DONE",)),
        Link("cdp", ("CDP", "CDP_RDMA"), "nvdla.emulator.hardware.cdp:Cdp", ("CDP_DONE",)),
        Link("rubik", ("RBK",), "nvdla.emulator.hardware.rubik:Rubik", ("RUBIK_DONE",)),
        Link("bdma", ("BDMA",), "nvdla.emulator.hardware.bdma:Bdma", ("BDMA_DONE",)),
    )
}

# GLB.S_INTR_STATUS: the bit of group 0 of each cause.
INTERRUPT_BITS = {
    "SDP_DONE": 0,
    "CDP_DONE": 2,
    "PDP_DONE": 4,
    "BDMA_DONE": 6,
    "RUBIK_DONE": 8,
    "CDMA_DAT_DONE": 16,
    "CDMA_WT_DONE": 18,
    "CACC_DONE": 20,
}


@dataclass(frozen=True)
class ChainStage:
    """One engine's part of a completed chain."""

    engine: str
    group: int
    job: Job

    @property
    def destination(self) -> np.ndarray | None:
        """Output of the engine (uint8 view), None on the fly."""
        return self.job.destination

    @property
    def statistics(self) -> dict[str, int]:
        """Counters of the engine."""
        return self.job.statistics


@dataclass(frozen=True)
class Completion:
    """Result of one step: the stages in data order and the interrupt bits that it raised."""

    stages: tuple[ChainStage, ...]
    interrupts: int = field(default=0)


class Machine:
    """One NVDLA of configuration ``config`` on ``memory``. ``threads``: how many the kernels may use (None = all).

    ``limits``: the work that it does before it stops with a ScheduleError. ``hardware_only``: do not deadlock
    where NVIDIA's C model does and hardware does not. ``room``: bytes that operations may take besides ``memory``
    before they are refused with a LinkError. ``warnings``: what runs, but not as the settings mean it. ``works``: it
    does what it prepares.
    """

    works = True

    def __init__(
        self,
        config: Configuration,
        memory: AddressSpace,
        threads: int | None = None,
        limits: Limits | None = None,
        hardware_only: bool = False,
        room: int | None = None,
    ) -> None:
        self.config = config
        self.hardware_only = hardware_only
        self.warnings: list[str] = []
        self.place: Callable[[str], str] = lambda engine: engine
        self.memory = memory
        memory.address_bits = config.address_bits
        self.threads = threads
        self.meter = Meter(limits, room)
        self.registers = RegisterFile(register_map(config.register_map))
        self.registers.on_write("GLB", self._glb_written)
        self.registers.on_read("GLB", self._glb_read)
        # Nothing is ever left in the simulated CBUF's pipelines, so its flush is always done.
        self.registers.on_read("CDMA", lambda name, value: 1 if name == "S_CBUF_FLUSH_STATUS" else value)
        self.interrupt_status = 0
        self.run_job: Callable[[Job, Handed], Handed] = lambda job, handed: job.run(handed)
        self._fetched = False
        self._engines: dict[str, Engine] = {}
        for link in ENGINES.values():
            if link.name in ("sdp", "cdp", "bdma"):  # they own register ports that must listen from the start
                self.engine(link.name)

    def engine(self, name: str) -> Engine:
        """The engine ``name``, imported and made on first use (an engine's kernels are not loaded in vain)."""
        if name not in self._engines:
            module, _, attribute = ENGINES[name].implementation.partition(":")
            self._engines[name] = getattr(importlib.import_module(module), attribute)(self)
        return self._engines[name]

    def warn(self, engine: str, text: str) -> None:
        """Note what hardware does without an error, once, with the name that ``place`` has for the engine's
        operation."""
        text = f"{self.place(engine)}: {text}"
        if text not in self.warnings:
            self.warnings.append(text)

    def stray(self, text: str) -> None:
        """Note that an address leads out of its memory into another; raises LeavesRegion unless ``flat``."""
        if not self.memory.flat:
            raise LeavesRegion(text)
        text = f"{text}: hardware accesses it without a check"
        if text not in self.warnings:
            self.warnings.append(text)

    def close(self) -> None:
        """No register will be touched any more: forget engines and hooks, which refer back to the machine.

        What was prepared can still be run. Without this the machine, and all simulated memory with it, would stay
        until the garbage collector looks for circles.
        """
        if "conv" in self._engines:
            cast(FetchingEngine, self._engines["conv"]).close()
        self._engines.clear()
        self.place = lambda engine: engine
        self.memory.noticed = lambda text: None
        self.registers.forget_hooks()

    def step(self) -> Completion | None:
        """Run one chain that is ready; None if there is none. Raises NvdlaError for settings that cannot run."""
        chain = self.ready_chain()
        if chain is None:
            return self._prefetch()
        jobs = [self._prepared(name) for name in chain]
        self.meter.hold("+".join(chain), (job.work for job in jobs))
        jobs = [job.accounted() for job in jobs]
        for before, job in pairwise(jobs):
            job.check_handed(before.handed_shape)
        self._work(jobs)
        stages = []
        interrupts = 0
        for name, job in zip(chain, jobs, strict=True):
            group = self._finish(name)
            stages.append(ChainStage(name, group, job))
            interrupts |= sum(1 << INTERRUPT_BITS[cause] + group for cause in self._causes(name))
        if "conv" in chain:
            self._fetched = False
        return self._complete(tuple(stages), interrupts)

    def _work(self, jobs: list[Job]) -> None:
        """Do the jobs of a chain, each handing on the fly to the next."""
        data: Handed = None
        for job in jobs:
            data = self.run_job(job, data)

    def unit(self, name: str) -> UnitRegisters:
        """The registers of a unit."""
        return self.registers.units[name]

    def ready_chain(self) -> tuple[str, ...] | None:
        """The first chain whose every engine is enabled, in a fixed order of preference."""
        chain = self._sdp_chain()
        candidates = [chain, *((name,) for name in ("cdp", "rubik", "bdma"))]
        if self.unit("PDP").current["D_OPERATION_MODE_CFG.FLYING_MODE"]:  # 1 = OFF_FLYING: from memory
            candidates.append(("pdp",))
            if "pdp" in chain:
                # The PDP first finishes what it does from memory; the SDP stalls until the next group's turn.
                candidates.remove(chain)
        return next((chain for chain in candidates if all(self._enabled(name) for name in chain)), None)

    def _sdp_chain(self) -> tuple[str, ...]:
        """The chain through the SDP that the SDP's consumer group describes."""
        mode = self.unit("SDP").current
        before = ("conv",) if mode["D_FEATURE_MODE_CFG.FLYING_MODE"] else ()
        after = ("pdp",) if mode["D_FEATURE_MODE_CFG.OUTPUT_DST"] else ()
        return (*before, "sdp", *after)

    def _enabled(self, name: str) -> bool:
        """A read DMA (the second unit of SDP, PDP, CDP) is not asked for here: the engine says when it must have it."""
        units = ENGINES[name].units
        needed = units if name == "conv" else units[:1]
        return all(self.unit(unit).ready for unit in needed)

    def _prepared(self, name: str) -> Job:
        """The engine's job, its work charged."""
        self.memory.noticed = lambda text: self.warn(name, text)
        job = self.engine(name).prepare(self._groups(name))
        self.meter.charge(name, job.work)
        return job

    def _groups(self, name: str) -> dict[str, RegisterGroup]:
        """The consumer groups of an engine's units; a unit that is not enabled is left out, so that the engine
        sees a missing read DMA."""
        return {unit: self.unit(unit).current for unit in self._units_at_work(name)}

    def _units_at_work(self, name: str) -> list[str]:
        """The enabled units of an engine's present operation.

        A read DMA runs ahead: it may be enabled already for the operation in the other group, while the present one
        takes everything on the fly or from registers. Then it belongs to that operation.
        """
        units = [unit for unit in ENGINES[name].units if self.unit(unit).ready]
        if name in ("sdp", "pdp") and len(units) == 2:
            core = self.unit(units[0])
            if core.enabled[core.consumer ^ 1] and not _takes_read_dma(name, core.current):
                return units[:1]
        return units

    def _causes(self, name: str) -> tuple[str, ...]:
        """Interrupts that an engine's end raises; the fetch of a convolution may have been reported before."""
        causes = ENGINES[name].interrupts
        return causes[:1] if name == "conv" and self._fetched else causes

    def _finish(self, name: str) -> int:
        """Free the groups of the engine's units; the group of its first unit names the interrupt."""
        units = [self.unit(unit) for unit in self._units_at_work(name)]
        group = units[0].consumer
        for unit in units:
            unit.finish()
        return group

    def _prefetch(self) -> Completion | None:
        """Let a convolution that waits for its SDP fill the convolution buffer, once, and say so.

        Only reached when nothing else can run: its events may be what lets the dependency graph go on.
        """
        if self._fetched or not self._enabled("conv"):
            return None
        engine = cast(FetchingEngine, self.engine("conv"))
        self.meter.allow("conv", engine.prepare(self._groups("conv")).work)
        engine.fetch(self._groups("conv"))
        self._fetched = True
        group = self.unit("CDMA").consumer
        return self._complete((), sum(1 << INTERRUPT_BITS[cause] + group for cause in ENGINES["conv"].interrupts[1:]))

    def _complete(self, stages: tuple[ChainStage, ...], interrupts: int) -> Completion:
        self.interrupt_status |= interrupts
        return Completion(stages, interrupts)

    def _glb_written(self, register: str, value: int) -> None:
        """S_INTR_STATUS is write-one-to-clear, S_INTR_SET raises."""
        if register == "S_INTR_STATUS":
            self.interrupt_status &= ~value
        elif register == "S_INTR_SET":
            self.interrupt_status |= value

    def _glb_read(self, register: str, value: int) -> int:
        return self.interrupt_status if register == "S_INTR_STATUS" else value


class Rehearsal(Machine):
    """A machine that prepares, checks and accounts every operation without its arithmetic. ``fetched_ahead``: a
    convolution reads its data before its turn."""

    works = False
    fetched_ahead = False

    def _work(self, jobs: list[Job]) -> None:
        """Compute nothing."""

    def _prefetch(self) -> Completion | None:
        completion = super()._prefetch()
        self.fetched_ahead |= completion is not None
        return completion


def _takes_read_dma(name: str, group: RegisterGroup) -> bool:
    """Return True if an operation of SDP or PDP reads memory, by the registers of its core (1 = from memory)."""
    if name == "pdp":
        return bool(group["D_OPERATION_MODE_CFG.FLYING_MODE"])
    if not group["D_FEATURE_MODE_CFG.FLYING_MODE"]:
        return True
    for block in ("BS", "BN", "EW"):
        flags = f"D_DP_{block}_CFG.{block}"
        if group[f"{flags}_BYPASS"]:
            continue
        for part in ("ALU", "MUL"):
            source = f"D_DP_{block}_{part}_CFG.{block}_{part}_SRC"
            if not group[f"{flags}_{part}_BYPASS"] and group[source]:
                return True
    return False
