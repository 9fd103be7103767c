"""Which of the two descriptor ABIs a loadable uses, found by decoding its surfaces with both.

Nothing in the container says it: version and identifier are the same for both. So each data cube is read both ways and
asked simple questions (:data:`CUBE_CHECKS`); read the wrong way, sizes land in offsets and strides in dimensions, and
many answers are no. The ABI with the larger share of yes wins. Where the surfaces cannot tell (BDMA has no data cubes),
the firmware interface version that compilers store with each descriptor blob decides: 0.12 came with the new cube.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from nvdla.errors import DescriptorError
from nvdla.limits import MAX_CUBE_SIDE
from nvdla.loadable.descriptors.abi import NEW, OLD, Abi, abi_named
from nvdla.loadable.descriptors.enums import EmuFormat, MemType, OpType
from nvdla.loadable.descriptors.structures import NUM_OP_TYPES, Descriptor
from nvdla.loadable.descriptors.task import DlaTask, EmuTask
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Loadable, TaskEntry
from nvdla.util.arguments import by_annotations

#: operations looked at in each task: enough to be certain, and bounded
SAMPLE = 64
#: firmware interface version (minor) of the first compiler with the 32-byte cube
NEW_INTERFACE_MINOR = 12

CubeCheck = Callable[[Descriptor, list[int]], bool]


@dataclass(frozen=True)
class Score:
    """Answers of one ABI: ``passed`` of ``asked`` questions; ``error`` when its lists could not be read at all."""

    passed: int
    asked: int
    error: DescriptorError | None = None

    @property
    def share(self) -> float:
        """The part of the questions that was answered well."""
        return self.passed / self.asked if self.asked and self.error is None else 0.0


@by_annotations
def detect(loadable: Loadable, abi: str | Abi = "auto", *, checked: bool = True) -> tuple[Abi, str]:
    """The ABI and, in one sentence, why. ``abi`` overrides: "old", "new" or an Abi.

    When the descriptors can be read with neither, raises DescriptorError if ``checked``; otherwise the version of the
    firmware interface decides.
    """
    if isinstance(abi, Abi):
        return abi, f"{abi.name} ABI, {abi.title}: chosen by the caller"
    if abi != "auto":
        return abi_named(abi), f"{abi_named(abi).name} ABI, {abi_named(abi).title}: chosen by the caller"
    old, new = score(loadable, OLD), score(loadable, NEW)
    if old.error and new.error:
        if not checked:
            return _by_version(loadable, new)
        raise DescriptorError(f"descriptors fit neither ABI: {new.error}")
    chosen, mine, other = (NEW, new, old) if new.share >= old.share else (OLD, old, new)
    if new.share == old.share:
        return _by_version(loadable, mine)
    against = "its lists do not fit the other" if other.error else f"{other.passed} of {other.asked} for the other"
    if mine.passed == mine.asked:
        return chosen, f"{chosen.name} ABI, {chosen.title}: all fields are consistent"
    return chosen, (
        f"{chosen.name} ABI, {chosen.title}: {mine.passed} of {mine.asked} fields of the surfaces "
        f"are consistent, {against}"
    )


def _by_version(loadable: Loadable, score: Score) -> tuple[Abi, str]:
    """Decide by the version of the firmware interface, when surfaces are equally sensible both ways."""
    tie = "both ABIs read the surfaces alike" if score.asked else "no surface depends on the ABI"
    if score.error:
        tie = "the descriptors fit neither ABI"
    for blob in loadable.blobs:
        if blob.version is not None and (blob.version.major, blob.version.minor) > (0, 0):
            chosen = NEW if (blob.version.major, blob.version.minor) >= (0, NEW_INTERFACE_MINOR) else OLD
            return chosen, (
                f"{chosen.name} ABI, {chosen.title}: {tie}, and blob {blob.name!r} states firmware interface "
                f"{blob.version} (0.{NEW_INTERFACE_MINOR} and later are new)"
            )
    return NEW, f"{NEW.name} ABI, {NEW.title}: {tie}, and no blob states a firmware interface; this is the usual one"


def score(loadable: Loadable, abi: Abi) -> Score:
    """Score the surfaces of all tasks read with ``abi``."""
    passed = asked = 0
    for task in loadable.tasks:
        try:
            ask = _dla_answers if task.interface == Interface.DLA1 else _emu_answers
            answers = list(ask(loadable, task, abi))
        except DescriptorError as error:
            return Score(0, 0, error)
        passed += sum(answers)
        asked += len(answers)
    return Score(passed, asked)


def _windows(loadable: Loadable, task: TaskEntry) -> list[int]:
    """Return the bytes at each address index of a task."""
    return [loadable.address_bytes(loadable.address(number)) for number in task.address_list]


def _dla_answers(loadable: Loadable, task: TaskEntry, abi: Abi) -> Iterator[bool]:
    decoded = DlaTask.overlay(loadable, task, abi)
    windows = _windows(loadable, task)
    for position, common in enumerate(islice(decoded.dependencies, SAMPLE)):
        # BDMA descriptors are the same in both ABIs.
        if common.op_type == OpType.BDMA or common.op_type >= NUM_OP_TYPES:
            continue
        surface = getattr(decoded.surface_containers[position], f"{OpType(common.op_type).name.lower()}_surface")
        for name, *_ in surface._fields_:
            if name.endswith("_data"):
                cube = getattr(surface, name)
                yield from (check(cube, windows) for check in CUBE_CHECKS)


def _emu_answers(loadable: Loadable, task: TaskEntry, abi: Abi) -> Iterator[bool]:
    decoded = EmuTask.overlay(loadable, task, abi)
    windows = _windows(loadable, task)
    for container, buffers in islice(zip(decoded.containers, decoded.buffers, strict=True), SAMPLE):
        yield container.power_op.common.op_type <= 1
        for buffer in (buffers.src_data, buffers.dst_data):
            yield from (check(buffer, windows) for check in BUFFER_CHECKS)


# ---- questions about a data cube


def _unused(cube: Descriptor) -> bool:
    """No address, or on the fly. Compilers leave some unused cubes all zero; index 0 is never a surface."""
    return cube.address == -1 or cube.type == MemType.HW or (cube.address == 0 and not cube.width)


def cube_lies_in_memory_or_on_the_fly(cube: Descriptor, windows: list[int]) -> bool:
    """The memory type is MC, CV or HW."""
    return bool(cube.type <= MemType.HW)


def cube_address_exists(cube: Descriptor, windows: list[int]) -> bool:
    """The address index is -1 or within the address list."""
    return bool(-1 <= cube.address < len(windows))


def cube_has_dimensions(cube: Descriptor, windows: list[int]) -> bool:
    """Width, height and channels are within the hardware's range; a cube without address may be empty."""
    dimensions = (cube.width, cube.height, cube.channel)
    return all(dimension <= MAX_CUBE_SIDE for dimension in dimensions) and (_unused(cube) or all(dimensions))


