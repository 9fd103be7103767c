"""Gain and cost of a separate scale for global averages in int8, compared with the PDP at the scale of the input.

    python benchmarks/means.py [--count N] [--config NAME ...]

Networks with trained weights (accuracy.py: ``pip install 'nvdla[accuracy]'``; nothing is fetched) and the two of
../shared/corpus whose means of whole maps NVIDIA's compiler leaves to the PDP, where that is. The figures are in
benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import accuracy
import numpy as np
from against import CORPUS, cycles, shapes_of
from bars import table
from same_function import means_in_steps_of_the_input

import nvdla
from nvdla.compiler.caffe import read_network

Arrays = dict[str, np.ndarray]
HEAD = ("network", "configuration", "means", "finer", "worst mean", "outputs", "right", "as in floats", "cycles")


class GlobalAveragePool:
    """The mean over rows and columns, for the trainer of samples/training.py."""

    parameters: tuple[np.ndarray, ...] = ()

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._shape = x.shape
        return x.mean(axis=(2, 3), keepdims=True)

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        return np.broadcast_to(gradient / (self._shape[2] * self._shape[3]), self._shape)


def digits_network(rng: np.random.Generator) -> list:
    """Three convolutions whose maps are averaged for the last layer."""
    from training import Convolution, InnerProduct, MaxPool, Relu

    layers = [Convolution(rng, 1, 16, 3, 1), Relu(), MaxPool(), Convolution(rng, 16, 32, 3, 1), Relu(), MaxPool()]
    return [*layers, Convolution(rng, 32, 64, 3, 1), Relu(), GlobalAveragePool(), InnerProduct(rng, 64, 10)]


def digits(epochs: int = 4) -> tuple[Any, Any, Arrays]:
    """The trained network as an ONNX model, calibration data, and digits that training never saw."""
    train_set, test_set = accuracy.digits()
    model = accuracy.onnx_of(accuracy._trained(digits_network, train_set, epochs))
    return model, train_set["x"][:100], test_set


def direction(count: int) -> tuple[Any, Any, Arrays]:
    """The text direction classifier: nine means that excite channels, and the last one."""
    pictures, labels = accuracy.text_lines(count)
    model = accuracy.direction_model()
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, 3, 48, 192), strict=True):
        dim.dim_value = size
    return model, accuracy.text_lines(64, seed=2)[0], {"x": pictures, "y": labels}


def rows(name: str, config: str, model: Any, calibration: Any, test: Arrays, **options: Any) -> Iterator[tuple]:
    """A row for averages with separate scales, one for averages by the PDP. ``test``: images and labels, or nothing."""
    made = []
    for ours in (True, False):
        with nullcontext() if ours else means_in_steps_of_the_input():
            made.append(nvdla.compile(model, config, calibration=calibration, **options))
    rough = {each["tensor"]: each["scale"] for each in made[1].report["accuracy"]}
    means = {each["tensor"] for each in made[0].report["accuracy"] if rough.get(each["tensor"]) != each["scale"]}
    for what, compiled in zip(("own scale", "PDP"), made, strict=True):
        errors = {each["tensor"]: each for each in compiled.report["accuracy"]}
        found = [errors[tensor] for tensor in means if tensor in errors]
        steps = [rough[each["tensor"]] / each["scale"] for each in found]
        ends = [f"{each['chain']:.1f} dB" for each in list(errors.values())[-1:]]
        yield (
            name,
            config,
            what,
            f"{np.median(steps):.1f} (most {max(steps):.1f})" if len(steps) > 1 else f"{steps[0]:.1f}",
            f"{min(each['alone'] for each in found):.1f} dB",
            *ends,
            *_judged(compiled, model, test),
            f"{sum(cycles(part.built.loadable, config) for part in compiled.parts if part.built):,}",
        )


def _judged(compiled: Any, model: Any, test: Arrays) -> tuple[str, str]:
    """The share of images whose highest score is that of their label, and the share where it is that of floats."""
    if not test:
        return "", ""
    exact, name = accuracy._session(model.SerializeToString()), model.graph.input[0].name
    reals, found = (
        np.array([next(iter(run(image[None]).values())).argmax() for image in test["x"]])
        for run in (lambda image: exact({name: image}), compiled.run)
    )
    right, floats = (np.mean(each == test["y"]) for each in (found, reals))
    return f"{100 * right:.1f} % (floats {100 * floats:.1f} %)", f"{100 * np.mean(found == reals):.1f} %"


def corpus(network: str, config: str) -> Iterator[tuple]:
    """The rows of a network of the corpus, with the calibration data of the comparison."""
    folder = CORPUS / network
    shapes, random = shapes_of(read_network(folder / "net.prototxt"), 1), np.random.default_rng(3)
    data = {name: random.uniform(-1, 1, (8, *shape[1:])).astype(np.float32) for name, shape in shapes.items()}
    weights = folder / "net.caffemodel"
    return rows(network, config, folder / "net.prototxt", data, {}, weights=weights, shapes=shapes, method="max")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="text lines (default 2000)")
    parser.add_argument("--config", action="append", help="configurations (default nv_small and nv_large)")
    args = parser.parse_args()
    made = [("digits", digits()), ("text direction", direction(args.count))]
    work = [partial(rows, name, model=model, calibration=data, test=test) for name, (model, data, test) in made]
    if CORPUS.is_dir():
        work += [partial(corpus, name) for name in ("pool_ave_k8", "mini_cnn")]
    found = [row for each in work for config in args.config or ("nv_small", "nv_large") for row in each(config=config)]
    print("\n".join(table(HEAD, found)).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
