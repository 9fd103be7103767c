"""PDP arithmetic on integers and in fp16.

Cubes are C-contiguous arrays (surfaces, height, width, atom elements), atoms of a multiple of eight bytes. Lines
include the window's columns outside the cube, with elements that do not change the result. Every column and row is
computed; the last step selects those of the stride. So everything is a loop over contiguous elements for every atom.
Source: cmod/pdp/NV_NVDLA_pdp.cpp, LineOperation (:1426), PoolingStage0Calc (:1524), PoolingStage1Calc (:1641).

Source: cmod/hls_wrapper/pdp_hls_wrapper.cpp. Sums are fp17, rounded at each addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np

from nvdla.kernels.floats import FP17, fp16_to_fp17, fp17_to_fp16, fp_add, fp_mul
from nvdla.kernels.integers import all_nearest, nearest, pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.recorded_calls import ALONE, JOINED, WAKING, RecordedCall, int8s, words
from nvdla.kernels.jit.variants import in_pieces

JOB = 1 << 14
SHARED_SIZE = 1 << 16
"""Elements per piece, and least elements of a cube for several threads."""
WAKING_SIZE = 1 << 20
"""Least elements of a cube for which workers are woken."""
ELEMENTS_PER_NANOSECOND = 4
WORD = 8  # bytes
BLOCK = 1 << 12  # words of the lines that are worked on together


SOURCE, OUT, CUBES, KERNEL, STRIDE, PAD, LEAST, PAD_VALUES, RECIPROCAL, SUM_BITS = 0, 1, 2, 11, 13, 15, 17, 18, 26, 28
FIELDS = SUM_BITS + 1
"""The fields of a record of :func:`pooling`: addresses of the cubes, then the arguments of the kernels."""


class Cubes(NamedTuple):
    """Layout of the cubes of several images in flat arrays.

    The cubes of image i are contiguous and begin at i * ``source_stride`` and i * ``out_stride`` elements.
    """

    images: int
    surfaces: int
    height: int
    width: int
    out_height: int
    out_width: int
    atom: int
    source_stride: int
    out_stride: int


@njit(cache=True, nogil=True)
def _image(source: np.ndarray, out: np.ndarray, cubes: Cubes, image: int) -> tuple[np.ndarray, np.ndarray]:
    """The cubes of one image."""
    line, out_line = cubes.width * cubes.atom, cubes.out_width * cubes.atom
    first, out_first = image * cubes.source_stride, image * cubes.out_stride
    cube = source[first : first + cubes.surfaces * cubes.height * line]
    result = out[out_first : out_first + cubes.surfaces * cubes.out_height * out_line]
    return (
        cube.reshape((cubes.surfaces, cubes.height, cubes.width, cubes.atom)),
        result.reshape((cubes.surfaces, cubes.out_height, cubes.out_width, cubes.atom)),
    )


@njit(cache=True, nogil=True)
def _chunks(cubes: Cubes) -> tuple[int, int, int]:
    """(output lines of an image, lines that a thread takes at a time, how often)."""
    lines = cubes.surfaces * cubes.out_height
    job = max(1, JOB // (cubes.width * cubes.atom))
    return lines, job, pieces(lines, job)


@njit(cache=True, nogil=True)
def _take_columns(line: np.ndarray, atom: int, stride: int, out: np.ndarray) -> None:
    """Every ``stride``-th atom of a line; both as words, ``atom`` of them in an atom."""
    if stride == 1:
        for i in range(out.size):
            out[i] = line[i]
    elif atom == 1:
        for x in range(out.size):
            out[x] = line[x * stride]
    else:
        for x in range(0, out.size, atom):
            for word in range(atom):
                out[x + word] = line[x * stride + word]


@njit(cache=True, nogil=True)
def _load_rows(
    words: np.ndarray, first: int, count: int, pad: int, columns: int, outside: int, flip: int, block: np.ndarray
) -> None:
    """Copy rows ``first`` to ``first + count`` of a surface (height, words of a line) into lines of ``columns`` words.

    A row begins ``pad`` words into its line; words outside the surface are ``outside``.
    """
    height, width = words.shape
    for row in range(count):
        line = block[row * columns : (row + 1) * columns]
        if first + row < 0 or first + row >= height:
            for i in range(columns):
                line[i] = outside
            continue
        source = words[first + row]
        for i in range(pad):
            line[i] = outside
        inside = line[pad : pad + width]
        for i in range(width):
            inside[i] = source[i] ^ flip
        for i in range(pad + width, columns):
            line[i] = outside


@njit(cache=True, nogil=True)
def _greatest(a: np.ndarray, b: np.ndarray, c: np.ndarray, best: np.ndarray) -> None:
    for i in range(best.size):
        x = a[i] if a[i] > b[i] else b[i]
        best[i] = x if x > c[i] else c[i]


@njit(cache=True, nogil=True)
def _slide(values: np.ndarray, spare: np.ndarray, size: int, kernel: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the greatest of each element and the ``kernel`` - 1 that follow ``stride`` apart, for ``size`` elements.

    Three adjacent or overlapping windows give one three times as wide. Returns the array of the results and the other.
    """
    reach = 1
    while reach < kernel:
        b, c = min(reach, kernel - reach) * stride, min(2 * reach, kernel - reach) * stride
        length = size + (kernel - min(3 * reach, kernel)) * stride
        _greatest(values[:length], values[b : b + length], values[c : c + length], spare[:length])
        values, spare = spare, values
        reach *= 3
    return values, spare


