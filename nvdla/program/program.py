"""Decoded view of a loadable: operations, on-the-fly links, choice of the configuration.

    program = Program.of(nvdla.load("lenet.nvdla"))
    for operation in program.operations:
        print(operation.label, operation.what, [access.role for access in operation.reads])

All packages that need an operation's memory accesses, precision, on-the-fly links or configuration use this view.
It runs nothing, and loads no kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import Structure
from dataclasses import dataclass, field
from functools import cached_property

from nvdla.emulator.hardware.configuration import (
    FEATURES,
    Configuration,
    configuration,
    configurations,
)
from nvdla.emulator.memory.surfaces import FEATURE_ATOMS, feature_atom
from nvdla.errors import ConfigError, DescriptorError, NvdlaError, in_file
from nvdla.limits import Limits
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.descriptors.detect import detect
from nvdla.loadable.descriptors.enums import ConvMode, MemType, OpType, WeightFormat
from nvdla.loadable.descriptors.enums import DataFormat as InputFormat
from nvdla.loadable.descriptors.meaning import precisions_of
from nvdla.loadable.descriptors.task import DlaOperation, DlaTask, EmuTask, decode_tasks
from nvdla.loadable.enums import Interface, MemoryDomain, PixelFormat
from nvdla.loadable.model import Loadable
from nvdla.loadable.reader import UNNAMED
from nvdla.program.accesses import AccessFinder
from nvdla.program.naming import compiled_for, shortened
from nvdla.program.operation import Key, Operation
from nvdla.util.arguments import by_annotations
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

#: engine -> the next engine, which can take its results on the fly
CONSUMERS = {OpType.CONV: OpType.SDP, OpType.SDP: OpType.PDP}


def queue_places(task: DlaTask) -> dict[tuple[int, int], int]:
    """(ROI, operation) -> place in the queue of its engine.

    A queue begins with op_head of its type and goes on with ``consumers[own type]``; an operation is served for every
    region of interest before the next (kmd/firmware/scheduler.c dla_dequeue_operation). A queue that comes back to an
    operation, or leads out of the list, ends there.
    """
    places: dict[tuple[int, int], int] = {}
    seen: set[int] = set()
    count, rois = task.network.num_operations, task.network.num_rois
    for op_type, head in enumerate(task.network.op_head):
        index, place = head, 0
        while 0 <= index < count and index not in seen:
            seen.add(index)
            for roi in range(rois):
                places[roi, index] = place
                place += 1
            index = task.dependencies[index].consumers[op_type].index
    return places


def by_task(operations: Sequence[Operation]) -> dict[int, list[Operation]]:
    """The operations of each task, in the order given."""
    tasks: dict[int, list[Operation]] = {}
    for operation in operations:
        tasks.setdefault(operation.task, []).append(operation)
    return tasks


def takers(operations: Sequence[Operation]) -> dict[Key, Operation]:
    """Return the operation that takes an operation's result on the fly.

    The hardware pairs what comes next in the queues: the first SDP that takes its input on the fly works for the first
    convolution, and so on; likewise PDP and SDP.
    """
    takers_by_key: dict[Key, Operation] = {}
    for task in by_task(operations).values():
        mine = sorted((operation for operation in task if operation.queue >= 0), key=lambda operation: operation.queue)
        for first, second in CONSUMERS.items():
            giving = [operation for operation in mine if operation.type == first and operation.gives_on_the_fly]
            taking = [operation for operation in mine if operation.type == second and operation.takes_on_the_fly]
            takers_by_key |= {giver.key: taker for giver, taker in zip(giving, taking, strict=False)}
    return takers_by_key


def chains(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations that work together on the fly (convolution, SDP, PDP), in the order of their first one; an operation
    that works alone is a chain of one."""
    consumers = takers(operations)
    consumer_keys = {consumer.key for consumer in consumers.values()}
    result = []
    for operation in operations:
        if operation.key in consumer_keys:
            continue
        chain = [operation]
        while chain[-1].key in consumers:
            chain.append(consumers[chain[-1].key])
        result.append(chain)
    return result


