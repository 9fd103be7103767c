"""Fuzz target: TVM parameter files."""

from __future__ import annotations

from nvdla.errors import FormatError
from nvdla.interop.containers.tvm import params
from nvdla.interop.containers.tvm.params import DIALECTS


def one_input(data: bytes) -> None:
    """Opens, verifies and re-packs, or raises FormatError: anything else is a fault."""
    for dialect in DIALECTS:
        try:
            file = params.read(data, dialect)
        except FormatError:
            return
        file.verify(strict=True)
        for tensor in file.tensors:
            tensor.parameter()
        if file.pack() != data:
            raise RuntimeError("a parameter file did not come back byte for byte")
