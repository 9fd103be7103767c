"""Which hardware configuration a loadable was compiled for: nothing in the file says it, but much points at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors.enums import ConvMode, MemType, OpType, WeightFormat
from nvdla.descriptors.enums import DataFormat as InputFormat
from nvdla.descriptors.meaning import precisions_of
from nvdla.descriptors.task import DlaOperation, DlaTask, EmuTask
from nvdla.errors import ConfigError
from nvdla.firmware.conv import WEIGHT_ALIGNMENT
from nvdla.hardware.configuration import FEATURES, Configuration, configurations, configurations_with
from nvdla.loadable.enums import MemoryDomain, PixelFormat
from nvdla.loadable.model import Loadable
from nvdla.memory.surfaces import FEATURE_ATOMS
from nvdla.precision import Precision
from nvdla.rounding import ceil_div

# NVIDIA's compiler knows these; the others must fit a file in ways that these do not to be chosen.
PREFERRED = ("nv_small", "nv_full", "nv_large")


@dataclass
class Needs:
    """What a loadable asks of the hardware; each reason stands beside what it was concluded from."""

    atom: int | None = None
    atom_reason: str = ""
    precisions: set[str] = field(default_factory=set)
    features: dict[str, str] = field(default_factory=dict)
    odd_weights: str = ""  # who has weights of a size that nv_full's registers cannot hold
    slices: list[tuple[int, int]] = field(default_factory=list)  # (atoms of a line of all channels, entry_per_slice)


def check_atoms(loadable: Loadable, config: Configuration) -> None:
    """Raise ConfigError when a bound tensor's atoms are not those of the configuration's memory.

    Only FEATURE_X8 is believed: NVIDIA's driver regression writes FEATURE for atoms of 8 bytes too.
    """
    for memory in (*loadable.inputs, *loadable.outputs):
        tensor = loadable.tensor(memory.tensor_desc_id)
        atom = FEATURE_ATOMS[PixelFormat.FEATURE_X8]
        if tensor.pixel_format == PixelFormat.FEATURE_X8 and config.memory_atom != atom:
            able = ", ".join(configurations_with(memory_atom=atom))
            raise ConfigError(
                f"tensor {tensor.name} lies in atoms of {atom} bytes ({tensor.pixel_format.name}), but {config.name} "
                f"has atoms of {config.memory_atom}: the loadable was compiled for another configuration, one of {able}"
            )


@by_annotations
def choose_configuration(loadable: Loadable, tasks: Mapping[int, DlaTask | EmuTask]) -> tuple[Configuration, str]:
    """The configuration and, in one line, why. ``tasks`` as from :func:`nvdla.descriptors.decode_tasks`.

    When none has all that the file asks for (a compiler's mistake), it is the one whose atoms fit; and when the
    convolutions were laid out for the convolution buffer of one that lacks something (NVIDIA's compiler emits Rubik for
    nv_large), it is that one. The reason says so, and the checks of the operations then refuse what it lacks.
    """
    needs = _needs(loadable, tasks)
    known = list(configurations().values())
    fitting = [each for each in known if not _missing(each, needs)]
    if not fitting:
        nearest = min(known, key=lambda each: (needs.atom not in (None, each.memory_atom), _preference(each)))
        return nearest, f"{_describe(needs)}; no configuration has all of this"
    fitting.sort(key=lambda each: (-_entry_matches(each, needs), _preference(each)))
    chosen = fitting[0]
    meant = max(known, key=lambda each: (_entry_matches(each, needs), -_preference(each)))
    if _entry_matches(meant, needs) > _entry_matches(chosen, needs) and meant.memory_atom == chosen.memory_atom:
        lacks = ", ".join(FEATURES[feature] for feature in needs.features if not meant.has(feature))
        if lacks:
            return meant, (
                f"{_describe(needs)}, CBUF entries of {meant.cbuf_entry_bytes} bytes ({chosen.name} would have "
                f"{chosen.cbuf_entry_bytes}); {meant.name} has no {lacks}"
            )
    others = [each.name for each in fitting[1:] if each.name in PREFERRED]
    reason = _describe(needs)
    if others and _entry_matches(chosen, needs) > max(_entry_matches(each, needs) for each in fitting[1:]):
        reason += f", CBUF entries of {_entry_bytes(chosen)} bytes ({', '.join(others)} would have others)"
    elif others:
        reason += f"; {', '.join(others)} would compute the same"
    return chosen, reason


def _needs(loadable: Loadable, tasks: Mapping[int, DlaTask | EmuTask]) -> Needs:
    needs = Needs()
    for memory in (*loadable.inputs, *loadable.outputs):
        tensor = loadable.tensor(memory.tensor_desc_id)
        if tensor.pixel_format in FEATURE_ATOMS and needs.atom is None:
            needs.atom = FEATURE_ATOMS[tensor.pixel_format]
            needs.atom_reason = f"tensor {tensor.name} is {tensor.pixel_format.name}"
    if any(memory.domain == MemoryDomain.SRAM for memory in loadable.memories):
        needs.features["cvsram"] = "a memory lies in CVSRAM"
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
            needs.precisions.add(precision.title)
    for feature, what in _features(operation):
        needs.features.setdefault(feature, f"{where} {what}")
    if operation.op_type == OpType.CONV and operation.surface.weight_data.size % WEIGHT_ALIGNMENT:
        needs.odd_weights = needs.odd_weights or f"{where} has weights of {operation.surface.weight_data.size} bytes"
    if operation.op_type == OpType.CONV and operation.op.data_format == InputFormat.FEATURE:
        src = operation.surface.src_data
        if needs.atom and src.width and operation.op.in_precision == operation.op.out_precision:
            channels = src.channel * (1 if operation.op.in_precision == 0 else 2)
            needs.slices.append((src.width * ceil_div(channels, needs.atom), operation.op.entry_per_slice))


def _look_at_lines(task: int, operation: DlaOperation, needs: Needs) -> None:
    """Lines of feature data too close together for large atoms are made of small ones, whatever the tensor says."""
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


def _cubes(surface: Any) -> Iterator[Any]:
    return (getattr(surface, name) for name, *_ in surface._fields_ if name.endswith("_data"))


def _missing(config: Configuration, needs: Needs) -> bool:
    return (
        (needs.atom is not None and config.memory_atom != needs.atom)
        or not needs.precisions <= set(config.precisions)
        or not all(getattr(config, feature) for feature in needs.features)
        or bool(needs.odd_weights and config.weight_alignment == WEIGHT_ALIGNMENT)
    )


def _describe(needs: Needs) -> str:
    parts = []
    if needs.atom:
        parts.append(f"atoms of {needs.atom} bytes ({needs.atom_reason})")
    if needs.precisions:
        parts.append(" and ".join(sorted(needs.precisions)))
    parts += needs.features.values()
    if needs.odd_weights and needs.atom != FEATURE_ATOMS[PixelFormat.FEATURE_X8]:  # of 8 bytes: not nv_full anyway
        parts.append(f"{needs.odd_weights}, not a multiple of {WEIGHT_ALIGNMENT} as nv_full wants")
    return ", ".join(parts) or "nothing that tells configurations apart"


def _entry_bytes(config: Configuration) -> int:
    return config.cbuf_entry_bytes


def _entry_matches(config: Configuration, needs: Needs) -> int:
    """How many convolutions have the entries per slice that the configuration's convolution buffer needs."""
    size = _entry_bytes(config)
    return sum(entries == ceil_div(atoms * (needs.atom or 0), size) for atoms, entries in needs.slices)


def _preference(config: Configuration) -> int:
    return PREFERRED.index(config.name) if config.name in PREFERRED else len(PREFERRED)
