"""Who hands results to whom on the fly, and where operations stand in the queues of their engines."""

from __future__ import annotations

from collections.abc import Sequence

from nvdla.descriptors.enums import OpType
from nvdla.descriptors.task import DlaTask
from nvdla.program.operation import Key, Operation

#: engine -> the engine behind it that can take its results on the fly
BEHIND = {OpType.CONV: OpType.SDP, OpType.SDP: OpType.PDP}


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
    found: dict[int, list[Operation]] = {}
    for operation in operations:
        found.setdefault(operation.task, []).append(operation)
    return found


def takers(operations: Sequence[Operation]) -> dict[Key, Operation]:
    """Who takes an operation's result on the fly.

    The hardware pairs what comes next in the queues: the first SDP that takes its input on the fly works for the first
    convolution, and so on; likewise PDP and SDP.
    """
    found: dict[Key, Operation] = {}
    for task in by_task(operations).values():
        mine = sorted((each for each in task if each.queue >= 0), key=lambda each: each.queue)
        for first, second in BEHIND.items():
            giving = [each for each in mine if each.type == first and each.gives_on_the_fly]
            taking = [each for each in mine if each.type == second and each.takes_on_the_fly]
            found |= {giver.key: taker for giver, taker in zip(giving, taking, strict=False)}
    return found


def chains(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations that work together on the fly (convolution, SDP, PDP), in the order of their first one; an operation
    that works alone is a chain of one."""
    behind = takers(operations)
    led = {each.key for each in behind.values()}
    found = []
    for operation in operations:
        if operation.key in led:
            continue
        chain = [operation]
        while chain[-1].key in behind:
            chain.append(behind[chain[-1].key])
        found.append(chain)
    return found