def cube_size_is_sensible(cube: Descriptor, windows: list[int]) -> bool:
    """A cube in memory fits in the memory of its address, at its offset."""
    if _unused(cube) or not cube_address_exists(cube, windows):
        return bool(cube.size < 1 << 31)
    return bool(cube.size > 0 and cube.offset + cube.size <= windows[cube.address])


def cube_strides_are_ordered(cube: Descriptor, windows: list[int]) -> bool:
    """A line holds at least a byte a column, a surface at least its lines; surfaces are never smaller than lines."""
    if cube.line_stride == 0:
        return cube.surf_stride == 0 or _unused(cube)
    if cube.line_stride < cube.width:
        return False
    return bool(cube.surf_stride == 0 or cube.surf_stride >= cube.line_stride)


def cube_padding_is_zero(cube: Descriptor, windows: list[int]) -> bool:
    """The reserved halfword is 0."""
    return bool(cube.reserved0 == 0)


CUBE_CHECKS: tuple[CubeCheck, ...] = (
    cube_lies_in_memory_or_on_the_fly,
    cube_address_exists,
    cube_has_dimensions,
    cube_size_is_sensible,
    cube_strides_are_ordered,
    cube_padding_is_zero,
)


# ---- questions about a CPU task's buffer


def buffer_address_exists(buffer: Descriptor, windows: list[int]) -> bool:
    """The address index is within the address list."""
    return bool(0 <= buffer.address_index < len(windows))


def buffer_format_is_known(buffer: Descriptor, windows: list[int]) -> bool:
    """The element format has a name."""
    return EmuFormat(buffer.format).known


def buffer_has_dimensions(buffer: Descriptor, windows: list[int]) -> bool:
    """Width, height and channels are within range."""
    return all(0 < size <= MAX_CUBE_SIDE for size in (buffer.width, buffer.height, buffer.channel))


def buffer_fits(buffer: Descriptor, windows: list[int]) -> bool:
    """The size is positive and fits in the memory of the address."""
    return (
        buffer_address_exists(buffer, windows)
        and buffer.size > 0
        and buffer.address_index_offset + buffer.size <= windows[buffer.address_index]
    )


def buffer_strides_are_ordered(buffer: Descriptor, windows: list[int]) -> bool:
    """A line holds its columns and a surface its lines."""
    return bool(buffer.width <= buffer.line_stride <= buffer.surf_stride)


BUFFER_CHECKS: tuple[CubeCheck, ...] = (
    buffer_address_exists,
    buffer_format_is_known,
    buffer_has_dimensions,
    buffer_fits,
    buffer_strides_are_ordered,
)
