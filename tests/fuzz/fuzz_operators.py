"""Fuzz target: a small ONNX model around one operator, read, compiled and run: an NvdlaError or right results.

``operator_models`` makes the model from onnx's schemas. It is read in a worker with limits, as the command line does.
Half of what is read is compiled: fp16 on nv_full, int8 on nv_small with random samples. A share of that is run. An fp16
result must match onnxruntime where the model has no fault, moderate inputs and a smooth, finite result; of other runs
only the shape counts. Nothing may be written on stderr, and no warning shown.

An input that begins with ``MODEL`` is a stored model: one byte for the way (0 to 3), then ONNX.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from operator_models import Made, model_of

import nvdla
from nvdla.compiler.frontend.isolation import ModelWorker
from nvdla.compiler.frontend.model import Model, read
from nvdla.compiler.frontend.opening import open_session
from nvdla.errors import NvdlaError
from nvdla.limits import ModelLimits

MARK = b"MODEL"
#: the ways of an input: read; compiled in fp16; compiled in fp16 and run; compiled in int8 and run
WAYS = (0,) * 10 + (1, 2, 2, 2, 3, 3)
#: what a model of this size may take; far below the defaults
LIMITS = ModelLimits(memory=4 << 30, seconds=10, folding=10**8, host=10**8)
#: elements of a model that is compiled and run: larger ones only take longer
ELEMENTS = 1 << 14
MODELS_PER_WORKER = 500
#: decibels that an fp16 result keeps
LEAST = 40.0
#: operators whose results jump, or that rounding of inputs changes at will
_NAMES = (
    "Acos Acosh And ArgMax ArgMin Asin Atanh Bernoulli BitCast Cast CastLike Ceil Compress DequantizeLinear Div "
    "Dropout DynamicQuantizeLinear Equal EyeLike Floor Greater GreaterOrEqual Hardmax IsInf IsNaN Less "
    "LessOrEqual Log MaxRoiPool Mod Multinomial NonMaxSuppression NonZero Not OneHot Or Pow "
    "QuantizeLinear RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal Round Shrink "
    "Sign Sqrt Tan ThresholdedRelu TopK Unique Where Xor "
)
_UNSTEADY = frozenset(_NAMES.split())
#: what became of the inputs of this process, for the log of a campaign
outcomes: Counter[str] = Counter()

_worker: ModelWorker | None = None
_read = 0


class WrongResult(RuntimeError):
    """The compiled model gives other numbers than onnxruntime."""


def one_input(data: bytes) -> None:
    """Make, read, compile and run the model that an input stands for."""
    way, proto, made = _chosen(data)
    if proto is None:
        outcomes["no model"] += 1
        return
    with _silent():
        try:
            outcomes[_used(way, proto, made, data)] += 1
        except NvdlaError as error:
            text = str(error)
            outcomes["crash of the worker" if "crashed on it" in text else "refused"] += 1
            if "too much work: must take at most" in text:
                raise TimeoutError(text) from None


def stored(data: bytes) -> bytes:
    """The same input as a stored model, which does not depend on the generator or on onnx's version."""
    way, proto, _ = _chosen(data)
    return MARK + bytes([way]) + proto.SerializeToString(deterministic=True)


def _chosen(data: bytes) -> tuple[int, Any, Made | None]:
    import onnx

    if data.startswith(MARK):
        try:
            return (data[len(MARK) : len(MARK) + 1] or b"\0")[0] % 4, onnx.load_from_string(data[len(MARK) + 1 :]), None
        except Exception:  # protobuf's own kinds: a mutation of a stored model
            return 0, None, None
    rng = random.Random(b"way" + data)
    way = rng.choice(WAYS)
    try:
        made = model_of(data, faults=way < 2 or rng.randrange(3) == 0)
    except (TypeError, ValueError, OverflowError):  # onnx's helper refuses to make it
        return 0, None, None
    return way, made and made.proto, made


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Fail for a warning, and for anything written on stderr."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as stream, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        os.dup2(stream.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        stream.seek(0)
        written = stream.read(2000)
    seen = [each for each in seen if "nvdla" in each.filename or issubclass(each.category, RuntimeWarning)]
    if written or seen:
        raise RuntimeError(f"output: {written.decode(errors='replace') or seen[0]}")


