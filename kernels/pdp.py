"""Integer pooling (int8 and int16): one kernel for maximum and minimum, one for the average.

Cubes are C-contiguous arrays (surfaces, height, width, atom elements), atoms of a multiple of eight bytes. Lines are
worked on with the window's columns outside the cube, which hold elements that change nothing, and at every column and
row, of which those of the stride are taken last: so everything is a loop over contiguous elements, whatever the atom.
Source: cmod/pdp/NV_NVDLA_pdp.cpp, LineOperation (:1426), PoolingStage0Calc (:1524), PoolingStage1Calc (:1641).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from nvdla.kernels.integers import all_nearest, nearest, pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share
from nvdla.kernels.jit.record import ALONE, JOINED, WAKING, Record, int8s, words

JOB = 1 << 14
SHARED_SIZE = 1 << 16
"""Elements that a thread takes at a time, and those of a cube from which several threads pay."""
WAKING_SIZE = 1 << 20
"""Elements of a cube for which helpers are woken."""
ELEMENTS_A_NANOSECOND = 4
WORD = 8  # bytes
BLOCK = 1 << 12  # words of the lines that are worked on together


SOURCE, OUT, CUBES, KERNEL, STRIDE, PAD, FLIP, PAD_VALUES, RECIPROCAL, SUM_BITS = 0, 1, 2, 11, 13, 15, 17, 18, 26, 28
FIELDS = SUM_BITS + 1
"""The fields of a record of :func:`pooling`: addresses of the cubes, then the arguments of the kernels."""


class Cubes(NamedTuple):
    """Where the cubes of several images lie in flat arrays: those of image i, contiguous, begin at i *
    ``source_stride`` and i * ``out_stride`` elements."""

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
    """Rows ``first`` to ``first + count`` of a surface (height, words of a line) into lines of ``columns``, behind
    ``pad``, all in words; what is not there is ``outside``."""
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
    """The greatest of each element and the ``kernel`` - 1 that follow ``stride`` apart, for the first ``size`` of them;
    (where they are, the other array). Three windows beside or over one another make one three times as wide."""
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
        found = values.view(np.int64)
        for number in range(count):
            result = results[line + number]
            _take_columns(found[number * stride[0] * columns * words :], words, stride[1], result)
            if flip:
                for i in range(result.size):
                    result[i] ^= flip
        line += count


@njit(cache=True, nogil=True)
def pool_extreme(
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    least: bool,
) -> None:
    """Greatest (or ``least``) element under each window; elements outside the cube do not exist.

    source (S, H, W, A), out (S, OH, OW, A) int8 or int16; kernel, stride, pad: (vertical, horizontal), pad at the top
    and left. Every window must hold at least one element of the cube.
    """
    flip = -1 if least else 0
    _extreme_lines(source, out, kernel, stride, pad, flip, 0, out.shape[0] * out.shape[1])


@njit(cache=True, nogil=True)
def _extreme_piece(
    number: int,
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    flip: int,
) -> None:
    lines, job, chunks = _chunks(cubes)
    first = number % chunks * job
    cube, result = _image(source, out, cubes, number // chunks)
    _extreme_lines(cube, result, kernel, stride, pad, flip, first, min(lines, first + job))


@njit(cache=True, nogil=True, shared=True)
def pool_extreme_shared(
    crew: int,
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    least: bool,
) -> None:
    """Pooling with several threads, for several images; source and out are flat (:class:`Cubes`)."""
    count = cubes.images * _chunks(cubes)[2]
    share(crew, count, _extreme_piece, (source, out, cubes, kernel, stride, pad, -1 if least else 0))


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
    """What the elements outside the cube add to one output line."""
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

    float64 is exact: 32 times 17 bits, then 33 times 17 bits, and 16 more behind the point are below 2**53.
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


@njit(cache=True, nogil=True)
def pool_average(
    source: np.ndarray,
    out: np.ndarray,
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
    lines = out.shape[0] * out.shape[1]
    _average_lines(source, out, kernel, stride, pad, pad_values, reciprocal, sum_bits, 0, lines)


@njit(cache=True, nogil=True)
def _average_piece(
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
    lines, job, chunks = _chunks(cubes)
    first = number % chunks * job
    cube, result = _image(source, out, cubes, number // chunks)
    last = min(lines, first + job)
    _average_lines(cube, result, kernel, stride, pad, pad_values, reciprocal, sum_bits, first, last)


@njit(cache=True, nogil=True, shared=True)
def pool_average_shared(
    crew: int,
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
    """Pooling with several threads, for several images; source and out are flat (:class:`Cubes`)."""
    count = cubes.images * _chunks(cubes)[2]
    share(crew, count, _average_piece, (source, out, cubes, kernel, stride, pad, pad_values, reciprocal, sum_bits))


@njit(cache=True, nogil=True)
def _cubes_of(record: np.ndarray) -> Cubes:
    """Those of a record."""
    c = record[CUBES:]
    return Cubes(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8])


@njit(cache=True, nogil=True)
def _piece_of(record: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The cubes of one image of a record, and the output lines of piece ``number``: the first, and that behind the
    last."""
    cubes = _cubes_of(record)
    lines, job, chunks = _chunks(cubes)
    image, first = number // chunks, number % chunks * job
    size = cubes.surfaces * cubes.height * cubes.width * cubes.atom
    out_size = cubes.surfaces * cubes.out_height * cubes.out_width * cubes.atom
    source = int8s(record[SOURCE] + image * cubes.source_stride, size)
    out = int8s(record[OUT] + image * cubes.out_stride, out_size)
    cube, result = _image(source, out, cubes, 0)
    return cube, result, first, min(lines, first + job)