# NVIDIA's compiler knows these; the others must fit a file in ways that these do not to be chosen.
PREFERRED = ("nv_small", "nv_full", "nv_large")


@dataclass
class Needs:
    """Requirements of a loadable on the hardware; each comes with its reason."""

    atom: int | None = None
    atom_reason: str = ""
    precisions: set[str] = field(default_factory=set)
    features: dict[str, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)  # sizes of weights, not all of which nv_full can fetch
    slices: list[tuple[int, int]] = field(default_factory=list)  # (bytes of a line of all channels, entry_per_slice)


@by_annotations
def choose_configuration(loadable: Loadable, tasks: Mapping[int, DlaTask | EmuTask]) -> tuple[Configuration, str]:
    """Choose the configuration that a loadable was compiled for.

    If no configuration has all required features (a compiler bug), the choice is one with the right atom size. If the
    layout of the convolutions fits the convolution buffer of a configuration that lacks a feature (NVIDIA's compiler
    emits Rubik for nv_large), the choice is that one. In both cases the reason states it, and the checks of the
    operations report the missing feature.

    Args:
        loadable: The loadable.
        tasks: Decoded tasks by id (:func:`nvdla.loadable.descriptors.decode_tasks`).

    Returns:
        The configuration, and the reason in one line.
    """
    needs = _needs(loadable, tasks)
    known = list(configurations().values())
    fitting = [candidate for candidate in known if not _missing(candidate, needs)]
    if not fitting:
        nearest = min(
            known, key=lambda candidate: (needs.atom not in (None, candidate.memory_atom), _preference(candidate))
        )
        return nearest, f"{_describe(needs)}; no configuration has all of this"
    fitting.sort(key=lambda candidate: (-_entry_matches(candidate, needs), _preference(candidate)))
    chosen = fitting[0]
    meant = max(known, key=lambda candidate: (_entry_matches(candidate, needs), -_preference(candidate)))
    if _entry_matches(meant, needs) > _entry_matches(chosen, needs) and meant.memory_atom == chosen.memory_atom:
        lacks = ", ".join(FEATURES[feature] for feature in needs.features if not meant.has(feature))
        if lacks:
            return meant, (
                f"{_describe(needs)}, CBUF entries of {meant.cbuf_entry_bytes} bytes ({chosen.name} would have "
                f"{chosen.cbuf_entry_bytes}); {meant.name} has no {lacks}"
            )
    others = [candidate for candidate in fitting[1:] if candidate.name in PREFERRED]
    equal = [other.name for other in others if _entry_matches(other, needs) == _entry_matches(chosen, needs)]
    reason = _describe(needs)
    if equal:
        reason += f"; {', '.join(equal)} would compute the same"
    elif others:
        names = ", ".join(other.name for other in others)
        reason += f", CBUF entries of {_entry_bytes(chosen)} bytes ({names} would have others)"
    return chosen, reason


def _needs(loadable: Loadable, tasks: Mapping[int, DlaTask | EmuTask]) -> Needs:
    needs = Needs()
    for memory in (*loadable.inputs, *loadable.outputs):
        tensor = loadable.tensor(memory.tensor_desc_id)
        if needs.atom is None and (atom := feature_atom(tensor)):
            needs.atom = atom
            needs.atom_reason = f"tensor {tensor.name} is {tensor.pixel_format.name}"
    if any(memory.domain == MemoryDomain.SRAM for memory in loadable.memories):
        needs.features["cvsram"] = "a memory is in CVSRAM"
    for task in tasks.values():
        if isinstance(task, DlaTask):
            for operation in task.operations():
                _look_at_lines(task.task.id, operation, needs)
                _look_at(task.task.id, operation, needs)
    return needs


def _look_at(task: int, operation: DlaOperation, needs: Needs) -> None:
    where = f"operation {task}/{operation.index}"
    for precision in _precisions(operation):
        if precision.known:
            needs.precisions.add(str(precision))
    for feature, what in _features(operation):
        needs.features.setdefault(feature, f"{where} {what}")
    if operation.op_type == OpType.CONV:
        size = operation.surface.weight_data.size
        needs.weights.setdefault(size, f"{where} has weights of {size} bytes")
    if operation.op_type == OpType.CONV and needs.atom:
        _look_at_slices(operation.surface.src_data, operation.op, needs, needs.atom)


