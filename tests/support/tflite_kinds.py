"""One network as TFLite files of three kinds: int8, uint8 at its ends, and float32."""

from __future__ import annotations

import numpy as np

from support.tflite_writer import FlatWriter

SAME, RELU = 0, 1


def quantized_file(ends: str, has_mean: bool = True) -> bytes:
    """Two convolutions of four kernels, with scales per kernel, and a mean. ``ends``: int8, uint8 or float32."""
    rng = np.random.default_rng(3)
    writer = FlatWriter()
    is_real = ends == "float32"
    kind, outer = ("float32", "float32") if is_real else ("int8", ends)

    def tensor(shape: tuple[int, ...], scale: float, zero: int, name: str, kind: str) -> int:
        return writer.tensor(shape, kind, *((None,) if is_real else (scale, zero)), name=name)

    def constant(elements: np.ndarray, scales: np.ndarray, dtype: str) -> int:
        column = scales.reshape(-1, *[1] * (elements.ndim - 1))
        if is_real:
            return writer.constant((elements * column).astype(np.float32))
        return writer.constant(elements.astype(dtype), scales)

    middle = 0 if outer != "uint8" else 128
    given = value = tensor((1, 6, 6, 2), 0.02, middle, "x", outer)
    if outer == "uint8":
        value = tensor((1, 6, 6, 2), 0.02, 0, "x int8", "int8")
        writer.operator("QUANTIZE", [given], [value])
    scale = 0.02
    for number, channels in enumerate((2, 4)):
        scales = np.array([0.004, 0.006, 0.005, 0.007])
        weights = constant(rng.integers(-127, 128, (4, 3, 3, channels)), scales, "int8")
        bias = constant(rng.integers(-200, 200, (4,)), scales * scale, "int32")
        scale, function, zero = ((0.03, RELU, -128), (0.05, 0, 9))[number]
        result = tensor((1, 6, 6, 4), scale, zero, f"conv{number}", kind)
        options = {"padding": SAME, "stride_w": 1, "stride_h": 1, "fused_activation_function": function}
        writer.operator("CONV_2D", [value, weights, bias], [result], **options)
        value = result
    if not has_mean:
        return writer.model([given], [value])
    mean = tensor((1, 4), 0.02, 9, "mean", kind)
    writer.operator("MEAN", [value, writer.constant(np.array([1, 2], np.int32))], [mean], keep_dims=False)
    if outer == "uint8":
        value = mean
        mean = tensor((1, 4), 0.02, 137, "mean uint8", "uint8")
        writer.operator("QUANTIZE", [value], [mean])
    return writer.model([given], [mean])
