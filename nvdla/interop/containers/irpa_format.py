"""IREE parameter archives as a container."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, ClassVar

from nvdla.errors import FormatError
from nvdla.interop.containers.irpa import reader
from nvdla.interop.containers.irpa.reader import DATA_ALIGNMENT, FILE_ALIGNMENT, EntryType, IrpaArchive, IrpaItem, read
from nvdla.interop.containers.irpa.verify import verify
from nvdla.interop.containers.irpa.writer import EntrySpec, chunks
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Source, register
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document, Json
from nvdla.util.files import write_data
from nvdla.util.rounding import integer, is_digits


class IrpaContainer(Container):
    """An open archive; ``archive`` is the typed form."""

    def __init__(self, format: IrpaFormat, archive: IrpaArchive, external: Path | None) -> None:
        self.format = format
        self.archive = archive
        self.source = archive.source
        self.external = external

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        kinds = [entry.kind for entry in self.archive.entries]
        return {
            "version": "0.0",
            "archives": len(self.archive.headers),
            "entries": len(kinds),
            **{kind.name.lower(): kinds.count(kind) for kind in EntryType if kind is not EntryType.SKIP},
            "skipped": len(self.archive.skipped),
            "data_bytes": sum(e.length for e in self.archive.entries),
        }

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [self._row(entry) for entry in self.archive.entries]

    def _row(self, entry: IrpaItem) -> dict[str, Json]:
        dtype, shape, extra = reader.decode(entry.metadata, entry.length)
        # IREE lists empty data at 0, independent of its entry's offset.
        start = None if entry.kind is EntryType.SPLAT else (entry.offset if entry.length else 0)
        return {
            "name": entry.name,
            "type": entry.kind.name.lower(),
            "start": start,
            "end": None if start is None else start + entry.length,
            "length": entry.length,
            "dtype": dtype,
            "shape": None if shape is None else list(shape),
            "pattern": None if entry.pattern is None else entry.pattern.hex(),
            "path": entry.path,
            "alignment": entry.minimum_alignment,
            "archive": entry.header,
            "metadata": extra,
        }

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Yield problems of the file; ``strict``: also what other readers would refuse."""
        return verify(self.archive, strict, self.external)

    def load_parameters(self) -> list[Parameter]:
        """Every entry as a parameter."""
        return [self._parameter(entry) for entry in self.archive.entries]

    def _parameter(self, entry: IrpaItem) -> Parameter:
        dtype, shape, extra = reader.decode(entry.metadata, entry.length)
        data = entry.data
        if entry.kind is EntryType.EXTERNAL and self.external is not None:
            data = self.archive.external_data(entry, self.external)
        return Parameter(entry.name, dtype, shape, data, entry.length, entry.pattern, extra, entry)


@register
class IrpaFormat(Format):
    """IREE's parameter archive, version 0.0."""

    name = "irpa"
    title = "IREE parameter archive"
    suffixes = (".irpa",)
    keeps_splats = True
    options: ClassVar[Mapping[str, str]] = {
        "external": "directory below which external parameter files may be read (reading)",
        "offset": "byte offset of the first archive in the file (reading; default 0)",
        "alignment": f"bytes, minimum alignment of data (writing; default {DATA_ALIGNMENT})",
        "packing": "bytes, where data are placed instead of by their alignment field (writing)",
        "file-alignment": f"bytes, the file is padded to a multiple (writing; default {FILE_ALIGNMENT})",
        "metadata": "tensor (default): record type and shape as IREE's Python writers do; none: do not (writing)",
    }

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        return header[:4] == b"IRPA"

    def open(self, source: Source, options: Options | None = None) -> IrpaContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        chosen = self.check_options(options)
        return IrpaContainer(self, read(source, number(chosen, "offset", 0)), _folder(chosen))

    def verify(self, source: Source, strict: bool = False, options: Options | None = None) -> list[FileFinding]:
        """Yield problems of the file; ``strict``: also what other readers would refuse."""
        chosen = self.check_options(options)
        archive = read(source, number(chosen, "offset", 0), keep_going=True)
        return verify(archive, strict, _folder(chosen))

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Write parameters as a file of this format. Raises FormatError for what it cannot hold."""
        chosen = self.check_options(options)
        mode = chosen.get("metadata", "tensor")
        if mode not in ("tensor", "none"):
            raise FormatError(f"option metadata: must be tensor or none, got {mode!r}")
        packing = number(chosen, "packing", 0) or None
        for piece in chunks(
            [entry_spec(parameter, mode == "tensor") for parameter in parameters],
            number(chosen, "alignment", DATA_ALIGNMENT),
            number(chosen, "file-alignment", FILE_ALIGNMENT),
            packing,
        ):
            write_data(file, piece)


def entry_spec(parameter: Parameter, with_metadata: bool = True) -> EntrySpec:
    """A parameter as an entry to write. One that came from an archive keeps its metadata blob, alignment and flags."""
    origin = parameter.origin
    if isinstance(origin, EntrySpec):
        return replace(origin, name=parameter.name)
    if isinstance(origin, IrpaItem):
        spec = replace(EntrySpec.of(origin), name=parameter.name)
        if parameter.data is not None:
            return replace(spec, data=parameter.data, path=None, pattern=None, length=0, offset=0)
        if parameter.pattern is not None and origin.kind is not EntryType.SPLAT:
            return replace(
                spec,
                data=None,
                path=None,
                pattern=parameter.pattern,
                length=parameter.length,
                offset=0,
                minimum_alignment=None,
            )
        return spec if parameter.pattern is None else replace(spec, pattern=parameter.pattern)
    blob = reader.encode(parameter) if with_metadata else b""
    if parameter.data is not None:
        return EntrySpec(parameter.name, data=parameter.data, metadata=blob)
    if parameter.pattern is None:
        parameter.as_bytes()  # says what is missing
    return EntrySpec(parameter.name, pattern=parameter.pattern, length=parameter.length, metadata=blob)


def external_parameter(name: str, place: str, folder: Path) -> Parameter:
    """An external entry from ``FILE[:OFFSET[:LENGTH]]``; the file is named relative to ``folder``, where it must be."""
    path, numbers = place, list[int]()
    for _ in range(2):
        head, separator, tail = path.rpartition(":")
        if separator and is_digits(tail) and not (folder / path).is_file():
            path, numbers = head, [int(tail[:20]), *numbers]
    try:
        whole = Path(os.path.realpath(folder / path))
        if not whole.is_file() or folder.resolve() not in whole.parents:
            raise ValueError("outside of it" if whole.is_file() else "no such file")
        size = whole.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(
            f"external parameter {name!r}: must be a file below {folder}, got {path!r} ({reason})"
        ) from None
    offset = numbers[0] if numbers else 0
    length = numbers[1] if len(numbers) > 1 else size - offset
    if length < 0 or offset + length > size:
        raise FormatError(
            f"external parameter {name!r}: end: must be at most {size} (file size), got {offset + length}"
        )
    spec = EntrySpec(name, path=path, length=length, offset=offset)
    return Parameter(name, None, None, None, length, origin=spec)


def number(options: Mapping[str, str], key: str, default: int) -> int:
    """A non-negative whole number among the options."""
    text = options.get(key, str(default))
    try:
        value = integer(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise FormatError(f"option {key}: must be a number from 0 to 2^64 - 1, got {text!r}")
    return value


def _folder(options: Mapping[str, str]) -> Path | None:
    return Path(options["external"]) if "external" in options else None