def _look_at_slices(src: Structure, op: Structure, needs: Needs, atom: int) -> None:
    if src.width and op.in_precision == op.out_precision:
        pixel = src.channel * (1 if op.in_precision == 0 else 2)
        if op.data_format == InputFormat.FEATURE:
            line = src.width * align(pixel, atom)
        else:  # the buffer holds lines of images with their padding
            line = (op.pad_x_left + src.width + op.pad_x_right) * pixel
        needs.slices.append((line, op.entry_per_slice))


def _look_at_lines(task: int, operation: DlaOperation, needs: Needs) -> None:
    """Lines of feature data too close together for large atoms are made of small ones, regardless of the tensor."""
    if operation.op_type == OpType.CONV and operation.op.data_format != InputFormat.FEATURE:
        return
    small, large = FEATURE_ATOMS[PixelFormat.FEATURE_X8], FEATURE_ATOMS[PixelFormat.FEATURE]
    for cube in (getattr(operation.surface, name, None) for name in ("src_data", "dst_data")):
        if needs.atom != large or cube is None or cube.type == MemType.HW or cube.height < 2:
            continue
        if cube.width * small <= cube.line_stride < cube.width * large:
            needs.atom = small
            needs.atom_reason = (
                f"operation {task}/{operation.index} has lines of {cube.width} atoms {cube.line_stride} bytes long"
            )


def _precisions(operation: DlaOperation) -> Iterable[Precision]:
    """Those that it computes in: Rubik only moves elements."""
    return () if operation.op_type == OpType.RUBIK else precisions_of(operation.op_type, operation.op) or ()


def _features(operation: DlaOperation) -> Iterator[tuple[str, str]]:
    """(attribute of the configuration that must be true, what says so) of one operation."""
    op, op_type = operation.op, operation.op_type
    if op_type in (OpType.BDMA, OpType.RUBIK):
        yield op_type.name.lower(), f"is a {op_type.name} operation"
    if op_type == OpType.CONV:
        if op.conv_mode == ConvMode.WINOGRAD:
            yield "winograd", "is a Winograd convolution"
        if op.weight_format == WeightFormat.COMPRESSED:
            yield "weight_compression", "has compressed weights"
        if op.batch > 1:
            yield "batch", f"has hardware batch {op.batch}"
    if op_type == OpType.SDP:
        if op.y_op.enable:
            yield "sdp_ew_throughput", "uses the SDP's Y stage"
        if op.lut_index >= 0:
            yield "sdp_lut", "uses the SDP's lookup tables"
    if any(cube.type == MemType.CV and cube.address != -1 for cube in _cubes(operation.surface)):
        yield "cvsram", "has a surface in CVSRAM"


def _cubes(surface: Structure) -> Iterator[Structure]:
    return (getattr(surface, name) for name, *_ in surface._fields_ if name.endswith("_data"))


def _missing(config: Configuration, needs: Needs) -> bool:
    return (
        (needs.atom is not None and config.memory_atom != needs.atom)
        or not needs.precisions <= set(config.precisions)
        or not all(getattr(config, feature) for feature in needs.features)
        or any(size % config.weight_alignment for size in needs.weights)
    )


def _describe(needs: Needs) -> str:
    parts = []
    if needs.atom:
        parts.append(f"atoms of {needs.atom} bytes ({needs.atom_reason})")
    if needs.precisions:
        parts.append(" and ".join(sorted(needs.precisions)))
    parts += needs.features.values()
    strict = max(configurations().values(), key=lambda candidate: candidate.weight_alignment)
    odd = [text for size, text in needs.weights.items() if size % strict.weight_alignment]
    if odd and needs.atom != FEATURE_ATOMS[PixelFormat.FEATURE_X8]:  # of 8 bytes: not nv_full anyway
        parts.append(f"{odd[0]}, not a multiple of {strict.weight_alignment} as {strict.name} requires")
    return ", ".join(parts) or "no property depends on the configuration"


