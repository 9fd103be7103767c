"""Fuzz target: a TFLite model, as far as its placement on nv_small. It is read and placed, or an NvdlaError."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import onnx
from support.tflite_models import CASES
from support.tflite_writer import FlatWriter, pictures_metadata

from nvdla.compiler.frontend import loading, model
from nvdla.compiler.frontend.data import for_model
from nvdla.compiler.frontend.importer import import_graph
from nvdla.compiler.frontend.tflite import graph, tflite_proto
from nvdla.compiler.frontend.tflite.reader import METADATA_NAME, TYPES, read_model
from nvdla.errors import NvdlaError

ELEMENTS = 1 << 16
#: one in so many models that are converted is placed, too: onnx's checks take longer than all that is before them
PLACED = 16


def one_input(data: bytes) -> None:
    limits = {"MAX_TENSOR": ELEMENTS, "MAX_ELEMENTS": 4 * ELEMENTS, "MAX_FOLDED": ELEMENTS}
    try:
        with (
            mock.patch.multiple(model, **limits),
            mock.patch.object(loading, "MAX_NODES", 100),
            mock.patch.object(graph, "MAX_FOLDED", ELEMENTS),
        ):
            tflite_proto(onnx, data, "model", {})
            if sum(data) % PLACED == 0:
                loaded = model.read(data, trusted=True)  # this process is what is fuzzed
                for_model(loaded, None)
                import_graph(loaded, "nv_small")
    except NvdlaError:
        return


def seeds() -> Iterator[bytes]:
    """One model of each operator, and some with metadata."""
    for name in ("CONV_2D 0", "CONV_2D 8", "RELU"):
        made = CASES[name].made()
        yield made.writer.model(made.inputs, made.outputs, pictures_metadata((127.5,), (128.0,)))
    for name, case in CASES.items():
        if name.split()[-1] in ("0", "maps") or " " not in name:
            yield case.made().data


def changed(data: bytes, rng: random.Random, number: Any) -> bytes | None:
    """The model with one to three fields of tensors or operators changed; None where it cannot be read."""
    try:
        found = read_model(data, "model")
        writer = FlatWriter()
        for each in found.tensors:
            scale = each.quantization
            values = (None, 0, 0) if scale is None else (scale.scales, scale.points, scale.axis)
            writer.tensor(each.shape, each.kind, *values, None, each.name, each.signature)
            writer.tensors[-1]["data"] = each.data
        for each in found.operators:
            # fields without a name are those that the reader leaves out
            options = {key: list(v) if isinstance(v, tuple) else v for key, v in each.options.items() if key[0] != "_"}
            writer.operators.append((each.op, each.inputs, each.outputs, options, each.custom))
        metadata = bytearray(found.metadata.get(METADATA_NAME, b""))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if metadata and rng.randrange(2):
                metadata[rng.randrange(len(metadata))] = number(0, rng) & 0xFF
            else:
                _change(writer, rng, number)
        return writer.model(found.inputs, found.outputs, bytes(metadata))
    except (NvdlaError, ValueError, TypeError, OverflowError, LookupError, AttributeError, AssertionError):
        return None


def _change(writer: FlatWriter, rng: random.Random, number: Any) -> None:
    kind = rng.randrange(6)
    row = rng.choice(writer.tensors)
    _, inputs, outputs, options, _ = operator = rng.choice(writer.operators)
    if kind == 0 and row["shape"]:
        sizes = list(row["shape"])
        at = rng.randrange(len(sizes))
        sizes[at] = number(sizes[at], rng) & 0x7FFFFFFF
        row["shape"] = rng.choice((sizes, sizes[:-1], [*sizes, 1]))
    elif kind == 1:
        row["kind"] = rng.choice(list(TYPES.values()))
    elif kind == 2 and row["data"] is not None and len(row["data"]):
        held = bytearray(row["data"])
        at = rng.randrange(len(held))
        held[at] = number(held[at], rng) & 0xFF
        row["data"] = memoryview(bytes(held if rng.randrange(3) else held[:at]))
    elif kind == 3 and options:
        key = rng.choice(list(options))
        options[key] = number(int(options[key]), rng) & 0x7F if not isinstance(options[key], list) else [-1, 2]
    elif kind == 4:
        rng.choice((inputs, outputs)).insert(0, rng.randrange(-1, len(writer.tensors)))
    else:
        changes = (lambda: inputs.pop() if inputs else None, lambda: writer.operators.append(operator))
        rng.choice(changes)()
