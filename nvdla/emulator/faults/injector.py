"""Runs with faults: injection into the plan, replay from the fault on, the machine otherwise.

While every chain is set up as in the healthy run, nothing is computed: the first one that is not begins with the
memory of the healthy run at that moment. A run in which none differs gives the healthy outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nvdla.emulator.cpu import CpuTask
from nvdla.emulator.execution.fused_convolution import FusedConvolution, Shared, packed_weights, x1_operands
from nvdla.emulator.execution.instances import lanes_for
from nvdla.emulator.execution.plan import Recorder
from nvdla.emulator.execution.steps import Chain, Step
from nvdla.emulator.faults.convolution import ConvolutionFaults, FaultyConvolution, array_of
from nvdla.emulator.faults.fault import Fault
from nvdla.emulator.faults.network import (
    Golden,
    Poke,
    Resolved,
    Setting,
    Setup,
    StruckNetwork,
    TaskList,
    bind,
    convolution,
    engine_of,
    resolve,
)
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import Job
from nvdla.emulator.hardware.machine import ENGINES, Completion, Machine
from nvdla.emulator.memory.linker import LinkedLoadable, Surface
from nvdla.errors import ConfigError, LinkError


class FaultReplay:
    """``faults`` on a network whose steps may be done again."""

    def __init__(self, network: StruckNetwork, faults: Resolved) -> None:
        self._network, self._faults = network, faults
        self._bytes = [network.byte_at(poke.space, poke.address) for poke in faults.pokes]
        self._readers = [network.readers(view) for view in self._bytes]
        self._unfused = self._needed_unfused()
        self._steps = self._made()
        self._first, self._last = self._extent()

    def run(self, golden: Golden) -> list[bytes]:
        """Raw outputs for the inputs of a healthy run."""
        network, count = self._network, len(self._steps)
        network.restore(golden, self._first)
        open_until = dict.fromkeys(range(-len(self._bytes), 0), -1)
        changed: list[tuple[np.ndarray, int]] = []
        try:
            for number in range(self._first, count):
                self._strike(number, changed, open_until)
                step = self._steps[number]
                step.run()
                self._heal(number, changed)
                if not _equal(network.fused[number].writes, golden.written[number]):
                    open_until[number] = network.last_reader(number)
                if number >= self._last and all(end <= number for end in open_until.values()):
                    return golden.outputs
            self._strike(count, changed, open_until)
            return network.outputs()
        finally:
            for view, old in reversed(changed):
                view[0] = old

    def run_lanes(self, images: Sequence[Sequence[Surface]]) -> list[list[bytes]]:
        """Raw outputs of images in lanes 1, 2 ...; without faults in memory."""
        linked, count = self._network.linked, len(images)
        self._network.clear_lanes(images)
        for step in self._steps:
            step.run_lanes(linked.lanes, count)
        outputs = [linked.lanes.across(linked.data(memory), count) for memory in linked.loadable.outputs]
        return [[output[lane].tobytes() for output in outputs] for lane in range(count)]

    def _needed_unfused(self) -> set[int]:
        """Steps that must read what a fused form has read once, and all that share the buffer with a step of those."""
        network = self._network
        plain = set(self._faults.convolutions)
        for poke, readers in zip(self._faults.pokes, self._readers, strict=True):
            plain |= {number for number in readers if number < len(network.steps) and _acts(poke, number)}
        together = set(plain)
        for number in plain:
            together |= set(range(network.first_of_group[number], network.last_of_group[number] + 1))
        return together

    def _made(self) -> list[Step]:
        network, steps, shared = self._network, [], Shared()
        for number, fused in enumerate(network.fused):
            faults = self._faults.convolutions.get(number)
            if number not in self._unfused:
                steps.append(fused)
                continue
            quick = None if faults is None else _with_constant_products(fused, faults, shared)
            steps.append(quick or _with(network.steps[number], faults))
        return steps

    def _extent(self) -> tuple[int, int]:
        """The step to begin with, and the last at which a fault acts."""
        network, count = self._network, len(self._steps)
        firsts, lasts = [*self._faults.convolutions], [*self._faults.convolutions]
        for poke, readers in zip(self._faults.pokes, self._readers, strict=True):
            # A permanent fault is there in every memory state: nothing happens before its first read.
            firsts.append(min(readers, default=count) if poke.permanent else min(poke.first, count))
            lasts.append(count if poke.permanent else poke.first)
        first = min(firsts, default=count)
        return (network.first_of_group[first] if first < count else count), max(lasts, default=-1)

    def _strike(self, number: int, changed: list[tuple[np.ndarray, int]], open_until: dict[int, int]) -> None:
        """Apply the faults that are due before a step."""
        for index, poke in enumerate(self._faults.pokes):
            view = self._bytes[index]
            now = number == self._first if poke.permanent else number == poke.first
            if now:
                changed.append((view, int(view[0])))
                view[0] = poke.effect.on_word(int(view[0]), 8)
                if not poke.once:
                    open_until[index - len(self._bytes)] = max(self._readers[index], default=-1)

    def _heal(self, number: int, changed: list[tuple[np.ndarray, int]]) -> None:
        """After a step: remove faults of this step alone, apply permanent ones to what it wrote."""
        for index, poke in enumerate(self._faults.pokes):
            view = self._bytes[index]
            if poke.once and number == poke.first:
                view[0] = next(old for where, old in changed if where is view)
            elif poke.permanent and any(
                np.shares_memory(view, written) for written in self._network.fused[number].writes
            ):
                view[0] = poke.effect.on_word(int(view[0]), 8)


def _acts(poke: Poke, number: int) -> bool:
    """Return whether a byte may differ from the healthy run when a step reads it."""
    return poke.permanent or number == poke.first or (number > poke.first and not poke.once)


def _equal(views: Sequence[np.ndarray], golden: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(view, data) for view, data in zip(views, golden, strict=True))


def _with(step: Step, faults: ConvolutionFaults | None) -> Step:
    """The step with a broken convolution."""
    if faults is None:
        return step
    conv = convolution(step)
    assert conv is not None and isinstance(step, Chain)
    return Chain((FaultyConvolution(conv, faults), *step.jobs[1:]))


def faulty_jobs(jobs: Sequence[object], faults: ConvolutionFaults) -> list[object]:
    """The jobs of a chain with a broken convolution. Raises ConfigError where the chain has none."""
    conv = jobs[0]
    if not isinstance(conv, ConvolutionJob):
        raise ConfigError("fault: its step must begin with a convolution")
    return [FaultyConvolution(conv, faults), *jobs[1:]]


def _with_constant_products(fused: Step, faults: ConvolutionFaults, shared: Shared) -> Step | None:
    """The fused step where all that is broken are multipliers that give a constant: weights without effect, and as
    many constants more in every sum as there are atoms; None for other faults, or where sums could leave 32 bits."""
    job = fused.jobs[0] if isinstance(fused, Chain) else None
    if not isinstance(job, FusedConvolution) or not isinstance(fused, Chain) or not _all_constant(faults):
        return None
    from nvdla.kernels.fast.conv_sdp_int8 import sums_fit

    conv, arithmetic = job.conv, array_of(job.conv)
    weights = arithmetic.unpack(conv.weight_source.read()).copy()
    alu, mul = (operand.copy() for operand in x1_operands(job.sdp))
    group, sequence = arithmetic.group, arithmetic.sequence()
    for where, effect in faults.array.multipliers:
        for atom in sequence:
            place = 0
            for row, column, first, end in atom:
                channel = first + where.channel - place
                if first <= channel < end:
                    weights[where.kernel :: group, row, column, channel] = 0
                    alu[where.kernel : len(weights) : group] += effect.value
                place += end - first
    if not sums_fit(weights, alu[: len(weights)]):
        return None
    packed = packed_weights(conv, job.sdp, weights)
    return Chain((FusedConvolution(conv, job.sdp, packed, (alu, mul), shared), *fused.jobs[1:]))


def _all_constant(faults: ConvolutionFaults) -> bool:
    multipliers = faults.array.multipliers
    whole = all(where.port == "product" and where.always for where, _ in multipliers)
    return (
        whole and all(effect.kind == "set" for _, effect in multipliers) and not (faults.array.sums or faults.entries)
    )


Picture = tuple[tuple[Any, ...], ...]
"""All settings of a chain: engines, values of registers that can be written, lookup tables."""
WATCHDOG = 8
"""Factor on the work of the healthy run after which a faulty run counts as hanging."""


class HealthyRun:
    """Settings and results of each step, on the memory of ``linked``."""

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
        """One chain, with the faults in its settings."""
        for index, setting in enumerate(self._faults.settings):
            now = setting.step is None or (setting.step == self._number and index not in self._struck)
            if now and self._strike(setting):
                self._struck.add(index)
        self._chain = []
        return super().step()

    def cpu(self, task: CpuTask) -> None:
        """Run a task of the processor, which is one step."""
        self._do((("cpu", task.id),), task.run, lambda: task.writes)

    def end(self) -> None:
        """Apply faults after the last step."""
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

        self._do(self._picture(), run, lambda: [view for job in jobs for view in job.writes])

    def _do(self, picture: Picture, run: Any, writes: Any) -> None:
        number, self._number = self._number, self._number + 1
        if self.followed and self._follows(number, picture):
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
        # A fault after the last step strikes memory that must be complete.
        later = all(poke.first < 0 or number < poke.first < len(self._healthy.pictures) for poke in self._faults.pokes)
        if number in self._faults.convolutions or not later:
            return False
        return number < len(self._healthy.pictures) and self._healthy.pictures[number] == picture

    def _part(self, number: int) -> None:
        """Leave the healthy run: restore memory from it, and compute from here on."""
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

    def _settings_of(self, name: str) -> tuple[object, ...]:
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
    """Runs through the firmware on memory that is contiguous by address, as in hardware."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._linked = setup.link(True)
        self._limits = setup.limits
        self._follow = False
        self._inputs: tuple[bytes, ...] | None = None
        self._healthy = HealthyRun()

    def run(self, inputs: Sequence[bytes], faults: Resolved) -> list[bytes]:
        """Raw outputs for raw inputs. Raises NvdlaError: ScheduleError where hardware would deadlock."""
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
        """Note the cost of a healthy run, and whether others may follow it."""
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
        """Reset memory to its loaded contents, unallocated memory too."""
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


