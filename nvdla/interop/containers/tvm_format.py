"""TVM's formats as containers: Model Library Format (a tar, or the folder it was unpacked to), parameter files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Source, register
from nvdla.interop.containers.tvm import mlf, mlf_verify, params, tar
from nvdla.interop.containers.tvm.params import CURRENT_DIALECT
from nvdla.loadable import Loadable
from nvdla.loadable import load as load_loadable
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document
from nvdla.util.files import write_data


class LibraryContainer(Container):
    """An open model library."""

    def __init__(self, format: LibraryFormat, source: Source) -> None:
        self.format = format
        self.source = source
        folder = source.path if source.path is not None and source.path.is_dir() else None
        self.library = mlf.read_folder(folder) if folder else mlf.read(source.data, source.name)

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        library = self.library
        return {
            "version": library.version,
            "modules": [{"name": m.name, "style": m.style, "executors": list(m.executors), "targets": list(m.targets),
                         "exported": m.exported} for m in library.modules],
            "memory": library.memory_rows(),
            "files": len(library.files),
            "bytes": sum(member.size for member in library.files.values()),
        }  # fmt: skip

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [
            {
                "path": member.path,
                "type": member.kind,
                "size": member.size,
                "offset": member.offset,
                "sha256": hashlib.sha256(member.data).hexdigest() if member.kind == "file" else None,
            }
            for member in self.library.archive.members
        ]

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Yield problems of the file; ``strict``: also what other readers would refuse."""
        return mlf_verify.verify(self.library, strict)

    def load_parameters(self) -> list[Parameter]:
        """The parameters of every model; with the model's name before them where there are several."""
        several = len(self.library.modules) > 1
        dialect = "0.8" if self.library.version < 7 else "0.27"
        parameters = []
        for module in self.library.modules:
            member = self.library.files.get(module.params_path or "")
            for tensor in params.read(member.data, dialect).tensors if member else ():
                parameter = tensor.parameter()
                name = f"{module.name}/{parameter.name}" if several else parameter.name
                parameters.append(
                    Parameter(
                        name,
                        parameter.dtype,
                        parameter.shape,
                        parameter.data,
                        parameter.length,
                        None,
                        parameter.metadata,
                    )
                )
        return parameters

    def parts(self) -> Iterator[tuple[str, memoryview]]:
        """The files. One unsafe member (absolute, leading out, a link) refuses the whole archive."""
        for member in self.library.archive.members:
            if reason := tar.unsafe(member):
                raise FormatError(f"{self.source.name}: member {member.path[:200]!r} {reason}. Nothing is extracted.")
        return ((path, member.data) for path, member in self.library.files.items())

    def convert_to(self, file: IO[bytes], target: Format, options: Options | None = None) -> None:
        """Write the contents as a file of another format. Raises FormatError if it cannot hold them."""
        if target.name == "loadable" and "template" not in (options or {}):
            model = target.check_options(options).get("name", "")
            file.write(loadable_of(self.library, model).to_bytes())
            return
        if target.name != self.format.name:
            super().convert_to(file, target, options)
            return
        target.check_options(options)
        file.write(self.library.repack())


def loadable_in(data: memoryview, name: str) -> Loadable:
    """Return the loadable of the only model in a library. Raises FormatError."""
    return loadable_of(mlf.read(data, name))


def loadable_of(library: mlf.ModelLibrary, model: str = "") -> Loadable:
    """Return the loadable that a model of the library was made of.

    Args:
        library: The model library.
        model: Name of the model; "" for the only one.

    Raises:
        FormatError: The library lacks the model, contains several, or was not made of a loadable.
    """
    from nvdla.interop.containers.tvm import mlf_create

    names = ", ".join(module.name for module in library.modules)
    modules = [module for module in library.modules if model in ("", module.name)]
    if len(modules) != 1:
        wanted = f"must be one of {names}, got {model!r}" if model else f"must contain one model, got {names}"
        hint = "'nvdla container convert FILE.tar net.nvdla --option name=MODEL' chooses one"
        raise FormatError(f"{library.name}: model of the TVM model library: {wanted}. {hint}.")
    return mlf_create.unpack(library, modules[0])


@register
class LibraryFormat(Format):
    """TVM's Model Library Format."""

    name = "tvm-mlf"
    title = "TVM Model Library Format"
    suffixes = (".mlf.tar", ".mlf", ".tar")
    options: ClassVar[Mapping[str, str]] = {
        "name": "name of the model in a new library (default: the file's)",
        "registry": "function registry of a new library: 0.9 (default, count of 16 bits) or 0.8 (of 8 bits)",
    }

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        if not header and path is not None and path.is_dir():
            return (path / mlf.METADATA).is_file()
        return tar.looks_like_tar(header)

    def open(self, source: Source, options: Options | None = None) -> LibraryContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        self.check_options(options)
        return LibraryContainer(self, source)

    def build(self, file: IO[bytes], inputs: Sequence[Source], options: Options | None = None) -> None:
        """A library of loadables."""
        from nvdla.interop.containers.tvm import mlf_create

        chosen = self.check_options(options)
        widths = {"0.9": 2, "0.8": 1}
        width = widths.get(chosen.get("registry", "0.9"))
        if width is None:
            raise FormatError(f"registry: must be one of {', '.join(widths)}, got {chosen['registry']!r}")
        if "name" in chosen and len(inputs) != 1:
            raise FormatError(f"name: must be omitted for {len(inputs)} loadables. Each gets the name of its file.")
        named = [(chosen.get("name", Path(source.name).stem), load_loadable(bytes(source.data))) for source in inputs]
        file.write(mlf_create.pack(named, width))

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Write parameters as a file of this format. Raises FormatError for what it cannot hold."""
        raise FormatError(
            "a model library needs more than parameters. Create it from a loadable: 'nvdla container create'."
        )


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
