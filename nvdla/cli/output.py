"""Output of the commands: terminal, tables, rows, numbers, JSON."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import math
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from nvdla.cli.settings import UsedSettings
from nvdla.errors import FormatError, UnknownOperationError, printable, shape_text
from nvdla.util import rounding
from nvdla.util.escaping import json_text, plain
from nvdla.util.rounding import is_digits

if TYPE_CHECKING:
    from rich.console import Console

    from nvdla.emulator.hardware.configuration import Configuration

PIPE_WIDTH = 160
WRAPPED = 36  # a cell in a part of a table may be as wide before it is wrapped
GAP = 3  # between two columns
_AMOUNT = r"[-+±<>≤≥~]?\s?\d[\d,]*(\.\d+)?(e[-+]?\d+)?"
_UNIT = r"\s?(%|x|times|[KMG]?i?B|bytes|[mµun]?s|cycles|dB|/s)?"
NUMBER = re.compile(rf"{_AMOUNT}( ± {_AMOUNT})?{_UNIT}( \([-\d.,% ]+\))?|-")

_separator = ""  # of --csv and --tsv
_tables_to: TextIO | None = None  # where their tables go
_wide = False  # --wide: no column is left out
_printed = False  # with --csv and --tsv: whether a table was
_document: Mapping[str, Any] = {}  # with --csv and --tsv: the latest, printed where the command prints no table
_collected: list[Mapping[str, Any]] | None = None  # documents of a command that runs several times
_proofs: list[Mapping[str, Any]] = []  # of the configurations of the next document
_told: set[str] = set()  # notes that the command has printed


def add_format_options(parser: argparse.ArgumentParser, yaml: bool = False) -> None:
    """``--json`` (and ``--yaml``) on a command that prints."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="print JSON (stable keys) instead of tables")
    group.add_argument("--csv", action="store_true", help="print only the tables, as CSV")
    group.add_argument("--tsv", action="store_true", help="print only the tables, as tab-separated values")
    if yaml:
        group.add_argument("--yaml", action="store_true", help="print YAML (same keys as --json) instead of tables")
    parser.add_argument("--wide", action="store_true", help="print all columns, even on a narrow terminal")


def announce(document: Mapping[str, object], lines: Sequence[str], args: argparse.Namespace) -> None:
    """State that a server listens: ``document`` on one line with --json, else ``lines``. Flushed at once, so that a
    program that started the server can go on."""
    document = _complete(document, args)
    if getattr(args, "json", False):
        print(json_text(document))
    else:
        for line in lines:
            say(line)
    sys.stdout.flush()


def _complete(document: Mapping[str, object], args: argparse.Namespace) -> Mapping[str, object]:
    """The document with its format, with what is proven of the configurations, and with the settings used."""
    proven = {**document, "proof": _proofs.copy()} if _proofs and "proof" not in document else document
    _proofs.clear()
    return with_settings(framed(proven, getattr(args, "command_name", "")), args)


def print_document(document: Mapping[str, object], args: argparse.Namespace) -> bool:
    """Print ``document`` if a machine format was requested; return False if the caller must print tables."""
    global _document
    _document = document = _complete(document, args)
    if _collected is not None:
        _collected.append(document)
        return bool(getattr(args, "json", False) or getattr(args, "yaml", False))
    if getattr(args, "json", False):
        print(json_text(document, indent=2))
        return True
    if getattr(args, "yaml", False):
        import yaml

        print(yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True), end="")
        return True
    return False


def tell_proof(args: argparse.Namespace, *configs: Configuration) -> None:
    """State what the results of configurations were compared with: in the key ``proof`` of the next document, and, if
    no document is printed, as one line on standard error per configuration with extrapolated features."""
    from nvdla.emulator.hardware.configuration import proof, proof_lines

    for config in configs:
        proofs = proof(config)
        if proofs not in _proofs:
            _proofs.append(proofs)
        for line in proof_lines(config, ("results",)):
            tell_once(f"Note: {line}.", args)


def tell_once(line: str, args: argparse.Namespace) -> None:
    """Print a line on standard error, unless the command has printed it or prints a document."""
    if line not in _told and not getattr(args, "json", False) and not getattr(args, "yaml", False):
        say(line, sys.stderr)
        _told.add(line)


@contextlib.contextmanager
def collected() -> Iterator[list[Mapping[str, Any]]]:
    """Within, documents are not printed but kept in the list."""
    global _collected
    before, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = before


