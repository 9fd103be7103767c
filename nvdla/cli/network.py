"""Networks in Python: a loadable or a package of :func:`nvdla.load` with the main commands as methods.

    net = nvdla.load("lenet.nvdla")
    net.cycles(bandwidth=8).to_pandas()

Keywords are the options of the commands: ``net.cycles(bandwidth=8)`` is ``nvdla cycles --bandwidth 8``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from nvdla.errors import FormatError, counted
from nvdla.limits import Limits
from nvdla.loadable import Loadable
from nvdla.loadable import load as load_loadable
from nvdla.util.arguments import known_keywords, refuse_unknown
from nvdla.util.escaping import Json
from nvdla.util.escaping import table as html_table
from nvdla.util.files import is_zip_file
from nvdla.util.recognition import kind_of

if TYPE_CHECKING:
    import argparse

    import numpy as np
    import pandas

    from nvdla.compiler.frontend.package import HostMachine, Package
    from nvdla.loadable.model import MemoryEntry
    from nvdla.loadable.reader import Source
    from nvdla.runtime import Runtime
    from nvdla.tensors.inputs import Input, PictureConversion

    Inputs = Input | Sequence[Input] | Mapping[str, Input]

ROWS = {
    "cycles": "operations", "inspect": "ops", "memory": "buffers", "lint": "findings", "compare": "tensors",
    "explain": "operations",
}  # fmt: skip
"""Commands, and the rows of their documents."""

FILES = ("input", "other_input")
"""Options that name files of inputs; arrays are saved for them."""
_BYTES = (bytes, bytearray, memoryview)

Row = Mapping[str, Any]
Result = TypeVar("Result")
COMPARED = [item.name for item in fields(Loadable) if item.compare]
TABLES = frozenset(COMPARED)
"""Fields with the content of a loadable."""


class ResultTable(Sequence[Row]):
    """Result of a method of :class:`LoadedNetwork`: a sequence of rows, one mapping per row.

    ``print(table)`` runs the command again and prints what it prints, as wide as the terminal (else 80 columns).

    Attributes:
        document: The whole result as plain data, as ``--json`` prints it (docs/json).
        rows: The rows. ``part`` is the number of the part of a package; a loadable is part 0.
    """

    def __init__(self, title: str, rows: Sequence[Row], document: Row, text: Callable[[], str] | None = None) -> None:
        self.title, self.rows, self.document, self._text = title, list(rows), document, text

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{self.title}: {counted(len(self.rows), 'row')}>"

    def __str__(self) -> str:
        return repr(self) if self._text is None else self._text()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_text": None}

    def _repr_html_(self) -> str:
        return html_table(self.title, [dict(row) for row in self.rows])

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame, one column per key.

        Raises:
            FormatError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise FormatError("to_pandas: package pandas: must be installed: pip install pandas") from None
        return pandas.DataFrame(self.rows)


class LoadedNetwork(Loadable):
    """A loadable, or a package of accelerator and host parts, with the main commands as methods.

    The fields of :class:`nvdla.Loadable` (``tasks``, ``blobs`` ...) are those of the file; a package has none, and
    raises FormatError. Keywords of the methods are the options of the command with the same name, with underscores:
    see ``nvdla cycles --help``. Unknown keywords raise TypeError. :meth:`run` has none of them: see
    :class:`nvdla.Runtime`.

    Example:
        >>> net = nvdla.load("samples/lenet.loadable")
        >>> int(net.run("samples/digit7.pgm")["prob"].argmax())
        7
        >>> net.operations[0]["type"], net.cycles(latency=60).document["total_cycles"]
        ('CONV', 28587)
        >>> net.compare("samples/lenet.onnx", "samples/digit7.pgm")  # .rows, .to_pandas()
        <compare of samples/lenet.loadable: 4 rows>
    """

    @cached_property
    def _package(self) -> Package | None:
        from nvdla.compiler.frontend.package import unpack

        path: str | None = self.__dict__.get("_path")
        return unpack(path) if path and is_zip_file(path) else None

    @cached_property
    def _runtime(self) -> Runtime:
        from nvdla.runtime import Runtime

        return Runtime(self)

    @cached_property
    def _machine(self) -> HostMachine | None:
        return None if self._package is None else self._package.machine()

    def __getattribute__(self, name: str) -> Any:
        """Raise FormatError for the tables of a package: each of its loadables has its own."""
        if name in TABLES and self._package is not None:
            from nvdla.cli.packages import part_path

            numbers = [number for number, part in enumerate(self._package.parts) if part.loadable is not None]
            hint = f" Use nvdla.load({part_path(self.name, numbers[0])!r}).{name}." if numbers else ""
            raise FormatError(f"{self.name}: must be a loadable, got a package, which lacks {name}.{hint}")
        return super().__getattribute__(name)

    @property
    def operations(self) -> ResultTable:
        """Operations in the order of the firmware: engine, layer, what it does, tensors; shapes are CxHxW."""
        return self._command("inspect", {"ops": True})

    def cycles(self, **options: object) -> ResultTable:
        """Estimate the cycles of every operation, as ``nvdla cycles``.

        Args:
            **options: Options of the command: ``config``, ``latency``, ``bandwidth``, ``clock``, ``by`` ...

        Returns:
            One row per operation, or per group with ``by``; ``document`` has the totals.
        """
        return self._command("cycles", options)

    def explain(self, operation: str | None = None, **options: object) -> ResultTable:
        """Explain how convolutions run on the hardware and what limits them, as ``nvdla explain``.

        Args:
            operation: One operation of any engine: TASK/OPERATION, or the beginning of a layer name.
            **options: Options of the command: ``alternatives``, ``config``, ``svg`` ...

        Returns:
            One row per convolution, or per operation that ``operation`` means, with the keys of ``nvdla explain
            --json``. ``cycles``: of the operation and those on the fly with it, from its enabling to the last
            interrupt, as if it were alone. ``change``: what would help most (None: nothing tested).
            ``change_cycles`` and ``change_before_cycles``: cycles of the layer alone with and without it, from its
            first register write to its interrupt; per image if ``change_per_image``. ``change_saves``: share of
            ``change_before_cycles``, 0 to 1. ``document`` has the alternatives, where the cycles go, and the
            ``memory`` that all cycles are for; of a package in ``document["parts"]``.
        """
        return self._command("explain", {**options, "operation": operation})

    @overload
    def memory(self, memory_id: int) -> MemoryEntry: ...
    @overload
    def memory(self, memory_id: None = None, **options: object) -> ResultTable: ...
    def memory(self, memory_id: int | None = None, **options: object) -> MemoryEntry | ResultTable:
        """Return the buffers with addresses and lifetimes, as ``nvdla memory``; or one entry of the memory list.

        Args:
            memory_id: Id of an entry of the memory list.
            **options: Options of the command: ``config``, ``dram_base``, ``svg`` ...

        Returns:
            One row per buffer, or the entry.
        """
        return self._command("memory", options) if memory_id is None else super().memory(memory_id)

    def lint(self, **options: object) -> ResultTable:
        """Check whether the network can run on a configuration, as ``nvdla lint``.

        Args:
            **options: Options of the command, such as ``config``.

        Returns:
            One row per finding.
        """
        return self._command("lint", options)

    def compare(
        self, model: str | os.PathLike[str] | None = None, inputs: Inputs | None = None, **options: object
    ) -> ResultTable:
        """Compare every tensor of a run with a model, as ``nvdla compare``.

        Args:
            model: The float model (.onnx, .tflite) or another loadable; None with the option ``golden`` or ``caffe``.
            inputs: The inputs (``input``): a file, an array (N, C, H, W), or several by name or in bind order.
            **options: Options of the command: ``min_snr``, ``tolerance`` ...

        Returns:
            One row per tensor.
        """
        if model is not None:
            path = os.fspath(model)
            options = {("onnx" if kind_of(path) in ("onnx", "tflite") else "other"): path, **options}
        return self._command("compare", options, inputs)

    def report(self, path: str | os.PathLike[str], inputs: Inputs | None = None, **options: object) -> None:
        """Write a self-contained HTML page, as ``nvdla report``.

        Args:
            path: The page; a directory for a package.
            inputs: The inputs (``input``) of a run that the page shows, as for :meth:`compare`.
            **options: Options of the command, such as ``config`` or ``class_names``.
        """
        self._command("report", {**options, "output": os.fspath(path)}, inputs)

    @known_keywords
    def run(
        self,
        inputs: Inputs,
        *,
        real: bool = False,
        preprocessing: PictureConversion | None = None,
    ) -> dict[str, np.ndarray]:
        """Run the network bit-exactly. The first call links it; keep the object for further calls.

        Args:
            inputs: Inputs as for :meth:`nvdla.Runtime.run`; of a package as for :meth:`nvdla.Compiled.run`.
            real: Return real numbers instead of elements; a package always does.
            preprocessing: Conversion of pictures as for :meth:`nvdla.Runtime.run`.

        Returns:
            Outputs by name.
        """
        if self._machine is not None:
            return self._machine.run(inputs, preprocessing=preprocessing)
        return self._runtime.run(inputs, real=real, preprocessing=preprocessing)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Loadable):
            return NotImplemented
        packages = [item for item in (self, other) if isinstance(item, LoadedNetwork) and item._package is not None]
        if packages:
            return self is other
        mine, theirs = ([getattr(item, name) for name in COMPARED] for item in (self, other))
        return mine == theirs

    def __getstate__(self) -> dict[str, Json]:
        return {**super().__getstate__(), **{name: item for name, item in self.__dict__.items() if name == "_path"}}

    def __hash__(self) -> int:
        return super().__hash__() if self._package is None else id(self)

    def __repr__(self) -> str:
        if self._package is None:
            return super().__repr__()
        return f"<Package {self.name}: {counted(len(self._package.parts), 'part')}>"

    def _repr_html_(self) -> str:
        """For notebooks: of a package its inputs and outputs, and its parts."""
        package = self._package
        if package is None:
            return super()._repr_html_()
        shapes = {binding.value: binding.shape or None for part in package.parts for binding in part.outputs}
        shapes |= {name: array.shape for name, array in package.constants.items()}
        ends = [{"": "input", "name": name, "shape": shape} for name, shape in package.manifest["inputs"].items()]
        ends += [{"": "output", "name": name, "shape": shapes.get(name)} for name in package.manifest["outputs"]]
        parts = [
            {
                "part": number,
                "runs on": part.kind,
                "nodes": len(part.nodes),
                "inputs": ", ".join(binding.value for binding in part.inputs),
                "outputs": ", ".join(binding.value for binding in part.outputs),
            }
            for number, part in enumerate(package.parts)
        ]
        title = f"{self.name}: {counted(len(parts), 'part')} for {package.manifest['config']}"
        return html_table(title, ends) + html_table("parts", parts)

    def _command(self, name: str, options: Mapping[str, object], inputs: Inputs | None = None) -> ResultTable:
        """Run a command, and return its document with its rows."""
        from nvdla.cli import main

        parser = main.parser_of(name)
        given: dict[str, object] = {"input": inputs} if inputs is not None else {}
        given |= {key: value for key, value in options.items() if key in FILES and value is not None}

        def ran(result: Callable[[str, argparse.ArgumentParser, list[str]], Result]) -> Result:
            with self._file() as path, tempfile.TemporaryDirectory(prefix="nvdla-input-") as folder:
                files = {key: self._words_of(value, Path(folder)) for key, value in given.items()}
                return result(name, parser, [path, *_words(name, parser, {**options, **files})])

        document = ran(main.document_of)
        return ResultTable(
            f"{name} of {self.name}", _rows(document, ROWS.get(name, "")), document, lambda: ran(main.text_of)
        )

    def _words_of(self, inputs: object, folder: Path) -> list[str]:
        """Inputs as the command line has them, FILE or NAME=FILE; arrays are saved in the folder."""
        if isinstance(inputs, Mapping):
            return [f"{name}={word}" for name, value in inputs.items() for word in self._words_of(value, folder)]
        if not isinstance(inputs, list | tuple):
            return [_file_of(inputs, folder)]
        names = [] if len(inputs) < 2 else self._input_names
        if len(names) == len(inputs) and not any(isinstance(value, str) and "=" in value for value in inputs):
            return self._words_of(dict(zip(names, inputs, strict=True)), folder)
        return [word for value in inputs for word in self._words_of(value, folder)]

    @property
    def _input_names(self) -> list[str]:
        if self._package is not None:
            return list(self._package.manifest["inputs"])
        return [tensor.name for tensor in self._runtime.inputs]

    @contextlib.contextmanager
    def _file(self) -> Iterator[str]:
        """The path of the file; of a network that is not a file, of a temporary one."""
        path: str = self.__dict__.get("_path", "")
        if path:
            yield self.name if os.path.abspath(self.name) == path else path
            return
        with tempfile.TemporaryDirectory(prefix="nvdla-network-") as folder:
            path = os.path.join(folder, os.path.basename(self.name) or "loadable")
            self.save(path)
            yield path


@known_keywords
def load(source: Source, *, limits: Limits | None = None, checked: bool = True) -> LoadedNetwork:
    """Read a loadable or a package.

    Args:
        source: Path, or any contiguous buffer (bytes, bytearray, memoryview) of a loadable. A package (.nvpkg) must be
            a path.
        limits: Limits of the file (default: :class:`nvdla.limits.Limits`).
        checked: False verifies only the structure of the file, so that tools can read an inconsistent loadable.

    Returns:
        The network: a :class:`nvdla.Loadable` with the main commands as methods.

    Raises:
        LoadableError: The source cannot be read or is not valid.
    """
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
    if path is not None and is_zip_file(path):
        net = LoadedNetwork(name=str(path))
        net.__dict__["_path"] = os.path.abspath(path)
        _ = net._package  # a damaged package is reported here
        return net
    read = load_loadable(source, limits=limits, checked=checked)
    net = LoadedNetwork(**{item.name: getattr(read, item.name) for item in fields(read)})
    if path is not None:
        net.__dict__["_path"] = os.path.abspath(path)
    return net


def _rows(document: Row, key: str) -> list[Row]:
    """The rows of a document with the number of their part; a loadable is part 0."""
    if "totals" in document and "package" in document:
        return [
            {**row, "part": part["part"]}
            for part in document["parts"]
            if part["kind"] == "accelerator"
            for row in _rows(part["document"] or {}, key)
        ]
    rows = document.get("groups") or document.get(key) or document.get("convolutions") or ()
    return [{**row, "part": 0} for row in rows]


def _words(command: str, parser: argparse.ArgumentParser, options: Mapping[str, object]) -> list[str]:
    """Options as words of the command line. Raises ArgumentTypeError for names that the command lacks."""
    known = {item.dest: item for item in parser._actions if item.dest not in ("help", "json", "csv", "tsv", "loadable")}
    refuse_unknown(command, options, known)
    words: list[str] = []
    for name, value in options.items():
        action = known[name]
        if value is None or value is False:
            continue
        if not action.option_strings:
            words.append(str(value))
        elif action.nargs == 0:
            words.append(action.option_strings[0])
        elif action.nargs == "+":
            words += [action.option_strings[0], *map(_text, value if isinstance(value, list | tuple) else [value])]
        else:
            items = value if isinstance(value, list) else [value]
            words += [f"{action.option_strings[0]}={_text(value)}" for value in items]
    return words


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _file_of(value: object, folder: Path) -> str:
    """A file with an input; an array is saved in the folder."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    path = folder / f"input{len(os.listdir(folder))}.{'bin' if isinstance(value, _BYTES) else 'npy'}"
    if isinstance(value, _BYTES):
        path.write_bytes(value)
        return str(path)
    np = importlib.import_module("numpy")
    np.save(path, np.asarray(value))
    return str(path)
