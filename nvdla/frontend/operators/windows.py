"""Windows of convolutions and pools: attributes of ONNX as settings of the builder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvdla.frontend.graph import Cut, GraphValue, Node
from nvdla.rounding import ceil_div


@dataclass(frozen=True)
class OnnxWindow:
    """Pairs (vertical, horizontal); ``padding`` (top, bottom, left, right)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]


LOWEST = float(np.finfo(np.float16).min)
"""What is below it never wins a maximum: no element of the accelerator is."""


def trimmed(value: GraphValue, lowest: bool = False) -> tuple[GraphValue, tuple[int, int, int, int]]:
    """The value without the zeros that a Pad put around it, and their widths (top, bottom, left, right). ``lowest``:
    numbers instead that never win a maximum."""
    plain = value.border < LOWEST if lowest else value.border == 0
    return value.unpadded if value.unpadded is not None and plain else (value, (0, 0, 0, 0))


def window_of(
    node: Node, kernel: Sequence[int], sizes: Sequence[int], outer: tuple[int, int, int, int] = (0, 0, 0, 0)
) -> OnnxWindow:
    """The window of a Conv or pool over ``sizes``, padded by ``outer`` before."""
    count = len(kernel)
    if count not in (1, 2):
        raise Cut(f"windows of {count} dimensions; the engines have two")
    strides = list(node.get("strides", [1] * count))
    dilations = list(node.get("dilations", [1] * count))
    padded = [size + o for size, o in zip(sizes, _sums(outer, count), strict=True)]
    pads = auto_pads(node, kernel, padded, strides, dilations)
    before, after = pads[:count], pads[count:]
    pairs = [(0, 0)] * (2 - count) + list(zip(before, after, strict=True))
    (top, bottom), (left, right) = pairs
    whole = (top + outer[0], bottom + outer[1], left + outer[2], right + outer[3])
    if min(whole) < 0:
        raise Cut(f"negative padding {list(pads)}")
    return OnnxWindow(_pair(kernel), _pair(strides), _pair(dilations), whole)


def auto_pads(
    node: Node, kernel: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Pads (begins, then ends) from ``pads`` or ``auto_pad``."""
    mode = node.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return list(node.get("pads", [0] * 2 * len(kernel)))
    if mode == "VALID":
        return [0] * 2 * len(kernel)
    begins, ends = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (ceil_div(size, stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small = total // 2
        begins.append(small if mode == "SAME_UPPER" else total - small)
        ends.append(total - begins[-1])
    return begins + ends


def _pair(values: Sequence[int]) -> tuple[int, int]:
    found = [int(each) for each in values]
    return (1, found[0]) if len(found) == 1 else (found[0], found[1])


def _sums(outer: tuple[int, int, int, int], count: int) -> list[int]:
    return [outer[0] + outer[1], outer[2] + outer[3]][2 - count :]
