"""How much work the tasks of a loadable ask for, found out before they run.

Convolutions state their multiplications in the descriptors. What the other engines do is counted by the machine
(:class:`nvdla.limits.Meter`) when an operation's registers have been decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nvdla.descriptors.enums import OpType
from nvdla.errors import ScheduleError
from nvdla.firmware.operation import FirmwareOperation
from nvdla.limits import Limits

if TYPE_CHECKING:
    from nvdla.firmware.task import FirmwareTask


def check_budget(tasks: Iterable[FirmwareTask], limits: Limits) -> int:
    """The multiplications that the tasks ask for. Raises ScheduleError when these, or operations, pass the limits."""
    operations = multiplications = 0
    for task in tasks:
        for operation in task.operations():
            operations += 1
            multiplications += multiplications_of(operation)
    if operations > limits.operations:
        raise ScheduleError(f"{operations} operations are more than the run budget of {limits.operations}")
    if multiplications > limits.multiplications:
        raise ScheduleError(
            f"{multiplications:.3g} multiplications are more than the run budget of {limits.multiplications:.3g}"
        )
    return multiplications


def multiplications_of(operation: FirmwareOperation) -> int:
    """Multiplications of a convolution, 0 for other operations."""
    if operation.type != OpType.CONV:
        return 0
    op, dst = operation.op, operation.surface.dst_data
    window = op.kernel_width_csc * op.kernel_height_csc * op.kernel_channel_csc
    return int(dst.width * dst.height * dst.channel * window * max(op.batch, 1))
