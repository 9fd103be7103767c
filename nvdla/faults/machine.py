"""A faulty run through the firmware: for what the firmware reads, registers and lookup tables.

While every chain is set up as in the healthy run, nothing is computed: the first one that is not begins with the
memory of the healthy run at that moment. A run in which none differs gives the healthy outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nvdla.cpu import CpuTask
from nvdla.execution.plan import Recorder
from nvdla.faults.network import bind
from nvdla.faults.replay import faulty_jobs
from nvdla.faults.resolve import Poke, Resolved, Setting, engine_of
from nvdla.faults.setup import Setup, TaskList
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.job import Job
from nvdla.hardware.machine import ENGINES, Completion, Machine
from nvdla.memory.linker import LinkedLoadable

Picture = tuple[tuple[Any, ...], ...]
"""All settings of a chain: engines, values of registers that can be written, lookup tables."""
WATCHDOG = 8
"""How many times the work of the healthy run a faulty one may take before it counts as hanging."""


class HealthyRun:
    """What each step was set up with and wrote, on the memory of ``linked``."""

    def __init__(self) -> None:
        self.pictures: list[Picture] = []
        self.written: list[list[tuple[np.ndarray, np.ndarray]]] = []
        self.outputs: list[bytes] = []


class FaultyMachine(Machine):
    """The machine with faults. ``healthy``: the run to compare with, None: compute everything."""

    def watch(
        self, faults: Resolved, linked: LinkedLoadable, healthy: HealthyRun | None, record: HealthyRun | None
    ) -> None:
        """Begin a run."""
        self._faults, self._linked, self._healthy, self._record = faults, linked, healthy, record
        self._number = 0
        self._struck: set[int] = set()
        self._chain: list[str] = []
        self.followed = healthy is not None

    def step(self) -> Completion | None:
        """One chain, with its settings struck."""
        for index, setting in enumerate(self._faults.settings):
            now = setting.step is None or (setting.step == self._number and index not in self._struck)
            if now and self._strike(setting):
                self._struck.add(index)
        self._chain = []
        return super().step()

    def cpu(self, task: CpuTask) -> None:
        """A task of the processor: a step of its own."""
        self._do((("cpu", task.id),), task.run, lambda: task.writes, lambda: None)

    def end(self) -> None:
        """After the last step: what strikes behind it."""
        if not self.followed:
            for poke in self._faults.pokes:
                if poke.first >= self._number and not poke.permanent:
                    self._poke(poke)

    def _prepared(self, name: str) -> Job:
        self._chain.append(name)
        return super()._prepared(name)

    def _work(self, jobs: list[Job]) -> None:
        faults = self._faults.convolutions.get(self._number)

        def run() -> None:
            super(FaultyMachine, self)._work(jobs if faults is None else faulty_jobs(jobs, faults))  # type: ignore[arg-type]

        def skip() -> None:
            if isinstance(jobs[0], ConvolutionJob):
                jobs[0].account()

        self._do(self._picture(), run, lambda: [view for job in jobs for view in job.writes], skip)

    def _do(self, picture: Picture, run: Any, writes: Any, skip: Any) -> None:
        number, self._number = self._number, self._number + 1
        if self.followed and self._follows(number, picture):
            skip()
            return
        if self.followed:
            self._part(number)
        healed: list[tuple[Any, ...]] = []
        for poke in self._faults.pokes:
            if poke.first == number and not poke.permanent:
                healed.append((self._byte(poke), int(self._byte(poke)[0])) if poke.once else ())
                self._poke(poke)
        run()
        for view, old in filter(None, healed):
            view[0] = old
        for poke in self._faults.pokes:
            if poke.permanent and any(np.shares_memory(self._byte(poke), view) for view in writes()):
                self._poke(poke)
        if self._record is not None:
            self._record.pictures.append(picture)
            self._record.written.append([(view, view.copy()) for view in writes()])

    def _follows(self, number: int, picture: Picture) -> bool:
        assert self._healthy is not None
        # One behind the last step strikes memory that must be there.
        later = all(poke.first < 0 or number < poke.first < len(self._healthy.pictures) for poke in self._faults.pokes)
        if number in self._faults.convolutions or not later:
            return False
        return number < len(self._healthy.pictures) and self._healthy.pictures[number] == picture

    def _part(self, number: int) -> None:
        """From here on it is a run of its own: memory as the healthy run had it."""
        assert self._healthy is not None
        self.followed = False
        for written in self._healthy.written[:number]:
            for view, data in written:
                view[...] = data
        for poke in self._faults.pokes:
            if poke.permanent and poke.effect.settles:
                self._poke(poke)

    def _picture(self) -> Picture:
        return tuple(self._settings_of(name) for name in self._chain)

    def _settings_of(self, name: str) -> tuple[Any, ...]:
        values = []
        for unit in self._units_at_work(name) if name != "bdma" else ENGINES[name].units:
            registers = self.unit(unit)
            group = registers.current
            for register, known in registers.registers.items():
                if known.writable and register not in ("S_POINTER", "S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA"):
                    values.append(group.values[register] if register in group.values else group.shared[register])
        tables = getattr(self.engine(name), "tables", None)
        lut = () if tables is None else (tables.le.tobytes(), tables.lo.tobytes())
        return (name, *values, *lut)

    def _strike(self, setting: Setting) -> bool:
        """Change a register or an entry of a table, where the unit is about to work."""
        unit = self.unit(setting.unit)
        if unit.has_groups and not unit.ready:
            return False
        if setting.name in ("LE", "LO"):
            tables = self.engine(engine_of(setting.unit) or "sdp").tables  # type: ignore[attr-defined]
            table = tables.le if setting.name == "LE" else tables.lo
            table[setting.entry] = setting.effect.on(table[setting.entry], 16)
            return True
        group = unit.current
        target = group.values if setting.name in group.values else group.shared
        target[setting.name] = setting.effect.on_word(target[setting.name], 32) & unit.registers[setting.name].writable
        return True

    def _byte(self, poke: Poke) -> np.ndarray:
        return self._linked.space.view(poke.space, poke.address, 1)

    def _poke(self, poke: Poke) -> None:
        view = self._byte(poke)
        view[0] = poke.effect.on_word(int(view[0]), 8)


class FirmwareRuns:
    """Runs through the firmware on memory in which neighbours by address are neighbours, as hardware has it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._linked = setup.link(True)
        self._limits = setup.limits
        self._follow = False
        self._inputs: tuple[bytes, ...] | None = None
        self._healthy = HealthyRun()

    def run(self, inputs: Sequence[bytes], faults: Resolved) -> list[bytes]:
        """Raw outputs for raw inputs. Raises NvdlaError: ScheduleError where hardware would wait for ever."""
        given = tuple(inputs)
        if self._inputs != given:
            self._inputs, self._healthy = None, HealthyRun()
            self._limits = self._setup.limits
            self._once(given, Resolved(), None, self._healthy)
            self._inputs = given
        outputs, followed = self._once(given, faults, self._healthy if self._follow else None, None)
        return self._healthy.outputs if followed else outputs

    def _once(
        self, inputs: Sequence[bytes], faults: Resolved, healthy: HealthyRun | None, record: HealthyRun | None
    ) -> tuple[list[bytes], bool]:
        linked, setup = self._linked, self._setup
        self._clear()
        bind(linked, inputs)
        for poke in faults.pokes:
            if poke.first < 0 or poke.permanent:
                view = linked.space.view(poke.space, poke.address, 1)
                view[0] = poke.effect.on_word(int(view[0]), 8)
        tasks = setup.decode(linked)
        machine = FaultyMachine(setup.config, linked.space, setup.threads, self._limits, setup.hardware_only)
        machine.watch(faults, linked, healthy, record)
        recorder = _Recorder(machine)
        try:
            recorder.run(tasks, machine)
            machine.end()
        finally:
            machine.close()
        outputs = [linked.data(memory).tobytes() for memory in linked.loadable.outputs]
        if record is not None:
            record.outputs = outputs
            self._learn(machine, recorder, tasks)
        return outputs, machine.followed

    def _learn(self, machine: FaultyMachine, recorder: Recorder, tasks: TaskList) -> None:
        """What a healthy run costs, and whether others may follow it."""
        meter, limits = machine.meter, self._setup.limits
        self._limits = replace(
            limits,
            operations=min(limits.operations, WATCHDOG * meter.operations + 64),
            multiplications=min(limits.multiplications, WATCHDOG * meter.multiplications + (1 << 24)),
            elements=min(limits.elements, WATCHDOG * meter.elements + (1 << 24)),
        )
        plan = recorder.plan(self._linked, tasks)
        kept = any(isinstance(job, ConvolutionJob) and job.engine.buffer.read_back for _, job in plan.operations())
        self._follow = plan.is_repeatable(tasks) and not kept

    def _clear(self) -> None:
        """Memory as it is when loaded, that of nobody too."""
        self._linked.reset()
        loaded = {id(region.data) for region in self._linked.regions.values()}
        for region in self._linked.space.regions():
            if id(region.data) not in loaded and region.data.any():
                region.data[:] = 0


class _Recorder(Recorder):
    """Tasks of the processor are steps of the machine here."""

    def __init__(self, machine: FaultyMachine) -> None:
        super().__init__(None)
        self._machine = machine

    def cpu(self, task: CpuTask) -> None:
        self._machine.cpu(task)
