"""Small ONNX models for tests."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def model(nodes, inputs, outputs, constants=None, opset=17):
    """``inputs`` and ``outputs``: name -> shape; ``constants``: name -> array."""
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each.items()] for each in (inputs, outputs)
    ]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "net", *infos, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def classifier(rng):
    """Convolution, swish, pooling, a matrix product; ArgMax, which no engine does."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Sigmoid", "a", "s"),
        node("Mul", "a s", "m"),
        node("GlobalAveragePool", "m", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f v", "y"),
        node("ArgMax", "y", "i", axis=1),
        node("Cast", "i", "z", to=1),
    ]
    constants = {"w": rng.normal(size=(8, 3, 3, 3)).astype("f4"), "v": rng.normal(size=(8, 5)).astype("f4")}
    return model(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 5), "z": (1, 1)}, constants)
