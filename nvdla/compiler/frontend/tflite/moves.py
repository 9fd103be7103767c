"""TFLite's operators that move elements as ONNX nodes, and what is known of shapes while a model is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from nvdla.compiler.frontend.tflite.graph import (
    FILE,
    MAX_FOLDED,
    ONNX,
    TO_ONNX,
    FlatConverter,
    UnsupportedError,
    converts,
)
from nvdla.compiler.frontend.tflite.layers import activated
from nvdla.compiler.frontend.tflite.reader import MAX_RANK, FlatOperator
from nvdla.util.escaping import Document

_FAR = (1 << 31) - 1


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise UnsupportedError(f"axis {axis} of {rank} dimensions")
    return axis % rank


def _order(c: FlatConverter, number: int) -> str:
    """Moves of four dimensions are done in ONNX's order, whose channels the accelerator has."""
    return ONNX if len(c.shape(number)) == 4 else FILE


def _place(axis: int, order: str) -> int:
    return TO_ONNX.index(axis) if order == ONNX else axis


def _along(values: Sequence[int], order: str) -> list[int]:
    """Values per dimension of the file in an order."""
    return [values[axis] for axis in TO_ONNX] if order == ONNX else list(values)


def _shaped(c: FlatConverter, operator: FlatOperator, shape: Sequence[int]) -> None:
    """The same elements in another shape."""
    source, out = operator.inputs[0], operator.outputs[0]
    if math.prod(shape) != math.prod(c.shape(source)):
        raise UnsupportedError(f"{list(c.shape(source))} as {list(shape)}")
    c.write(out, c.node("Reshape", [c.read(source), c.shape_constant(shape)], c.name(out)), shape)


