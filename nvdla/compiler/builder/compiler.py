"""Networks to loadables: all steps, batches, kernels in parts and the layer file.

Operations of one layer follow one another, image by image, so that an image's data are fetched while those of another
are multiplied, and weights that fit the convolution buffer are fetched once.

Whole layers fetch all weights for each image. In parts that stay in the buffer from image to image they are fetched
once, and the images' data once for each part: less where the data are smaller, as at the end of most networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.analysis.cycles.constants import Memory
from nvdla.compiler.builder import reference
from nvdla.compiler.builder.addresses import SurfacePlan
from nvdla.compiler.builder.cbuf import entries_per_slice, kernel_bytes, kernel_group
from nvdla.compiler.builder.cost_model import GAIN, CostModel
from nvdla.compiler.builder.emit import emit
from nvdla.compiler.builder.ir import (
    BYTES,
    AtomSurface,
    Contract,
    Convolve,
    LoweredProgram,
    Normalize,
    Operation,
    Pool,
    Process,
    Root,
    Softmax,
    Stage,
    Surface,
    reads,
    writes,
)
from nvdla.compiler.builder.layer_types import limited_ends
from nvdla.compiler.builder.layers import Ends
from nvdla.compiler.builder.lower import lower
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.packing import PackedWeights
from nvdla.compiler.builder.quantization import Calibration, quantize
from nvdla.compiler.builder.schedule import HardwareOperation, ScheduledDlaTask, Task, of_channels
from nvdla.compiler.builder.search import Evaluator, SearchLimits, policy_of
from nvdla.compiler.builder.search import search as look_further
from nvdla.emulator.hardware.configuration import Configuration, configuration
from nvdla.errors import BuildError, counted
from nvdla.loadable.descriptors.enums import OpType
from nvdla.loadable.model import Loadable
from nvdla.program.naming import FORMAT, VERSION, parts, path_of
from nvdla.tensors.real import PixelNumbers, decibels
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import parse_json, whole_file
from nvdla.util.rounding import ceil_div

_PARTS = (Convolve, Process, Pool, Normalize, Contract, Softmax, Stage)


def batched(program: LoweredProgram, images: int) -> LoweredProgram:
    """Return the program for that many images, which follow one another in every bound tensor."""
    if images == 1:
        return program
    copies = [_Copy(number) for number in range(images)]
    operations = [
        operation
        for unit in _units(program.operations)
        for copy in copies
        for operation in (unit if not copy.image else [copy.of(image) for image in unit])
    ]
    return replace(program, operations=operations, images=images)


def _units(operations: list[Operation]) -> list[list[Operation]]:
    """Operations, a pool together with what it may take on the fly."""
    units: list[list[Operation]] = []
    for operation in operations:
        before = units[-1][-1] if units else None
        follows = isinstance(before, Convolve | Process) and isinstance(operation, Pool)
        if follows and before is not None and writes(before).root in [surface.root for surface in reads(operation)]:
            units[-1].append(operation)
        else:
            units.append([operation])
    return units


class _Copy:
    """Operations for another image: the same constants, other cubes."""

    def __init__(self, image: int) -> None:
        self.image = image
        self._roots: dict[int, Root] = {}

    def of(self, part: Any) -> Any:
        """An operation, a part of one or a surface for this image; anything else stays what it is."""
        if isinstance(part, Surface):
            return replace(part, root=self._root(part.root))
        if isinstance(part, _PARTS):
            return replace(part, **{field.name: self.of(getattr(part, field.name)) for field in fields(part)})
        return part

    def _root(self, root: Root) -> Root:
        if root.role == "constant":
            return root
        if id(root) not in self._roots:
            self._roots[id(root)] = replace(root, image=self.image)
        return self._roots[id(root)]


SHARES = (1, 2)
"""Parts fill the space for weights, or half of it, so that the next part can be fetched meanwhile."""


def programs_in_parts(program: LoweredProgram, config: Configuration, images: int) -> Iterator[LoweredProgram]:
    """The program with such layers in parts of kernels, for each of SHARES; nothing where there are none."""
    for share in SHARES:
        operations = [part for pair in _alone(program) for part in _parts(*pair, config, images, share)]
        if len(operations) > len(program.operations):
            yield replace(program, operations=operations)


def _alone(program: LoweredProgram) -> Iterator[tuple[Operation, bool]]:
    """Yield each operation and whether it is separate, so that no pool can consume its result on the fly."""
    for position, operation in enumerate(program.operations):
        after = program.operations[position + 1] if position + 1 < len(program.operations) else None
        yield operation, not (isinstance(after, Pool) and reads(after)[0].root is writes(operation).root)


def _parts(operation: Operation, alone: bool, config: Configuration, images: int, share: int) -> list[Operation]:
    """Return a convolution split into parts of kernels that stay in the buffer, other operations unchanged."""
    if not alone or not isinstance(operation, Convolve) or operation.winograd or operation.source.root.pixels:
        return [operation]
    source, size, total = operation.source, kernel_bytes(operation), len(operation.weights)
    line = entries_per_slice(source.channels, source.width, source.precision, config)
    room = (config.cbuf_banks - ceil_div(line * source.height, config.cbuf_bank_entries)) * config.cbuf_bank_bytes
    element = BYTES[source.precision]
    multiple = lcm(kernel_group(config, source.precision), config.memory_atom // element)
    count = room // share // (multiple * size) * multiple
    if count <= 0 or total * size <= room:
        return [operation]
    data = source.channels * source.height * source.width * element
    if (images - 1) * total * size <= (ceil_div(total, count) - 1) * images * data:
        return [operation]
    firsts = range(0, total, count)
    return [
        replace(
            operation,
            weights=operation.weights[first : first + count],
            process=of_channels(operation.process, first, min(count, total - first)),
        )
        for first in firsts
    ]


def describe(
    network: Network,
    program: LoweredProgram,
    config: str,
    tasks: list[Task],
    cost_model: CostModel,
    search: Document | None = None,
) -> Document:
    """The layer file of a network's program as plain data. ``search``: the record of level 2's."""
    places, limited = _Places(program, tasks), _limited(network, program)
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": program.name,
        "config": config,
        "precision": str(program.precision),
        "tensors": {
            name: {
                "scale": surface.scale,
                "shape": list(surface.shape),
                "precision": str(surface.precision),
                **({"zero_point": surface.zero} if surface.zero else {}),
                **limited.get(name, {}),
            }
            for name, surface in program.tensors.items()
        },
        "tasks": [_task(number, task, places) for number, task in enumerate(tasks)],
        "evaluated": {**_evaluated(tasks, cost_model, search), "groups": _groups(program, tasks)},
        "pixels": {
            root.name: root.converter.numbers.document() for root in program.inputs if root.converter is not None
        },
    }


def _limited(network: Network, program: LoweredProgram) -> dict[str, Document]:
    """The ends of the ranges of integer tensors at which nothing is lost, in all channels or in some, by name."""
    ranges = program.ranges()
    ends = set(network.outputs)
    # Elements hold no number beyond the range of an input: a scale that follows it has the bounds of that range.
    known: dict[int, Ends] = {
        id(tensor.producer): (np.array(ranges[tensor.name][0]), np.array(ranges[tensor.name][1]))
        for tensor in network.inputs
        if tensor.name in ranges
    }
    limited = dict[str, Document]()
    for name in ranges:
        tensor = network.layer(name).output
        takers = [] if tensor in ends else network.consumers(tensor)
        limits, cut = limited_ends(tensor, takers, ranges, {} if tensor in network.inputs else known)
        whole = [end for end, channels in limits.items() if channels is None]
        some = {end: channels for end, channels in limits.items() if channels is not None}
        rows = {"limited": whole, "limited_channels": some, "cut": cut}
        limited[name] = {key: value for key, value in rows.items() if value}
    return limited


def _evaluated(tasks: list[Task], cost_model: CostModel, search: Document | None) -> Document:
    """For which memory, and of each convolution that had a choice its operations and the forms, with the cycles of each
    alone in a queue."""
    memory = cost_model.memory or Memory()
    operations: dict[int, list[str]] = {}
    for number, task in enumerate(tasks):
        for hardware in task.operations if isinstance(task, ScheduledDlaTask) else ():
            if hardware.type == OpType.CONV:
                operations.setdefault(hardware.position, []).append(f"{number}/{hardware.index}")
    layers = [
        {
            "layer": choice.layer,
            "operations": operations[position],
            "taken": choice.taken,
            "forms": [form.document() for form in choice.forms],
        }
        for position, choice in sorted(cost_model.choices.items())
    ]
    return {"level": cost_model.level, "memory": asdict(memory), "layers": layers, "search": search}


def _groups(program: LoweredProgram, tasks: list[Task]) -> list[Document]:
    """Return the operations of each grouped convolution and its cycle counts.

    Cycles are listed per number of groups that one dense convolution computes.
    """
    operations: dict[str, list[str]] = {}
    for number, task in enumerate(tasks):
        for hardware in task.operations if isinstance(task, ScheduledDlaTask) else ():
            if hardware.type == OpType.CONV:
                operations.setdefault(hardware.layer, []).append(f"{number}/{hardware.index}")
    return [
        {
            "layer": choice.layer,
            "groups": choice.groups,
            "operations": operations[choice.layer],
            "taken": choice.taken,
            "forms": [asdict(form) for form in choice.forms],
        }
        for choice in program.grouped
        if choice.layer in operations
    ]


def _task(number: int, task: Task, places: _Places) -> Document:
    if not isinstance(task, ScheduledDlaTask):
        operation = {"index": 0, "engine": "cpu", "layer": task.operation.layer, "part": ""}
        return {"task": number, "kind": "cpu", "operations": [operation]}
    operations = [
        {
            "index": hardware.index,
            "engine": OpType(hardware.type).name.lower(),
            "layer": hardware.layer,
            "part": hardware.part,
            **places.writes[hardware],
            **places.also(hardware),
        }
        for hardware in task.operations
    ]
    return {"task": number, "kind": "dla", "operations": operations}


class _Places:
    """Return the tensors that operations write, by the root that contains them.

    ``writes``: the destination of each operation, if only a part of its layer's tensor
    (:mod:`nvdla.program.naming`).
    """

    def __init__(self, program: LoweredProgram, tasks: list[Task]) -> None:
        self.tensors = program.tensors
        self._on: dict[RootKey, list[str]] = {}
        for name, surface in program.tensors.items():
            self._on.setdefault(_root_of(surface), []).append(name)
        operations = [hardware for task in tasks if isinstance(task, ScheduledDlaTask) for hardware in task.operations]
        self.writes = {hardware: self._writes(hardware) for hardware in operations}
        # Tensors that their own layer writes in part only: operations of other layers write into them, too.
        self._parted: dict[RootKey, dict[str, None]] = {}
        for document in self.writes.values():
            place = document.get("writes")
            if place is not None and place["tensor"] is not None and "size" in place:
                name = place["tensor"]
                self._parted.setdefault(_root_of(self.tensors[name]), {})[name] = None

    def _writes(self, hardware: HardwareOperation) -> Document:
        written = hardware.output
        if written is None:
            return {}
        own = next((part for part in parts(hardware.layer) if part in self.tensors), None)
        for name in [own] if own is not None else []:
            position = _part(written, self.tensors[name])
            if position is not None:
                return {"writes": {"tensor": name, **position}} if position else {}
        for name in self._on.get(_root_of(written), ()):
            position = _part(written, self.tensors[name])
            if position is not None:
                return {"writes": {"tensor": name, **position}}
        return {"writes": {"tensor": None}}

    def also(self, hardware: HardwareOperation) -> Document:
        """The tensors of other layers that an operation writes a part of."""
        written = hardware.output
        if written is None:
            return {}
        layers = parts(hardware.layer)
        own = self.writes[hardware].get("writes", {"tensor": next(iter(layers), None)})["tensor"]
        names = self._parted.get(_root_of(written), ())
        others = [name for name in names if name != own and name not in layers]
        also_written = [
            {"tensor": name, **part} for name in others if (part := _part(written, self.tensors[name])) is not None
        ]
        return {"also": also_written} if also_written else {}


RootKey = tuple[str, str, str]


def _root_of(surface: Surface) -> RootKey:
    """Return the key shared by all roots of one tensor, independent of the image of a batch."""
    return surface.root.name, surface.root.role, surface.root.precision


def _part(written: Surface, tensor: Surface) -> Document | None:
    """The part of a tensor that a surface is: empty for all of the first image, None for a surface of another tensor
    or beyond it."""
    root = written.root
    if _root_of(written) != _root_of(tensor):
        return None
    image = {"image": root.image} if root.image else {}
    if isinstance(written, AtomSurface):
        before = written.top * written.channels - tensor.first_channel
        fits = before >= 0 and tensor.shape[1:] == (1, 1)
        return {"first": [before, 0, 0], "atoms": True, **image} if fits else None
    down, lines = divmod(written.top - tensor.top, tensor.row_stride)
    right, columns = divmod(written.left - tensor.left, tensor.column_stride)
    first = [written.first_channel - tensor.first_channel, down, right]
    size = [written.channels, written.height, written.width]
    stride = [written.row_stride // tensor.row_stride, written.column_stride // tensor.column_stride]
    last = [start + (count - 1) * distance for start, count, distance in zip(first, size, [1, *stride], strict=True)]
    if lines or columns or min(first) < 0 or any(e >= n for e, n in zip(last, tensor.shape, strict=True)):
        return None
    whole = size == list(tensor.shape)
    return image if whole else {"first": first, "size": size, "stride": stride, **image}


def save(data: Document, loadable: str | Path) -> Path:
    """Write the sidecar of a loadable, whole or not at all."""
    path = path_of(loadable)
    with whole_file(path) as stream:
        stream.write(json_text(data, indent=1, sort_keys=True).encode("utf-8") + b"\n")
    return path


MAX_IMAGES = 256
LEVELS = (0, 1, 2)
"""Optimization levels of :func:`build`."""


@dataclass(frozen=True)
class Built:
    """Result of :func:`build`.

    ``program`` is the lowered program of one image, for the expected results; ``sidecar`` the content of the layer
    file; ``memory`` the placement of the surfaces between operations, of ``memory.size`` bytes (at least
    ``memory.least``).
    """

    loadable: Loadable
    program: LoweredProgram
    sidecar: Document
    memory: SurfacePlan

    def __repr__(self) -> str:
        operations = counted(len(self.program.operations), "operation")
        return (
            f"<Built {self.program.name}: {self.program.precision}, {operations}, {self.memory.size} bytes of surfaces>"
        )

    @property
    def input_scales(self) -> dict[str, float]:
        """Real value per unit of each input, by name (1 for fp16)."""
        return {root.name: root.scale for root in self.program.inputs}

    @property
    def output_scales(self) -> dict[str, float]:
        """Real value per unit of each output, by name."""
        return {root.name: root.scale for root in self.program.outputs}

    @property
    def zero_points(self) -> dict[str, int]:
        """Elements that represent 0, by name, for bound tensors where it is not element 0."""
        return {root.name: root.zero for root in (*self.program.inputs, *self.program.outputs) if root.zero}

    def quantize_inputs(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Return real inputs as elements (images, C, H, W), by name.

        Args:
            inputs: Real numbers (C, H, W) or (images, C, H, W) by name, or one array for the first input.
        """
        if not isinstance(inputs, Mapping):
            inputs = {self.program.inputs[0].name: inputs}
        return {root.name: _elements(root, np.asarray(inputs[root.name])) for root in self.program.inputs}

    def expected(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs (images, C, H, W) by name, from the numpy reference; exact for integers.

        Args:
            inputs: Elements by name.
        """
        shapes = {root.name: (-1, root.channels, root.height, root.width) for root in self.program.inputs}
        stacks = {name: np.asarray(inputs[name]).reshape(shape) for name, shape in shapes.items() if name in inputs}
        count = len(next(iter(stacks.values()), ()))
        memories = [
            reference.evaluate(self.program, {name: array[image] for name, array in stacks.items()})
            for image in range(count)
        ]
        return {root.name: np.stack([memory.array(root) for memory in memories]) for root in self.program.outputs}

    def tensors(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the real values (C, H, W) of every tensor that an operation writes, by name.

        Args:
            inputs: Elements of one image by name.
        """
        memory = reference.evaluate(self.program, inputs)
        return {
            name: _real(surface, surface.of(memory.array(surface.root)))
            for name, surface in self.program.tensors.items()
        }

    @property
    def named(self) -> Loadable:
        """The loadable with the content of its layer file."""
        return replace(self.loadable, layer_file=parse_json(json_text(self.sidecar).encode()))

    def save(self, path: str | Path) -> None:
        """Write the loadable, and the layer file next to it (``<path>.layers.json``).

        Args:
            path: File of the loadable.
        """
        self.loadable.save(path)
        save(self.sidecar, path)


def _elements(root: Root, values: np.ndarray) -> np.ndarray:
    shape = root.channels, root.height, root.width
    if root.converter is not None:
        return root.converter.numbers.elements(values.reshape(-1, *shape))
    return quantize(values, root.scale, root.precision, root.zero).reshape(-1, *shape)


def _real(surface: Surface, elements: np.ndarray) -> np.ndarray:
    """Return the real numbers of elements; a pixel input has separate units for each channel."""
    converter = surface.root.converter
    real = surface.real(elements)
    return real if converter is None else real * np.array(converter.factors)[:, None, None]


@by_annotations
def build(
    network: Network,
    config: str | Configuration = "nv_small",
    precision: str = "int8",
    calibration: Calibration | None = None,
    per_channel: bool = False,
    *,
    level: int = 1,
    input_format: str = "auto",
    memory: Memory | None = None,
    search: SearchLimits | None = None,
    pixels: PixelNumbers | None = None,
    cvsram: int = 0,
    images: int = 1,
) -> Built:
    """Build a loadable.

    Args:
        network: The network.
        config: A configuration or its name.
        precision: "int8" or, on nv_full, "int16" and "fp16".
        calibration: Ranges of the tensors (:func:`nvdla.compiler.builder.calibrate`); required for integers.
        per_channel: Use one weight scale per kernel instead of one per layer.
        level: 0: separate operations for every layer. 1: fuse sums and tables into convolutions, and split these into
            the parts with the lowest predicted cycles. 2: search for the variants and the order with the lowest
            predicted cycles of the whole network.
        input_format: "auto" (from level 1): read inputs of up to four channels as images if only convolutions consume
            them. "image": require images. "feature": never use images. "pixels": require images of unsigned,
            unconverted pixels, which CDMA converts.
        memory: Memory system for the cost model (default: as wide as the bus).
        search: Limits of level 2 (default: no limit, in this process).
        pixels: Real numbers that pixels represent (default: their values).
        cvsram: Bytes of CVSRAM for surfaces between operations.
        images: Images of a batch, stored one after the other in every bound tensor. Each has its own operations, with
            the same weights.

    Returns:
        The loadable and its layer file.

    Raises:
        BuildError: A layer cannot be built; the message contains layer, value, limit and remedy.
        ConfigError: The configuration lacks a feature.
    """
    chosen = configuration(config) if isinstance(config, str) else config
    check_level(level, search)
    _check_sizes(network, chosen, cvsram, images)
    program = lower(network, chosen, precision, calibration, per_channel, level, input_format, memory, pixels)
    evaluator = _evaluator(program, chosen, memory or Memory(), cvsram, level, images)
    all_images, packed = evaluator.program, evaluator.packed
    cost_model, record = evaluator.cost_model(), None
    if level > 1:
        evaluator = replace(evaluator, level=level, known={}, packed=None)
        outcome = look_further(evaluator, search or SearchLimits())
        all_images, cost_model, record = outcome.program, evaluator.cost_model(outcome.wanted), outcome.record
    loadable, tasks, layout = emit(all_images, chosen, cost_model, packed, cvsram)
    layers = describe(network, program, chosen.name, tasks, cost_model, record)
    return Built(loadable, all_images if images == 1 else program, layers, layout)


@by_annotations
def check_level(level: int = 1, search: SearchLimits | None = None) -> None:
    """Raise BuildError for a level that does not exist, and for a search below level 2."""
    if level not in LEVELS:
        raise BuildError(f"level: must be one of {', '.join(map(str, LEVELS))}, got {level}")
    if search is not None and level < LEVELS[-1]:
        raise BuildError(f"level: must be {LEVELS[-1]} with search, got {level}")


def _check_sizes(network: Network, config: Configuration, cvsram: int, images: int) -> None:
    """Refuse a CVSRAM and a batch that cannot be."""
    if cvsram < 0:
        raise BuildError(f"{cvsram} bytes of CVSRAM: must be 0 or more")
    if cvsram:
        config.require("cvsram", f"{cvsram} bytes of CVSRAM")
    if not 1 <= images <= MAX_IMAGES:
        raise BuildError(f"network {network.name}: images: must be 1 to {MAX_IMAGES}, got {images}")


def _evaluator(
    program: LoweredProgram, config: Configuration, memory: Memory, cvsram: int, level: int, images: int
) -> Evaluator:
    """Level 1 (0 where that is wanted) of all images, settled on what makes the whole of them fastest."""
    best, fewest = None, 0
    forms = [program, *(programs_in_parts(program, config, images) if level and images > 1 else ())]
    for form in forms:
        every = batched(form, images)
        evaluator = Evaluator(every, config, memory, cvsram, min(level, 1), packed=PackedWeights(every, config))
        if level:
            evaluator = replace(evaluator, policy=policy_of(evaluator, level > 1))
        cycles = evaluator.as_it_is().cycles if len(forms) > 1 else 0
        if best is None or cycles < GAIN * fewest:
            best, fewest = evaluator, cycles
    assert best is not None
    return best


@by_annotations
def layer_errors(
    network: Network, built: Built, samples: np.ndarray | Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Measure the error of each tensor against the float network.

    Args:
        network: The network.
        built: Result of building the network.
        samples: Real numbers (N, C, H, W) for the first input, or a mapping by input name.

    Returns:
        By name of the tensor: ``rms`` and ``max`` error in real units, ``snr_db`` (signal-to-noise ratio in dB), and
        ``scale``.
    """
    from nvdla.compiler.builder import floating

    exact = floating.run(network, samples)
    first = network.inputs[0].name
    inputs = samples if isinstance(samples, Mapping) else {first: samples}
    inputs = {name: np.asarray(array).reshape(-1, *network_shape(network, name)) for name, array in inputs.items()}
    sums: dict[str, list[np.ndarray]] = {}
    for index in range(len(inputs[first])):
        sample = {name: array[index] for name, array in inputs.items()}
        for name, values in built.tensors(built.quantize_inputs(sample)).items():
            sums.setdefault(name, []).append(values - exact[name][index])
    report = {}
    for name, differences in sums.items():
        error, signal = np.stack(differences), exact[name]
        noise, power = float(np.mean(error**2)), float(np.mean(signal**2))
        scale = built.program.tensors[name].scale
        largest, ratio = float(np.abs(error).max()), decibels(power, noise)
        report[name] = {"rms": noise**0.5, "max": largest, "snr_db": ratio, "scale": scale}
    return report


def network_shape(network: Network, name: str) -> tuple[int, int, int]:
    """(channels, height, width) of the input called ``name``."""
    return next(tensor.shape for tensor in network.inputs if tensor.name == name)