def framed(document: Mapping[str, Any], command: str) -> Mapping[str, Any]:
    """A document with "format" and "version" in front, where it has none: so every command's says what it is."""
    if "format" in document or not command:
        return document
    return {"format": f"nvdla-{command}", "version": 1, **document}


def with_settings(document: Mapping[str, object], args: argparse.Namespace) -> Mapping[str, object]:
    """Add the settings of a file that the command used, after "format" and "version"."""
    return _with_used(document, getattr(args, "settings_used", None))


def _with_used(document: Mapping[str, object], used: UsedSettings | None) -> Mapping[str, object]:
    head = {key: document[key] for key in ("format", "version") if key in document}
    return {**head, "settings_file": used.document(), **document} if used else document


def print_error(command: str, error: str, message: str, used: UsedSettings | None = None, layer: str = "") -> None:
    """Print an error as a JSON document; ``layer``: the one that a BuildError names."""
    document = {**framed({"error": error, "message": message}, "error"), "command": command}
    document |= {"layer": layer} if layer else {}
    print(json_text(_with_used(document, used), indent=2))


@contextlib.contextmanager
def tables_as(args: argparse.Namespace) -> Iterator[None]:
    """Within, tables are printed as the arguments ask for; with ``--csv`` and ``--tsv`` nothing else is."""
    global _separator, _tables_to, _wide, _printed, _document
    separator = "," if getattr(args, "csv", False) else "\t" if getattr(args, "tsv", False) else ""
    before = _separator, _tables_to, _wide
    _separator, _tables_to, _wide = separator, sys.stdout if separator else None, getattr(args, "wide", False)
    _printed, _document = False, {}
    _proofs.clear()
    _told.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()) if separator else contextlib.nullcontext():
            yield
            if separator and not _printed:
                _print_document_as_tables()
    finally:
        _separator, _tables_to, _wide = before


def only_tables() -> bool:
    """Return whether --csv or --tsv was given: only tables are printed."""
    return _tables_to is not None


def _print_document_as_tables() -> None:
    """Print the lists of objects in the document, one table each; without any, one row of its values."""
    document = {
        key: value for key, value in _document.items() if key not in ("format", "version", "settings_file", "proof")
    }
    lists = [rows for rows in document.values() if isinstance(rows, list) and rows and isinstance(rows[0], Mapping)]
    for rows in lists or [[document]] * bool(document):
        print_table("", rows, list(dict.fromkeys(key for row in rows for key in row)))


def for_people() -> bool:
    """Return whether output is laid out in columns: on a terminal, or with COLUMNS set to a width."""
    return bool(is_digits(os.environ.get("COLUMNS", ""))) or sys.stdout.isatty()


