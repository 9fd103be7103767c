"""Where operations meet in memory: who takes bytes that others wrote or read before, and what keeps them apart."""

from __future__ import annotations

from typing import Any

from nvdla.analysis.memorymap.memory_map import MemoryMap
from nvdla.analysis.study import Study
from nvdla.lint.order import Order
from nvdla.program.operation import Key

Row = dict[str, Any]


def hazards(study: Study, memory: MemoryMap) -> list[Row]:
    """``earlier`` (the last user of a value) and ``later`` (who takes its bytes), ``bytes``, and ``kind``:

    "overlap": the value is still needed afterwards; "unordered": nothing makes the later operation wait; "reuse": the
    dependency graph keeps them apart.
    """
    orders = {number: Order(task, study.program.takers) for number, task in study.program.dla_tasks.items()}
    values = {value.id: value for value in study.values}
    rows: list[Row] = []
    pairs = [(row, True) for row in memory.overlaps()] + [(row, False) for row in memory.reuse()]
    for row, overlaps in pairs:
        value = values[row["earlier"]]
        users = [key for key, _ in value.readers] or ([value.writer] if value.writer else [])
        later = values[row["later"]].writer
        if later is None or row["in_place"]:
            continue
        for user in list(dict.fromkeys(users))[-2:]:
            if user == later:
                continue
            kind = "overlap" if overlaps else "reuse" if _is_ordered(study, orders, user, later) else "unordered"
            rows.append({"earlier": user, "later": later, "bytes": row["bytes"], "kind": kind})
    return rows


def _is_ordered(study: Study, orders: dict[int, Order], one: Key, other: Key) -> bool:
    if one[0] != other[0] or one[0] not in orders or one[1] or other[1]:
        return True  # tasks, and regions of interest, come one after the other
    return orders[one[0]].is_ordered(one[2], other[2]) or study.step_of[one] == study.step_of[other]
