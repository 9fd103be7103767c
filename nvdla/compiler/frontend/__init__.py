"""From models to loadables: ONNX and Caffe in, accelerator and host parts out (docs/compile.md).

The stages, each a function whose result the next one takes:

* ``frontend.model.read(source, shapes=None, weights=None) -> Model``: a path, bytes or ``onnx.ModelProto`` becomes a
  checked model with static shapes, whose constant nodes are folded. ``.proto`` runs in onnxruntime unchanged;
  ``.constants``, ``.shapes`` and ``.types`` are those of every value; ``.inputs`` and ``.outputs`` are value names.
* ``frontend.importer.import_graph(model, config, precision, host=None) -> Imported``: every node placed.
    ``.parts``: accelerator and host parts in the order in which they run. An accelerator part has ``.network``, a
    :class:`nvdla.compiler.builder.Network` of float layers; ``.networks`` are all of them, ``.network`` is the first.
    ``.nodes``: rows (name, op, placement "accelerator" "cpu" "folded" "host", reason, advice, operations, macs, part).
    ``.tensors``: builder tensor -> ONNX value, so that magnitudes come from onnxruntime runs of ``.model.proto``. Names
    of tensors are unique over all parts but for values that cross from part to part, which are the same value.
    ``.ties``: builder tensor -> builder tensor whose elements it holds; it has no ONNX value and takes the magnitude of
    the other. Tensors in neither are inner steps of one node. ``.orders``: builder tensor -> positions
    of the elements of its ONNX value in the cube (None: in order).
* ``frontend.quantization.calibrate.calibrate(imported, data, recipe) -> Calibrated``: for every accelerator part a
  network that means the same and its calibration.
* ``frontend.compiler.compile(model, config, precision, calibration, **options) -> Compiled``: all of it. ``.loadable``,
  ``.parts``, ``.nodes``, ``.report``, ``.package``, ``.save(path)``, ``.run(inputs)``.

Operators are functions in ``frontend.operators``, one file per family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvdla.compiler.frontend.model import Model, read

if TYPE_CHECKING:
    from nvdla.compiler.frontend.compiler import Compiled

__all__ = ["Compiled", "Model", "read"]


def __getattr__(name: str) -> object:
    # Resolved on first use: reading a model does not import the compiler.
    if name != "Compiled":
        raise AttributeError(f"module 'nvdla.compiler.frontend' has no attribute {name!r}")
    from nvdla.compiler.frontend import compiler

    return compiler.Compiled
