"""``nvdla diff``: how two loadables differ."""

from __future__ import annotations

import argparse

from nvdla.checks.diff import Change, OperandChange, diff
from nvdla.cli.output import add_format_options, print_document, print_table, say
from nvdla.errors import counted
from nvdla.loadable import load as load_loadable
from nvdla.util.escaping import Document

HELP = """Show the structural differences of two loadables: tables, descriptor fields, statistics of operands.
Nothing is run. Exit code 1 if they differ."""

FORMAT, VERSION = "nvdla-diff", 1

AREAS = {
    "network": "network descriptors", "graph": "dependencies", "operation": "operation descriptors",
    "surface": "surface descriptors", "cpu": "CPU operations",
}  # fmt: skip
"""Names of areas; other areas are tables of the loadable."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("a", help="first loadable")
    parser.add_argument("b", help="second loadable")
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument("--summary", action="store_true", help="print only the number of differences per kind")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    result = diff(load_loadable(args.a), load_loadable(args.b), args.abi)
    document = {"format": FORMAT, "version": VERSION, **result.as_dict(), "a": args.a, "b": args.b}
    if not print_document(document, args):
        if not args.summary:
            for area in dict.fromkeys(change.area for change in result.changes):
                print_table(
                    AREAS.get(area, area), [_change(change) for change in result.changes if change.area == area]
                )
            if result.operands:
                print_table("operands", [_operand(operand) for operand in result.operands])
        say(_summary(result.counts()))
    return 0 if result.identical else 1


def _summary(counts: dict[str, int]) -> str:
    if not counts:
        return "The loadables are equal."
    parts = ", ".join(f"{count} in {AREAS.get(area, area)}" for area, count in counts.items())
    return f"{counted(sum(counts.values()), 'difference')}: {parts}."


def _change(change: Change) -> Document:
    return {
        "where": change.where,
        "field": change.field,
        "a": _value(change.a, change.meaning_a),
        "b": _value(change.b, change.meaning_b),
        "what": change.what if change.field is None else None,
    }


def _value(value: object, meaning: str | None) -> object:
    return f"{value} ({meaning})" if meaning else value


def _operand(operand: OperandChange) -> Document:
    first = operand.first or {}
    return {
        "where": operand.where,
        "operand": operand.operand,
        "type": operand.dtype,
        "elements": operand.statistics_a["elements"],
        "different": operand.different,
        "max_abs": operand.max_abs,
        "cosine": operand.cosine,
        "first": ", ".join(f"{name} {at}" for name, at in first.items()),
        "a": _statistics(operand.statistics_a),
        "b": _statistics(operand.statistics_b),
        "note": operand.note,
    }


def _statistics(statistics: Document) -> str:
    if statistics["min"] is None:
        return "no number"
    return "{min:g} .. {max:g}, mean {mean:.4g}, std {std:.4g}".format(**statistics)