def _entry_bytes(config: Configuration) -> int:
    return config.cbuf_entry_bytes


def _entry_matches(config: Configuration, needs: Needs) -> int:
    """Return how many convolutions have the entries per slice that the configuration's convolution buffer needs."""
    size = _entry_bytes(config)
    return sum(entries == ceil_div(line, size) for line, entries in needs.slices)


def _preference(config: Configuration) -> int:
    return PREFERRED.index(config.name) if config.name in PREFERRED else len(PREFERRED)


Tasks = Mapping[int, DlaTask | EmuTask]
CHOSEN = "given, not detected"  # by the caller, or by the package that the loadable is part of
UNKNOWN = "the descriptors cannot be read, and no layer file states a built-in one"


@dataclass(frozen=True)
class Program:
    """A loadable decoded for one ABI and one configuration; ``abi_reason`` and ``config_reason`` state why these.

    ``tasks``: the decoded lists by task id; ``broken``: errors of the tasks that could not be decoded (only with
    ``checked=False``); ``layers``: layer names by (task, operation).
    """

    loadable: Loadable
    abi: Abi
    abi_reason: str
    config: Configuration
    config_reason: str
    tasks: Tasks = field(repr=False)
    broken: Mapping[int, str] = field(default_factory=dict)
    layers: Mapping[tuple[int, int], str] = field(default_factory=dict, repr=False)

    @classmethod
    @by_annotations
    def of(
        cls,
        loadable: Loadable,
        config: str | Configuration = "auto",
        abi: str | Abi = "auto",
        layers: Mapping[tuple[int, int], str] | None = None,
        *,
        limits: Limits | None = None,
        checked: bool = True,
    ) -> Program:
        """Decode a loadable.

        Args:
            loadable: The loadable.
            config: A configuration, its name, or "auto".
            abi: "auto", "old" or "new".
            layers: Layer names by (task, operation).
            limits: Limits of operations (default: :class:`nvdla.limits.Limits`).
            checked: False: decode a broken file as far as possible.

        Returns:
            The decoded program.

        Raises:
            ConfigError: The configuration is unknown.
            DescriptorError: The descriptors cannot be read, and ``checked`` is set.
        """
        known = configuration(config) if isinstance(config, str) and config != "auto" else config
        with in_file("" if loadable.name == UNNAMED else loadable.name):
            chosen, abi_reason = detect(loadable, abi, checked=checked)
            if checked:
                tasks, broken = decode_tasks(loadable, chosen, limits), dict[int, str]()
            else:
                tasks, broken = _as_far_as_it_goes(loadable, chosen)
        if isinstance(known, Configuration):
            chosen_config, reason = known, CHOSEN
        else:
            chosen_config, reason = _choose(loadable, chosen, tasks, checked)
        return cls(loadable, chosen, abi_reason, chosen_config, reason, tasks, broken, layers or {})

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations: tasks in the order in which they are submitted, then in the order of the lists.

        Those of an unknown type are left out.
        """
        hardware = by_task(self.hardware_operations)
        return [operation for task in self.submitted for operation in hardware.get(task) or self._of_cpu(task)]

    @property
    def submitted(self) -> list[int]:
        """Decoded tasks in the order in which they are submitted, each once; those that never are come last."""
        served = [task for entry in self.loadable.submit_order for task in entry.task_ids]
        return [task for task in dict.fromkeys([*served, *self.tasks]) if task in self.tasks]

    def _of_cpu(self, task_id: int) -> Iterator[Operation]:
        task = self.tasks[task_id]
        if not isinstance(task, EmuTask):
            return
        finder = AccessFinder(self.loadable, task.task, self.config)
        for entry in task.operations():
            layer, key = self.layers.get((task_id, entry.index)), (task_id, 0, entry.index)
            yield Operation(key, None, layer, entry.index, self.config, task, entry, finder)

    def _of_hardware(self, task_id: int, task: DlaTask) -> Iterator[Operation]:
        finder = AccessFinder(self.loadable, task.task, self.config)
        places, count = queue_places(task), task.network.num_operations
        for roi in range(task.network.num_rois):
            for index in range(count):
                if task.dependencies[roi * count + index].op_type < len(OpType):
                    operation = task.operation(index, roi)
                    layer, place = self.layers.get((task_id, index)), places.get((roi, index), -1)
                    key = (task_id, roi, index)
                    yield Operation(key, operation.op_type, layer, place, self.config, task, operation, finder)

    @cached_property
    def hardware_operations(self) -> list[Operation]:
        """The operations of the accelerator, without those of the CPU."""
        tasks = {number: self.tasks[number] for number in self.submitted}
        dla = {number: task for number, task in tasks.items() if isinstance(task, DlaTask)}
        return [operation for number, task in dla.items() for operation in self._of_hardware(number, task)]

    @cached_property
    def by_key(self) -> dict[Key, Operation]:
        """Every operation by (task, region of interest, index)."""
        return {operation.key: operation for operation in self.operations}

    @cached_property
    def chains(self) -> list[list[Operation]]:
        """Operations that work together on the fly, first to last, in the order of their first."""
        return chains(self.operations)

    @cached_property
    def takers(self) -> dict[Key, Operation]:
        """Return the operation that takes an operation's result on the fly."""
        return takers(self.hardware_operations)

    @cached_property
    def dla_tasks(self) -> dict[int, DlaTask]:
        """Tasks of the accelerator by id, in list order."""
        return {number: task for number, task in self.tasks.items() if isinstance(task, DlaTask)}

    @cached_property
    def cpu_tasks(self) -> dict[int, EmuTask]:
        """Tasks of the CPU by id, in list order."""
        return {number: task for number, task in self.tasks.items() if isinstance(task, EmuTask)}