@converts("RESHAPE", onnx="Reshape")
def reshape(c: FlatConverter, operator: FlatOperator) -> None:
    """Another shape; the shape may be computed from shapes."""
    size = math.prod(c.shape(operator.inputs[0]))
    if len(operator.inputs) > 1 and operator.inputs[1] >= 0:
        shape = c.integers(operator.inputs[1], "shape")
    elif operator.options.get("new_shape") is not None:
        shape = list(operator.options["new_shape"])
    else:
        shape = list(c.tensors[operator.outputs[0]].shape)
    if shape == [0] and size == 1:  # how some files write a scalar
        shape = []
    if shape.count(-1) == 1 and len(shape) <= MAX_RANK:
        known = math.prod(length for length in shape if length != -1)
        shape = [size // known if length == -1 and known > 0 else length for length in shape]
    if any(length < 0 for length in shape):
        raise UnsupportedError(f"shape {shape[:8]}")
    _shaped(c, operator, shape)


@converts("SQUEEZE", onnx="Reshape")
def squeeze(c: FlatConverter, operator: FlatOperator) -> None:
    """A shape without dimensions of size 1."""
    shape = c.shape(operator.inputs[0])
    axes = [_axis(axis, len(shape)) for axis in operator.options.get("squeeze_dims") or ()]
    axes = axes or [axis for axis, size in enumerate(shape) if size == 1]
    _shaped(c, operator, [size for axis, size in enumerate(shape) if axis not in axes])


@converts("EXPAND_DIMS", onnx="Reshape")
def expand_dims(c: FlatConverter, operator: FlatOperator) -> None:
    """A shape with one more dimension of size 1."""
    shape = list(c.shape(operator.inputs[0]))
    shape.insert(_axis(c.integers(operator.inputs[1], "axis")[0], len(shape) + 1), 1)
    _shaped(c, operator, shape)


@converts("TRANSPOSE", onnx="Transpose")
def transpose(c: FlatConverter, operator: FlatOperator) -> None:
    """Another order of dimensions."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape, perm = c.shape(source), c.integers(operator.inputs[1], "perm")
    if sorted(perm) != list(range(len(shape))):
        raise UnsupportedError(f"perm {perm[:8]} of {len(shape)} dimensions")
    c.write(out, c.node("Transpose", [c.read(source)], c.name(out), perm=perm), [shape[axis] for axis in perm])


@converts("CONCATENATION", onnx="Concat")
def concatenation(c: FlatConverter, operator: FlatOperator) -> None:
    """Tensors one after the other along a dimension."""
    out, numbers = operator.outputs[0], operator.inputs
    shapes = [c.shape(number) for number in numbers]
    axis = _axis(operator.options.get("axis", 0), len(shapes[0]))
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) != 1 or any(len(shape) != len(shapes[0]) for shape in shapes):
        raise UnsupportedError(f"shapes {' and '.join(str(list(shape)) for shape in shapes[:4])} do not fit")
    order = _order(c, numbers[0])
    output = c.node("Concat", [c.read(number, order) for number in numbers], c.name(out), axis=_place(axis, order))
    result = (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])
    c.write(out, activated(c, operator, output), result, order)


@converts("PACK", onnx="Unsqueeze, Concat")
def pack(c: FlatConverter, operator: FlatOperator) -> None:
    """Tensors of one shape along a new dimension."""
    out, shape = operator.outputs[0], c.shape(operator.inputs[0])
    axis = _axis(operator.options.get("axis", 0), len(shape) + 1)
    if any(c.shape(number) != shape for number in operator.inputs):
        raise UnsupportedError("tensors of different shapes")
    wide = [*shape[:axis], 1, *shape[axis:]]
    sizes = c.shape_constant(wide)
    parts = [c.node("Reshape", [c.read(number), sizes], f"{c.name(out)}/part") for number in operator.inputs]
    wide[axis] = len(parts)
    c.write(out, c.node("Concat", parts, c.name(out), axis=axis), wide)


@converts("UNPACK", onnx="Split, Squeeze")
def unpack(c: FlatConverter, operator: FlatOperator) -> None:
    """Slices along a dimension, which is removed."""
    source, shape = operator.inputs[0], list(c.shape(operator.inputs[0]))
    axis = _axis(operator.options.get("axis", 0), len(shape))
    if shape[axis] != len(operator.outputs):
        raise UnsupportedError(f"{shape[axis]} slices, {len(operator.outputs)} results")
    parts = _split(c, c.read(source), operator, [1] * shape[axis], axis)
    del shape[axis]
    for number, part in zip(operator.outputs, parts, strict=True):
        c.write(number, c.node("Reshape", [part, c.shape_constant(shape)], c.name(number)), shape)


def _split(c: FlatConverter, value: str, operator: FlatOperator, sizes: Sequence[int], axis: int) -> list[str]:
    names = [c.name(number) for number in operator.outputs]
    return c.parts("Split", [value, c.shape_constant(sizes)], names, axis=axis)


@converts("SPLIT", "SPLIT_V", onnx="Split")
def split(c: FlatConverter, operator: FlatOperator) -> None:
    """Parts along a dimension."""
    count = len(operator.outputs)
    if operator.op == "SPLIT":
        axis_of, source = operator.inputs[:2]
        axis = _axis(c.integers(axis_of, "axis")[0], len(c.shape(source)))
        if c.shape(source)[axis] % count:
            raise UnsupportedError(f"{c.shape(source)[axis]} in {count} equal parts")
        sizes = [c.shape(source)[axis] // count] * count
    else:
        source, sizes_of, axis_of = operator.inputs[:3]
        axis, sizes = _axis(c.integers(axis_of, "axis")[0], len(c.shape(source))), c.integers(sizes_of, "sizes")
        rest = c.shape(source)[axis] - sum(size for size in sizes if size >= 0)
        sizes = [rest if size == -1 else size for size in sizes]
    shape, order = c.shape(source), _order(c, source)
    if len(sizes) != count or sum(sizes) != shape[axis] or min(sizes) < 0:
        raise UnsupportedError(f"parts: must add up to {shape[axis]}, got {sizes[:8]}")
    parts = _split(c, c.read(source, order), operator, sizes, _place(axis, order))
    for number, part, size in zip(operator.outputs, parts, sizes, strict=True):
        c.write(number, part, (*shape[:axis], size, *shape[axis + 1 :]), order)


def _slice(c: FlatConverter, value: str, slices: Sequence[slice], shape: Sequence[int], order: str, name: str) -> str:
    """Cut a value; ``slices`` per dimension of the file, with starts and strides."""
    rows = []
    for axis, (part, size) in enumerate(zip(slices, shape, strict=True)):
        start, stop, stride = part.indices(size)
        if (start, stop, stride) != (0, size, 1):
            rows.append((start, stop if stop >= 0 else -_FAR, _place(axis, order), stride))
    if not rows:
        return c.node("Identity", [value], name)
    return c.node("Slice", [value, *(c.shape_constant(row) for row in zip(*rows, strict=True))], name)


def _length(part: slice, size: int) -> int:
    return len(range(*part.indices(size)))


@converts("SLICE", onnx="Slice")
def slice_(c: FlatConverter, operator: FlatOperator) -> None:
    """A part with constant bounds."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape, order = c.shape(source), _order(c, source)
    begins, sizes = c.integers(operator.inputs[1], "begin"), c.integers(operator.inputs[2], "size")
    if not len(begins) == len(sizes) == len(shape):
        raise UnsupportedError(f"begin: must have {len(shape)} numbers, got {len(begins)}")
    slices = []
    for begin, size, whole in zip(begins, sizes, shape, strict=True):
        end = whole if size == -1 else begin + size
        if not 0 <= begin <= end <= whole:
            raise UnsupportedError(f"{size} from {begin} of {whole}")
        slices.append(slice(begin, end))
    result = _slice(c, c.read(source, order), slices, shape, order, c.name(out))
    c.write(out, result, [part.stop - part.start for part in slices], order)


def _strided(c: FlatConverter, operator: FlatOperator) -> tuple[list[slice], list[int]]:
    """Slices per dimension, and the shape of the result."""
    shape, options = c.shape(operator.inputs[0]), operator.options
    names = ("begin", "end", "strides")
    begins, ends, strides = (c.integers(n, what) for n, what in zip(operator.inputs[1:4], names, strict=True))
    if not len(begins) == len(ends) == len(strides) <= 2 * MAX_RANK:
        raise UnsupportedError("begin, end and strides of different lengths")
    masks = {key: options.get(f"{key}_mask", 0) for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    added = sum(1 for bit in range(len(begins)) if masks["new_axis"] >> bit & 1 and not masks["ellipsis"] >> bit & 1)
    slices: list[slice] = []
    result: list[int] = []

    def whole(count: int) -> None:
        for _ in range(count):
            result.append(shape[len(slices)])
            slices.append(slice(None))

    for bit in range(len(begins)):
        flags = {key for key, mask in masks.items() if mask >> bit & 1}
        if "ellipsis" in flags:
            left = len(begins) - bit - 1 - sum(1 for b in range(bit + 1, len(begins)) if masks["new_axis"] >> b & 1)
            whole(max(0, len(shape) - len(slices) - left))
        elif "new_axis" in flags:
            result.append(1)
        else:
            slices.append(_one_slice(begins[bit], ends[bit], strides[bit], shape[len(slices)], flags, options))
            if "shrink_axis" not in flags:
                result.append(_length(slices[-1], shape[len(slices) - 1]))
    whole(len(shape) - len(slices))
    if len(result) > MAX_RANK + added:
        raise UnsupportedError(f"{len(result)} dimensions")
    return slices, result


def _one_slice(begin: int, end: int, stride: int, size: int, flags: set[str], options: dict[str, int]) -> slice:
    if stride == 0:
        raise UnsupportedError("stride 0")
    if "shrink_axis" in flags:
        begin = 0 if "begin" in flags else begin
        if not -size <= begin < size:
            raise UnsupportedError(f"place {begin} of {size}")
        return slice(begin % size, begin % size + 1)
    if options.get("offset") and "end" not in flags:
        end += begin
    return slice(None if "begin" in flags else begin, None if "end" in flags else end, stride)


@converts("STRIDED_SLICE", onnx="Slice")
def strided_slice(c: FlatConverter, operator: FlatOperator) -> None:
    """A part with constant bounds, strides and masks."""
    source, out = operator.inputs[0], operator.outputs[0]
    slices, result = _strided(c, operator)
    shape, order = c.shape(source), _order(c, source)
    kept = [_length(part, size) for part, size in zip(slices, shape, strict=True)]
    if kept == result:
        c.write(out, _slice(c, c.read(source, order), slices, shape, order, c.name(out)), kept, order)
        return
    output = _slice(c, c.read(source), slices, shape, FILE, f"{c.name(out)}/slice")
    c.write(out, c.node("Reshape", [output, c.shape_constant(result)], c.name(out)), result)


@converts("REVERSE_V2", onnx="Slice")
def reverse(c: FlatConverter, operator: FlatOperator) -> None:
    """Dimensions backwards."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape, order = c.shape(source), _order(c, source)
    axes = {_axis(axis, len(shape)) for axis in c.integers(operator.inputs[1], "axes")}
    slices = [slice(None, None, -1 if axis in axes else 1) for axis in range(len(shape))]
    c.write(out, _slice(c, c.read(source, order), slices, shape, order, c.name(out)), shape, order)


@converts("PAD", "PADV2", "MIRROR_PAD", onnx={"PAD": "Pad", "PADV2": "Pad", "MIRROR_PAD": "Pad or Gather"})
def pad(c: FlatConverter, operator: FlatOperator) -> None:
    """A border of zeros, of a constant, or reflected."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape, order = c.shape(source), _order(c, source)
    pads = c.elements(operator.inputs[1], "paddings").reshape(-1, 2).tolist()
    if len(pads) != len(shape) or min(map(min, pads), default=0) < 0:
        raise UnsupportedError(f"paddings {pads[:4]} of {len(shape)} dimensions")
    result = [size + sum(pair) for size, pair in zip(shape, pads, strict=True)]
    if operator.op == "MIRROR_PAD" and operator.options.get("mode", 0):
        c.write(out, _symmetric(c, operator, pads, order), result, order)
        return
    inputs = [c.read(source, order)]
    inputs.append(c.shape_constant([p for end in (0, 1) for p in _along([pair[end] for pair in pads], order)]))
    form = {}
    if operator.op == "MIRROR_PAD":
        if any(max(pair) >= size for pair, size in zip(pads, shape, strict=True) if any(pair)):
            raise UnsupportedError("padding larger than the tensor")
        form = {"mode": "reflect"}
    elif operator.op == "PADV2":
        inputs.append(c.constant(c.real(operator.inputs[2], "value").reshape(())))
    c.write(out, c.node("Pad", inputs, c.name(out), **form), result, order)


def _symmetric(c: FlatConverter, operator: FlatOperator, pads: Sequence[Sequence[int]], order: str) -> str:
    """A border that repeats the outermost elements first, which ONNX's Pad cannot do: chosen indices per dimension."""
    source = operator.inputs[0]
    value, shape = c.read(source, order), c.shape(source)
    for axis, (size, (before, after)) in enumerate(zip(shape, pads, strict=True)):
        if max(before, after) > size or size > MAX_FOLDED:
            raise UnsupportedError("padding larger than the tensor")
        if before or after:
            indices = np.pad(np.arange(size), (before, after), "symmetric").tolist()
            along = TO_ONNX.index(axis) if order == ONNX else axis
            value = c.node("Gather", [value, c.shape_constant(indices)], c.name(operator.outputs[0]), axis=along)
    return value if any(map(any, pads)) else c.node("Identity", [value], c.name(operator.outputs[0]))


@converts("TILE", onnx="Tile")
def tile(c: FlatConverter, operator: FlatOperator) -> None:
    """A tensor repeated."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape, order = c.shape(source), _order(c, source)
    times = c.integers(operator.inputs[1], "multiples")
    if len(times) != len(shape) or min(times, default=1) < 0:
        raise UnsupportedError(f"multiples {times[:8]} of {len(shape)} dimensions")
    result = c.node("Tile", [c.read(source, order), c.shape_constant(_along(times, order))], c.name(out))
    c.write(out, result, [size * count for size, count in zip(shape, times, strict=True)], order)


@converts("BROADCAST_TO", onnx="Expand")
def broadcast_to(c: FlatConverter, operator: FlatOperator) -> None:
    """Dimensions of size 1 repeated."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape = c.integers(operator.inputs[1], "shape")
    if len(shape) > MAX_RANK or np.broadcast_shapes(c.shape(source), tuple(shape)) != tuple(shape):
        raise UnsupportedError(f"{list(c.shape(source))} to {shape[:8]}")
    c.write(out, c.node("Expand", [c.read(source), c.shape_constant(shape)], c.name(out)), shape)


@converts("GATHER", "GATHER_ND", onnx={"GATHER": "Gather", "GATHER_ND": "GatherND"})
def gather(c: FlatConverter, operator: FlatOperator) -> None:
    """Elements at indices along a dimension."""
    source, places, out = *operator.inputs[:2], operator.outputs[0]
    shape, indices = c.shape(source), c.shape(places)
    if operator.op == "GATHER_ND":
        index = c.node("Cast", [c.read(places)], f"{c.name(out)}/places", to=7)
        result = c.node("GatherND", [c.read(source), index], c.name(out))
        c.write(out, result, (*indices[:-1], *shape[indices[-1] :]))
        return
    if operator.options.get("batch_dims", 0):
        raise UnsupportedError("dimensions of a batch")
    axis = _axis(operator.options.get("axis", 0), len(shape))
    order = _order(c, source) if len(indices) == 1 else FILE
    if c.is_constant(places):
        chosen: np.ndarray = c.elements(places, "indices").astype(np.int64)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < shape[axis]:
            raise UnsupportedError(f"indices {chosen.min()}..{chosen.max()} of {shape[axis]}")
        index = c.constant(chosen, "indices")
    else:
        index = c.read(places)
    result = c.node("Gather", [c.read(source, order), index], c.name(out), axis=_place(axis, order))
    c.write(out, result, (*shape[:axis], *indices, *shape[axis + 1 :]), order)


@converts("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", onnx={"SPACE_TO_DEPTH": "SpaceToDepth", "DEPTH_TO_SPACE": "DepthToSpace"})
def depth(c: FlatConverter, operator: FlatOperator) -> None:
    """Blocks of rows and columns as channels, or back."""
    source, out, block = operator.inputs[0], operator.outputs[0], operator.options["block_size"]
    batch, height, width, channels = c.shape(source)
    if operator.op == "SPACE_TO_DEPTH":
        fits = block > 0 and not height % block and not width % block
        result = (batch, height // max(block, 1), width // max(block, 1), channels * block**2)
        kind = "SpaceToDepth"
    else:
        fits = block > 0 and not channels % block**2
        result = (batch, height * block, width * block, channels // max(block, 1) ** 2)
        kind = "DepthToSpace"
    if not fits:
        raise UnsupportedError(f"block {block} of {list(c.shape(source))}")
    c.write(out, c.node(kind, [c.read(source, ONNX)], c.name(out), blocksize=block), result, ONNX)


@converts("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", onnx="dilations of Conv, or Reshape and Transpose")
def space_batch(c: FlatConverter, operator: FlatOperator) -> None:
    """Blocks of rows and columns as images of a batch, or back; around a convolution, its dilation."""
    source, out, name = operator.inputs[0], operator.outputs[0], c.name(operator.outputs[0])
    shape, blocks = c.shape(source), c.integers(operator.inputs[1], "block shape")
    ends = c.elements(operator.inputs[2], "paddings").reshape(-1, 2).tolist()
    count, size = len(blocks), math.prod(blocks)
    if not len(ends) == count <= len(shape) - 1 or min(blocks, default=0) < 1 or min(map(min, ends)) < 0:
        raise UnsupportedError(f"blocks {blocks[:8]} of {list(shape)}")
    value, rest = c.read(source), shape[1 + count :]
    if operator.op == "SPACE_TO_BATCH_ND":
        pads = [[0, 0], *ends, *([[0, 0]] * len(rest))]
        value = c.node("Pad", [value, c.shape_constant([p[end] for end in (0, 1) for p in pads])], f"{name}/padded")
        sizes = [s + sum(e) for s, e in zip(shape[1:], ends, strict=False)]
        if any(s % b for s, b in zip(sizes, blocks, strict=True)):
            raise UnsupportedError(f"blocks {blocks} of {sizes}")
        split = [part for s, b in zip(sizes, blocks, strict=True) for part in (s // b, b)]
        perm = [
            *range(2, 2 * count + 1, 2),
            0,
            *range(1, 2 * count, 2),
            *range(2 * count + 1, 2 * count + 1 + len(rest)),
        ]
        value = c.node("Reshape", [value, c.shape_constant((shape[0], *split, *rest))], f"{name}/blocks")
        value = c.node("Transpose", [value], f"{name}/moved", perm=perm)
        result = (shape[0] * size, *(s // b for s, b in zip(sizes, blocks, strict=True)), *rest)
        c.write(out, c.node("Reshape", [value, c.shape_constant(result)], name), result)
        return
    if shape[0] % size:
        raise UnsupportedError(f"blocks {blocks} of a batch of {shape[0]}")
    batch, middle = shape[0] // size, shape[1 : 1 + count]
    value = c.node("Reshape", [value, c.shape_constant((*blocks, batch, *middle, *rest))], f"{name}/blocks")
    perm = [
        count,
        *(p for i in range(count) for p in (count + 1 + i, i)),
        *range(2 * count + 1, 2 * count + 1 + len(rest)),
    ]
    value = c.node("Transpose", [value], f"{name}/moved", perm=perm)
    grown = [s * b for s, b in zip(middle, blocks, strict=True)]
    value = c.node("Reshape", [value, c.shape_constant((batch, *grown, *rest))], f"{name}/whole")
    slices = [
        slice(None),
        *(slice(e[0], s - e[1]) for s, e in zip(grown, ends, strict=True)),
        *[slice(None)] * len(rest),
    ]
    whole = (batch, *grown, *rest)
    result = tuple(_length(part, s) for part, s in zip(slices, whole, strict=True))
    c.write(out, _slice(c, value, slices, whole, FILE, name), result)


@converts("ONE_HOT", onnx="OneHot")
def one_hot(c: FlatConverter, operator: FlatOperator) -> None:
    """A dimension with one value that differs, at an index."""
    places, count, on, off = operator.inputs[:4]
    shape, out, number = list(c.shape(places)), operator.outputs[0], c.integers(count, "depth")[0]
    axis = _axis(operator.options.get("axis", -1), len(shape) + 1)
    ends = c.constant(np.stack([c.real(off).reshape(()), c.real(on).reshape(())]))
    index = c.node("Cast", [c.read(places)], f"{c.name(out)}/places", to=7)
    result = c.node("OneHot", [index, c.constant(np.array(number, np.int64)), ends], c.name(out), axis=axis)
    c.write(out, result, [*shape[:axis], number, *shape[axis:]])


# ---- shapes that are computed while the model is read


def _shape_of(c: FlatConverter, operator: FlatOperator) -> np.ndarray:
    kind = c.tensors[operator.outputs[0]].dtype
    shape = c.shape(operator.inputs[0])
    if operator.inputs[0] not in c.shapes and not c.is_constant(operator.inputs[0]):
        raise UnsupportedError("its input is used before it is defined, or not defined")
    return np.array(len(shape) if operator.op == "RANK" else shape, kind)


def _folded_slice(c: FlatConverter, operator: FlatOperator) -> np.ndarray:
    slices, result = _strided(c, operator)
    return c.elements(operator.inputs[0], "input")[tuple(slices)].reshape(result)


def _sized(sizes: Sequence[int]) -> tuple[int, ...]:
    if len(sizes) > MAX_RANK or min(sizes, default=0) < 0 or math.prod(sizes) > MAX_FOLDED:
        raise UnsupportedError(f"a constant of shape {list(sizes)[:8]}")
    return tuple(sizes)


def _range(c: FlatConverter, operator: FlatOperator) -> np.ndarray:
    start, limit, delta = (c.elements(number, "limit").item() for number in operator.inputs[:3])
    if not delta or abs((limit - start) / delta) > MAX_FOLDED:
        raise UnsupportedError(f"a range from {start} to {limit} by {delta}")
    return np.asarray(np.arange(start, limit, delta)).astype(c.tensors[operator.outputs[0]].dtype)


def _reduced(c: FlatConverter, operator: FlatOperator) -> np.ndarray:
    forms: Document = {"SUM": np.sum, "REDUCE_PROD": np.prod, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min}
    array = c.elements(operator.inputs[0], "input")
    axes = tuple({_axis(axis, array.ndim) for axis in c.integers(operator.inputs[1], "axes")})
    return np.asarray(forms[operator.op](array, axis=axes, keepdims=bool(operator.options.get("keep_dims")))).astype(
        array.dtype
    )


_INTEGERS = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "FLOOR_DIV": np.floor_divide,
    "FLOOR_MOD": np.mod,
    "NOT_EQUAL": np.not_equal,
    "EQUAL": np.equal,
    "LESS": np.less,
    "GREATER": np.greater,
    "LESS_EQUAL": np.less_equal,
    "GREATER_EQUAL": np.greater_equal,
}


def _arithmetic(c: FlatConverter, operator: FlatOperator) -> np.ndarray:
    first, second = (c.elements(number, "operand") for number in operator.inputs[:2])
    if operator.op in ("FLOOR_DIV", "FLOOR_MOD", "DIV") and not np.all(second):
        raise UnsupportedError("it divides by zero")
    _sized(np.broadcast_shapes(first.shape, second.shape))
    if operator.op == "DIV":  # towards zero
        return (np.sign(first) * np.sign(second) * (np.abs(first) // np.abs(second))).astype(first.dtype)
    return np.asarray(_INTEGERS[operator.op](first, second))


def _gathered(c: FlatConverter, operator: FlatOperator) -> np.ndarray:
    array, places = c.elements(operator.inputs[0], "input"), c.elements(operator.inputs[1], "indices")
    if operator.options.get("batch_dims", 0):
        raise UnsupportedError("dimensions of a batch")
    return np.take(array, places, _axis(operator.options.get("axis", 0), array.ndim))


_FOLDS: dict[str, Callable[[FlatConverter, FlatOperator], np.ndarray]] = {
    **dict.fromkeys(("SHAPE", "RANK"), _shape_of),
    **dict.fromkeys(("SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"), _reduced),
    **dict.fromkeys((*_INTEGERS, "DIV"), _arithmetic),
    "STRIDED_SLICE": _folded_slice,
    "RANGE": _range,
    "GATHER": _gathered,
    "CAST": lambda c, o: c.elements(o.inputs[0], "input").astype(c.tensors[o.outputs[0]].dtype),
    "PACK": lambda c, o: np.stack([c.elements(n, "part") for n in o.inputs], o.options.get("axis", 0)),
    "CONCATENATION": lambda c, o: np.concatenate([c.elements(n, "part") for n in o.inputs], o.options.get("axis", 0)),
    "RESHAPE": lambda c, o: c.elements(o.inputs[0], "input").reshape(c.integers(o.inputs[1], "shape")),
    "EXPAND_DIMS": lambda c, o: np.expand_dims(c.elements(o.inputs[0], "input"), c.integers(o.inputs[1], "axis")[0]),
    "SQUEEZE": lambda c, o: c.elements(o.inputs[0], "input").reshape(c.tensors[o.outputs[0]].shape),
    "FILL": lambda c, o: np.full(_sized(c.integers(o.inputs[0], "shape")), c.real(o.inputs[1], "value").item()),
    "ZEROS_LIKE": lambda c, o: np.zeros(_sized(c.shape(o.inputs[0]))),
    "BROADCAST_ARGS": lambda c, o: np.array(
        np.broadcast_shapes(*(_sized(c.integers(n, "shape")) for n in o.inputs)), c.tensors[o.outputs[0]].dtype
    ),
}


def _real_type(c: FlatConverter, number: int) -> np.dtype:
    """The type of folded numbers: real numbers of a quantized tensor."""
    tensor = c.tensors[number]
    return np.dtype(np.float32) if tensor.quantized else tensor.dtype


#: operators that depend on the shape of their input alone
_OF_SHAPES = ("SHAPE", "RANK", "ZEROS_LIKE")


def folds(c: FlatConverter, operator: FlatOperator) -> bool:
    """Compute an operator on shapes and other integers while the model is read, where that is possible."""
    if operator.op not in _FOLDS or len(operator.outputs) != 1:
        return False
    given = [number for number in operator.inputs if number >= 0]
    if operator.op not in _OF_SHAPES:
        whole = all(c.is_constant(number) for number in given)
        kinds = {(c.folded[n] if n in c.folded else c.tensors[n]).dtype.kind for n in given} if whole else {"f"}
        if "f" in kinds or any(c.tensors[number].quantized for number in given) or not whole:
            return operator.op in ("FILL", "RANGE") and whole and _fold(c, operator)
    return _fold(c, operator)


def _fold(c: FlatConverter, operator: FlatOperator) -> bool:
    array = _FOLDS[operator.op](c, operator)
    _sized(array.shape)
    c.fold(operator.outputs[0], array.astype(_real_type(c, operator.outputs[0]), copy=False))
    return True
