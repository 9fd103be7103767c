"""The dependency graph, the descriptors as such, and the dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nvdla.checks.lint.linter import Context, Said, register_problems, rule
from nvdla.loadable.descriptors.enums import Event
from nvdla.loadable.descriptors.task import dla_problems, emu_problems

REPAIR = "Correct consumers and dependency counts (NVIDIA's compiler writes wrong ones for some networks)."


@rule("error", "Repair the file: a reference does not exist, or does not fit.", headline="broken container")
def the_container_is_consistent(context: Context) -> Iterator[Said]:
    """All references of the container's tables exist and fit: ids, blobs, memories, addresses, tensors."""
    from nvdla.loadable.checks import problems

    yield from problems(context.loadable)


@rule("warning", "Repair the file.", headline="unknown identifier")
def the_identifier_is_known(context: Context) -> Iterator[Said]:
    """The FlatBuffer identifier is NVDA; files of 2018 have none."""
    if context.loadable.identifier not in ("NVDA", ""):
        yield f"identifier at byte 4: must be NVDA, got {context.loadable.identifier!r}"


@rule("error", "Repair the descriptors, or choose the other ABI (--abi).", headline="descriptors that cannot be read")
def descriptors_can_be_read(context: Context) -> Iterator[Said]:
    """The descriptor lists of every task can be read, and every index in them exists."""
    yield from ((task, reason) for task, reason in context.broken.items())
    for task_id, task in context.tasks.items():
        yield from ((task_id, problem) for problem in dla_problems(task))
    for task_id, cpu in context.cpu_tasks.items():
        yield from ((task_id, problem) for problem in emu_problems(cpu))


@rule("error", "Correct the field: the register cannot hold it.", headline="number out of the range of its register")
def values_fit_their_registers(context: Context) -> Iterator[Said]:
    """Numbers of a descriptor fit their registers: 13 bits for sizes, 3 for strides, 3 to 5 for padding, 5 or 6 for
    truncations and so on. The firmware does not check; higher bits are lost."""
    for subject in context.subjects:
        for problem in register_problems(subject):
            yield subject, problem


@rule("error", REPAIR, headline="operation that waits for itself")
def operations_do_not_wait_for_themselves(context: Context) -> Iterator[Said]:
    """No operation is its own consumer.

    NVIDIA's compiler writes such graphs if a CPU layer is in the middle of a network. The firmware then queues
    operations twice and never ends.
    """
    for subject in context.subjects:
        common = subject.common
        for consumer in (*common.consumers, common.fused_parent):
            if consumer.index == subject.index:
                yield subject, f"it is its own consumer (event {Event(consumer.event).name})"


@rule("error", REPAIR, headline="wrong dependency count", of_graph=True)
def dependencies_are_counted(context: Context) -> Iterator[Said]:
    """dependency_count is the number of operations that have this one as a consumer.

    A higher count is a deadlock. With a lower count the operation starts before its input is ready, or the count
    becomes negative.
    """
    for task_id, task in context.tasks.items():
        incoming: Counter[int] = Counter()
        for common in task.dependencies[: task.network.num_operations]:
            for consumer in (*common.consumers, common.fused_parent):
                if consumer.index != -1:
                    incoming[consumer.index] += 1
        for subject in context.operations_of(task_id):
            count = subject.common.dependency_count
            if count != incoming[subject.index]:
                yield (
                    subject,
                    f"dependency_count: must be {incoming[subject.index]} (operations with this consumer), got {count}",
                )


@rule("error", REPAIR, headline="operation that is never reached", of_graph=True)
def every_operation_is_reached(context: Context) -> Iterator[Said]:
    """The operations of each engine form a chain from op_head through consumers of the same engine. Operations
    outside this chain never start, and the firmware never ends."""
    for task_id, task in context.tasks.items():
        count = task.network.num_operations
        reached: set[int] = set()
        for kind, head in enumerate(task.network.op_head):
            while 0 <= head < count and head not in reached:
                reached.add(head)
                head = task.dependencies[head].consumers[kind].index
        for subject in context.operations_of(task_id):
            if subject.index not in reached:
                yield subject, f"no chain of {subject.engine.upper()} operations leads to it"


@rule(
    "error",
    "See the message; 'nvdla inspect --ops' and 'nvdla hexdump' show the descriptors.",
    headline="dry run that fails",
)
def the_dry_run_finishes(context: Context) -> Iterator[Said]:
    """The firmware and the engines accept every operation, the dependency graph reaches its end, and no convolution
    reads data or weights from a wrong place of the convolution buffer.

    This is a complete run without the arithmetic, skipped after an error of another rule.
    """
    from nvdla.emulator.execution.dry_run import dry_run

    problem, warnings = dry_run(context.loadable, context.abi, context.config, linked=context.linked)
    yield from warnings
    if problem is not None:
        yield problem
