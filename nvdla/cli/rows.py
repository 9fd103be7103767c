"""Choosing rows of tables about operations: ``--op``, ``--type``, ``--sort``, ``--top``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nvdla.cli.numbers import whole
from nvdla.errors import FormatError

Row = TypeVar("Row")
#: what a row is about: labels "0/17" of its operations, its engines, names of its layers
Place = tuple[Sequence[str], Sequence[str], Sequence[str]]


def add_row_options(parser: argparse.ArgumentParser, sort: bool = True) -> None:
    """The options, for :func:`chosen`; without ``sort`` for rows that have an order of their own, and then not all
    operations have one."""
    group = parser.add_argument_group("rows")
    group.add_argument(
        "--op", action="append", default=[], metavar="OPERATION", help="only this operation: 0/17, or a layer's name"
    )
    group.add_argument(
        "--type", action="append", default=[], type=_engine, metavar="ENGINE", help="only this engine: CONV, SDP ..."
    )
    parser.set_defaults(sort=None, every=sort)
    if sort:
        group.add_argument("--sort", metavar="COLUMN", help="the greatest first")
    group.add_argument("--top", type=whole(1), metavar="N", help="only the first N rows")


def _engines() -> tuple[str, ...]:
    from nvdla.descriptors.enums import ENGINE_NAMES

    return (*ENGINE_NAMES, "cpu")


def _engine(text: str) -> str:
    if text.lower() not in _engines():
        raise argparse.ArgumentTypeError(f"{text!r} is no engine: {', '.join(each.upper() for each in _engines())}")
    return text.lower()


def asked(args: argparse.Namespace) -> bool:
    """Whether any of the options was given."""
    return bool(args.op or args.type or args.sort or args.top)


def place_of(row: Mapping[str, Any]) -> Place:
    """Of a row with ``operation`` ("0/17", or a number beside ``task``), ``engine`` or ``type``, and ``layer``."""
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
    value: Callable[[Any], Mapping[str, Any]] = lambda row: row,
) -> list[Row]:
    """The rows that the options ask for. ``value``: the columns of a row by name, for ``--sort``.

    Raises FormatError for an operation that no row is about, and a column that does not exist.
    """
    found = list(rows)
    if args.every:
        _check_operations(args.op, [place(row) for row in found])
    found = [row for row in found if _wanted(place(row), args)]
    if args.sort:
        found = _sorted(found, args.sort, value)
    return found[: args.top] if args.top else found


def _wanted(place: Place, args: argparse.Namespace) -> bool:
    labels, engines, layers = place
    names = {*labels, *layers, *(part for layer in layers for part in layer.split("+"))}
    return (not args.op or bool(names & set(args.op))) and (not args.type or bool(set(engines) & set(args.type)))


def _check_operations(wanted: Sequence[str], places: Sequence[Place]) -> None:
    labels = [label for place in places for label in place[0] if label]
    layers = {part for place in places for layer in place[2] for part in (layer, *layer.split("+"))}
    for name in wanted:
        if name not in labels and name not in layers and places:
            known = f"{labels[0]} to {labels[-1]}" if labels else "none"
            raise FormatError(f"--op {name}: no row is about it; operations are {known}, or give the name of a layer")


def _sorted(rows: list[Row], column: str, value: Callable[[Any], Mapping[str, Any]]) -> list[Row]:
    """By a column, numbers from the greatest, words from A; rows where nothing stands come last."""
    wanted = column.replace("-", "_").replace(" ", "_").lower()
    columns = {str(key).lower(): str(key) for row in rows for key in value(row)}
    if rows and wanted not in columns:
        raise FormatError(f"--sort {column}: there is no such column; columns are {', '.join(columns.values())}")
    key = columns.get(wanted, "")
    some = [row for row in rows if value(row).get(key) is not None]
    none = [row for row in rows if value(row).get(key) is None]
    if all(isinstance(value(row)[key], (int, float)) for row in some):
        return sorted(some, key=lambda row: -float(value(row)[key])) + none
    return sorted(some, key=lambda row: str(value(row)[key])) + none
