"""Printing for people (tables) and for scripts (JSON, YAML). rich is imported only when a table is printed."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from nvdla.errors import printable, shape_text

PIPE_WIDTH = 160
WRAPPED = 36  # a cell in a part of a table may be as wide before it is wrapped
GAP = 3  # between two columns
_AMOUNT = r"[-+±<>≤≥~]?\s?\d[\d,]*(\.\d+)?(e[-+]?\d+)?"
_UNIT = r"\s?(%|x|times|[KMG]?i?B|bytes|[mµun]?s|cycles|dB|/s)?"
NUMBER = re.compile(rf"{_AMOUNT}( ± {_AMOUNT})?{_UNIT}( \([-\d.,% ]+\))?|-")

_separator = ""  # of --csv and --tsv
_tables_to: TextIO | None = None  # where their tables go
_wide = False  # --wide: no column is left out


def add_format_options(parser: argparse.ArgumentParser, yaml: bool = False) -> None:
    """``--json`` (and ``--yaml``) on a command that prints."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="print JSON (stable keys) instead of tables")
    group.add_argument("--csv", action="store_true", help="print the tables alone, as CSV")
    group.add_argument("--tsv", action="store_true", help="print the tables alone, columns separated by tabs")
    parser.add_argument("--wide", action="store_true", help="all columns of tables, however narrow the terminal is")
    if yaml:
        group.add_argument("--yaml", action="store_true", help="print YAML (the same keys) instead of tables")


def print_document(document: Mapping[str, Any], args: argparse.Namespace) -> bool:
    """Print ``document`` if a machine format was asked for; False when the caller shall print tables."""
    document = framed(document, getattr(args, "command_name", ""))
    if getattr(args, "json", False):
        print(json.dumps(plain(document), indent=2, allow_nan=False))
        return True
    if getattr(args, "yaml", False):
        import yaml

        print(yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True), end="")
        return True
    return False


def framed(document: Mapping[str, Any], command: str) -> Mapping[str, Any]:
    """A document with "format" and "version" in front, where it has none: so every command's says what it is."""
    if "format" in document or not command:
        return document
    return {"format": f"nvdla-{command}", "version": 1, **document}


def print_error(command: str, error: str, message: str) -> None:
    """What went wrong as a document, for whoever asked for JSON."""
    print(json.dumps({**framed({"error": error, "message": message}, "error"), "command": command}, indent=2))


@contextlib.contextmanager
def tables_as(args: argparse.Namespace) -> Iterator[None]:
    """Within, tables are printed as the arguments ask for; with ``--csv`` and ``--tsv`` nothing else is."""
    global _separator, _tables_to, _wide
    separator = "," if getattr(args, "csv", False) else "\t" if getattr(args, "tsv", False) else ""
    before = _separator, _tables_to, _wide
    _separator, _tables_to, _wide = separator, sys.stdout if separator else None, getattr(args, "wide", False)
    try:
        with contextlib.redirect_stdout(io.StringIO()) if separator else contextlib.nullcontext():
            yield
    finally:
        _separator, _tables_to, _wide = before


def for_people() -> bool:
    """Whether output is laid out in columns: on a terminal, or where COLUMNS says how wide it shall be."""
    return bool(os.environ.get("COLUMNS", "").isdecimal()) or sys.stdout.isatty()


def _print_lines(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """One row a line: nothing is padded, wrapped or cut; tabs between columns, or as CSV."""
    stream = _tables_to or sys.stdout
    if not _tables_to:
        print(printable(title), file=stream)
    writer = csv.writer(stream, delimiter=_separator or "\t", lineterminator="\n")
    writer.writerow(columns if _tables_to else [key.replace("_", " ") for key in columns])
    for row in rows:
        writer.writerow([_cell(row.get(key)) for key in columns])
    if not _tables_to:
        print(file=stream)


def say(text: str, stream: Any = None) -> None:
    """One line: line breaks and escape codes of the names in it are shown escaped."""
    print(printable(text), file=stream or sys.stdout)


def print_written(path: str, size: int, args: argparse.Namespace) -> None:
    """One line about a file that was written: on standard error where standard output is a document."""
    stream = sys.stderr if getattr(args, "json", False) or getattr(args, "yaml", False) else sys.stdout
    say(f"{path}: {sized(size)}", stream)


def plain(value: Any) -> Any:
    """``value`` as JSON takes it: NaN and infinities become None, enums their names, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (str, bool, float)) or value is None:
        return value
    return int(value) if hasattr(value, "__index__") else str(value)


def print_table(
    title: str, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None, least: Sequence[str] = ()
) -> None:
    """A table with one column a key. Numbers stand right; columns in which nothing stands are left out.

    ``least``: columns that a narrow terminal loses first, before the last ones."""
    rows = [_as_people_write(row) for row in rows]
    if not rows:
        print(printable(f"{title}: none") + "\n" * for_people())
        return
    if _tables_to or not for_people():
        _print_lines(title, rows, list(columns or rows[0]) if _tables_to else _shown(rows, columns))
        return
    shown = _shown(rows, columns)
    texts = {key: [key.replace("_", " "), *(_cell(row.get(key), True) for row in rows)] for key in shown}
    kept = list(texts) if _wide else _that_fit(texts, terminal_width(), least)
    _print_columns(title, rows, {key: texts[key] for key in kept})
    left_out = [key.replace("_", " ") for key in texts if key not in kept]
    if left_out:
        note = f"Left out in {terminal_width()} columns: {', '.join(left_out)}; --wide shows them."
        print(textwrap.fill(note, terminal_width(), break_long_words=False) + "\n")


def _as_people_write(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Engines as NVIDIA writes them, and shapes as ``3x32x32``; documents have lower case, and lists."""
    changed = dict(row)
    if isinstance(row.get("engine"), str):
        changed["engine"] = row["engine"].upper()
    if isinstance(row.get("shape"), (list, tuple)):
        changed["shape"] = shape_text(row["shape"])
    return changed


def _shown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None) -> list[str]:
    """Columns in which something stands."""
    return [key for key in columns or rows[0] if any(_cell(row.get(key)) for row in rows)]


