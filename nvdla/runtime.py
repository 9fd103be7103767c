"""The runtime: links a loadable, puts tensors in, lets firmware and hardware work, takes tensors out.

    runtime = nvdla.Runtime("lenet.nvdla")
    outputs = runtime.run("digit.pgm")

The first run goes through the firmware: descriptors become register writes, registers become prepared jobs of the
engines. Later runs of the same Runtime repeat those jobs in the same order (a
:class:`nvdla.emulator.execution.plan.Plan`), because nothing that they depend on but the data has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from nvdla.emulator.cpu import CpuTask
from nvdla.emulator.execution.instances import MOST_LANES, Instance, Instances
from nvdla.emulator.execution.paths import SINGLE_CALL, Request, RunPath, State, choose_path
from nvdla.emulator.execution.plan import Plan, Recorder
from nvdla.emulator.execution.steps import OnOperation, OnStep, Resumable
from nvdla.emulator.firmware.operation import CsbLog, FirmwareOperation, is_large
from nvdla.emulator.firmware.scheduler import FirmwareTask, ScheduleStep
from nvdla.emulator.hardware.job import Job
from nvdla.emulator.hardware.machine import Machine, Rehearsal
from nvdla.emulator.memory.address_space import LeavesRegion
from nvdla.emulator.memory.linker import LinkedLoadable, Surface
from nvdla.emulator.memory.placement import Strides
from nvdla.emulator.memory.surfaces import Layout, tensor_layout
from nvdla.errors import ArgumentTypeError, FormatError, NvdlaError, ScheduleError, in_input, printable
from nvdla.kernels.jit.processor import usable_cores
from nvdla.kernels.threads import limited
from nvdla.limits import Limits
from nvdla.loadable import Loadable, load
from nvdla.loadable.descriptors import abi_named
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import LoadableHolder, MemoryEntry
from nvdla.loadable.reader import Source
from nvdla.program.naming import Names, names_of
from nvdla.program.program import Program
from nvdla.tensors.inputs import (
    Image,
    Input,
    InputForm,
    PictureConversion,
    RawSurface,
    by_position,
    is_image,
    per_run,
    pixel_conversion,
    preprocessing_for,
)
from nvdla.tensors.real import ScaleMissing, pixels_of
from nvdla.util.arguments import (
    by_annotations,
    checked,
    described,
    images_of_batch,
    numbers_by_name,
    raw_bytes,
    says_when_memory_ends,
    surfaces_of_image,
    whole_number,
)
from nvdla.util.escaping import Document, table

if TYPE_CHECKING:
    from nvdla.emulator.faults import Fault
    from nvdla.emulator.faults.injector import Injector

__all__ = ["Runtime", "Tensor"]


@dataclass(frozen=True)
class Tensor:
    """A bound tensor: an input or output of a loadable.

    ``shape`` is (N, C, H, W), ``size`` the bytes of its surface, and ``strides`` are in bytes. ``layout`` packs and
    unpacks arrays; ``memory`` is its entry in the memory list.
    """

    name: str
    shape: tuple[int, int, int, int]
    dtype: np.dtype
    size: int
    strides: tuple[int, ...]
    pixel_format: str
    layout: Layout
    memory: MemoryEntry

    @property
    def line_stride(self) -> int:
        """Bytes from a line to the next."""
        return self.strides[1]

    @property
    def surface_stride(self) -> int:
        """Bytes from a surface to the next."""
        return self.strides[2]


class Runtime:
    """A loadable on a simulated NVDLA.

    Attributes:
        config: The configuration; ``config_reason`` states why it was chosen.
        abi: "old" (28-byte data cube) or "new"; ``abi_reason`` states why.
        inputs: Bound inputs (:class:`Tensor`) in bind order; ``outputs`` likewise.
        warnings: One line per suspicious setting that the hardware accepts silently, some only after the first run.

    Args:
        loadable: A :class:`nvdla.Loadable`, :class:`nvdla.Compiled` or decoded program, or a path or bytes.
        config: Name of a configuration, or "auto".
        abi: "auto", "old" or "new".
        threads: Threads of the kernels (None: one per core).
        limits: Limits of the file and of runs (:class:`nvdla.limits.Limits`).
        memory_limit: Short for ``Limits(memory=...)``, in bytes: memory list, temporaries, packed weights, and the
            needs of concurrent callers.
        strides: Other strides of bound tensors by name: (element, line, surface) in bytes.
        scales: Real value per unit of bound tensors by name, in addition to the layer file (``LOADABLE.layers.json``).
        hardware_only: Continue with a warning where NVIDIA's C model deadlocks and hardware does not.
        strict: Raise LinkError for accesses that leave their memory region, which hardware permits silently.

    Raises:
        LinkError: A reference is broken, or the memory limit is too low.
        DescriptorError: A descriptor cannot be decoded.
        ConfigError: The configuration is unknown, or lacks a feature that the loadable needs.
        ScheduleError: The loadable exceeds the limits of operations or work.
        ArgumentTypeError: An argument has the wrong type (also a TypeError).
        OutOfMemoryError: The system is out of memory.
    """

    @says_when_memory_ends
    @by_annotations
    def __init__(
        self,
        loadable: Loadable | Program | LoadableHolder | Source,
        config: str = "auto",
        abi: str = "auto",
        threads: int | None = None,
        *,
        limits: Limits | None = None,
        memory_limit: int | None = None,
        strides: Mapping[str, Strides] | None = None,
        scales: Mapping[str, float] | None = None,
        hardware_only: bool = False,
        strict: bool = False,
    ) -> None:
        if isinstance(loadable, LoadableHolder):
            loadable, config = loadable.__nvdla_loadable__(config)
        self._given: Document = {
            "config": config, "abi": abi, "threads": threads, "limits": limits, "memory_limit": memory_limit,
            "strides": strides, "scales": scales, "hardware_only": hardware_only, "strict": strict,
        }  # fmt: skip
        self.limits = limits or Limits()
        if memory_limit is not None:
            self.limits = replace(self.limits, memory=whole_number(memory_limit, "memory_limit", 0))
        program = loadable if isinstance(loadable, Program) else None
        if isinstance(loadable, Program):
            self._given |= {"config": loadable.config, "abi": loadable.abi}
            loadable = loadable.loadable
        self.loadable = loadable = loadable if isinstance(loadable, Loadable) else load(loadable, limits=self.limits)
        self.threads = None if threads is None else whole_number(threads, "threads", 1)
        self._program = program or Program.of(loadable, config, abi, limits=self.limits)
        self.abi, self.abi_reason = self._program.abi.name, self._program.abi_reason
        self.config, self.config_reason = self._program.config, self._program.config_reason
        if config != "auto" or program is not None:
            from nvdla.emulator.execution.dry_run import check_atoms

            check_atoms(loadable, self._program.abi, self.config)
        loadable.forget()  # what is large goes straight to where it is linked
        self._linked = LinkedLoadable(loadable, self.limits.memory, strides)
        self.inputs = [self._tensor(memory) for memory in loadable.inputs]
        self.outputs = [self._tensor(memory) for memory in loadable.outputs]
        self.tasks = self._decode_tasks(self._linked)
        firmware = (task for task in self.tasks if isinstance(task, FirmwareTask))
        operations = (operation for task in firmware for operation in task.operations())
        self._is_large = is_large(operations, self.limits)
        self.steps: list[ScheduleStep] = []
        self.warnings: list[str] = []
        self._hardware_only, self._strict = hardware_only, strict
        self._memory = (self.limits.memory, strides)
        self._scales = numbers_by_name(scales, "scales")
        self._plan: Plan | None = None
        self._dirty: set[int] | None = set()
        self._instances = Instances(max(2, usable_cores()))
        self._kept_injector: Injector | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Return a new runtime of the same loadable, before its first run, for pickle and copy."""
        return partial(type(self), **self._given), (self.loadable,)

    @cached_property
    def names(self) -> Names:
        """Layer names, scales of tensors and the model's preprocessing: of the layer file, and what the caller gave."""
        return names_of(self.loadable) | Names(scales=self._scales)

    def rescale(self, scales: Mapping[str, float]) -> None:
        """Set the real value per unit of bound tensors, like ``scales`` of the constructor.

        Args:
            scales: Positive numbers by name of a tensor; others keep their scale.

        Raises:
            FormatError: A number is not positive.
        """
        self._scales = self._scales | numbers_by_name(scales, "scales")
        self._given["scales"] = self._scales
        self.__dict__.pop("names", None)

    @by_annotations
    def program(self, layers: Mapping[tuple[int, int], str] | None = None) -> Program:
        """Return the decoded loadable for this configuration and ABI.

        Args:
            layers: Layer names by (task, operation).
        """
        return replace(self._program, layers=layers or {})

    @says_when_memory_ends
    def run(
        self,
        inputs: Input | Sequence[Input] | Mapping[str, Input],
        on_operation: OnOperation | None = None,
        preprocessing: PictureConversion | None = None,
        *,
        real: bool = False,
        faults: Sequence[Fault] = (),
    ) -> dict[str, np.ndarray]:
        """Run the network on one or more images.

        Args:
            inputs: Inputs by name, in bind order, or a single one. Each is an array (N, C, H, W) of elements or of real
                numbers (floats), also in the model's shape; a picture (PIL image, or uint8 array (H, W) or (H, W, C));
                a file (image, .npy, .dimg, .bin); or bytes of its surface. Lists and batch arrays run image by image.
            on_operation: Callback, see :meth:`run_raw`.
            preprocessing: Conversion of pictures to numbers, a :class:`nvdla.tensors.inputs.Preprocessing` (default:
                that of the layer file, else that of NVIDIA's runtime).
            real: Return real numbers (float32) instead of elements.
            faults: Hardware faults during this run (:class:`nvdla.emulator.faults.Fault`).

        Returns:
            The outputs by name, arrays (N, C, H, W); several images are concatenated along N.

        Raises:
            ScaleMissing: Real numbers need a scale that neither ``scales`` nor the layer file contains.
            NvdlaError: An input does not fit, or the run fails.
        """
        images = self._surfaces_of_runs(inputs, preprocessing)
        if on_operation is not None:
            raws = [self.run_raw(image, on_operation, faults=faults) for image in images]
        elif faults or len(images) > 1:
            raws = self.run_many(images, faults=faults)
        else:
            raws = self._run_next(images, converts=True)
        outputs = [self.unpack(raw, real=real) for raw in raws]
        return outputs[0] if len(outputs) == 1 else _joined(outputs)

    @says_when_memory_ends
    def surfaces(
        self, inputs: Input | Sequence[Input] | Mapping[str, Input], preprocessing: PictureConversion | None = None
    ) -> list[bytes]:
        """Return the raw surfaces, in bind order, of the inputs of one run.

        Args:
            inputs: Inputs as for :meth:`run`.
            preprocessing: Conversion of pictures as for :meth:`run`.

        Raises:
            FormatError: The inputs are not those of exactly one image.
        """
        images = self._surfaces_of_runs(inputs, preprocessing)
        if len(images) != 1:
            raise FormatError(f"inputs: must be of one image, got {len(images)}. Use run or run_many for several.")
        return images[0]

    def _surfaces_of_runs(
        self, inputs: Input | Sequence[Input] | Mapping[str, Input], preprocessing: PictureConversion | None = None
    ) -> list[list[bytes]]:
        """The raw surfaces, in bind order, of every run that inputs given as to :meth:`run` stand for."""
        names = [tensor.name for tensor in self.inputs]
        given = [
            per_run(value, tensor.shape, tensor.name, lambda: self.names.inputs)
            for tensor, value in zip(self.inputs, by_position(inputs, names, lambda: self.names.owners), strict=True)
        ]
        counts = {len(values) for values in given}
        if len(counts) > 1:
            numbers = ", ".join(f"{name} {len(values)}" for name, values in zip(names, given, strict=True))
            raise FormatError(f"inputs: must have the same number of images each, got {numbers}")
        runs = zip(*given, strict=True) if given else [()]
        return [
            [self._surface(tensor, value, preprocessing) for tensor, value in zip(self.inputs, run, strict=True)]
            for run in runs
        ]

    @says_when_memory_ends
    def run_raw(
        self,
        inputs: Sequence[RawSurface],
        on_operation: OnOperation | None = None,
        csb_log: CsbLog | None = None,
        on_step: OnStep | None = None,
        *,
        faults: Sequence[Fault] = (),
    ) -> list[bytes]:
        """Run the network on the raw surfaces of one image.

        Args:
            inputs: Bytes of the surfaces, in bind order.
            on_operation: Called with an :class:`nvdla.emulator.execution.steps.OperationEvent` when the firmware finds
                an operation completed, in that order.
            csb_log: List to which every register write is appended.
            on_step: Called with the kind and duration of each step of a repeated run
                (:mod:`nvdla.emulator.execution.steps`).
            faults: Hardware faults during this run. Later runs are not affected. Not allowed together with the
                callbacks.

        Returns:
            Bytes of the bound outputs, in bind order.

        Raises:
            ArgumentTypeError: An argument has the wrong type.
            NvdlaError: A surface does not fit, or the run fails.
        """
        for given, kind, name in ((on_operation, OnOperation, "on_operation"), (on_step, OnStep, "on_step")):
            if given is not None:
                checked(given, kind, name)
        if csb_log is not None and not isinstance(csb_log, list):
            raise ArgumentTypeError(f"csb_log must be a list, got {described(csb_log)}")
        return self._run_next([inputs], on_operation, csb_log, on_step, faults)[0]

    @overload
    def run_many(
        self,
        images: np.ndarray | Iterable[Image | Mapping[str, Input]],
        preprocessing: PictureConversion | None = None,
        *,
        real: bool = False,
        faults: Sequence[Fault] = (),
    ) -> list[dict[str, np.ndarray]]: ...
    @overload
    def run_many(
        self,
        images: Iterable[Sequence[RawSurface]],
        preprocessing: PictureConversion | None = None,
        *,
        real: bool = False,
        faults: Sequence[Fault] = (),
    ) -> list[list[bytes]]: ...
    @says_when_memory_ends
    def run_many(
        self,
        images: np.ndarray | Iterable[Image | Mapping[str, Input] | Sequence[RawSurface]],
        preprocessing: PictureConversion | None = None,
        *,
        real: bool = False,
        faults: Sequence[Fault] = (),
    ) -> list[dict[str, np.ndarray]] | list[list[bytes]]:
        """Run many images, with the results of single runs.

        Several images go through the network together where that is faster. This takes the memory of the network's
        surfaces and of one layer's padded data once per image (at most
        :data:`nvdla.emulator.execution.instances.LANE_BYTES`).

        Args:
            images: A list, a generator, or a batch array (N, C, H, W). An image is an input of :meth:`run`, a mapping
                of inputs by name, or the list of its raw surfaces in bind order.
            preprocessing: Conversion of pictures as for :meth:`run`.
            real: Return real numbers (float32) instead of elements.
            faults: Hardware faults during all runs.

        Returns:
            Per image the result of :meth:`run`, or of :meth:`run_raw` if it was given as raw surfaces.
        """
        checked(faults, Sequence, "faults")
        given = self._images_of(images)
        surfaces = [
            self.surfaces(image, preprocessing) if isinstance(image, Mapping) or is_image(image) else image
            for image in given
        ]
        results: list[list[bytes]] = []
        while len(results) < len(surfaces):
            last = None if faults else len(results) + MOST_LANES
            results += self._run_next(surfaces[len(results) : last], faults=faults)
        unpacked: list[Any] = [
            result if surface is image else self.unpack(result, real=real)
            for image, surface, result in zip(given, surfaces, results, strict=True)
        ]
        return unpacked

    def _injector(self) -> Injector:
        """Return the injector of this network, which has its own memory; kept for later runs with faults."""
        if self._kept_injector is None:
            from nvdla.emulator.faults.injector import Injector
            from nvdla.emulator.faults.network import Setup

            limit, strides = self._memory
            loadable = self.loadable

            def link(flat: bool) -> LinkedLoadable:
                return LinkedLoadable(loadable, limit, strides, flat)

            ways = self._hardware_only, self._strict
            setup = Setup(link, self._decode_tasks, self.config, self.threads, self.limits, *ways)
            self._kept_injector = Injector(setup)
        return self._kept_injector

    def operations(self) -> list[tuple[FirmwareOperation, Job | None]]:
        """Return every operation of the latest run with its job; empty if the run cannot be repeated."""
        self._linked.reload()
        return self._plan.operations() if self._plan else []

    @overload
    def _machine(self) -> Machine: ...
    @overload
    def _machine(self, kind: type[Rehearsal]) -> Rehearsal: ...
    def _machine(self, kind: type[Machine] = Machine) -> Machine:
        """Return a machine, fresh from reset, on the memory of this runtime; the caller closes it."""
        room = self._linked.account.room()
        return kind(self.config, self._linked.space, self.threads, self.limits, self._hardware_only, room)

    def _note(self, machine: Machine, is_through: bool = True) -> None:
        """Keep warnings and memory use of a machine that has run the tasks; where an error ended it, warnings alone."""
        self.warnings += [warning for warning in machine.warnings if warning not in self.warnings]
        self._linked.account.hold_scratch(machine.meter.most if is_through else 0)

    def _link_contiguously(self, error: LeavesRegion) -> None:
        """Link memories into one array, for an access that leaves its region; ``error`` if that is refused or done."""
        if self._strict or self._linked.space.flat:
            raise error
        self._linked = LinkedLoadable(self.loadable, *self._memory, flat=True)
        self.tasks = self._decode_tasks(self._linked)
        self._dirty = set()

    @by_annotations
    def pack(self, index: int, array: np.ndarray) -> bytes:
        """Return the raw surface of an input that contains an array.

        Args:
            index: Position of the input in bind order.
            array: Elements or real numbers (N, C, H, W).

        Raises:
            FormatError: The network has no input with this index, or the array does not fit.
        """
        if not 0 <= index < len(self.inputs):
            raise FormatError(f"input index: must be 0 to {len(self.inputs) - 1}, got {index}")
        return self._surface(self.inputs[index], array, None)

    @says_when_memory_ends
    def unpack(self, surfaces: Sequence[bytes], *, real: bool = False) -> dict[str, np.ndarray]:
        """Return the raw outputs of :meth:`run_raw` as arrays (N, C, H, W) by name.

        Args:
            surfaces: Bytes of the bound outputs, in bind order.
            real: Return real numbers (float32) instead of elements.

        Raises:
            ScaleMissing: The scale of an integer output is unknown.
            FormatError: The number or size of the surfaces is wrong.
        """
        given = surfaces_of_image(surfaces, [tensor.name for tensor in self.outputs], "output")
        arrays = {}
        for tensor, surface in zip(self.outputs, given, strict=True):
            data = raw_bytes(surface, "output")
            if len(data) != tensor.size:
                raise FormatError(f"output {tensor.name}: must have {tensor.size} bytes, got {len(data)}")
            arrays[tensor.name] = tensor.layout.unpack(np.frombuffer(data, np.uint8))
        return {name: self.real(name, array) for name, array in arrays.items()} if real else arrays

    @by_annotations
    def real(self, name: str, elements: np.ndarray) -> np.ndarray:
        """Return elements of a bound tensor as real numbers (float32).

        Args:
            name: Name of the tensor.
            elements: Array of elements, of any shape.

        Raises:
            ScaleMissing: The scale of the tensor is unknown.
        """
        units = self.names.units_of_output(name, elements.dtype)
        if units is None:
            raise ScaleMissing(name, elements.dtype, "output")
        return units.real(elements).astype(np.float32)

    def __repr__(self) -> str:
        """One line: the loadable, the configuration, what goes in and comes out."""
        ends = (
            ", ".join(f"{tensor.name} {'x'.join(map(str, tensor.shape))} {tensor.dtype}" for tensor in tensors)
            for tensors in (self.inputs, self.outputs)
        )
        return printable(f"<Runtime {self.loadable.name} on {self.config.name}: {' -> '.join(ends)}>")

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = [
            {"": kind, "name": tensor.name, "shape": tensor.shape, "type": tensor.dtype, "bytes": tensor.size}
            for kind, tensors in (("input", self.inputs), ("output", self.outputs))
            for tensor in tensors
        ]
        return table(f"{self.loadable.name} on {self.config.name} ({self.config_reason})", rows)

    def _with_faults(
        self, images: Sequence[Sequence[Surface]], faults: Sequence[Fault], *observers: object
    ) -> list[list[bytes]]:
        """Raw outputs of images with faults. Raises ArgumentTypeError for other types, FormatError for observers."""
        from nvdla.emulator.faults import Fault

        if not isinstance(faults, Sequence) or not all(isinstance(fault, Fault) for fault in faults):
            raise ArgumentTypeError("faults must be a list of nvdla.emulator.faults.Fault")
        if any(observer is not None for observer in observers):
            raise FormatError("faults: cannot be combined with on_operation, csb_log or on_step")
        surfaces = [[bytes(raw_bytes(data, "input")) for _, data in self._bound(image)] for image in images]
        injector = self._injector()
        if len(surfaces) > 1:
            return injector.run_many(surfaces, faults)
        return [injector.run(injector.golden(image), faults) for image in surfaces]

    def _state(self) -> State:
        plan = self._plan
        return State(is_large=self._is_large) if plan is None else plan.current_state()

    def _run_next(
        self,
        images: Sequence[Sequence[Surface]],
        on_operation: OnOperation | None = None,
        csb_log: CsbLog | None = None,
        on_step: OnStep | None = None,
        faults: Sequence[Fault] = (),
        converts: bool = False,
    ) -> list[list[bytes]]:
        """Return the raw outputs of the first image, or of several where they run together.

        ``converts``: the caller has converted inputs, and will convert outputs.
        """
        given, instances, state = self._bound(images[0]), self._instances, self._state()
        observers = (on_operation, csb_log, on_step)
        flags = (on_operation is not None, csb_log is not None, on_step is not None, bool(faults))
        request = Request(*flags, instances.inside(), len(images), instances.callers(converts))
        path = choose_path(state, request)
        with limited(self.threads, blas=state.single_call is None or path not in SINGLE_CALL):
            while True:
                if path is RunPath.FAULTS:
                    return self._with_faults(images, faults, *observers)
                if path is RunPath.FUSE:
                    instances.fuse()
                elif path is RunPath.FIRMWARE or path is RunPath.RECORD:
                    with instances.alone():
                        if choose_path(self._state(), request) is path:  # no other thread was first
                            outputs = self._record(given) if path is RunPath.RECORD else None
                            if outputs is not None or path is RunPath.FIRMWARE:
                                return [outputs or self._run_firmware(given, on_operation, csb_log)]
                elif path is RunPath.LANES:
                    several = images[: self._state().lanes]
                    with instances.batch(len(several) + 1) as instance:
                        if instance is not None:
                            return instance.run_lanes([self._bound(image) for image in several])
                    request = request._replace(images=1)  # lanes do not fit the memory limit
                else:
                    with instances.one() as instance:
                        if instance is not None and instance.serves(path):
                            others = self._state().several(images, path)[1:]
                            first = instance.run(given, path, on_operation, on_step)
                            return [first, *(instance.run(self._bound(image), path) for image in others)]
                path = choose_path(self._state(), request)

    def _bound(self, inputs: Sequence[Surface]) -> list[tuple[MemoryEntry, Surface]]:
        """The raw inputs of an image with the memories that they are bound to."""
        inputs = surfaces_of_image(inputs, [tensor.name for tensor in self.inputs])
        return [(tensor.memory, data) for tensor, data in zip(self.inputs, inputs, strict=True)]

    def _decode_tasks(self, linked: LinkedLoadable) -> list[FirmwareTask | CpuTask]:
        """The tasks in the order in which they are submitted, decoded in memory."""
        abi, limits, total = abi_named(self.abi), self.limits, 0
        tasks: list[FirmwareTask | CpuTask] = []
        for entry in self.loadable.submit_order:
            for task in (self.loadable.task(number) for number in entry.task_ids):
                if task.interface == Interface.DLA1:
                    firmware_task = FirmwareTask(linked, task, abi, self.config, limits)
                    total += len(firmware_task.decoded)
                    limits.check_total(task.id, total)
                    firmware_task.check()
                    tasks.append(firmware_task)
                elif task.interface == Interface.EMU1:
                    tasks.append(cpu := CpuTask(linked, task, abi, limits))
                    total += len(cpu.operations)
                    limits.check_total(task.id, total)
                else:
                    raise ScheduleError(f"task {task.id}: interface must be DLA1 or EMU1, got {task.interface.name}")
        return tasks

    def _run_firmware(
        self, inputs: list[tuple[MemoryEntry, Surface]], on_operation: OnOperation | None, log: CsbLog | None
    ) -> list[bytes]:
        """Run through the firmware, and record the jobs of the hardware if they can be repeated."""
        dirty, self._dirty = self._dirty, None  # everything, until the run is through
        self._plan, began = None, time.thread_time()
        self._instances.renew(None)
        self._linked.reload()
        self._linked.reset(dirty)
        for memory, data in inputs:
            self._linked.bind(memory, data)
        observer, logged = None if on_operation is None else Resumable(on_operation), len(log or ())
        try:
            plan = self._recorded(observer, log, self._machine())
        except LeavesRegion as error:
            self._link_contiguously(error)
            del (log if log is not None else [])[logged:]
            return self._run_firmware(inputs, observer and observer.again(), log)
        except NvdlaError as error:
            from nvdla.emulator.execution import dry_run

            dry_run.add_warnings(error, self.warnings)
            if self._given["config"] != "auto":
                dry_run.name_able(error, self.loadable, self._program.abi, self.config)
            raise
        self._dirty = plan.dirty
        if plan.is_repeatable(self.tasks):
            self._instances.renew(Instance(self._linked, plan))
            self._plan = plan
            plan.prepare(began)
        return [self._linked.data(tensor.memory).tobytes() for tensor in self.outputs]

    def _record(self, inputs: list[tuple[MemoryEntry, Surface]]) -> list[bytes] | None:
        """Record a first run without arithmetic, then let the plan compute; None where the firmware has to run."""
        self._linked.reset(self._dirty)
        self._is_large, self._dirty = False, None
        try:
            machine = self._machine(Rehearsal)
            plan = self._recorded(None, None, machine)
            if machine.fetched_ahead or not plan.is_repeatable(self.tasks):
                return None
            instance = Instance(self._linked, plan)
            path = choose_path(plan.state._replace(takes_fallback=plan.takes_fallback(True)), Request())
            if path is RunPath.FUSE:
                instance.fuse()
                path = choose_path(plan.state, Request())
            outputs = instance.run(inputs, path)
        except NvdlaError:
            self._linked.reload()
            return None
        self._dirty, self._plan = plan.dirty, plan
        self._instances.renew(instance)
        return outputs

    def _recorded(self, on_operation: OnOperation | None, log: CsbLog | None, machine: Machine) -> Plan:
        """Let firmware and hardware work, and record what the hardware does."""
        recorder = Recorder(on_operation)
        scheduler = None
        try:
            scheduler = recorder.run(self.tasks, machine, log)
        finally:
            machine.close()
            self._note(machine, is_through=scheduler is not None)
        self.steps = scheduler.steps
        return recorder.plan(self._linked, self.tasks)

    def _tensor(self, memory: MemoryEntry) -> Tensor:
        tensor = self.loadable.tensor(memory.tensor_desc_id)
        strides, size = self._linked.placement.strides_of(tensor), self._linked.data(memory).size
        layout = tensor_layout(tensor, size, strides)
        return Tensor(tensor.name, layout.shape, layout.dtype, size, strides, tensor.pixel_format.name, layout, memory)

    def _images_of(self, images: object) -> list[Any]:
        """The images that :meth:`run_many` was given; a batch array, too, holds those of the only input."""
        if isinstance(images, np.ndarray) and images.ndim > 2 and len(self.inputs) == 1:
            tensor = self.inputs[0]
            return per_run(images, tensor.shape, tensor.name) if images.ndim == 4 else list(images)
        return images_of_batch(images)

    def _surface(self, tensor: Tensor, value: Input, preprocessing: PictureConversion | None) -> bytes:
        """The raw surface of an input."""
        with in_input(tensor.name):
            elements = self._input_form(tensor, value, preprocessing).elements(value)
        if isinstance(elements, bytes):
            return elements
        surface = bytearray(tensor.size)
        tensor.layout.pack(elements, np.frombuffer(surface, np.uint8))
        return bytes(surface)

    def _input_form(self, tensor: Tensor, value: Input, preprocessing: PictureConversion | None) -> InputForm:
        """Return the kind of values that an input takes. The layer file is read only where a value needs it."""
        is_elements = isinstance(value, np.ndarray) and (value.dtype, value.shape) == (tensor.dtype, tensor.shape)
        if isinstance(value, (bytes, bytearray, memoryview)) or is_elements:
            return InputForm(tensor.name, tensor.shape, tensor.dtype)
        pictures = pixel_conversion(preprocessing)
        scale = self.names.scale(tensor.name) if tensor.dtype.kind != "f" else None
        model = preprocessing_for(self.names.preprocessing, pictures, scale)
        numbers, zero = pixels_of(self.names.pixels).get(tensor.name), self.names.zero_point(tensor.name)
        own = self.names.inputs.get(tensor.name)
        return InputForm(tensor.name, tensor.shape, tensor.dtype, scale, model, pictures, numbers, zero, own)


def _joined(outputs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]}
