"""Files for the documentation besides networks and images: faulty loadables, goldens, tensors, traces.

All of it follows from lenet.loadable and the digits; the same bytes every time.
"""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import nvdla
import nvdla.interop.containers
from nvdla.compiler.builder import Calibration, Network, build
from nvdla.compiler.builder.edit import replace_weights
from nvdla.program import Program

HERE = Path(__file__).resolve().parent


def derived_files() -> dict[str, bytes]:
    """{path below samples/: content}."""
    lenet = nvdla.load(HERE / "lenet.loadable")
    files = {"flipped.loadable": flipped(lenet).to_bytes(), "saturating.loadable": saturating(lenet).to_bytes()}
    names = (HERE / "lenet.loadable.layers.json").read_bytes()
    files |= {f"{name}.layers.json": names for name in list(files)}
    return files | goldens(lenet) | dict(traces())


def flipped(lenet: nvdla.Loadable) -> nvdla.Loadable:
    """LeNet with one wrong bit: bit 6 of one weight of the second convolution."""
    parameters = nvdla.interop.containers.open(HERE / "lenet.loadable").parameters()
    found = next(each for each in parameters if each.name == "task0.conv3.weights")
    weights = np.frombuffer(bytes(found.data), np.int8).reshape(found.shape).copy()
    weights[5, 2, 1, 1] ^= 0x40
    return replace_weights(lenet, 0, 3, weights, "nv_small")


def saturating(lenet: nvdla.Loadable) -> nvdla.Loadable:
    """LeNet whose layer ip2 shifts its results by six bits too few, so that many of them are cut off at 127."""
    decoded = Program.of(lenet).dla_tasks[0]
    decoded.operation(9).op.out_cvt.truncate -= 6
    content = b"".join(bytes(each) for each in decoded.containers)
    blobs = tuple(
        dataclasses.replace(blob, data=memoryview(content + bytes(blob.data[len(content) :])))
        if blob.name == "task-0-op_list"
        else blob
        for blob in lenet.blobs
    )
    return dataclasses.replace(lenet, blobs=blobs)


def goldens(lenet: nvdla.Loadable) -> dict[str, bytes]:
    """Output of every operation for digit3.pgm, as ``nvdla run --dump-ops`` writes it, and the output; the input of
    digit7.pgm as an array, its output as the bytes of the surface."""
    files: dict[str, bytes] = {}

    def keep(event) -> None:
        if event.destination is not None:
            files[f"golden/task{event.task}-op{event.index:04d}-{event.engine}.bin"] = event.destination.tobytes()

    runtime = nvdla.Runtime(lenet)
    files["golden/prob.npy"] = _npy(runtime.run(str(HERE / "digit3.pgm"), on_operation=keep)["prob"])
    surface = runtime.surfaces(str(HERE / "digit7.pgm"))
    files["prob.bin"] = runtime.run_raw(surface)[0]
    files["input.npy"] = _npy(runtime.inputs[0].layout.unpack(np.frombuffer(surface[0], np.uint8)))
    return files


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(array))
    return stream.getvalue()


# ---- traces


def convolution(weights: np.random.Generator) -> Network:
    """A convolution with bias and ReLU: CONV and SDP, on the fly."""
    net = Network("convolution")
    kernels = weights.integers(-16, 17, (8, 8, 3, 3)) / 16
    x = net.convolution("conv", net.input("data", (8, 8, 8)), kernels, weights.integers(-8, 9, 8) / 8, padding=1)
    net.output(net.relu("relu", x))
    return net


def pooling(weights: np.random.Generator) -> Network:
    """The maximum of squares of 2x2: PDP alone."""
    net = Network("pooling")
    net.output(net.max_pool("pool", net.input("data", (8, 8, 8)), 2))
    return net


def scaling(weights: np.random.Generator) -> Network:
    """A factor and a sum for each channel: SDP alone."""
    net = Network("scaling")
    factors, terms = weights.integers(1, 9, 8) / 8, weights.integers(-8, 9, 8) / 8
    net.output(net.scale("scale", net.input("data", (8, 8, 8)), factors, terms))
    return net


def traces() -> Iterator[tuple[str, bytes]]:
    """Register traces for nv_small in NVIDIA's trace language, with the memory that they load."""
    for make in (convolution, pooling, scaling):
        net = make(np.random.default_rng(19))
        magnitudes = {layer.name: 4.0 for layer in net.layers}
        built = build(net, "nv_small", "int8", Calibration(magnitudes)).loadable
        rng = np.random.default_rng(19)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            built.save(place / f"{net.name}.loadable")
            elements = rng.integers(-128, 128, (1, 8, 8, 8), np.int16).astype(np.int8)
            (place / "data.npy").write_bytes(_npy(elements))
            words = [sys.executable, "-m", "nvdla", "program", place / f"{net.name}.loadable", "--format", "cfg"]
            words += ["--serial", "-i", place / "data.npy", "-o", place / "made"]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=HERE.parent)
            for path in sorted((place / "made").iterdir()):
                yield f"traces/{path.name}", path.read_bytes()
