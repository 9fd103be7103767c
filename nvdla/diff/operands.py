"""Differences of weights, biases and other operands that a loadable brings along, by statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nvdla.descriptors.enums import ConvMode, OpType, Precision, WeightFormat
from nvdla.descriptors.meaning import operand_precision
from nvdla.diff.changes import OperandChange
from nvdla.diff.descriptors import TaskPair, place
from nvdla.errors import NvdlaError
from nvdla.lint.context import Operation
from nvdla.loadable.model import Loadable
from nvdla.memory.weights import pack_direct
from nvdla.program.constants import constant_bytes

OPERANDS = {OpType.CONV: ("weight_data", "wmb_data", "wgs_data"), OpType.SDP: ("x1_data", "x2_data", "y_data")}
#: kernels whose places in memory are worked out to name the first that differs
MOST_ELEMENTS = 1 << 24


def operand_changes(a: Loadable, b: Loadable, pairs: list[TaskPair]) -> Iterator[OperandChange]:
    """Operands of paired operations whose bytes differ."""
    for pair in pairs:
        for ours, theirs in pair.pairs:
            if ours is None or theirs is None or ours.type is None:
                continue
            for name in OPERANDS.get(ours.type, ()):
                change = _compare(place(ours), name, (a, ours), (b, theirs))
                if change is not None:
                    yield change


def operand(loadable: Loadable, subject: Operation, name: str) -> np.ndarray | None:
    """The elements of an operand as the loadable brings them along; None where it has none, or none is used."""
    cube = dict(subject.used_cubes()).get(name)
    data = None if cube is None else constant_bytes(loadable, subject, cube)
    if data is None:
        return None
    dtype = operand_type(subject, name)
    return data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)


def operand_type(subject: Operation, name: str) -> np.dtype:
    """Element type of an operand: that of ``weight_data``, ``x1_data`` ..."""
    if name in ("wmb_data", "wgs_data"):
        return np.dtype("u1")
    if name == "weight_data":
        return Precision(subject.op.out_precision).dtype
    return operand_precision(subject.op.src_precision, getattr(subject.op, f"{name[:-5]}_op")).dtype


def _compare(
    where: str, name: str, ours: tuple[Loadable, Operation], theirs: tuple[Loadable, Operation]
) -> OperandChange | None:
    try:
        left, right = operand(*ours, name), operand(*theirs, name)
    except NvdlaError:
        return None
    if left is None or right is None or (left.dtype == right.dtype and left.tobytes() == right.tobytes()):
        return None
    figures: dict[str, Any] = {"different": None, "max_abs": None, "cosine": None, "first": None}
    if left.shape == right.shape and left.dtype == right.dtype:
        figures = _figures(left, right, ours[1] if name == "weight_data" else None)
    return OperandChange(where, name, str(left.dtype), statistics(left), statistics(right), **figures)


def statistics(elements: np.ndarray) -> dict[str, Any]:
    """Elements, extremes, mean, standard deviation, zeros. NaN and infinities are left out of the figures."""
    values = elements.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return {"elements": int(values.size), "min": None, "max": None, "mean": None, "std": None, "zeros": 0}
    return {
        "elements": int(values.size),
        "min": float(finite.min()),
        "max": float(finite.max()),
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "zeros": int(np.count_nonzero(values == 0)),
    }


def _figures(left: np.ndarray, right: np.ndarray, weights_of: Operation | None) -> dict[str, Any]:
    bits = np.dtype(f"u{left.itemsize}")
    differs = left.view(bits) != right.view(bits)
    wide = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        largest = float(np.nanmax(np.abs(wide[0] - wide[1]), initial=0.0))
    norm = float(np.linalg.norm(wide[0]) * np.linalg.norm(wide[1]))
    cosine = float(wide[0] @ wide[1]) / norm if norm and np.isfinite(norm) else None
    index = int(np.argmax(differs))
    first = {"index": index, **(_kernel_position(weights_of, index) if weights_of else {})}
    return {"different": int(differs.sum()), "max_abs": largest, "cosine": cosine, "first": first}


def _kernel_position(subject: Operation, index: int) -> dict[str, int]:
    """Kernel, channel, row and column of the element at ``index`` of uncompressed direct weights of a feature cube."""
    op = subject.op
    kernels = subject.surface.dst_data.channel
    shape = (kernels, op.kernel_channel_csc, op.kernel_height_csc, op.kernel_width_csc)
    elements = int(np.prod(shape, dtype=np.int64))
    plain = op.conv_mode == ConvMode.DIRECT and op.weight_format == WeightFormat.UNCOMPRESSED and not subject.is_image
    if not plain or not index < elements <= MOST_ELEMENTS:
        return {}
    group = subject.config.mac_atomic_k // Precision(op.out_precision).bytes
    order = np.frombuffer(
        pack_direct(np.arange(elements, dtype="<i4").reshape(shape), group, subject.config.mac_atomic_c), "<i4"
    )
    position = np.unravel_index(int(order[index]), shape)
    return dict(zip(("kernel", "channel", "row", "column"), map(int, position), strict=True))