def _own_worker() -> ModelWorker:
    """One worker for many models: it is replaced when it dies, and now and then."""
    global _worker, _read
    if _worker is None or _read >= MODELS_PER_WORKER or _worker._owner != os.getpid():
        if _worker is not None:
            _worker.close()
        _worker, _read = ModelWorker(LIMITS), 0
    _read += 1
    return _worker


def _used(way: int, proto: Any, made: Made | None, data: bytes) -> str:
    """What became of the model."""
    worker = _own_worker()
    model = read(proto, worker=worker)
    elements = sum(int(np.prod(shape, dtype=float)) for shape in model.shapes.values())
    if not way or elements > ELEMENTS:
        return "read"
    if any(
        max(model.shapes[name], default=0) > ELEMENTS for name in model.inputs
    ):  # no elements, yet too many for numpy
        nvdla.compile(model, "nv_full", "fp16", level=0)
        return "compiled"
    rng = np.random.default_rng(list(data[:64]))
    feeds = {name: _feed(model, name, rng) for name in model.inputs}
    if way == 3:
        samples = {name: each[None] for name, each in feeds.items()}
        compiled = nvdla.compile(model, "nv_small", "int8", samples or None, level=0)
    else:
        compiled = nvdla.compile(model, "nv_full", "fp16", level=0)
    if way == 1 or not feeds:
        return "compiled"
    if made is None or made.faults:  # a fault may state another shape than a node gives
        compiled.run(feeds)
        return "run"
    return _compared(compiled, proto, made, worker, feeds)


def _feed(model: Model, name: str, rng: np.random.Generator) -> np.ndarray:
    """Moderate numbers that fp16 holds."""
    shape, dtype = model.shapes[name], model.types[name]
    if dtype.kind == "f":
        return rng.uniform(-2, 2, shape).astype(np.float16).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.zeros(shape, dtype)


def _compared(compiled: Any, proto: Any, made: Made, worker: ModelWorker, feeds: dict[str, np.ndarray]) -> str:
    """Compare with onnxruntime, where it runs the model as it is in the file: shapes, and fp16 where it means a lot."""
    outputs = list(compiled.imported.model.outputs)
    try:
        wanted = open_session(proto, "reference", worker, optimize=False).run(outputs, feeds)
    except NvdlaError:
        compiled.run(feeds)
        return "run"
    try:
        found = compiled.run(feeds)
    except NvdlaError as error:
        raise WrongResult(f"{made.operator}: compiled, but does not run: {error}") from None
    given = {node.op_type for node in proto.graph.node} | {node.op_type for f in proto.functions for node in f.node}
    if given & _UNSTEADY or made.frame in ("if", "loop"):
        return "run"
    halves = compiled.imported.precision == "fp16"
    for name, exact in zip(outputs, wanted, strict=True):
        if isinstance(exact, list) or np.asarray(exact).dtype.kind not in "fiub":  # sequences and strings
            continue
        exact, got = np.asarray(exact), np.asarray(found[name])
        if exact.shape != got.shape and (exact.size or got.size):
            raise WrongResult(f"{made.operator}: shape: must be {exact.shape}, got {got.shape}")
        if halves:
            _check_numbers(made.operator, exact.astype(np.float64), got.astype(np.float64))
    return "compared" if halves else "run"


def _check_numbers(operator: str, exact: np.ndarray, got: np.ndarray) -> None:
    """Raise WrongResult where finite results of moderate size differ by more than fp16's rounding explains."""
    if not exact.size or not np.all(np.isfinite(exact)) or not 0.1 <= float(np.abs(exact).max()) <= 1e3:
        return
    noise = float(np.square(got - exact).sum())
    decibels = 10 * np.log10(np.square(exact).sum() / noise) if noise else np.inf
    if not decibels >= LEAST:
        raise WrongResult(f"{operator}: {decibels:.1f} dB of onnxruntime's result, must be {LEAST:.0f} or more")