class Injector:
    """Runs of a network with faults on its own memory, one at a time (callers wait for one another)."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.RLock()
        self._network: StruckNetwork | None = None
        self._lanes: StruckNetwork | None = None
        self._firmware: FirmwareRuns | None = None

    def network(self, inputs: Sequence[Surface] | None = None) -> StruckNetwork:
        """The network; its first run, on ``inputs`` (zeros by default), shows what it is made of."""
        with self._lock:
            if self._network is None:
                self._network = StruckNetwork.recorded(self._setup, inputs or self._zeros())
            return self._network

    def golden(self, inputs: Sequence[Surface]) -> Golden:
        """The healthy run on raw inputs, for :meth:`run`. Raises NvdlaError."""
        with self._lock:
            network = self.network(inputs)
            if network.is_repeatable:
                return network.golden(inputs)
            fresh = StruckNetwork.recorded(self._setup, inputs)
            return Golden(tuple(bytes(surface) for surface in inputs), fresh.outputs(), [])

    def run(self, golden: Golden, faults: Sequence[Fault]) -> list[bytes]:
        """Raw outputs with faults. Raises NvdlaError for what refuses the faulty run; ScheduleError: it would hang."""
        with self._lock:
            network = self.network(golden.inputs)
            resolved = resolve(network, faults)
            if network.is_repeatable and not resolved.needs_firmware:
                return FaultReplay(network, resolved).run(golden)
            if self._firmware is None:
                self._firmware = FirmwareRuns(self._setup)
            return self._firmware.run(golden.inputs, resolved)

    def run_many(self, images: Sequence[Sequence[Surface]], faults: Sequence[Fault]) -> list[list[bytes]]:
        """Raw outputs of images with faults: several images together where only convolutions are broken."""
        with self._lock:
            network = self.network(images[0]) if images else None
            if network is None:
                return []
            resolved = resolve(network, faults)
            lanes = self._with_lanes(network, len(images)) if not (resolved.needs_firmware or resolved.pokes) else None
            if lanes is None or not network.is_repeatable:
                return [self.run(self.golden(image), faults) for image in images]
            replay = FaultReplay(lanes, resolve(lanes, faults))
            together = lanes.linked.lanes.count - 1
            results: list[list[bytes]] = []
            for first in range(0, len(images), together):
                results += replay.run_lanes(images[first : first + together])
            return results

    def _with_lanes(self, network: StruckNetwork, images: int) -> StruckNetwork | None:
        """The network on memory with lanes, None where it takes none."""
        if not network.takes_lanes:
            return None
        wanted = lanes_for(images, network.linked.lanes.stride)
        if self._lanes is None or self._lanes.linked.lanes.count <= wanted:
            try:
                self._lanes = network.clone(wanted + 1)
            except LinkError:  # one image fits the memory limit, several do not
                return None
        return self._lanes

    def _zeros(self) -> list[bytes]:
        loadable = self._setup.link(False).loadable
        return [bytes(memory.size) for memory in loadable.inputs]
