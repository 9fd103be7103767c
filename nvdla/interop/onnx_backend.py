"""NVDLA as a backend of ONNX (``onnx.backend.base.Backend``), so that ONNX's own test suite can be run against it.

A device is a configuration, with a precision after a colon: "nv_small", "nv_full:fp16". Integer precisions take their
scales from the inputs of each run, since the suite gives no calibration data. What the accelerator cannot do runs on
the host; ``prepare(..., host=False)`` makes that an error.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nvdla.util.escaping import Document

try:
    from onnx.backend.base import Backend, BackendRep
except ImportError:
    raise ImportError("nvdla.interop.onnx_backend needs onnx and onnxruntime: pip install 'nvdla[onnx]'") from None

from nvdla.compiler.frontend import compiler
from nvdla.compiler.frontend.compiler import Compiled
from nvdla.compiler.frontend.data import samples
from nvdla.compiler.frontend.model import Model, read
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import ConfigError
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

DEFAULT = "nv_full:fp16"


def device_of(device: str) -> tuple[str, str]:
    """(configuration, precision) of a device; "CPU", what the suite asks for, is nv_full in fp16. Raises
    ConfigError."""
    name, _, precision = (DEFAULT if device == "CPU" else device).partition(":")
    precision = precision or "int8"
    configuration(name).require(precision, f"device {device}")
    return name, precision


class NvdlaRep(BackendRep):
    """A model for one device. Integer models are compiled for each run, with the scales of its inputs."""

    def __init__(self, model: Model, config: str, precision: str, options: Document) -> None:
        self.model, self.config, self.precision, self.options = model, config, precision, options
        self._compiled: Compiled | None = None

    def run(self, inputs: Sequence[np.ndarray] | np.ndarray, **kwargs: object) -> tuple[np.ndarray, ...]:
        """Outputs in the model's order, as a named tuple where the names allow it."""
        arrays = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        feed = dict(zip(self.model.inputs, arrays, strict=True))
        outputs = self._for(feed).run(feed)
        kind = namedtuple("Outputs", self.model.outputs, rename=True)  # type: ignore[misc]
        return kind(*outputs.values())

    def _for(self, feed: dict[str, np.ndarray]) -> Compiled:
        if self.precision == Precision.FP16 and self._compiled is not None:
            return self._compiled
        arrays = [np.asarray(value) for value in feed.values()]
        real = arrays and all(array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays)
        data = samples(self.model, [feed]) if real else None
        # The scales are exact for the data of the run.
        options = {"headroom": False, **self.options}
        self._compiled = compiler.compile(self.model, self.config, self.precision, data, **options)
        return self._compiled


class NvdlaBackend(Backend):
    """The class that ``onnx.backend.test.BackendTest`` takes."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: object) -> bool:
        """Check whether a device can run a model."""
        from nvdla.errors import NvdlaError

        try:
            read(model)
        except NvdlaError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: object) -> NvdlaRep:
        """``kwargs`` are options of :func:`nvdla.compile`, ``shapes`` of :func:`nvdla.compiler.frontend.read`."""
        config, precision = device_of(device)
        shapes = kwargs.pop("shapes", None)
        return NvdlaRep(read(model, shapes if isinstance(shapes, Mapping) else None), config, precision, kwargs)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Sequence[np.ndarray] | np.ndarray, device: str = "CPU", **kwargs: object
    ) -> tuple[np.ndarray, ...]:
        """Run a model once: inputs in, outputs out."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Sequence[np.ndarray],
        device: str = "CPU",
        outputs_info: object = None,
        **kwargs: object,
    ) -> tuple[np.ndarray, ...]:
        """Run one node as a model."""
        import onnx

        helper = onnx.helper
        arrays = [np.asarray(value) for value in inputs]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip([name for name in node.input if name], arrays, strict=True)
        ]
        graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
        opset = kwargs.pop("opset_version", 21)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(node.domain, opset if isinstance(opset, int) else 21)],
            ir_version=10,
        )
        return cls.run_model(onnx.shape_inference.infer_shapes(model), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Check whether a device is one of the configurations."""
        try:
            device_of(device)
        except ConfigError:
            return False
        return True


is_compatible = NvdlaBackend.is_compatible
prepare = NvdlaBackend.prepare
run = NvdlaBackend.run_model
run_model = NvdlaBackend.run_model
run_node = NvdlaBackend.run_node
supports_device = NvdlaBackend.supports_device