@njit(cache=True, nogil=True)
def _extreme_lines(
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    flip: int,
    first: int,
    last: int,
) -> None:
    """Output lines ``first`` to ``last``, surface after surface, some at a time. ``flip`` -1 turns the order of numbers
    round."""
    out_height, out_width = out.shape[1:3]
    atom = source.shape[3]
    words = atom * source.itemsize // WORD
    cubes = source.view(np.int64).reshape(source.shape[0], source.shape[1], -1)
    results = out.view(np.int64).reshape(-1, out_width * words)
    columns = max(pad[1] + source.shape[2], (out_width - 1) * stride[1] + kernel[1])
    together = 1 + max(0, BLOCK // (columns * words) - kernel[0]) // stride[0]
    size = ((together - 1) * stride[0] + kernel[0]) * columns
    block, other = np.empty(size * words, np.int64), np.empty(size * words, np.int64)
    outside = np.full(WORD, np.iinfo(source.dtype).min, source.dtype).view(np.int64)[0]
    line = first
    while line < last:
        surface, y = line // out_height, line % out_height
        count = min(together, last - line, out_height - y)
        rows = (count - 1) * stride[0] + kernel[0]
        top = y * stride[0] - pad[0]
        _load_rows(cubes[surface], top, rows, pad[1] * words, columns * words, outside, flip, block)
        size = (rows * columns - kernel[1] + 1) * atom
        values, spare = _slide(block.view(source.dtype), other.view(source.dtype), size, kernel[1], atom)
        size -= (kernel[0] - 1) * columns * atom
        values, spare = _slide(values, spare, size, kernel[0], columns * atom)
        maxima = values.view(np.int64)
        for number in range(count):
            result = results[line + number]
            _take_columns(maxima[number * stride[0] * columns * words :], words, stride[1], result)
            if flip:
                for i in range(result.size):
                    result[i] ^= flip
        line += count


@njit(cache=True, nogil=True)
def _add_padding(
    sums: np.ndarray,
    atom: int,
    width: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    rows_inside: int,
    pad_values: np.ndarray,
) -> None:
    """Add the elements outside the cube to one output line."""
    outside_rows = pad_values[kernel[0] - rows_inside] * kernel[1]
    for x in range(sums.size // atom):
        left = x * stride[1] - pad[1]
        columns = min(left + kernel[1], width) - max(left, 0)
        padding = np.int32(pad_values[kernel[1] - columns] * rows_inside + outside_rows)
        for i in range(x * atom, (x + 1) * atom):
            sums[i] += padding


@njit(cache=True, nogil=True)
def _divide(sums: np.ndarray, reciprocal: tuple[int, int], unused: int, out: np.ndarray) -> None:
    """Sums (their low 32 - ``unused`` bits) times both reciprocals, rounded half away from zero after each.

    float64 is exact: 32 times 17 bits, then 33 times 17 bits, and 16 fraction bits more are below 2**53.
    """
    across, down = reciprocal[1] * 2.0**-16, reciprocal[0] * 2.0**-16
    for i in range(out.size):
        y = np.float64(np.int32(sums[i] << unused) >> unused) * across
        out[i] = nearest(np.float64(nearest(y)) * down)


@njit(cache=True, nogil=True)
def _average_lines(
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
    sum_bits: int,
    first: int,
    last: int,
) -> None:
    """Output lines ``first`` to ``last``, surface after surface."""
    height, width, atom = source.shape[1:]
    out_height, out_width = out.shape[1:3]
    rows = source.reshape(source.shape[0], height, width * atom)
    results = out.reshape(source.shape[0] * out_height, -1)
    columns = max(pad[1] + width, (out_width - 1) * stride[1] + kernel[1])
    line = np.zeros(columns * atom, np.int32)
    inside = line[pad[1] * atom : (pad[1] + width) * atom]
    sums = np.empty((columns - kernel[1] + 1) * atom, np.int32)
    taken = np.empty(out_width * atom, np.int32)
    padded = pad_values.any()
    for number in range(first, last):
        s, y = number // out_height, number % out_height
        top = y * stride[0] - pad[0]
        begin, end = max(top, 0), min(top + kernel[0], height)
        inside[:] = 0
        for h in range(begin, end):
            row = rows[s, h]
            for i in range(row.size):
                inside[i] += row[i]
        for i in range(sums.size):
            sums[i] = line[i]
        for k in range(1, kernel[1]):
            moved = line[k * atom : k * atom + sums.size]
            for i in range(sums.size):
                sums[i] += moved[i]
        _take_columns(sums.view(np.int64), atom // 2, stride[1], taken.view(np.int64))
        if padded:
            _add_padding(taken, atom, width, kernel, stride, pad, end - begin, pad_values)
        _divide(taken, reciprocal, 32 - sum_bits, results[number])


@njit(nogil=True)
def _count(source: np.ndarray, out: np.ndarray, cubes: Cubes, *settings: object) -> int:
    """Pieces of all images."""
    return cubes.images * _chunks(cubes)[2]


@njit(nogil=True)
def _piece(number: int, source: np.ndarray, out: np.ndarray, cubes: Cubes) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The cubes of one image, and the output lines of piece ``number``: the first, and that after the last."""
    lines, job, chunks = _chunks(cubes)
    cube, result = _image(source, out, cubes, number // chunks)
    first = number % chunks * job
    return cube, result, first, min(lines, first + job)


@njit(nogil=True, inline="always")
def _pair(record: np.ndarray, at: int) -> tuple[int, int]:
    """Return two consecutive fields: vertical, horizontal."""
    return record[at], record[at + 1]


@njit(nogil=True)
def _layer(record: np.ndarray) -> tuple[object, ...]:
    """Read the arguments of both kernels from a record of int8 cubes: source, out, cubes, kernel, stride, pad."""
    c = record[CUBES:]
    cubes = Cubes(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8])
    last = cubes.images - 1
    size = last * cubes.source_stride + cubes.surfaces * cubes.height * cubes.width * cubes.atom
    out_size = last * cubes.out_stride + cubes.surfaces * cubes.out_height * cubes.out_width * cubes.atom
    source, out = int8s(record[SOURCE], size), int8s(record[OUT], out_size)
    return source, out, cubes, _pair(record, KERNEL), _pair(record, STRIDE), _pair(record, PAD)


@njit(nogil=True)
def _extreme_arguments(address: int) -> tuple[object, ...]:
    record = words(address, FIELDS)
    return *_layer(record), record[LEAST]


@njit(nogil=True)
def _average_arguments(address: int) -> tuple[object, ...]:
    record = words(address, FIELDS)
    return *_layer(record), record[PAD_VALUES:RECIPROCAL], _pair(record, RECIPROCAL), record[SUM_BITS]


@in_pieces(_count, _extreme_arguments)
def pool_extreme(
    number: int,
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    least: int,
) -> None:
    """Greatest (or ``least``) element under each window; elements outside the cube do not exist.

    source, out: int8 or int16, flat (:class:`Cubes`); kernel, stride, pad: (vertical, horizontal), pad at the top and
    left. Every window must hold at least one element of the cube.
    """
    cube, result, first, last = _piece(number, source, out, cubes)
    _extreme_lines(cube, result, kernel, stride, pad, -1 if least else 0, first, last)


@in_pieces(_count, _average_arguments)
def pool_average(
    number: int,
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
    sum_bits: int,
) -> None:
    """Average under each window: sum, times 1/kernel width, rounded, times 1/kernel height, rounded.

    As pool_extreme, and ``pad_values`` int64 (8,): what n columns outside the cube add to one row of the window (a row
    outside adds the value of n rows outside, once for each column of the kernel); ``reciprocal``: (vertical,
    horizontal) in units of 1/65536; ``sum_bits``: of the line buffer's sums. They and the result wrap: only odd pad
    values reach that.
    """
    cube, result, first, last = _piece(number, source, out, cubes)
    _average_lines(cube, result, kernel, stride, pad, pad_values, reciprocal, sum_bits, first, last)


def pooling(
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    window: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    least: bool = False,
    average: tuple[np.ndarray, tuple[int, int], int] | None = None,
) -> RecordedCall:
    """Pooling of int8 cubes, flat, as a record: kernel, stride and pad in ``window``; the greatest element, the
    ``least``, or the ``average`` (pad_values, reciprocal, sum_bits)."""
    pad_values, reciprocal, sum_bits = average or (np.zeros(8, np.int64), (0, 0), 0)
    kernel, stride, pad = window
    numbers = [source.ctypes.data, out.ctypes.data, *cubes, *kernel, *stride, *pad, int(least)]
    size = cubes.images * cubes.surfaces * cubes.height * cubes.width * cubes.atom
    sharing = WAKING if size >= WAKING_SIZE else JOINED if size >= SHARED_SIZE else ALONE
    numbers += [*pad_values.tolist(), *reciprocal, sum_bits]
    recorded = (pool_average if average else pool_extreme).recorded
    assert recorded is not None
    return RecordedCall(recorded, numbers, (source, out), sharing, size // ELEMENTS_PER_NANOSECOND)


def _fallback_cost(
    source: np.ndarray, out: np.ndarray, cubes: Cubes, kernel: tuple[int, int], stride: tuple[int, int], *_: object
) -> int:
    size = cubes.images * cubes.surfaces * cubes.out_height * cubes.out_width * cubes.atom
    return size * max(kernel[0] * kernel[1], stride[0] * stride[1])


def _under_windows(
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    outside: int,
) -> Iterator[np.ndarray]:
    """For each place in the window the elements (S, OH, OW, A) under it, ``outside`` where the cube has none."""
    surfaces, height, width, atom = out.shape
    rows, columns = (height - 1) * stride[0] + kernel[0], (width - 1) * stride[1] + kernel[1]
    padded = np.full((surfaces, rows, columns, atom), outside, source.dtype)
    inside = source[:, : rows - pad[0], : columns - pad[1]]
    padded[:, pad[0] : pad[0] + inside.shape[1], pad[1] : pad[1] + inside.shape[2]] = inside
    for y, x in product(range(kernel[0]), range(kernel[1])):
        yield padded[:, y : rows - kernel[0] + y + 1 : stride[0], x : columns - kernel[1] + x + 1 : stride[1]]


@pool_extreme.with_fallback(_fallback_cost)
def _pool_extreme_fallback(source: np.ndarray, out: np.ndarray, cubes: Cubes, *geometry: Any) -> None:
    """Compute :func:`pool_extreme`; elements outside the cube never win."""
    kernel, stride, pad, least = geometry
    limits = np.iinfo(source.dtype)
    outside, merge = (limits.max, np.minimum) if least else (limits.min, np.maximum)
    for image in range(cubes.images):
        cube, result = _image.py_func(source, out, cubes, image)
        result[:] = reduce(merge, _under_windows(cube, result, kernel, stride, pad, outside))


@pool_average.with_fallback(_fallback_cost)
def _pool_average_fallback(
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
    sum_bits: int,
) -> None:
    rows = _inside(np.arange(cubes.out_height) * stride[0] - pad[0], kernel[0], cubes.height)
    columns = _inside(np.arange(cubes.out_width) * stride[1] - pad[1], kernel[1], cubes.width)
    padding = pad_values[kernel[1] - columns] * rows[:, None] + pad_values[kernel[0] - rows][:, None] * kernel[1]
    for image in range(cubes.images):
        cube, result = _image.py_func(source, out, cubes, image)
        sums = np.zeros(result.shape, np.int32)
        for elements in _under_windows(cube, result, kernel, stride, pad, 0):
            sums += elements
        sums += padding.astype(np.int32)[:, :, None]
        sums = sums << (32 - sum_bits) >> (32 - sum_bits)
        for factor in (reciprocal[1], reciprocal[0]):
            sums = all_nearest(sums * (factor * 2.0**-16))
        result[:] = sums


def _inside(first: np.ndarray, window: int, size: int) -> np.ndarray:
    """Count the places of ``window`` from ``first`` on that are in the cube."""
    return np.minimum(first + window, size) - np.maximum(first, 0)


# The kernel widths as fp17 (pdp_hls_wrapper.cpp:110). There the table ends before 8, and a padded average of that width
# reads past its end; here the entry is 8.0.
_WIDTH = (0x00000, 0x07C00, 0x08000, 0x08200, 0x08400, 0x08500, 0x08600, 0x08700, 0x08800)

AVERAGE, MAXIMUM, MINIMUM = 0, 1, 2
COST = 4
"""Nanoseconds per element of a window, measured."""


def count_special(values: np.ndarray) -> tuple[int, int]:
    """(infinities, NaNs) among fp16 bit patterns, uint16."""
    magnitude = values & 0x7FFF
    return int(np.count_nonzero(magnitude == 0x7C00)), int(np.count_nonzero(magnitude > 0x7C00))


def flush_nan(values: np.ndarray) -> None:
    """NaN becomes +0, in place."""
    values[values & 0x7FFF > 0x7C00] = 0


@njit(cache=True, nogil=True)
def _row(row: np.ndarray, a: int, begin: int, end: int, padding: int) -> int:
    """Sum one row of a window, left to right: the first element, then line buffer (first operand) with each next."""
    total = fp16_to_fp17(np.int64(row[begin, a]))
    for w in range(begin + 1, end):
        total = fp_add(total, fp16_to_fp17(np.int64(row[w, a])), FP17)
    # The hardware adds the left and the right pad value after each element; all but the last time both are +0.
    return fp_add(total, padding, FP17) if padding else total


@in_pieces()
def _average_line(
    number: int,
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
) -> None:
    """Compute averages of line ``number`` of the lines of all surfaces."""
    _, height, width, atom = source.shape
    s, y = number // out.shape[1], number % out.shape[1]
    top = y * stride[0] - pad[0]
    first, last = max(top, 0), min(top + kernel[0], height)
    outside_rows = pad_values[kernel[0] - (last - first)]
    if outside_rows:
        outside_rows = fp_mul(outside_rows, _WIDTH[kernel[1]], FP17)
    for x in range(out.shape[2]):
        left = x * stride[1] - pad[1]
        begin, end = max(left, 0), min(left + kernel[1], width)
        outside = pad_values[kernel[1] - (end - begin)]
        for a in range(atom):
            total = _row(source[s, first], a, begin, end, outside)
            for h in range(first + 1, last):
                total = fp_add(_row(source[s, h], a, begin, end, outside), total, FP17)
            if outside_rows:
                total = fp_add(total, outside_rows, FP17)
            total = fp_mul(fp_mul(total, reciprocal[1], FP17), reciprocal[0], FP17)
            out[s, y, x, a] = fp17_to_fp16(total)


def _first_or_extreme(a: np.ndarray, b: np.ndarray, is_least: bool) -> np.ndarray:
    """The greater or lesser of ordered fp16 numbers; a NaN wins, the first one first (nvdla_float.h:1186 FpCmp)."""
    a_is_nan, b_is_nan = ((bits > 0x7C00) | (bits < -0x7C01) for bits in (a, b))
    return np.where(a_is_nan | (a < b if is_least else a > b) & ~b_is_nan, a, b)


def _extreme_fp16(
    source: np.ndarray, out: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int],
    is_least: bool,
) -> None:  # fmt: skip
    """Pool fp16 bits to their extremes: along rows, then each row with those above it."""
    ordered = np.where(source & 0x8000, -1 - (source & 0x7FFF).astype(np.int32), source).astype(np.int32)
    merge = partial(_first_or_extreme, is_least=is_least)
    windows = _under_windows(ordered, out, kernel, stride, pad, 0x7C00 if is_least else -0x7C01)
    total = reduce(merge, islice(windows, kernel[1]))
    for _ in range(1, kernel[0]):
        total = merge(reduce(merge, islice(windows, kernel[1])), total)
    out[...] = np.where(total < 0, 0x8000 - 1 - total, total)


def pool_fp16(
    source: np.ndarray,
    out: np.ndarray,
    method: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
) -> int:
    """Pooling of fp16 bit patterns, uint16 arrays source (S, H, W, A) and out (S, OH, OW, A).

    As the integer kernels; ``pad_values`` int64 (8,) and ``reciprocal`` (vertical, horizontal) are fp17. Extremes need
    only numpy. Returns the number of NaNs in the output.
    """
    if method == AVERAGE:
        work, lines = out.size * kernel[0] * kernel[1] * COST, out.shape[0] * out.shape[1]
        _average_line.for_work(work, lines, source, out, kernel, stride, pad, pad_values, reciprocal)
    else:
        _extreme_fp16(source, out, kernel, stride, pad, method != MAXIMUM)
    return count_special(out)[1]
