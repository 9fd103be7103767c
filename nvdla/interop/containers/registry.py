"""Container formats and their registry.

A format is one file: a module of this package named ``*_format.py`` which decorates a :class:`Format` subclass with
:func:`register`. It is imported on first use, found by the content of a file (never by its name), and from then on
part of ``nvdla container list|verify|extract|convert|create``.

    @register
    class SafetensorsFormat(Format):
        name = "safetensors"
        ...
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, TypeVar

from nvdla.errors import FormatError
from nvdla.limits import MAX_SHARING
from nvdla.tensors.parameters import Parameter, check_given, check_splats
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.files import Source, make_directory, whole_file, write_data
from nvdla.util.recognition import wrong_kind
from nvdla.util.registry import AnyFinding, modules_of
from nvdla.util.registry import Severity as Severity

#: Bytes of the beginning of a file that ``Format.sniff`` sees (a tar's magic is at 257).
HEADER_BYTES = 4096

#: Parts of a name, separated by slashes, that become folders when it is extracted.
MAX_DEPTH = 64
#: Bytes of such a part that are kept; file systems take 255.
MAX_PART = 200

Options = Mapping[str, str]
#: Tensors that a program loads when it runs, by scope ("": without a scope).
ParameterSets = Mapping[str, Sequence[Parameter]]
#: What a part of a file is when it is extracted.
Content = bytes | memoryview | Parameter


@dataclass(frozen=True)
class FileFinding(AnyFinding):
    """Problem in a file: table, entry and field (``where``), byte offset (None where there is none) and message."""

    where: str
    offset: int | None
    message: str


class Container(ABC):
    """An open container.

    Subclasses parse in their constructor, raise FormatError for malformed content, and keep views on ``source.data``.
    """

    format: Format
    source: Source

    def info(self) -> Document:
        """Return facts about the whole file (version, sizes, counts) as plain JSON values with stable keys."""
        return {}

    @abstractmethod
    def rows(self) -> list[Document]:
        """Return the rows of ``list``: one dictionary per item (entry, tensor, function, file).

        All rows have the same stable keys and plain JSON values.
        """

    @abstractmethod
    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Return all findings; the file passes if none has severity ERROR.

        Args:
            strict: Also check contents that readers usually ignore.
        """

    def parameters(self) -> list[Parameter]:
        """Return the tensors in file order, for conversion.

        Raises:
            FormatError: The format has no tensors, or tensors share bytes so often that copies would fill the disk.
        """
        parameters = self.load_parameters()
        check_sharing(self.source.name, (p.data for p in parameters if p.data is not None))
        return parameters

    def load_parameters(self) -> list[Parameter]:
        """Return the tensors of the file; formats with tensors override this method.

        Raises:
            FormatError: The format has no tensors.
        """
        raise FormatError(f"{self.source.name}: a {self.format.name} file contains no tensors to convert")

    def parts(self) -> Iterable[tuple[str, Content]]:
        """Yield the files of ``extract``: (relative path, content); by default each parameter as ``name.bin``."""
        parameters = self.parameters()
        check_splats(parameters)
        return ((f"{p.name}.bin", p if p.data is None else p.data) for p in parameters)

    def extract(self, folder: str | os.PathLike[str], names: Sequence[str] | None = None) -> list[Path]:
        """Write parts of the container as files, never outside the target directory.

        Names come from the file, so each becomes a safe relative path.

        Args:
            folder: Target directory.
            names: Parts to write, with or without their suffix (default: all).

        Returns:
            Paths of the written files.

        Raises:
            FormatError: A part does not exist, or two parts have the same path.
        """
        chosen = self._chosen(names)
        targets: dict[Path, str] = {}
        for name, _ in chosen:
            target = Path(folder, safe_relative_path(name))
            if target in targets:
                raise FormatError(
                    f"{self.source.name}: {name!r} and {targets[target]!r}: must have different file names, got "
                    f"{target} for both. Extract them one at a time."
                )
            targets[target] = name
        for target, (_, content) in zip(targets, chosen, strict=True):
            write_content(target, content)
        return list(targets)

    def extract_to(self, name: str, target: str | os.PathLike[str]) -> Path:
        """Write one part of the container to a file.

        Args:
            name: Name of the part, with or without its suffix; the first if several match.
            target: The file.

        Returns:
            Path of the file.

        Raises:
            FormatError: The part does not exist.
        """
        write_content(target, self._chosen([name])[0][1])
        return Path(target)

    def _chosen(self, names: Sequence[str] | None) -> list[tuple[str, Content]]:
        """The parts of these names (all, if none are given). FormatError for a name that is not there."""
        parts = list(self.parts())
        check_sharing(self.source.name, (content for _, content in parts if isinstance(content, memoryview)))
        if not names:
            return parts
        chosen = [part for part in parts if {part[0], part[0].removesuffix(".bin")} & set(names)]
        missing = set(names) - {key for name, _ in chosen for key in (name, name.removesuffix(".bin"))}
        if missing:
            raise FormatError(
                f"{self.source.name}: nothing is named {', '.join(sorted(map(repr, missing)))}. "
                "'nvdla container list' shows the names."
            )
        return chosen

    def disassemble(self, function: str | None = None, source: bool = False) -> str:
        """Return the programs of the file as text.

        Args:
            function: Name of one function (default: all).
            source: Add source lines if the file contains them.

        Raises:
            FormatError: The format has no programs.
        """
        raise FormatError(f"{self.source.name}: a {self.format.name} file contains no program to disassemble")

    def call(
        self,
        function: str,
        inputs: Sequence[str],
        options: Options | None = None,
        parameters: ParameterSets | None = None,
    ) -> Document:
        """Run a function of the file.

        Args:
            function: Its name.
            inputs: Inputs as text.
            options: Options of the format.
            parameters: Tensors that the function loads, by scope.

        Returns:
            Plain data; ``results`` is a list of {type, value}.

        Raises:
            FormatError: The format has no functions.
        """
        raise FormatError(f"{self.source.name}: a {self.format.name} file contains no function to run")

    def convert(self, target: Format, options: Options | None = None) -> bytes:
        """Return this container as bytes of another format, or of the same one, rewritten.

        Args:
            target: The format.
            options: Options of the format.
        """
        stream = io.BytesIO()
        self.convert_to(stream, target, options)
        return stream.getvalue()

    def convert_to(self, file: IO[bytes], target: Format, options: Options | None = None) -> None:
        """Write this container in another format, piece by piece; by default through its parameters.

        Args:
            file: File that is open for writing.
            target: The format.
            options: Options of the format.
        """
        target.write_checked(file, self.parameters(), options)


