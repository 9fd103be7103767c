"""Everything about one operation as plain data: descriptors with what each field says, register writes, weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.containers.loadable_parameters import LoadableParameters, Slot
from nvdla.descriptors.fields import FieldView, fields
from nvdla.descriptors.task import EmuOperation
from nvdla.errors import NvdlaError
from nvdla.program.operation import Operation
from nvdla.program.program import Program
from nvdla.report.pictures import Pictures

Row = dict[str, Any]
#: weights of larger networks are looked at in a part alone
MAX_ELEMENTS = 1 << 22


def structures(operation: Operation) -> list[tuple[str, Any]]:
    """(name, structure) of all that describes an operation, the operation itself first."""
    found = operation.descriptors
    if isinstance(found, EmuOperation):
        return [("operation", found.op), ("source", found.src), ("destination", found.dst)]
    parts = [("operation", operation.op), ("surface", operation.surface), ("dependencies", operation.common)]
    return [*parts, ("lookup table", operation.lut)] if operation.lut is not None else parts


class FieldTable:
    """Fields of operations with every name and explanation said once: ``schemas`` by structure."""

    def __init__(self) -> None:
        self.schemas: dict[str, list[list[Any]]] = {}

    def rows(self, operation: Operation) -> list[list[Any]]:
        """[part, schema, [value or [value, meaning], ...]] of each structure; numbers of unused transfers are left
        out."""
        found = []
        for part, structure in structures(operation):
            shown = [each for each in fields(structure) if not each.reserved and not _is_unused(each, structure)]
            schema = f"{type(structure).__name__} {len(shown)}"
            if schema not in self.schemas:
                self.schemas[schema] = [[each.name, each.type, each.explanation or ""] for each in shown]
            found.append([part, schema, [_value(each) for each in shown]])
        return found


def _is_unused(field: FieldView, structure: Any) -> bool:
    """A BDMA operation has room for more transfers than it makes."""
    if not field.name.startswith("transfers["):
        return False
    return int(field.name[10 : field.name.index("]")]) >= structure.num_transfers


def _value(field: FieldView) -> Any:
    return field.value if field.meaning is None else [field.value, field.meaning]


class ShownWeights:
    """Weights and operands of operations, as pictures and figures."""

    def __init__(self, program: Program, pictures: Pictures) -> None:
        self._pictures = pictures
        self.problem: str | None = None
        self._slots: dict[tuple[str, str], Slot] = {}
        self._known: dict[str, Row | None] = {}
        try:
            self._parameters = LoadableParameters(program.loadable, program.config.name)
        except NvdlaError as error:
            self.problem = str(error)
            return
        for slot in self._parameters.slots:
            for name in (slot.name, *slot.metadata["shared_with"]):
                owner, _, rest = name.partition(".")[2].partition(".")
                self._slots[f"{name.partition('.')[0]}.{owner}", rest] = slot

    def of(self, operation: Operation) -> list[Row]:
        """One row a parameter of the operation: what it is, its figures, the number of its picture."""
        name = f"task{operation.task}.{operation.engine}{operation.index}"
        rows = []
        for rest in ("weights", *(f"{stage}.{kind}" for stage in ("x1", "x2", "y") for kind in ("alu", "mul"))):
            slot = self._slots.get((name, rest))
            row = self._row(slot, rest) if slot is not None else None
            if row is not None:
                rows.append(row)
        return rows

    def _row(self, slot: Slot, rest: str) -> Row | None:
        """Tiles share weights, which are decoded and shown once."""
        if slot.name not in self._known:
            self._known[slot.name] = self._made(slot, rest)
        return self._known[slot.name]

    def _made(self, slot: Slot, rest: str) -> Row | None:
        try:
            array = self._parameters.decode(slot)
        except (NvdlaError, ValueError):  # a file that is cut off, or whose mask is wrong: lint says so
            return None
        if not array.size:
            return None
        kind = slot.metadata["kind"]
        row = {"part": rest, "kind": kind, "bytes": slot.length, "shape": list(slot.shape), "layout": slot.layout}
        row["compressed"] = slot.metadata.get("compressed", False)
        return row | {"tensor": self._pictures.add(_as_tensor(array), None, f"{rest} {kind}")}


def _as_tensor(array: np.ndarray) -> np.ndarray:
    """Kernels as (1, kernels x channels, rows, columns), vectors as (1, elements, 1, 1)."""
    if array.ndim == 1:
        return np.ascontiguousarray(array).reshape(1, -1, 1, 1)
    _, channels, rows, columns = array.shape
    if array.size > MAX_ELEMENTS:
        array = array[: max(MAX_ELEMENTS // (channels * rows * columns), 1)]
    if rows == columns == 1:
        return np.ascontiguousarray(array).reshape(1, 1, -1, channels)
    return np.ascontiguousarray(array).reshape(1, -1, rows, columns)
