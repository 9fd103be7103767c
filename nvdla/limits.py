"""Limits of the work that a file may cause, from reading its bytes to the end of a run, and sizes of the hardware.

Work that a file states is refused before it is done; the rest is counted during a run. Limits of other formats are
with their readers. ``docs/security.md`` lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvdla.errors import BuildError, DescriptorError, LinkError, ScheduleError

__all__ = ["Limits", "PlanLimits"]

# Facts of the hardware and of its driver that several layers need.

#: largest width, height and channel count of a cube, and most lines of a BDMA transfer (13 bits, stored minus 1)
MAX_CUBE_SIDE = 8192
#: most rows and columns of a convolution kernel (5 bits, stored minus 1)
MAX_KERNEL = 32
#: most rows and columns of a pooling window
MAX_WINDOW = 8
#: bytes that memories are aligned to
PAGE = 4096
#: bytes that lines of images are aligned to
LINE_ALIGNMENT = 32
#: bytes that the masks of compressed weights are padded to
MASK_ALIGNMENT = 128

#: The tensors of a file may share bytes, but together take at most this many times the file: else a small file could
#: fill a disk when it is converted or extracted, or memory when it is read.
MAX_SHARING = 64


@dataclass(frozen=True)
class Limits:
    """Limits of a loadable or trace. To raise one, pass other limits to ``nvdla.load``, a Runtime or a replay.

    The defaults are far above real networks (ResNet-50: 175 operations, 4 * 10^9 multiplications); a run that
    reaches them takes hours.
    """

    #: bytes of the file; FlatBuffers themselves end at 2 GiB
    file_size: int = (1 << 31) - 1
    #: tables in the whole file (ids are 16 bits wide, so a list of more than 65536 entries is never sensible)
    tables: int = 1 << 17
    #: nesting of tables, the root being 1
    depth: int = 16
    #: bytes of one string
    string_bytes: int = 1 << 12
    #: tasks: compilers make one for each part between two operations of the CPU
    tasks: int = 1 << 12
    #: entries of the address lists of all tasks together (tasks may share one list)
    task_addresses: int = 1 << 18
    #: bytes read through offsets, in multiples of the file size (what is shared counts each time)
    sharing: int = 8

    #: hardware operations of a task, times its ROIs, and of a run; operations of a CPU task
    operations: int = 1 << 16
    #: LUTs of one task
    luts: int = 1 << 12
    #: operations of all tasks of a loadable together (tasks may share their lists, so the file may be small)
    all_operations: int = 1 << 18

    #: multiplications of convolutions in a run
    multiplications: int = 10**13
    #: elements that the other engines work on, times the elements of a pooling or normalization window; bytes copied
    elements: int = 10**12
    #: elements of the largest cube of one operation, hardware batches together (input, weights or output)
    cube: int = 1 << 28
    #: bytes that a run takes in all; of a trace: its memory, and the images that it loads
    memory: int = 4 << 30

    def check_total(self, task_id: int, total: int) -> None:
        """Check the number of operations of the tasks up to this one.

        Args:
            task_id: Id of the task, for the message.
            total: Number of operations so far.

        Raises:
            DescriptorError: ``total`` exceeds ``all_operations``.
        """
        if total > self.all_operations:
            raise DescriptorError(
                f"task {task_id}: operations up to this task: must be at most {self.all_operations} "
                f"(Limits.all_operations), got {total}"
            )


@dataclass(frozen=True)
class ModelLimits:
    """Limits of the processes that read ONNX models and run their host parts
    (:mod:`nvdla.compiler.frontend.isolation`)."""

    #: bytes of address space of one process
    memory: int = 8 << 30
    #: seconds of processor time, all threads together, of one call: reading a model, opening or running a part of it
    seconds: int = 300
    #: multiplications (elements, for operators without any) of constant folding in all
    folding: int = 10**10
    #: the same of one run of a host part, as far as its shapes are known before it runs
    host: int = 10**13


@dataclass(frozen=True)
class PlanLimits:
    """Limits of planning: of one network on its way to a loadable (:mod:`nvdla.compiler.builder`)."""

    #: operations of the loadable, all images together; a task of a run has no more
    operations: int = 1 << 16
    #: bytes of weights in all, and of surfaces between operations
    memory: int = 4 << 30
    #: operations whose cycles are counted to share data of convolutions; later convolutions share none
    shared: int = 1 << 18
    #: operations whose cycles are counted in the search of level 2, which ends there
    searched: int = 1 << 23

    def check_operations(self, layer: str, count: int) -> None:
        """Check the number of operations of the layers up to this one.

        Args:
            layer: Name of the layer, for the message.
            count: Number of operations so far.

        Raises:
            BuildError: ``count`` exceeds ``operations``.
        """
        if count > self.operations:
            raise BuildError(
                f"plan: must be at most {self.operations:,} operations (PlanLimits.operations), got "
                f"{count:,} up to this layer. Divide the network.",
                layer=layer,
            )

    def check_memory(self, layer: str, what: str, size: int) -> None:
        """Check the memory of the layers up to this one.

        Args:
            layer: Name of the layer, for the message.
            what: Use of the memory, for the message.
            size: Bytes so far.

        Raises:
            BuildError: ``size`` exceeds ``memory``.
        """
        if size > self.memory:
            raise BuildError(
                f"plan: {what} must be at most {self.memory:,} bytes (PlanLimits.memory), got {size:,}. "
                "Divide the network.",
                layer=layer,
            )


#: limits of every plan that is made after a change
PLAN = PlanLimits()


@dataclass(frozen=True)
class Work:
    """Cost of a prepared operation: multiplications of a convolution, elements (times the elements of a
    window) of the other engines, elements of the largest cube that it needs in one piece, bytes of memory."""

    multiplications: int = 0
    elements: int = 0
    cube: int = 0
    #: bytes besides simulated memory that a run takes while it lasts, and those that stay for later runs; not less than
    #: what was measured (tests/attacks/test_memory_of_a_run.py)
    scratch: int = 0
    kept: int = 0


class Meter:
    """Counts the work of a run and stops it with a ScheduleError where it passes the limits.

    ``room``: bytes that operations may take besides simulated memory (None: as many as there are); ``most``: how many
    they took at once so far, with what they keep.
    """

    def __init__(self, limits: Limits | None = None, room: int | None = None) -> None:
        self.limits = limits or Limits()
        self.room = room
        self.most = 0
        self.kept = 0
        self.operations = 0
        self.multiplications = 0
        self.elements = 0

    def charge(self, what: str, work: Work) -> None:
        """Before one operation is done: add its work."""
        self.operations += 1
        self.multiplications += work.multiplications
        self.elements += work.elements
        for name in ("operations", "multiplications", "elements"):
            used, limit = getattr(self, name), getattr(self.limits, name)
            if used > limit:
                raise ScheduleError(f"{what}: {name}: must be at most {limit:,} (Limits.{name}), got {used:,}")
        self.allow(what, work)

    def hold(self, what: str, works: Iterable[Work]) -> None:
        """Before operations that go on at the same time are done: the memory that they take together."""
        scratch = 0
        for work in works:
            scratch += work.scratch
            self.kept += work.kept
        self.most = max(self.most, self.kept + scratch)
        if self.room is not None and self.kept + scratch > self.room:
            raise LinkError(
                f"{what}: must need at most {self.room:,} bytes (memory limit without the memory list), got up to "
                f"{scratch:,} for its data and {self.kept:,} for packed weights. Pass a higher memory_limit."
            )

    def spend(self, what: str, elements: int) -> None:
        """Before bytes are moved or compared without an operation."""
        self.elements += elements
        if self.elements > self.limits.elements:
            raise ScheduleError(
                f"{what}: elements: must be at most {self.limits.elements:,} (Limits.elements), got {self.elements:,}"
            )

    def allow(self, what: str, work: Work) -> None:
        """Refuse an operation whose largest cube passes the limit."""
        if work.cube > self.limits.cube:
            raise ScheduleError(
                f"{what}: cube: must have at most {self.limits.cube:,} elements (Limits.cube), got {work.cube:,}"
            )
