"""Pooling in plain Python, one input element after the other as the hardware takes them in: the specification.

``wsum`` and friends are passed in, so that the same walk serves integers and fp16.
"""

from __future__ import annotations

from fractions import Fraction


def spread(size: int, kernel: int, stride: int, before: int, after: int):
    """For each input position the (output, tap) pairs that take it; only outputs whose window fits the padded cube."""
    for position in range(size):
        pairs = []
        for tap in range(kernel):
            start = position + before - tap
            if start >= 0 and start % stride == 0 and start + kernel <= before + size + after:
                pairs.append((start // stride, tap))
        yield position, pairs


def pool_plane(plane, vertical, horizontal, first, merge_row, merge_column, end_of_row, end_of_window):
    """``plane``: list of lists. vertical, horizontal: (kernel, stride, pad before, pad after).

    merge_row(accumulator, element), merge_column(row, accumulator); ``end_of_row(row, missing columns)`` and
    ``end_of_window(sum, missing rows)`` add the pad values.
    """
    height, width = len(plane), len(plane[0])
    columns = list(spread(width, *horizontal))
    rows = list(spread(height, *vertical))
    line = {}
    for y, row_pairs in rows:
        sums, counted = {}, {}
        for x, pairs in columns:
            for out, _ in pairs:
                element = first(plane[y][x])
                sums[out] = merge_row(sums[out], element) if out in sums else element
                counted[out] = counted.get(out, 0) + 1
        sums = {out: end_of_row(total, horizontal[0] - counted[out]) for out, total in sums.items()}
        for out_y, _ in row_pairs:
            for out_x, total in sums.items():
                seen, before = line.get((out_y, out_x), (0, None))
                line[out_y, out_x] = (seen + 1, merge_column(total, before) if seen else total)
    return {key: end_of_window(total, vertical[0] - seen) for key, (seen, total) in line.items()}


def half_away(x: Fraction) -> int:
    magnitude = int(abs(x) + Fraction(1, 2))
    return magnitude if x >= 0 else -magnitude


def signed(x: int, bits: int) -> int:
    return (x + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def average(total: int, reciprocal: tuple[int, int], bits: int) -> int:
    """Times 1/width, rounded, times 1/height, rounded; the result is cut to its bits."""
    across = half_away(Fraction(total * reciprocal[1], 65536))
    return signed(half_away(Fraction(across * reciprocal[0], 65536)), bits)