@njit(cache=True, nogil=True)
def _pieces_of(record: np.ndarray) -> int:
    """Pieces of all images of a record."""
    cubes = _cubes_of(record)
    return cubes.images * _chunks(cubes)[2]


@njit(cache=True, nogil=True, inline="always")
def _pair(record: np.ndarray, at: int) -> tuple[int, int]:
    """Two fields side by side: vertical, horizontal."""
    return record[at], record[at + 1]


@njit(cache=True, nogil=True)
def _extreme_recorded_piece(number: int, address: int) -> None:
    record = words(address, FIELDS)
    cube, result, first, last = _piece_of(record, number)
    kernel, stride, pad = _pair(record, KERNEL), _pair(record, STRIDE), _pair(record, PAD)
    _extreme_lines(cube, result, kernel, stride, pad, record[FLIP], first, last)


@njit(cache=True, nogil=True)
def _extreme_recorded(crew: int, address: int) -> None:
    record = words(address, FIELDS)
    share(crew, _pieces_of(record), _extreme_recorded_piece, (address,))


@njit(cache=True, nogil=True)
def _average_recorded_piece(number: int, address: int) -> None:
    record = words(address, FIELDS)
    cube, result, first, last = _piece_of(record, number)
    kernel, stride, pad = _pair(record, KERNEL), _pair(record, STRIDE), _pair(record, PAD)
    pad_values, reciprocal = record[PAD_VALUES:RECIPROCAL], _pair(record, RECIPROCAL)
    _average_lines(cube, result, kernel, stride, pad, pad_values, reciprocal, record[SUM_BITS], first, last)


@njit(cache=True, nogil=True)
def _average_recorded(crew: int, address: int) -> None:
    record = words(address, FIELDS)
    share(crew, _pieces_of(record), _average_recorded_piece, (address,))


def pooling(
    source: np.ndarray,
    out: np.ndarray,
    cubes: Cubes,
    window: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    least: bool = False,
    average: tuple[np.ndarray, tuple[int, int], int] | None = None,
) -> Record:
    """Pooling of int8 cubes, flat, as a record: kernel, stride and pad in ``window``; the greatest element, the
    ``least``, or the ``average`` (pad_values, reciprocal, sum_bits)."""
    pad_values, reciprocal, sum_bits = average or (np.zeros(8, np.int64), (0, 0), 0)
    kernel, stride, pad = window
    numbers = [source.ctypes.data, out.ctypes.data, *cubes, *kernel, *stride, *pad, -1 if least else 0]
    size = cubes.images * cubes.surfaces * cubes.height * cubes.width * cubes.atom
    sharing = WAKING if size >= WAKING_SIZE else JOINED if size >= SHARED_SIZE else ALONE
    numbers += [*pad_values.tolist(), *reciprocal, sum_bits]
    kernel_of = _average_recorded if average else _extreme_recorded
    return Record(kernel_of, numbers, (source, out), sharing, size // ELEMENTS_A_NANOSECOND)


def _plain_cost(
    source: np.ndarray, out: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int], *_: object
) -> int:
    return out.size * max(kernel[0] * kernel[1], stride[0] * stride[1])


def _shared_cost(
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


@pool_extreme.plain(_plain_cost)
def _pool_extreme_plain(
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    least: bool,
) -> None:
    """Outside the cube lies what no element can lose against."""
    limits = np.iinfo(source.dtype)
    outside, merge = (limits.max, np.minimum) if least else (limits.min, np.maximum)
    out[:] = reduce(merge, _under_windows(source, out, kernel, stride, pad, outside))


@pool_average.plain(_plain_cost)
def _pool_average_plain(
    source: np.ndarray,
    out: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
    sum_bits: int,
) -> None:
    sums = np.zeros(out.shape, np.int32)
    for elements in _under_windows(source, out, kernel, stride, pad, 0):
        sums += elements
    rows = _inside(np.arange(out.shape[1]) * stride[0] - pad[0], kernel[0], source.shape[1])
    columns = _inside(np.arange(out.shape[2]) * stride[1] - pad[1], kernel[1], source.shape[2])
    padding = pad_values[kernel[1] - columns] * rows[:, None] + pad_values[kernel[0] - rows][:, None] * kernel[1]
    sums += padding.astype(np.int32)[:, :, None]
    sums = sums << (32 - sum_bits) >> (32 - sum_bits)
    for factor in (reciprocal[1], reciprocal[0]):
        sums = all_nearest(sums * (factor * 2.0**-16))
    out[:] = sums


@pool_extreme_shared.plain(_shared_cost)
def _pool_extreme_images(source: np.ndarray, out: np.ndarray, cubes: Cubes, *settings: Any) -> None:
    for image in range(cubes.images):
        _pool_extreme_plain(*_image.py_func(source, out, cubes, image), *settings)


@pool_average_shared.plain(_shared_cost)
def _pool_average_images(source: np.ndarray, out: np.ndarray, cubes: Cubes, *settings: Any) -> None:
    for image in range(cubes.images):
        _pool_average_plain(*_image.py_func(source, out, cubes, image), *settings)


def _inside(first: np.ndarray, window: int, size: int) -> np.ndarray:
    """How many of ``window`` places from ``first`` on lie in the cube."""
    return np.minimum(first + window, size) - np.maximum(first, 0)
