"""How much work a run may take, found out before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvdla.descriptors.enums import OpType
from nvdla.errors import ScheduleError
from nvdla.firmware.operation import Operation

if TYPE_CHECKING:
    from nvdla.firmware.task import FirmwareTask


@dataclass(frozen=True)
class RunBudget:
    """Limits of one run: hardware operations, and multiplications of its convolutions (10^13 are hours)."""

    operations: int = 1 << 16
    multiplications: int = 10**13

    def check(self, tasks: Iterable[FirmwareTask]) -> None:
        """Raise ScheduleError when the tasks ask for more."""
        operations = multiplications = 0
        for task in tasks:
            for operation in task.operations():
                operations += 1
                multiplications += multiplications_of(operation)
        if operations > self.operations:
            raise ScheduleError(f"{operations} operations are more than the run budget of {self.operations}")
        if multiplications > self.multiplications:
            raise ScheduleError(
                f"{multiplications:.3g} multiplications are more than the run budget of {self.multiplications:.3g}"
            )


def multiplications_of(operation: Operation) -> int:
    """Multiplications of a convolution, 0 for other operations."""
    if operation.type != OpType.CONV:
        return 0
    op, dst = operation.op, operation.surface.dst_data
    window = op.kernel_width_csc * op.kernel_height_csc * op.kernel_channel_csc
    return dst.width * dst.height * dst.channel * window * max(op.batch, 1)
