"""Functions that need a device, run by IREE's own runtime if it is installed (pip install nvdla[iree])."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.values import TYPE_NAMES, element_type
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, check_splats, element_count
from nvdla.util.escaping import Document
from nvdla.util.rounding import integer, is_digits, real

_DRIVER = "local-sync"
_MAX_BYTES = 1 << 28
#: Bytes of the longest pattern that IREE's runtime (3.13) repeats.
_MAX_PATTERN = 4
_MLIR_NAMES = {ours: theirs for theirs, ours in reversed(TYPE_NAMES.items()) if theirs[:2] != "si"}


def is_installed() -> bool:
    """Check whether iree-base-runtime can be imported."""
    from importlib.util import find_spec

    return find_spec("iree") is not None and find_spec("iree.runtime") is not None


def call(
    data: bytes, function: str, inputs: Sequence[str], parameters: Mapping[str, Sequence[Parameter]] | None = None
) -> Document:
    """Run an exported function on IREE's CPU device.

    Args:
        data: The module.
        function: Name of the function.
        inputs: Numbers (5, 0.5), tensors as iree-run-module takes them (``2x2xf32=1 2 3 4``, ``4xi8=7`` for all
            elements alike), or files (``@input.npy``).
        parameters: Tensors that the function loads, by scope.

    Raises:
        FormatError: IREE refuses the module, the inputs or the parameters.
    """
    import importlib.metadata

    import iree.runtime as runtime

    values = [_value(text, number) for number, text in enumerate(inputs)]
    indices = {scope: _index(runtime, tensors) for scope, tensors in (parameters or {}).items()}
    try:
        config = runtime.Config(_DRIVER)
        module = runtime.VmModule.copy_buffer(config.vm_instance, data)
        providers = [index.create_provider(scope) for scope, index in indices.items()]
        before = [runtime.create_io_parameters_module(config.vm_instance, *providers)] if providers else []
        answer = getattr(runtime.load_vm_modules(*before, module, config=config)[-1], function)(*values)
    except Exception as error:  # the bindings raise the errors of their C++ side
        raise FormatError(
            f"the function needs a device, and IREE's runtime refuses it: {' '.join(str(error).split())[:500]}"
        ) from None
    answers = answer if isinstance(answer, tuple) else () if answer is None else (answer,)
    version = importlib.metadata.version("iree-base-runtime")
    return {"results": [_result(value) for value in answers], "ran_on": f"iree-base-runtime {version} ({_DRIVER})"}


def _index(runtime: Any, parameters: Sequence[Parameter]) -> Any:
    """IREE's index of these tensors; a splat stays one where IREE's runtime has its pattern."""
    index = runtime.ParameterIndex()
    check_splats([tensor for tensor in parameters if len(tensor.pattern or b"") > _MAX_PATTERN])
    for tensor in parameters:
        if tensor.pattern is not None and len(tensor.pattern) <= _MAX_PATTERN:
            index.add_splat(tensor.name, tensor.pattern, tensor.length)
        else:
            index.add_buffer(tensor.name, bytes(tensor.as_bytes()))
    return index


def _value(text: str, number: int) -> Any:
    if text.startswith("@"):
        from nvdla.tensors.files import read_npy

        return read_npy(text[1:])
    shaped, separator, values = text.partition("=")
    if not separator and "x" not in shaped.removeprefix("0x"):
        try:
            return integer(text, 0)
        except ValueError:
            return _number(text, real, number)
    *extents, kind = shaped.split("x")
    dtype = element_type(kind)
    if not all(map(is_digits, extents)) or dtype not in np.sctypeDict:
        raise FormatError(f"input {number}: must be a tensor such as 2x2xf32=1 2 3 4, got {text!r}")
    shape = tuple(int(extent[:12]) for extent in extents)
    if element_count(shape) * ELEMENT_BITS[dtype] // 8 > _MAX_BYTES:
        raise FormatError(
            f"input {number}: must have at most {_MAX_BYTES} bytes, got {shaped}. Use a file (@input.npy)."
        )
    given = [_number(word, real if "float" in dtype else _whole, number) for word in values.replace(",", " ").split()]
    if len(given) not in (0, 1, element_count(shape)):
        raise FormatError(f"input {number}: values: must fit shape {shape_text(shape)}, got {len(given)}")
    try:
        return np.full(shape, given or 0, dtype) if len(given) < 2 else np.array(given, dtype).reshape(shape)
    except OverflowError as error:
        raise FormatError(f"input {number}: {error}") from None


def _whole(text: str) -> int:
    return integer(text, 0)


def _number(text: str, kind: Any, number: int) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise FormatError(f"input {number}: must be a number, got {text!r}") from None


def _result(value: object) -> Document:
    if isinstance(value, (int, float)):
        return {"type": "i64" if isinstance(value, int) else "f64", "value": value}
    array = np.asarray(value)
    kind = _MLIR_NAMES.get(array.dtype.name, array.dtype.name)
    return {"type": "x".join([*map(str, array.shape), kind]), "value": array.tolist()}
