"""Random TFLite graphs: made in floats, run once for their ranges, then quantized as a converter does.

    PYTHONPATH=.:tests python tests/support/tflite_random.py COUNT [SEED]

compiles COUNT graphs for nv_small and compares them with the interpreter's reference kernels.
"""

from __future__ import annotations

import os
import pickle
import sys
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.tflite_writer import FlatWriter, interpreted, interpreter

NONE, RELU, RELU6 = 0, 1, 3
_ACTIVATIONS = (NONE, NONE, RELU, RELU6)
#: operators whose result has the scale of their inputs
_KEEP_SCALE = (
    *("MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE", "CONCATENATION", "PAD", "RESIZE_NEAREST_NEIGHBOR", "TRANSPOSE"),
    *("RESIZE_BILINEAR", "STRIDED_SLICE", "SPLIT", "MAXIMUM", "MINIMUM", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "GATHER"),
    *("REDUCE_MAX", "MIRROR_PAD", "PACK", "UNPACK", "TILE"),
)
_FIXED = {"LOGISTIC": (1 / 256, -128), "SOFTMAX": (1 / 256, -128), "TANH": (1 / 128, 0)}


@dataclass
class Quantized:
    """A model with int8 tensors, an input for it, and the operators that it has."""

    data: bytes
    given: np.ndarray
    operators: list[str]
    ends: tuple[tuple[str, float, int], tuple[str, float, int]]