def _print_columns(title: str, rows: Sequence[Mapping[str, Any]], texts: Mapping[str, Sequence[str]]) -> None:
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
    output.print(f"[bold]{_escape(title)}[/]", soft_wrap=True)
    for cells in zip(*(cells[1:] for cells in texts.values()), strict=True):
        table.add_row(*map(_escape, cells))
    output.print(table)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether a column holds numbers: as such, or as text, some of them with a unit ("25.7%", "1.5 KiB"). Names that
    are digits are no numbers."""
    texts = [value.strip() for value in values if isinstance(value, str) and value.strip()]
    others = [value for value in values if not isinstance(value, str)]
    return (
        all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in others)
        and all(NUMBER.fullmatch(text) for text in texts)
        and (not texts or not all(map(str.isdecimal, texts)))
    )


def _widths(texts: Mapping[str, Sequence[str]], room: int | None) -> dict[str, int]:
    """How wide each column is: as its longest cell, or in ``room`` less, the widest first. Cells are wrapped between
    words then; where words themselves are too long they are broken, so that nothing is cut off. (rich's own widths
    may be more than the terminal has, and what is beyond is lost.)"""
    widths = {key: max(map(len, cells)) for key, cells in texts.items()}
    if room is None:
        return widths
    words = {key: min(_longest_word(cells), room // 2) for key, cells in texts.items()}
    for least in (words, dict.fromkeys(texts, 1)):
        while sum(widths.values()) + GAP * len(widths) - 1 > room:
            key = max(widths, key=lambda key: (widths[key] > least[key], widths[key]))
            if widths[key] <= least[key]:
                break
            widths[key] -= 1
    return widths


def _that_fit(texts: Mapping[str, Sequence[str]], width: int, least: Sequence[str]) -> list[str]:
    """The columns that fit into ``width`` with long cells wrapped between their words: ``least`` go first, then the
    last; those that say which row it is stay."""
    words = {key: _longest_word(cells) for key, cells in texts.items()}
    wanted = {key: max(words[key], min(WRAPPED, max(map(len, texts[key])))) for key in texts}
    kept, leading = list(texts), _leading(texts)
    if sum(words.values()) + GAP * len(words) <= width:
        return kept
    going = [key for key in [*least, *reversed(kept)] if key in kept and key not in leading]
    for key in dict.fromkeys(going):
        if sum(wanted[key] + GAP for key in kept) <= width:
            break
        kept.remove(key)
    return kept


def _longest_word(cells: Sequence[str]) -> int:
    return max(len(word) for text in cells for word in text.split() or [""])


def _leading(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """The first column, or the first two if only both together tell the rows apart."""
    first, *_ = texts
    return list(texts)[: 1 if len(set(texts[first])) == len(texts[first]) else 2]


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
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


def console(width: int | None = None) -> Any:
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


def _size(count: Any) -> str:
    """The same of a value that is called bytes: "58,064 (56.7 KiB)"."""
    if not isinstance(count, int):
        return _cell(count, True)
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count:,} ({count / size:.1f} {unit})"
    return f"{count:,}"


def _cell(value: Any, separators: bool = False) -> str:
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
        return ", ".join(f"{key}={_cell(each)}" for key, each in value.items() if each not in (None, [], ""))
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(each) for each in value)
    return printable(str(value))


def _escape(text: str) -> str:
    """Names from files are shown as they are: no markup, no control characters that would steer a terminal."""
    from rich.markup import escape as without_markup

    return without_markup(escape(text))


def escape(text: str) -> str:
    """Text from files without control characters that would steer a terminal."""
    return "\n".join(printable(line) for line in text.split("\n"))
