"""LeNet as an ONNX model, with the nodes and names that torch.onnx.export gives such a network."""

from __future__ import annotations

import numpy as np


def model(weights: dict[str, np.ndarray]) -> bytes:
    """The file; the same weights give the same bytes. ``weights``: name -> (weights, bias) as lenet/NAME and
    lenet/NAME/bias of the samples."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, held, value = [], [], "data"

    def node(kind: str, name: str, *constants: str, **attributes: object) -> None:
        nonlocal value
        nodes.append(helper.make_node(kind, [value, *constants], [name], name=f"/{name}/{kind}", **attributes))
        value = name

    for name in ("conv1", "conv2", "ip1", "ip2", "ip3"):
        for kind, array in zip(("weight", "bias"), weights[name], strict=True):
            held.append(numpy_helper.from_array(np.asarray(array, np.float32), f"{name}.{kind}"))
        if name == "ip1":
            node("Flatten", "flat", axis=1)
        constants = (f"{name}.weight", f"{name}.bias")
        if name.startswith("conv"):
            node("Conv", name, *constants, kernel_shape=[5, 5])
        else:
            node("Gemm", name, *constants, transB=1)
        if name != "ip3":
            node("Relu", f"{name}_relu")
        if name.startswith("conv"):
            node("MaxPool", f"pool{name[-1]}", kernel_shape=[2, 2], strides=[2, 2])
    node("Softmax", "prob", axis=1)
    image = helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 1, 28, 28])
    result = helper.make_tensor_value_info("prob", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "lenet", [image], [result], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.producer_name = "samples/make_samples.py"
    return made.SerializeToString(deterministic=True)