def _as_far_as_it_goes(loadable: Loadable, abi: Abi) -> tuple[dict[int, DlaTask | EmuTask], dict[int, str]]:
    """Tasks without the checks of what they say, and why those that are missing cannot be laid over their bytes."""
    tasks: dict[int, DlaTask | EmuTask] = {}
    broken: dict[int, str] = {}
    for task in loadable.tasks:
        kind = DlaTask if task.interface == Interface.DLA1 else EmuTask
        try:
            tasks[task.id] = kind.overlay(loadable, task, abi)
        except DescriptorError as error:
            broken[task.id] = str(error)
        except NvdlaError as error:
            broken[task.id] = f"task {task.id}: {error}"
    return tasks, broken


def check_built_in(config: str, where: str) -> None:
    """Raise ConfigError if the configuration that a file was compiled for is one of the user's own."""
    if config not in configurations():
        raise ConfigError(
            f"{where}: configuration: must be given, the file was compiled for {shortened(config)}, which is not "
            "built in. Add --config FILE.yaml (Python: config=...)."
        )


def _choose(loadable: Loadable, abi: Abi, tasks: Tasks, checked: bool) -> tuple[Configuration, str]:
    """The configuration that the loadable was compiled for; nv_full with the reason :data:`UNKNOWN` if the file is
    broken and no layer file states a configuration.

    Descriptors do not determine it: two configurations with the same atoms read different kernels from the same
    weights. The layer file states it.
    """
    stated = compiled_for(loadable)
    if stated and checked:
        check_built_in(stated, loadable.name)
    try:
        chosen, reason = choose_configuration(loadable, tasks if checked else decode_tasks(loadable, abi))
    except NvdlaError:
        if checked:
            raise
        with contextlib.suppress(NvdlaError):
            if stated in configurations() and not _missing(configuration(stated), _needs(loadable, {})):
                return configuration(stated), "the layer file states it; the descriptors cannot be read"
        return configuration("nv_full"), UNKNOWN
    if (
        stated not in configurations()
        or stated == chosen.name
        or _missing(configuration(stated), _needs(loadable, tasks))
    ):
        return chosen, reason
    return configuration(stated), f"the layer file states it; the descriptors fit {chosen.name} too"