class RandomGraph:
    """A graph in floats; its tensors are those of a writer."""

    def __init__(self, seed: int) -> None:
        self.rng, self.writer = np.random.default_rng(seed), FlatWriter()
        side = self.rng.integers(5, 20, 2)
        shape = (1, int(side[0]), int(side[1]), int(self.rng.integers(1, 12)))
        self.first = self.last = self.writer.tensor(shape, "float32", name="x")
        self.seen = [self.first]
        self.samples = self.rng.normal(size=(6, *shape[1:])).astype(np.float32)

    def shape(self, number: int) -> tuple[int, ...]:
        return tuple(int(size) for size in self.writer.tensors[number]["shape"])

    def grow(self) -> None:
        """Add one operator that fits the last tensor."""
        rank = len(self.shape(self.last))
        kinds = _OF_MAPS if rank == 4 else _OF_ROWS
        getattr(self, f"_{kinds[self.rng.integers(len(kinds))]}")()

    def add(self, op: str, inputs: list[int], shape: Any, **options: Any) -> None:
        self.last = self.writer.tensor(tuple(shape), "float32")
        self.writer.operator(op, inputs, [self.last], **options)
        self.seen.append(self.last)

    def choice(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    # ---- operators

    def _conv(self, deep: bool = False) -> None:
        _, h, w, c = self.shape(self.last)
        k, s, d = (int(self.choice(1, 2, 3, 3, 5)) for _ in range(2)), int(self.choice(1, 1, 2)), 1
        kernel = list(k)
        if s == 1 and self.rng.random() < 0.2:
            d = 2
        spans = [(size - 1) * d + 1 for size in kernel]
        padding = 0 if h < spans[0] or w < spans[1] else int(self.choice(0, 1))
        out = c if deep else int(self.rng.integers(1, 20))
        sizes = (1, *kernel, c) if deep else (out, *kernel, c)
        weights = self.rng.normal(size=sizes) / np.sqrt(np.prod(sizes[1:3]) * (1 if deep else c))
        given = [self.last, self.writer.constant(weights.astype(np.float32), axis=3 if deep else 0)]
        given.append(self.writer.constant((self.rng.normal(size=out) / 4).astype(np.float32)))
        result = [-(-n // s) if padding == 0 else (n - span) // s + 1 for n, span in zip((h, w), spans, strict=True)]
        options = {"padding": padding, "stride_w": s, "stride_h": s, "dilation_w_factor": d, "dilation_h_factor": d}
        options["fused_activation_function"] = self.choice(*_ACTIVATIONS)
        if deep:
            options["depth_multiplier"] = 1
        self.add("DEPTHWISE_CONV_2D" if deep else "CONV_2D", given, (1, *result, out), **options)

    def _depthwise(self) -> None:
        self._conv(deep=True)

    def _pool(self) -> None:
        _, h, w, c = self.shape(self.last)
        k, s = min(int(self.choice(2, 3)), h, w), int(self.choice(1, 2))
        padding = int(self.choice(0, 1))
        result = [-(-n // s) if padding == 0 else (n - k) // s + 1 for n in (h, w)]
        options = {"padding": padding, "stride_w": s, "stride_h": s, "filter_width": k, "filter_height": k}
        self.add(self.choice("MAX_POOL_2D", "AVERAGE_POOL_2D"), [self.last], (1, *result, c), **options)

    def _sum(self) -> None:
        alike = [each for each in self.seen if self.shape(each) == self.shape(self.last) and each != self.last]
        other = self.choice(*alike) if alike else self.writer.constant(np.array(self.rng.normal(), np.float32))
        op = self.choice("ADD", "ADD", "SUB", "MUL")
        act = self.choice(NONE, RELU)
        self.add(op, [self.last, other], self.shape(self.last), fused_activation_function=act)

    def _channels(self) -> None:
        values = self.rng.normal(size=self.shape(self.last)[-1]).astype(np.float32)
        given = [self.last, self.writer.constant(values)]
        self.add(self.choice("ADD", "MUL"), given, self.shape(self.last), fused_activation_function=NONE)

    def _concat(self) -> None:
        shape = self.shape(self.last)
        axis = len(shape) - 1
        alike = [
            each for each in self.seen if self.shape(each)[:-1] == shape[:-1] and len(self.shape(each)) == len(shape)
        ]
        other = self.choice(*alike)
        result = [*shape[:axis], shape[axis] + self.shape(other)[axis]]
        self.add("CONCATENATION", [self.last, other], result, axis=axis)

    def _function(self) -> None:
        op = self.choice("RELU", "RELU6", "LEAKY_RELU", "LOGISTIC", "TANH", "HARD_SWISH", "PRELU")
        options, given = ({"alpha": 0.1} if op == "LEAKY_RELU" else {}), [self.last]
        if op == "PRELU":
            slopes = self.rng.uniform(0, 0.5, self.shape(self.last)[-1]).astype(np.float32)
            given.append(self.writer.constant(slopes.reshape((1,) * (len(self.shape(self.last)) - 2) + (-1,))))
        self.add(op, given, self.shape(self.last), **options)

    def _pad(self) -> None:
        shape = self.shape(self.last)
        pads = np.array([[0, 0], self.rng.integers(0, 3, 2), self.rng.integers(0, 3, 2), [0, 0]], np.int32)
        self.add(
            "PAD", [self.last, self.writer.constant(pads)], [s + p.sum() for s, p in zip(shape, pads, strict=True)]
        )

    def _resize(self) -> None:
        _, h, w, c = self.shape(self.last)
        if h * w > 200:
            return
        op, half = self.choice("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), bool(self.rng.integers(2))
        given = [self.last, self.writer.constant([2 * h, 2 * w])]
        self.add(op, given, (1, 2 * h, 2 * w, c), half_pixel_centers=half)

    def _slice(self) -> None:
        _, h, w, c = self.shape(self.last)
        if h < 2 or c < 2:
            return
        first = int(self.rng.integers(0, c // 2))
        bounds = [self.writer.constant(each) for each in ([0, 0, 0, first], [1, h - 1, w, c], [1, 1, 1, 1])]
        self.add("STRIDED_SLICE", [self.last, *bounds], (1, h - 1, w, c - first))

    def _blocks(self) -> None:
        _, h, w, c = self.shape(self.last)
        if h % 2 == 0 and w % 2 == 0 and c <= 16:
            self.add("SPACE_TO_DEPTH", [self.last], (1, h // 2, w // 2, 4 * c), block_size=2)
        elif c % 4 == 0:
            self.add("DEPTH_TO_SPACE", [self.last], (1, 2 * h, 2 * w, c // 4), block_size=2)

    def _transposed(self) -> None:
        _, h, w, c = self.shape(self.last)
        if h * w > 150:
            return
        out = (1, 2 * h, 2 * w, int(self.rng.integers(1, 8)))
        weights = (self.rng.normal(size=(out[3], 2, 2, c)) / np.sqrt(c)).astype(np.float32)
        given = [self.writer.constant(list(out)), self.writer.constant(weights, axis=0), self.last]
        self.add("TRANSPOSE_CONV", given, out, padding=0, stride_w=2, stride_h=2)

    def _mean(self) -> None:
        keep = bool(self.rng.integers(2))
        c = self.shape(self.last)[3]
        op = self.choice("MEAN", "REDUCE_MAX")
        self.add(op, [self.last, self.writer.constant([1, 2])], (1, 1, 1, c) if keep else (1, c), keep_dims=keep)

    def _flatten(self) -> None:
        size = int(np.prod(self.shape(self.last)))
        if size <= 2000:
            self.add("RESHAPE", [self.last, self.writer.constant([1, size])], (1, size))

    def _dense(self) -> None:
        depth, units = self.shape(self.last)[-1], int(self.rng.integers(2, 24))
        weights = (self.rng.normal(size=(units, depth)) / np.sqrt(depth)).astype(np.float32)
        given = [self.last, self.writer.constant(weights, axis=0)]
        given.append(self.writer.constant(self.rng.normal(size=units).astype(np.float32)))
        self.add("FULLY_CONNECTED", given, (1, units), fused_activation_function=self.choice(NONE, RELU))

    def _softmax(self) -> None:
        if self.shape(self.last)[-1] > 1:
            self.add("SOFTMAX", [self.last], self.shape(self.last), beta=1.0)

    # ---- quantization

    def quantized(self) -> Quantized:
        """The graph with int8 tensors whose scales are those of their ranges on the samples."""
        numbers = list(self.seen)
        ends = self._ranges(numbers)
        lead = {number: number for number in numbers}
        for op, inputs, outputs, _, _ in self.writer.operators:
            if op in _KEEP_SCALE:
                for number in [each for each in inputs if each in lead]:
                    self._join(lead, number, outputs[0])
        scales = self._scales(numbers, lead, ends)
        tensors = self.writer.tensors
        for number in numbers:
            scale, zero = scales[number]
            tensors[number] |= {"kind": "int8", "scales": np.float32([scale]), "points": np.array([zero])}
        for op, inputs, _, _, _ in self.writer.operators:
            self._constants(op, inputs, scales)
        data = self.writer.model([self.first], [self.last])
        given = np.clip(np.rint(self.samples[0] / scales[self.first][0]) + scales[self.first][1], -128, 127)
        rows = [(tensors[number]["name"], *scales[number]) for number in (self.first, self.last)]
        return Quantized(data, given.astype(np.int8)[None], [each[0] for each in self.writer.operators], tuple(rows))

    def _ranges(self, numbers: list[int]) -> dict[int, tuple[float, float]]:
        made = interpreter(self.writer.model([self.first], numbers[1:]))
        rows = made.get_output_details()
        ends = {self.first: (float(self.samples.min()), float(self.samples.max()))}
        for sample in self.samples:
            made.set_tensor(made.get_input_details()[0]["index"], sample[None])
            made.invoke()
            for number, row in zip(numbers[1:], rows, strict=True):
                found = made.get_tensor(row["index"])
                low, high = ends.get(number, (0.0, 0.0))
                ends[number] = min(low, float(found.min())), max(high, float(found.max()))
        return ends

    def _join(self, lead: dict[int, int], one: int, other: int) -> None:
        first, second = (self._find(lead, each) for each in (one, other))
        lead[first] = second

    def _find(self, lead: dict[int, int], number: int) -> int:
        while lead[number] != number:
            number = lead[number]
        return number

    def _scales(self, numbers, lead, ends) -> dict[int, tuple[float, int]]:
        fixed, found = {}, {}
        for op, _, outputs, _, _ in self.writer.operators:
            if op in _FIXED:
                fixed[self._find(lead, outputs[0])] = _FIXED[op]
        for number in numbers:
            alike = [each for each in numbers if self._find(lead, each) == self._find(lead, number)]
            low = min(0.0, *(ends[each][0] for each in alike))
            high = max(1e-3, *(ends[each][1] for each in alike))
            scale = float(np.float32((high - low) / 255))
            zero = int(np.clip(np.rint(-128 - low / scale), -128, 127))
            found[number] = fixed.get(self._find(lead, number), (scale, zero))
        return found

    def _constants(self, op: str, inputs: list[int], scales: dict[int, tuple[float, int]]) -> None:
        weighted = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "TRANSPOSE_CONV": 0, "FULLY_CONNECTED": None}
        tensors = self.writer.tensors
        for place, number in enumerate(inputs):
            row = tensors[number]
            if row["data"] is None or row["kind"] != "float32":
                continue
            values = np.asarray(row["data"], np.float64)
            if op in weighted and place == 2:  # bias
                source = scales[inputs[0]][0] * tensors[inputs[1]]["scales"].astype(np.float64)
                elements, scale, zero = np.rint(values / source).astype(np.int32), source, 0
            else:
                axis = weighted.get(op)
                others = None if axis is None else tuple(a for a in range(values.ndim) if a != axis)
                largest = np.maximum(np.abs(values).max(axis=others), 1e-6)
                scale, zero = np.atleast_1d(largest / 127), 0
                shape = [1] * values.ndim
                if axis is not None:
                    shape[axis] = -1
                spread = scale.reshape(shape) if values.ndim else scale[0]
                elements = np.clip(np.rint(values / spread), -127, 127).astype(np.int8)
                row["axis"] = axis or 0
            scale = np.atleast_1d(scale).astype(np.float32)
            row |= {"data": elements, "kind": elements.dtype.name, "scales": scale}
            row["points"] = np.full(scale.shape, zero)


_OF_MAPS = (
    *("conv", "conv", "conv", "depthwise", "depthwise", "pool", "sum", "sum", "channels", "concat", "function"),
    *("function", "pad", "resize", "slice", "blocks", "transposed", "mean", "flatten"),
)
_OF_ROWS = ("dense", "dense", "function", "sum", "channels", "softmax", "concat")


def graph(seed: int) -> tuple[Quantized, np.ndarray] | None:
    """The graph of a seed and what the interpreter computes; None where it has no operator, or none that is sensible.

    A difference of half a unit that is enlarged 8 times is noise; some reference kernels abort the process.
    """
    return _in_a_fork(_graph, seed)


def _graph(seed: int) -> tuple[Quantized, np.ndarray] | None:
    made = RandomGraph(zlib.crc32(f"graph {seed}".encode()))
    for _ in range(int(made.rng.integers(2, 9))):
        made.grow()
    if not made.writer.operators:
        return None
    found = made.quantized()
    soft = [outputs[0] for op, _, outputs, _, _ in made.writer.operators if op == "SOFTMAX"]
    for _, inputs, outputs, _, _ in made.writer.operators:
        numbers = [each for each in (*inputs, *outputs) if made.writer.tensors[each]["data"] is None]
        # a softmax of the accelerator has 127 units where TFLite's has 255
        units = [float(made.writer.tensors[n]["scales"][0]) * (4 if n in soft else 1) for n in numbers]
        if len(units) > 1 and max(units[:-1]) > 8 * units[-1]:
            return None
    return found, interpreted(found.data, found.given)[0]


def _in_a_fork(function: Any, *arguments: Any) -> Any:
    """The result of a function that may abort the process: None then."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(function(*arguments), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None


def verdict(made: Quantized, wanted: np.ndarray, config: str = "nv_small") -> tuple[str, str]:
    """("whole", "host" or "wrong", details): how the compiled graph compares with the interpreter."""
    import nvdla

    wanted = wanted.astype(np.float64)
    (source, scale, zero), (out, unit, point) = made.ends
    compiled = nvdla.compile(made.data, config)
    got = compiled.run({source: ((made.given.astype(np.float64) - zero) * scale).astype(np.float32)})[out]
    found = np.rint(got / unit) + point
    if found.shape != wanted.shape:
        return "wrong", f"shape {found.shape}, must be {wanted.shape}"
    error, signal = np.abs(found - wanted), wanted - point
    noise = 10 * np.log10(max(float((signal**2).sum()), 1e-9) / max(float((error**2).sum()), 1e-9))
    words = f"largest {error.max():.0f} units, mean {error.mean():.2f}, {noise:.1f} dB"
    # each layer may be two units off, and what follows passes that on
    if error.mean() > 2 and noise < 20:
        return "wrong", words
    return ("host" if compiled.report["host_nodes"] else "whole"), words


def main(count: int, first: int = 0) -> int:
    """Compare graphs; prints those that are wrong, and a summary."""
    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for seed in range(first, first + count):
        made = None
        try:
            made = graph(seed)
            result, words = ("left out", "") if made is None else verdict(*made)
        except Exception as error:
            result, words = "failed", f"{type(error).__name__}: {error}"[:300]
        totals[result] += 1
        if result in ("wrong", "failed"):
            reasons[words[:60]] += 1
            print(f"{seed}: {result}: {words} {made[0].operators if made else ''}", flush=True)
    print(dict(totals))
    return 1 if totals["wrong"] or totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(*(int(each) for each in sys.argv[1:])))