def _print_lines(title: str, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """One line per row: nothing is padded, wrapped or cut; tabs between columns, or as CSV."""
    stream = _tables_to or sys.stdout
    if not _tables_to:
        print(printable(title), file=stream)
    writer = csv.writer(stream, delimiter=_separator or "\t", lineterminator="\n")
    writer.writerow(columns if _tables_to else [key.replace("_", " ") for key in columns])
    for row in rows:
        writer.writerow([_cell(row.get(key)) for key in columns])
    if not _tables_to:
        print(file=stream)


def say(text: str, stream: TextIO | None = None) -> None:
    """One line, wrapped between words on a terminal: line breaks and escape codes of the names in it are shown
    escaped."""
    stream, line = stream or sys.stdout, printable(text)
    print("\n".join(wrapped(line, _width_of(stream))) if stream.isatty() else line, file=stream)


def wrapped(line: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns, broken between words. A word that is longer stays whole, and so does a
    command to copy: one in quotes, or the next one to run."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    whole = re.sub(r"'nvdla [^']*'|(?<=^Next: )nvdla .*", lambda command: command[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in lines]


def _width_of(stream: TextIO) -> int:
    """COLUMNS, else the columns of the terminal that a stream is."""
    if is_digits(os.environ.get("COLUMNS", "")):
        return terminal_width()
    try:
        return os.get_terminal_size(stream.fileno()).columns or terminal_width()
    except (OSError, ValueError):
        return terminal_width()


def print_written(path: str, size: int, args: argparse.Namespace) -> None:
    """One line about a file that was written: on standard error where standard output is a document."""
    stream = sys.stderr if getattr(args, "json", False) or getattr(args, "yaml", False) else sys.stdout
    say(f"{path}: {sized(size)}", stream)


class StandardOutput(str):
    """A file to write that is standard output: ``-``, or ``NAME=-`` where the option takes names."""

    suffix = ""


def output_file(suffix: str, what: str = "", endings: tuple[str, ...] = ()) -> Callable[[str], str]:
    """Return the type of an argument that names a file to write.

    Args:
        suffix: suffix that decides the format of ``-``.
        what: content of the file with its article, for errors.
        endings: suffixes that the command writes; empty: any. They are checked here, on the name as typed: the parts
            of a package have longer names.
    """

    def convert(text: str) -> str:
        if text != "-" and not text.endswith("=-"):
            if endings:
                from nvdla.tensors.files import ending

                ending(text, endings, what)
            return text
        stream = StandardOutput(text)
        stream.suffix = suffix
        return stream

    return convert


@contextlib.contextmanager
def to_standard_output(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Within, the command writes a temporary file for ``-``, and its messages go to standard error. At the end the
    file goes to standard output.

    Raises:
        FormatError: several files, or a file and a document, for standard output; the command wrote several files.
    """
    given = {key: value if isinstance(value, list) else [value] for key, value in vars(args).items()}
    streams = [(key, text) for key, texts in given.items() for text in texts if isinstance(text, StandardOutput)]
    if not streams:
        yield args
        return
    names = [key.replace("_", "-") for key, _ in streams]
    if len(streams) > 1:
        raise FormatError(f"-: standard output: must be given once, got {len(streams)} times ({', '.join(names)})")
    formats = [name for name in ("json", "csv", "tsv", "yaml") if getattr(args, name, False)]
    if formats:
        raise FormatError(f"{names[0]} -: standard output contains the file alone: omit --{formats[0]}")
    (key, text), messages = streams[0], io.StringIO()
    with tempfile.TemporaryDirectory(prefix="nvdla-output-") as folder:
        path = os.path.join(folder, f"output{text.suffix}")
        place = StandardOutput(f"{text[:-1]}{path}")
        value = (
            [place if other is text else other for other in given[key]] if isinstance(vars(args)[key], list) else place
        )
        try:
            with contextlib.redirect_stdout(messages):
                yield argparse.Namespace(**vars(args) | {key: value})
        finally:
            sys.stderr.write(messages.getvalue().replace(path, "-"))
        try:
            with open(path, "rb") as stream:
                sys.stdout.flush()
                shutil.copyfileobj(stream, sys.stdout.buffer)
        except (FileNotFoundError, IsADirectoryError):
            raise FormatError(f"{names[0]} -: must be one file, got several: name a file or directory") from None


def print_table(
    title: str, rows: Iterable[Mapping[str, object]], columns: Sequence[str] | None = None, least: Sequence[str] = ()
) -> None:
    """A table with one column per key. Numbers are right-aligned; empty columns are omitted.

    ``least``: columns that a narrow terminal loses first, before the last ones."""
    global _printed
    _printed, rows = True, [_as_people_write(row) for row in rows]
    if not rows and not (_tables_to and columns):
        print(printable(f"{title}: none") + "\n" * for_people())
        return
    if _tables_to or not for_people():
        _print_lines(title, rows, list(columns or rows[0]) if _tables_to else _shown(rows, columns))
        return
    rows, shortened = (rows, False) if _wide else _short_layers(rows)
    shown = _shown(rows, columns)
    texts = {key: [key.replace("_", " "), *(_cell(row.get(key), True) for row in rows)] for key in shown}
    kept = list(texts) if _wide else _that_fit(texts, terminal_width(), least)
    _print_columns(title, rows, {key: texts[key] for key in kept})
    left_out = [key.replace("_", " ") for key in texts if key not in kept]
    if shortened and {"layer", "name"} & set(kept):
        say("Layer names are shortened; --wide shows all of them.")
        print()
    if left_out:
        note = f"Left out in {terminal_width()} columns: {', '.join(left_out)}; --wide shows them."
        print(textwrap.fill(note, terminal_width(), break_long_words=False) + "\n")


def _short_layers(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """Rows (and their lists of operations) with short names of layers, buffers and nodes of TFLite; are any shorter?

    A short name of two layers, or of two nodes with the same operator, stays whole."""
    from nvdla.program.operation import short_layers

    key = "name" if {"op", "buffer"} & set(rows[0]) else "layer"
    names = dict.fromkeys((row.get("op"), row[key]) for row in rows if isinstance(row.get(key), str))
    known = short_layers((name for op, name in names if op is None or not name.startswith("/")), unique=False)
    shorter = {(op, name): known.get(name, name) for op, name in names}
    counts = Counter((op, short) for (op, _), short in shorter.items())
    short = {node: name for node, name in shorter.items() if counts[node[0], name] == 1 and name != node[1]}
    shown = [{**row, key: short.get((row.get("op"), row[key]), row[key])} if key in row else {**row} for row in rows]
    listed = [row for row in shown if isinstance(row.get("operations"), list)]
    layers = short_layers(str(name) for row in listed for name in row["operations"])
    for row in listed:
        row["operations"] = [layers.get(name, name) for name in row["operations"]]
    return shown, bool(short)


def _as_people_write(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Engines as NVIDIA writes them, and shapes as ``3x32x32``; documents have lower case, and lists."""
    changed = dict(row)
    engine, shape = row.get("engine"), row.get("shape")
    if isinstance(engine, str):
        changed["engine"] = engine.upper()
    if isinstance(shape, (list, tuple)):
        changed["shape"] = shape_text(shape)
    return changed


def _shown(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None) -> list[str]:
    """Columns that are not empty."""
    return [key for key in columns or rows[0] if any(_cell(row.get(key)) for row in rows)]


def _print_columns(title: str, rows: Sequence[Mapping[str, object]], texts: Mapping[str, Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    widths = _widths(texts, None if _wide else terminal_width())
    for key, cells in texts.items():
        table.add_column(
            cells[0],
            justify="right" if _are_numbers([row.get(key) for row in rows]) else "left",
            overflow="fold",
            no_wrap=_wide,
            width=widths[key],
        )
    output = console(sum(max(map(len, cells)) + GAP for cells in texts.values()) if _wide else None)
    output.print(f"[bold]{_escape(title)}[/]", soft_wrap=_wide)
    for cells in zip(*(cells[1:] for cells in texts.values()), strict=True):
        table.add_row(*map(_escape, cells))
    with output.capture() as captured:
        output.print(table)
    print("\n".join(map(_without_padding, captured.get().split("\n"))), end="")


def _without_padding(line: str) -> str:
    """A line without spaces at its end, which a narrow terminal would wrap into an empty line."""
    if "\x1b" not in line:
        return line.rstrip(" ")
    end = re.search(r"(?:\x1b\[[0-9;]*m| )*$", line)
    return line if end is None else f"{line[: end.start()]}\x1b[0m"


def _are_numbers(values: Sequence[object]) -> bool:
    """Return whether a column holds numbers: as such, or as text, some with a unit ("25.7%", "1.5 KiB").
    Names that are digits are not numbers."""
    texts = [value.strip() for value in values if isinstance(value, str) and value.strip()]
    others = [value for value in values if not isinstance(value, str)]
    return (
        all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in others)
        and all(NUMBER.fullmatch(text) for text in texts)
        and (not texts or not all(map(str.isdecimal, texts)))
    )


def _widths(texts: Mapping[str, Sequence[str]], width: int | None) -> dict[str, int]:
    """Width of each column: its longest cell, or less to fit into ``width``, the widest first. Cells wrap between
    words, numbers with a unit or an interval last; words that are too long are broken. (The widths of rich may exceed
    the terminal.)"""
    widths = {key: max(map(len, cells)) for key, cells in texts.items()}
    if width is None:
        return widths
    words = {key: min(_longest_word(cells), width // 2) for key, cells in texts.items()}
    numbers = {
        key: max(words[key], *(len(text) * bool(NUMBER.fullmatch(text)) for text in texts[key])) for key in texts
    }
    for least in (numbers, words, dict.fromkeys(texts, 1)):
        while sum(widths.values()) + GAP * len(widths) - 1 > width:
            key = max(widths, key=lambda key: (widths[key] > least[key], widths[key]))
            if widths[key] <= least[key]:
                break
            widths[key] -= 1
    return widths


def _that_fit(texts: Mapping[str, Sequence[str]], width: int, least: Sequence[str]) -> list[str]:
    """The columns that fit into ``width`` with long cells wrapped between their words: ``least`` go first, then the
    last; those that say which row it is stay. Columns that are not of ``least`` are wrapped before they go."""
    words = {key: min(_longest_word(cells), WRAPPED) for key, cells in texts.items()}
    wanted = {key: max(words[key], min(WRAPPED, max(map(len, texts[key])))) for key in texts}
    kept, leading = list(texts), _leading(texts)
    if sum(words.values()) + GAP * len(words) <= width:
        return kept
    going = [key for key in [*least, *reversed(kept)] if key in kept and key not in leading]
    for key in dict.fromkeys(going):
        narrow = words if least and key not in least else wanted
        if sum(narrow[key] + GAP for key in kept) <= width:
            break
        kept.remove(key)
    return kept


def _longest_word(cells: Sequence[str]) -> int:
    return max(len(word) for text in cells for word in text.split() or [""])


def _leading(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """The first column, or the first two if only both together tell the rows apart."""
    first, *_ = texts
    return list(texts)[: 1 if len(set(texts[first])) == len(texts[first]) else 2]


def print_pairs(title: str, pairs: Mapping[str, object]) -> None:
    """Names and values, one a line; in a pipe with a tab between them."""
    pairs = _as_people_write(pairs)
    if not for_people():
        say(title)
        for key, value in pairs.items():
            print(f"{key.replace('_', ' ')}\t{_cell(value)}")
        print()
        return
    from rich.table import Table

    shown = _escape(title)
    table = Table(title=shown, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        table.add_row(key.replace("_", " "), _escape(_size(value) if key.endswith("bytes") else _cell(value, True)))
    console().print(table)
    print()


def console(width: int | None = None) -> Console:
    """Standard output: as wide as the terminal, or :data:`PIPE_WIDTH` in a pipe; or ``width``, where that is more."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command's frame knows what to do; rich would end with exit code 1

    return Output(width=max(width or 0, terminal_width()), highlight=False)


def terminal_width() -> int:
    """COLUMNS, else the columns of the terminal, or :data:`PIPE_WIDTH` in a pipe."""
    return shutil.get_terminal_size().columns if for_people() else PIPE_WIDTH


def sized(count: int) -> str:
    """A number of bytes for people: "58,064 bytes (56.7 KiB)"."""
    number, _, unit = _size(count).partition(" ")
    return f"{number} bytes {unit}".rstrip()


def _size(count: object) -> str:
    """The same of a value that is called bytes: "58,064 (56.7 KiB)"."""
    if not isinstance(count, int):
        return _cell(count, True)
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count:,} ({count / size:.1f} {unit})"
    return f"{count:,}"


def _cell(value: object, separators: bool = False) -> str:
    """A value as text; ``separators``: large numbers as 1,234,567."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and separators and abs(value) >= 1000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}" if separators else f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell(item)}" for key, item in value.items() if item not in (None, [], ""))
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value)
    return printable(str(value))


def _escape(text: str) -> str:
    """Names from files are shown as they are: no markup, no control characters that would steer a terminal."""
    from rich.markup import escape as without_markup

    return without_markup(escape(text))


def escape(text: str) -> str:
    """Text from files without control characters that would steer a terminal."""
    return "\n".join(printable(line) for line in text.split("\n"))


def real(low: float = -math.inf, high: float = math.inf) -> Callable[[str], float]:
    """A finite number from ``low`` to ``high``; who compares with NaN lets everything pass."""

    def number(text: str) -> float:
        try:
            value = rounding.real(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or math.isinf(value):
            limits = "" if low == -math.inf else f" from {low:g}" + ("" if high == math.inf else f" to {high:g}")
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a finite number{limits}")
        return value

    return number


def whole(least: int = 0, base: int = 10, most: float = math.inf) -> Callable[[str], int]:
    """A whole number of ``least`` to ``most``; base 0 takes 0x too."""

    def number(text: str) -> int:
        try:
            value = rounding.integer(text, base)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} must be a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{text[:40]}: must be at least {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text[:40]}: must be at most {most}")
        return value

    return number


Row = TypeVar("Row")
#: what a row is about: labels "0/17" of its operations, its engines, names of its layers
Place = tuple[Sequence[str], Sequence[str], Sequence[str]]


def add_operation_option(parser: argparse._ActionsContainer) -> None:
    """``--op``, repeatable."""
    text = "print only this operation: for example 0/17, or the beginning of a layer name"
    parser.add_argument("--op", action="append", default=[], metavar="OPERATION", help=text)


def add_row_options(parser: argparse.ArgumentParser, sort: bool = True) -> None:
    """The options, for :func:`chosen`; without ``sort`` for rows with a fixed order, and then not all
    operations have one."""
    group = parser.add_argument_group("rows")
    add_operation_option(group)
    group.add_argument(
        "--type",
        action="append",
        default=[],
        type=_engine,
        metavar="ENGINE",
        help="print only this engine: CONV, SDP ...",
    )
    parser.set_defaults(sort=None, every=sort)
    if sort:
        group.add_argument("--sort", metavar="COLUMN", help="sort by this column, largest first")
    group.add_argument("--top", type=whole(1), metavar="N", help="print only the first N rows or values")


def _engines() -> tuple[str, ...]:
    from nvdla.loadable.descriptors.enums import ENGINE_NAMES

    return (*ENGINE_NAMES, "cpu")


def _engine(text: str) -> str:
    if text.lower() not in _engines():
        raise argparse.ArgumentTypeError(
            f"{text!r} must be an engine: {', '.join(engine.upper() for engine in _engines())}"
        )
    return text.lower()


def asked(args: argparse.Namespace) -> bool:
    """Return whether any of the options was given."""
    return bool(args.op or args.type or args.sort or args.top)


def place_of(row: Mapping[str, object]) -> Place:
    """Keys of a row with ``operation`` ("0/17", or a number with ``task``), ``engine`` or ``type``, and ``layer``."""
    operation = row.get("operation")
    if isinstance(operation, int) and row.get("task") is not None:
        operation = f"{row['task']}/{operation}"
    label = str(operation).split()[0] if operation is not None else ""
    engine = str(row.get("engine") or row.get("type") or "").lower()
    return [label], [engine if engine in _engines() else "cpu"], [str(row["layer"])] if row.get("layer") else []


def chosen(
    rows: Iterable[Row],
    args: argparse.Namespace,
    place: Callable[[Any], Place] = place_of,
    value: Callable[[Any], Mapping[str, object]] = lambda row: row,
) -> list[Row]:
    """Rows selected and ordered by the options. ``value``: the columns of a row by name, for ``--sort``.

    Raises FormatError for an operation that no row is about, and a column that does not exist.
    """
    return ordered(selected(rows, args, place), args, value)


def selected(rows: Iterable[Row], args: argparse.Namespace, place: Callable[[Any], Place] = place_of) -> list[Row]:
    """Rows of the operations of ``--op`` and ``--type``, also to be summed. Raises FormatError for an operation that
    no row is about."""
    from nvdla.program.operation import layers_meant

    candidates = list(rows)
    if args.every:
        _check_operations(args.op, [place(row) for row in candidates])
    layers = {layer for row in candidates for layer in place(row)[2]}
    meant = {layer for name in args.op for layer in layers_meant(layers, name)}
    return [row for row in candidates if _wanted(place(row), args, meant)]


def ordered(
    rows: list[Row], args: argparse.Namespace, value: Callable[[Any], Mapping[str, object]] = lambda row: row
) -> list[Row]:
    """The first ``--top`` rows in the order of ``--sort``. Raises FormatError for a column that does not exist."""
    return (_sorted(rows, args.sort, value) if args.sort else rows)[: args.top or None]


def _wanted(place: Place, args: argparse.Namespace, meant: set[str]) -> bool:
    """``meant``: layers of ``--op``."""
    labels, engines, layers = place
    return (not args.op or bool(set(labels) & set(args.op) or meant & set(layers))) and (
        not args.type or bool(set(engines) & set(args.type))
    )


def _check_operations(wanted: Sequence[str], places: Sequence[Place]) -> None:
    from nvdla.program.operation import layers_meant

    labels = [label for place in places for label in place[0] if label]
    layers = [layer for place in places for layer in place[2]]
    for name in wanted:
        if name not in labels and not layers_meant(layers, name) and places:
            known = f"{labels[0]} to {labels[-1]}" if labels else "none"
            raise UnknownOperationError(
                f"--op {name}: no row has it. Operations are {known}, or give the name of a layer"
            )


def _sorted(rows: list[Row], column: str, value: Callable[[Any], Mapping[str, object]]) -> list[Row]:
    """By a column, numbers from the greatest, words from A; empty cells come last."""
    wanted = column.replace("-", "_").replace(" ", "_").lower()
    columns = {str(key).lower(): str(key) for row in rows for key in value(row)}
    if rows and wanted not in columns:
        raise FormatError(f"--sort {column}: unknown column: must be one of {', '.join(columns.values())}")
    key = columns.get(wanted, "")
    some = [row for row in rows if value(row).get(key) is not None]
    none = [row for row in rows if value(row).get(key) is None]
    numbers = {at: cell for at, row in enumerate(some) if isinstance(cell := value(row)[key], (int, float))}
    if len(numbers) == len(some):
        return [some[at] for at in sorted(numbers, key=lambda at: -float(numbers[at]))] + none
    return sorted(some, key=lambda row: str(value(row)[key])) + none
