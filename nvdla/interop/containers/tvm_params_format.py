"""TVM parameter files (.params) as a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Source, register
from nvdla.interop.containers.tvm import params
from nvdla.interop.containers.tvm.params import CURRENT_DIALECT
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document
from nvdla.util.files import write_data


class ParamsContainer(Container):
    """An open parameter file."""

    def __init__(self, format: ParamsFormat, source: Source, dialect: str) -> None:
        self.format = format
        self.source = source
        self.dialect = dialect
        try:
            self.file = params.read(source.data, dialect)
        except FormatError as error:
            raise FormatError(f"{source.name}: {error}") from None

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        stored = sum(len(tensor.stored) for tensor in self.file.tensors)
        return {
            "tensors": len(self.file.tensors),
            "data_bytes": stored,
            "trailing_bytes": len(self.file.trailing),
            "dialect": self.dialect,
        }

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [
            {"name": t.name, "dtype": t.type_name, "shape": list(t.shape), "bytes": len(t.stored), "offset": t.offset}
            for t in self.file.tensors
        ]

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Yield problems of the file; ``strict``: also what other readers would refuse."""
        return self.file.verify(strict)

    def load_parameters(self) -> list[Parameter]:
        """Every entry as a parameter."""
        return [tensor.parameter() for tensor in self.file.tensors]


@register
class ParamsFormat(Format):
    """TVM's parameter dictionary."""

    name = "tvm-params"
    title = "TVM parameter file"
    suffixes = (".params",)
    options: ClassVar[Mapping[str, str]] = {
        "dialect": f"numbering of the element types: 0.8, 0.14 or 0.27 (default {CURRENT_DIALECT})",
        "order": "order of the tensors in a new file: name (canonical, default) or given",
    }

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        return header[:8] == params.LIST_MAGIC.to_bytes(8, "little")

    def open(self, source: Source, options: Options | None = None) -> ParamsContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        chosen = self.check_options(options)
        return ParamsContainer(self, source, chosen.get("dialect", CURRENT_DIALECT))

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Write parameters as a file of this format. Raises FormatError for what it cannot hold."""
        chosen = self.check_options(options)
        dialect, order = chosen.get("dialect", CURRENT_DIALECT), chosen.get("order", "name")
        for piece in params.pieces(parameters, dialect, order):
            write_data(file, piece)
