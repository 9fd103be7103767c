"""The operations of all tasks as nodes, in the order in which the firmware gets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvdla.analysis.graph.accesses import Access, AccessFinder, Shape
from nvdla.analysis.views.operations import DESCRIBE, precision_of
from nvdla.descriptors import DlaOperation, DlaTask, EmuTask
from nvdla.descriptors.enums import Event, MemType
from nvdla.errors import DescriptorError
from nvdla.hardware.configuration import Configuration
from nvdla.loadable import Loadable

Key = tuple[int, int, int]
MAX_NODES = 1 << 16


@dataclass(frozen=True)
class Dependency:
    """``target`` waits for an event of this operation; ``fused``: it is the operation in front of it on the fly."""

    target: Key
    event: str
    fused: bool = False


@dataclass(frozen=True)
class Node:
    """One operation of one region of interest. ``key``: (task, ROI, index in the operation list).

    ``engine``: "bdma" "conv" "sdp" "pdp" "cdp" "rubik" "cpu"; ``what``: the operation in words; ``input`` and
    ``output``: (channels, height, width); ``from_air`` and ``to_air``: its input comes, its result goes on the fly;
    ``waits_for``: events that must happen before it is enabled; ``queue``: its place in its engine's queue, -1 when
    the queue does not reach it; ``operation``: the descriptors.
    """

    key: Key
    engine: str
    layer: str | None
    what: str
    precision: str | None
    input: Shape | None
    output: Shape | None
    from_air: bool
    to_air: bool
    accesses: tuple[Access, ...]
    dependencies: tuple[Dependency, ...]
    waits_for: int
    queue: int
    operation: Any = field(repr=False)

    @property
    def task(self) -> int:
        return self.key[0]

    @property
    def roi(self) -> int:
        return self.key[1]

    @property
    def index(self) -> int:
        return self.key[2]

    @property
    def label(self) -> str:
        """ "0/12" (task/operation), with the region of interest where it is not the first: "0/12#1"."""
        return f"{self.task}/{self.index}" + (f"#{self.roi}" if self.roi else "")

    @property
    def reads(self) -> list[Access]:
        return [access for access in self.accesses if not access.writes]

    @property
    def writes(self) -> list[Access]:
        return [access for access in self.accesses if access.writes]


def submitted_tasks(loadable: Loadable) -> list[int]:
    """Task ids in the order in which they are submitted, each once; those that never are come last."""
    served = [task for entry in loadable.submit_order for task in entry.task_ids]
    return list(dict.fromkeys([*served, *(task.id for task in loadable.tasks)]))


def nodes_of(
    loadable: Loadable,
    tasks: Mapping[int, DlaTask | EmuTask],
    config: Configuration,
    layers: Mapping[tuple[int, int], str] | None = None,
) -> list[Node]:
    """All operations: tasks in submit order, then as they stand in the lists. ``layers``: (task, operation) -> name.

    Raises DescriptorError for more than MAX_NODES operations.
    """
    total = sum(len(task) for task in tasks.values())
    if total > MAX_NODES:
        raise DescriptorError(f"{total} operations are more than can be shown: {MAX_NODES}")
    sizes = {memory.id: memory.size for memory in loadable.memories}
    found: list[Node] = []
    for task_id in submitted_tasks(loadable):
        task = tasks[task_id]
        finder = AccessFinder(loadable, loadable.task(task_id), config, sizes)
        make = _cpu_nodes if isinstance(task, EmuTask) else _dla_nodes
        found += make(task_id, task, finder, layers or {})
    return found


def _cpu_nodes(
    task_id: int, task: EmuTask, finder: AccessFinder, layers: Mapping[tuple[int, int], str]
) -> Iterator[Node]:
    for operation in task.operations():
        source, target = operation.src, operation.dst
        yield Node(
            key=(task_id, 0, operation.index),
            engine="cpu",
            layer=layers.get((task_id, operation.index)),
            what=operation.op_type.name.lower(),
            precision=source.element_format.name,
            input=(source.channel, source.height, source.width),
            output=(target.channel, target.height, target.width),
            from_air=False,
            to_air=False,
            accesses=finder.of(task, operation),
            dependencies=(),
            waits_for=0,
            queue=operation.index,
            operation=operation,
        )


def _dla_nodes(
    task_id: int, task: DlaTask, finder: AccessFinder, layers: Mapping[tuple[int, int], str]
) -> Iterator[Node]:
    places = queue_places(task)
    for roi in range(task.network.num_rois):
        for operation in task.operations(roi):
            yield _dla_node(task_id, task, operation, finder, layers, places.get((roi, operation.index), -1))


def _dla_node(
    task_id: int,
    task: DlaTask,
    operation: DlaOperation,
    finder: AccessFinder,
    layers: Mapping[tuple[int, int], str],
    place: int,
) -> Node:
    src, dst = (getattr(operation.surface, name, None) for name in ("src_data", "dst_data"))
    return Node(
        key=(task_id, operation.roi, operation.index),
        engine=operation.engine,
        layer=layers.get((task_id, operation.index)),
        what=DESCRIBE[operation.op_type](operation),
        precision=precision_of(operation),
        input=_shape(src),
        output=_shape(dst),
        from_air=src is not None and src.type == MemType.HW,
        to_air=dst is not None and dst.type == MemType.HW,
        accesses=finder.of(task, operation),
        dependencies=tuple(_dependencies(task_id, operation)),
        waits_for=operation.common.dependency_count,
        queue=place,
        operation=operation,
    )


def _shape(cube: Any) -> Shape | None:
    return None if cube is None else (cube.channel, cube.height, cube.width)


def _dependencies(task_id: int, operation: DlaOperation) -> Iterator[Dependency]:
    """Who waits for this operation, in the order in which the firmware tells them."""
    for consumer in operation.common.consumers:
        if consumer.index != -1:
            yield Dependency((task_id, operation.roi, consumer.index), Event(consumer.event).name)
    parent = operation.common.fused_parent
    if parent.index != -1:
        yield Dependency((task_id, operation.roi, parent.index), Event(parent.event).name, fused=True)


def queue_places(task: DlaTask) -> dict[tuple[int, int], int]:
    """(ROI, operation) -> place in the queue of its engine.

    A queue begins with op_head of its type and goes on with ``consumers[own type]``; an operation is served for every
    region of interest before the next (kmd/firmware/scheduler.c dla_dequeue_operation). A queue that comes back to an
    operation ends there.
    """
    places: dict[tuple[int, int], int] = {}
    for op_type, head in enumerate(task.network.op_head):
        index, place = head, 0
        while index != -1 and (0, index) not in places:
            for roi in range(task.network.num_rois):
                places[roi, index] = place
                place += 1
            index = task.dependencies[index].consumers[op_type].index
    return places


def by_task(nodes: list[Node]) -> dict[int, list[Node]]:
    """The operations of each task, in the order of ``nodes``."""
    found: dict[int, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.task, []).append(node)
    return found


def chains(nodes: list[Node]) -> list[list[Node]]:
    """Operations that hand their results on the fly (convolution, SDP, PDP), in the order of their first one.

    The hardware pairs what comes next in the queues: the first SDP that takes its input on the fly works for the first
    convolution, and so on; likewise PDP and SDP.
    """
    followers: dict[Key, Node] = {}
    for task in by_task(nodes).values():
        mine = sorted((node for node in task if node.queue >= 0), key=lambda node: node.queue)
        for first, second in (("conv", "sdp"), ("sdp", "pdp")):
            giving = [node for node in mine if node.engine == first and (node.to_air or first == "conv")]
            taking = [node for node in mine if node.engine == second and node.from_air]
            followers |= {giver.key: taker for giver, taker in zip(giving, taking, strict=False)}
    led = {node.key for node in followers.values()}
    found = []
    for node in nodes:
        if node.key in led:
            continue
        chain = [node]
        while chain[-1].key in followers:
            chain.append(followers[chain[-1].key])
        found.append(chain)
    return found