class Format(ABC):
    """A container format: detection, reading and writing."""

    name: ClassVar[str]
    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    #: Options that ``create`` and ``convert`` understand: name -> one line of help.
    options: ClassVar[Mapping[str, str]] = {}
    #: Whether a splat is stored as such; other formats write it out.
    keeps_splats: ClassVar[bool] = False

    @abstractmethod
    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether the content has this format; the name of the file does not matter.

        Args:
            header: The first HEADER_BYTES of the file; empty for a directory.
            path: The file or directory (None for bytes).
        """

    @abstractmethod
    def open(self, source: Source, options: Options | None = None) -> Container:
        """Parse a container.

        Args:
            source: The bytes.
            options: Options of the format.

        Returns:
            The open container.

        Raises:
            FormatError: The content is malformed.
        """

    def verify(self, source: Source, strict: bool = False, options: Options | None = None) -> list[FileFinding]:
        """Return the findings of ``verify``; by default, an error of :meth:`open` is the only finding.

        Args:
            source: The bytes.
            strict: Also check contents that readers usually ignore.
            options: Options of the format.
        """
        try:
            container = self.open(source, options)
        except FormatError as error:
            return [FileFinding(Severity.ERROR, "file", None, str(error))]
        return container.verify(strict)

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Write a new file with these parameters, piece by piece.

        Args:
            file: File that is open for writing.
            parameters: The tensors.
            options: Options of the format.

        Raises:
            FormatError: The format is read-only.
        """
        raise FormatError(f"{self.name} files: can be read, but not created from parameters")

    def write_checked(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """Check the parameters, then call :meth:`write`.

        Args:
            file: File that is open for writing.
            parameters: The tensors. Splats that this format must write in full have a size limit.
            options: Options of the format.
        """
        check_given(parameters)
        if not self.keeps_splats:
            check_splats(parameters)
        self.write(file, parameters, options)

    def create(self, parameters: Sequence[Parameter], options: Options | None = None) -> bytes:
        """Return the bytes of a new file with these parameters.

        Args:
            parameters: The tensors.
            options: Options of the format.
        """
        check_given(parameters)
        stream = io.BytesIO()
        self.write(stream, parameters, options)
        return stream.getvalue()

    def build(self, file: IO[bytes], inputs: Sequence[Source], options: Options | None = None) -> None:
        """Write a new file from input files, for ``create`` of the command line.

        By default it contains the parameters of every input, in order.

        Args:
            file: File that is open for writing.
            inputs: The input files.
            options: Options of the format.
        """
        self.write_checked(file, [p for source in inputs for p in open(source).parameters()], options)

    def check_options(self, options: Options | None) -> dict[str, str]:
        """Return the options as a dictionary.

        Args:
            options: Options by name (None: no options).

        Raises:
            FormatError: The format does not have this option.
        """
        for key in options or {}:
            if key not in self.options:
                known = ", ".join(self.options) or "none"
                raise FormatError(f"format {self.name}: option: must be one of {known}, got {key!r}")
        return dict(options or {})


_FORMATS: dict[str, Format] = {}
_F = TypeVar("_F", bound=type[Format])


@by_annotations
def register(cls: _F) -> _F:
    """Decorate a class to add one instance of the format to the registry.

    Args:
        cls: Class of the format.

    Returns:
        The class.

    Raises:
        ValueError: Another class has registered the name.
    """
    if cls.name in _FORMATS and type(_FORMATS[cls.name]).__qualname__ != cls.__qualname__:
        raise ValueError(f"container format {cls.name!r}: name must be unique")
    _FORMATS[cls.name] = cls()
    return cls


def formats() -> dict[str, Format]:
    """Return all formats by name; the first call imports every ``*_format`` module of this package."""
    _import_formats()
    return dict(sorted(_FORMATS.items()))


@cache
def _import_formats() -> None:
    """Once a process: to look for modules is to list folders."""
    modules_of("nvdla.interop.containers", "_format")


def format_named(name: str) -> Format:
    """The format of this name, FormatError listing the known ones otherwise."""
    known = formats()
    if name not in known:
        raise FormatError(f"container format: must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def format_for_output(path: str | os.PathLike[str]) -> Format:
    """The format a new file's ending asks for (the only place where a name decides: the file has no content)."""
    name = Path(path).name.lower()
    for candidate in formats().values():
        if any(name.endswith(suffix) for suffix in candidate.suffixes):
            return candidate
    known = ", ".join(sorted({suffix for candidate in formats().values() for suffix in candidate.suffixes}))
    raise FormatError(f"{path}: the file name must end in one of {known}. Or name the format with --to.")


@by_annotations
def detect(source: Source) -> Format:
    """Detect the format of content.

    Args:
        source: The content.

    Returns:
        The first format that recognizes the content.

    Raises:
        FormatError: No format recognizes the content.
    """
    header = bytes(source.data[:HEADER_BYTES])
    for candidate in formats().values():
        if candidate.sniff(header, source.path):
            return candidate
    known, start = ", ".join(formats()), header[:8].hex(" ") or "nothing"
    content = source.data if header else source.path or b""
    other = wrong_kind(content, source.name, f"a container ({known})", formats())
    got = f"got one that begins with {start}. Name the format with --from."
    raise FormatError(other or f"{source.name}: must be a file of {known}, {got}")


@by_annotations
def open(
    source: Source | str | os.PathLike[str] | bytes | bytearray | memoryview,
    options: Options | None = None,
    format: str | None = None,
) -> Container:
    """Open a container of any known format.

    Args:
        source: A path (mapped) or bytes (viewed).
        options: Options of the format.
        format: Name of the format (default: detected from the content).

    Returns:
        The open container.

    Raises:
        FormatError: The format is unknown, or the content is malformed.
    """
    where = Source.of(source)
    return (detect(where) if format is None else format_named(format)).open(where, options)


_UNSAFE = {ord(c): "_" for c in '\\:*?"<>|'} | dict.fromkeys(range(32), "_")


def check_sharing(name: str, views: Iterable[memoryview]) -> None:
    """FormatError where views on the same bytes (a file, an external file) together take more than MAX_SHARING times
    as much."""
    taken: dict[int, int] = {}
    for view in views:
        whole = view.obj
        taken[id(whole)] = taken.get(id(whole), 0) + len(view)
        limit = MAX_SHARING * memoryview(whole).nbytes
        if taken[id(whole)] > limit:
            raise FormatError(
                f"{name}: written parts: must have at most {limit} bytes together ({MAX_SHARING} times the file). "
                "Too many parts share the same bytes."
            )


def safe_relative_path(name: str) -> Path:
    """A name from a file as a relative path that stays below the folder it is joined to. FormatError for one of more
    than MAX_DEPTH parts."""
    parts = [part.translate(_UNSAFE) for part in name.split("/")]
    short = [part.encode("utf-8", "replace")[:MAX_PART].decode("utf-8", "ignore") for part in parts]
    kept = [part for part in short if part not in ("", ".", "..")]
    if len(kept) > MAX_DEPTH:
        raise FormatError(
            f"name {name[:80]!r}...: must have at most {MAX_DEPTH} parts (directories), got {len(kept)}. "
            "Choose the file with --extract NAME=FILE."
        )
    return Path(*kept) if kept else Path("unnamed")


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> int:
    """Has ``write`` write a file, whole or not at all, and makes the folders above it; how many bytes it has."""
    target = Path(path)
    make_directory(target.parent)
    with whole_file(target) as file:
        write(file)
        file.flush()
        return os.fstat(file.fileno()).st_size


def write_content(path: str | os.PathLike[str], content: Content) -> int:
    """Writes a part: bytes, or a parameter (a splat piece by piece)."""
    if isinstance(content, Parameter):
        return write_whole(path, content.write)
    return write_whole(path, lambda file: write_data(file, content))
