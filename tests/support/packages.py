"""A package with three accelerator parts and two host parts, as ``nvdla compile`` writes it."""

from __future__ import annotations

import numpy as np

SHAPE = (1, 3, 8, 8)


def host_model(seed: int = 3):
    """Convolutions on the accelerator with a product of two tensors, which it cannot compute, between them."""
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(seed)
    weights = {
        "w1": (rng.normal(size=(4, 3, 3, 3)) / 5).astype(np.float32),
        "w2": (rng.normal(size=(4, 4, 3, 3)) / 6).astype(np.float32),
        "w3": (rng.normal(size=(4, 4, 1, 1)) / 2).astype(np.float32),
    }
    nodes = [
        node("Conv", "x w1", "/features/block1/conv/Conv_output_0", pads=[1, 1, 1, 1]),
        node("Relu", "/features/block1/conv/Conv_output_0", "a"),
        node("MatMul", "a a", "m"),
        node("Conv", "m w2", "b", pads=[1, 1, 1, 1]),
        node("MatMul", "b b", "e"),
        node("Conv", "e w3", "y"),
    ]
    return model(nodes, {"x": SHAPE}, {"y": (1, 4, 8, 8)}, weights)


def write_package(folder):
    """Write host.onnx, calibration.npy, x.npy and net.nvpkg into a directory. Returns the compiled model."""
    import nvdla

    made, rng = host_model(), np.random.default_rng(5)
    (folder / "host.onnx").write_bytes(made.SerializeToString())
    samples = rng.normal(size=(8, *SHAPE[1:])).astype(np.float32)
    np.save(folder / "calibration.npy", samples)
    np.save(folder / "x.npy", samples[:1])
    compiled = nvdla.compile(made, "nv_small", "int8", samples)
    compiled.save(folder / "net.nvpkg")
    return compiled
