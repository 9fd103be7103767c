"""Fuzz target: TVM parameter files."""

from __future__ import annotations

from nvdla.containers.tvm import params
from nvdla.containers.tvm.dtype import DIALECTS
from nvdla.errors import FormatError


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
