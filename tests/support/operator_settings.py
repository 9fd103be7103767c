"""Random settings of single ONNX operators: every attribute, in combinations that few models have."""

from __future__ import annotations

import numpy as np
from onnx import helper, shape_inference

from tests.compiler.frontend.models import model

PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1", "ReduceSumSquare")


def _shape(rng, rank=4):
    return (1, *(int(size) for size in (rng.integers(1, 13), *rng.integers(4, 12, rank - 2))))


def _pads(rng, kernel):
    """Padding below the window, or a mode."""
    mode = str(rng.choice(PADS, p=(0.7, 0.1, 0.1, 0.1)))
    if mode != "NOTSET":
        return {"auto_pad": mode}
    return {"pads": [int(rng.integers(0, size)) for size in (*kernel, *kernel)]} if rng.random() < 0.8 else {}


def _window(rng):
    kernel = [int(size) for size in rng.integers(1, 5, 2)]
    return kernel, {"strides": [int(step) for step in rng.integers(1, 4, 2)], **_pads(rng, kernel)}


def convolution(rng, shape):
    kernel, settings = _window(rng)
    channels = shape[1]
    groups = int(rng.choice([size for size in range(1, channels + 1) if channels % size == 0]))
    weights = rng.normal(size=(groups * int(rng.integers(1, 5)), channels // groups, *kernel))
    if rng.random() < 0.3:
        settings["dilations"] = [int(distance) for distance in rng.integers(1, 3, 2)]
    constants = {"w": weights}
    if rng.random() < 0.5:
        constants["b"] = rng.normal(size=weights.shape[0])
    return "Conv", settings | {"group": groups}, constants


def deconvolution(rng, shape):
    kernel, settings = _window(rng)
    channels = shape[1]
    groups = int(rng.choice([size for size in range(1, channels + 1) if channels % size == 0]))
    if rng.random() < 0.3:
        settings["output_padding"] = [int(rng.integers(0, step)) for step in settings["strides"]]
    if rng.random() < 0.3:
        settings["output_shape"] = [
            step * size + int(rng.integers(-1, 2)) for step, size in zip(settings["strides"], shape[2:], strict=True)
        ]
    constants = {"w": rng.normal(size=(channels, int(rng.integers(1, 4)), *kernel))}
    return "ConvTranspose", settings | {"group": groups}, constants


def pool(rng, shape):
    kind = str(rng.choice(["MaxPool", "AveragePool", "LpPool"]))
    kernel, settings = _window(rng)
    settings["ceil_mode"] = int(rng.integers(2))
    if kind == "AveragePool":
        settings["count_include_pad"] = int(rng.integers(2))
    if kind == "LpPool":
        settings["p"] = int(rng.integers(1, 4))
    if rng.random() < 0.2:
        settings["dilations"] = [int(distance) for distance in rng.integers(1, 3, 2)]
    return kind, settings | {"kernel_shape": kernel}, {}


def pad(rng, shape):
    mode = str(rng.choice(["constant", "reflect", "edge", "wrap"]))
    amounts = [0, 0, *(int(amount) for amount in rng.integers(-2, 4, 2))] * 2
    if rng.random() < 0.5:
        amounts = [int(amount) if at % 4 else 0 for at, amount in enumerate(rng.integers(-1, 4, 8))]
    constants = {"p": np.array(amounts)}
    if mode == "constant" and rng.random() < 0.5:
        constants["v"] = np.float32(rng.normal())
    return "Pad", {"mode": mode}, constants


def resize(rng, shape):
    mode = str(rng.choice(["nearest", "linear", "cubic"], p=(0.5, 0.4, 0.1)))
    settings = {"mode": mode, "coordinate_transformation_mode": str(rng.choice(COORDINATES))}
    if mode == "nearest":
        settings["nearest_mode"] = str(rng.choice(NEAREST))
    constants = {"roi": np.zeros(0)}
    if rng.random() < 0.5:
        constants["s"] = np.array([1, 1, *rng.choice([0.5, 0.7, 1, 1.5, 2, 3, 4], 2)])
    else:
        constants |= {"s": np.zeros(0), "z": np.array([*shape[:2], *rng.integers(2, 25, 2)])}
    if rng.random() < 0.2:
        settings |= {"antialias": int(mode != "nearest"), "exclude_outside": int(mode == "cubic")}
    return "Resize", settings, constants


def cut(rng, shape):
    axes = [int(axis) for axis in rng.permutation(4)[: rng.integers(1, 4)] if shape[axis] > 1]
    axes = axes or [2]
    steps = [int(step) for step in rng.choice([-2, -1, 1, 2, 3], len(axes))]
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        low, high = sorted(int(place) for place in rng.choice(shape[axis] + 1, 2, replace=False))
        starts.append(low if step > 0 else high - 1)
        ends.append(high if step > 0 else low - 1 - shape[axis])
    return "Slice", {}, dict(zip("seat", (np.array(part) for part in (starts, ends, axes, steps)), strict=True))


def reduction(rng, shape):
    axes = sorted(int(axis) for axis in rng.permutation(4)[: rng.integers(1, 4)])
    return str(rng.choice(REDUCTIONS)), {"keepdims": int(rng.integers(2)), "axes": axes}, {}


def blocks(rng, shape):
    return "DepthToSpace", {"blocksize": int(rng.integers(1, 4)), "mode": str(rng.choice(["DCR", "CRD"]))}, {}


def depth(rng, shape):
    return "SpaceToDepth", {"blocksize": int(rng.integers(1, 4))}, {}


def turn(rng, shape):
    return "Transpose", {"perm": [int(axis) for axis in rng.permutation(4)]}, {}


def softmax(rng, shape):
    return str(rng.choice(["Softmax", "LogSoftmax"])), {"axis": int(rng.integers(-4, 4))}, {}


def normalization(rng, shape):
    kind = str(rng.choice(["BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN"]))
    if kind == "LRN":
        alpha, beta, bias = (float(number) for number in rng.uniform(0.1, 2, 3))
        return kind, {"size": int(rng.choice([3, 5, 7])), "alpha": alpha, "beta": beta, "bias": bias}, {}
    if kind == "LayerNormalization":
        axis = int(rng.integers(-3, 4)) or -1
        constants = {"scale": rng.normal(size=shape[axis:]), "bias": rng.normal(size=shape[axis:])}
        return kind, {"axis": axis, "epsilon": float(rng.choice([1e-5, 1e-2]))}, constants
    constants = {"scale": rng.normal(size=shape[1]), "bias": rng.normal(size=shape[1])}
    if kind == "BatchNormalization":
        constants |= {"mean": rng.normal(size=shape[1]), "variance": rng.uniform(0.1, 2, shape[1])}
    return kind, {"epsilon": float(rng.choice([1e-5, 1e-2]))}, constants


def pointwise(rng, shape):
    alpha, beta = (float(number) for number in rng.normal(size=2))
    kinds = {
        "LeakyRelu": {"alpha": alpha},
        "Elu": {"alpha": alpha},
        "Selu": {"alpha": alpha, "gamma": beta},
        "HardSigmoid": {"alpha": alpha, "beta": beta},
        "HardSwish": {},
        "Softplus": {},
        "Softsign": {},
        "ThresholdedRelu": {"alpha": alpha},
        "Shrink": {"lambd": abs(alpha), "bias": beta},
        "Celu": {"alpha": abs(alpha) + 0.1},
        "Mish": {},
        "Erf": {},
        "Sign": {},
        "Round": {},
        "Floor": {},
        "Ceil": {},
    }
    kind = str(rng.choice(list(kinds)))
    return kind, kinds[kind], {}


def with_constant(rng, shape):
    kind = str(rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow"]))
    form = [size if rng.random() < 0.5 else 1 for size in shape[int(rng.integers(4)) :]]
    constant = rng.uniform(0.5, 2, form) if kind in ("Div", "Pow") else rng.normal(size=form)
    if kind == "Pow":
        constant = np.float32(rng.choice([2, 3]))
    return kind, {}, {"k": constant}


def places(rng, shape):
    axis = int(rng.integers(1, 4))
    count = shape[axis]
    form = rng.choice([0, 1, 2])
    indices = rng.integers(-count, count, (int(rng.integers(1, 6)), 2)[: int(form)])
    return "Gather", {"axis": axis - 4 * int(rng.integers(2))}, {"i": np.array(indices)}


OPERATORS = (
    convolution, deconvolution, pool, pad, resize, cut, reduction, blocks, depth, turn, softmax, normalization,
    pointwise, with_constant, places,
)  # fmt: skip


def random_model(seed):
    """A model of one operator, or None if onnx refuses the settings. Its input has the shape of the second result."""
    rng = np.random.default_rng([20, seed])
    shape = _shape(rng)
    kind, settings, constants = OPERATORS[seed % len(OPERATORS)](rng, shape)
    held = {
        name: np.asarray(array, np.int64 if np.asarray(array).dtype.kind == "i" else np.float32)
        for name, array in constants.items()
    }
    opset = 17 if kind.startswith("Reduce") and kind != "ReduceSum" else 19
    if kind == "ReduceSum":
        held["axes"] = np.array(settings.pop("axes"))
    if kind == "BatchNormalization" or kind not in ("Pad", "AveragePool", "Resize"):
        opset = min(opset, 18 if kind == "Mish" else 17)
    nodes = [helper.make_node(kind, ["x", *held], ["y"], **settings)]
    net = model(nodes, {"x": shape}, {"y": None}, held, opset=opset if kind != "LpPool" else 18)
    try:
        inferred = shape_inference.infer_shapes(net, strict_mode=True)
    except Exception:
        return None
    return inferred, shape
