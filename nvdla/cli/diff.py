"""``nvdla diff``: how two loadables or packages differ."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from nvdla.checks.diff import Change, Diff, OperandChange, diff
from nvdla.cli.output import add_format_options, print_document, print_table, say
from nvdla.errors import FormatError, counted
from nvdla.loadable import load as load_loadable
from nvdla.program.naming import names_for
from nvdla.util.escaping import Document
from nvdla.util.files import is_zip_file, packed_files, parse_json, read_file

HELP = """Show the structural differences of two loadables or packages: tables, descriptors, operands. Nothing is run.
Exit code 1 if they differ."""

FORMAT, VERSION = "nvdla-diff", 1

AREAS = {
    "network": "network descriptors", "graph": "dependencies", "operation": "operation descriptors",
    "surface": "surface descriptors", "cpu": "CPU operations", "package": "files of the packages",
}  # fmt: skip
"""Names of areas; other areas are tables of the loadable."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("a", help="first file")
    parser.add_argument("b", help="second file")
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument("--summary", action="store_true", help="print only the number of differences per kind")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    packages = is_zip_file(args.a) and is_zip_file(args.b)
    result = _packages(args) if packages else _diff((args.a, args.b), args)
    document = {"format": FORMAT, "version": VERSION, **result.as_dict(), "a": args.a, "b": args.b}
    if not print_document(document, args):
        if not args.summary:
            for area in dict.fromkeys(change.area for change in result.changes):
                print_table(
                    AREAS.get(area, area), [_change(change) for change in result.changes if change.area == area]
                )
            if result.operands:
                print_table("operands", [_operand(operand) for operand in result.operands])
        say(_summary(result.counts(), "packages" if packages else "loadables"))
    return 0 if result.identical else 1


def _diff(paths: Sequence[str], args: argparse.Namespace) -> Diff:
    first, second = paths
    layers = names_for(first).layers or None, names_for(second).layers or None
    return diff(load_loadable(first), load_loadable(second), args.abi, layers)


def _packages(args: argparse.Namespace) -> Diff:
    """Compare loadables of the same name, keys of the manifests, and other files by their bytes; no layer files."""
    from nvdla.compiler.frontend.package import MAX_MANIFEST, MAX_PACKAGE, unpack

    for path in (args.a, args.b):
        unpack(path)  # reports a damaged one
    ours, theirs = packed_files(args.a), packed_files(args.b)
    total = Diff(args.a, args.b, "", "")
    for name in (name for name in ours | theirs if not name.endswith(".layers.json")):
        paths = f"{args.a}/{name}", f"{args.b}/{name}"
        if name not in ours or name not in theirs:
            total.changes.append(Change("package", name, None, "only in a" if name in ours else "only in b"))
        elif name.endswith(".loadable"):
            part = _diff(paths, args)
            changes = [replace(change, where=f"{name}: {change.where}") for change in part.changes]
            operands = [replace(operand, where=f"{name}: {operand.where}") for operand in part.operands]
            matched: dict[int | str, str] = {f"{name}: {task}": how for task, how in part.matched_by.items()}
            total = replace(
                part,
                a=args.a,
                b=args.b,
                changes=total.changes + changes,
                operands=total.operands + operands,
                matched_by=total.matched_by | matched,
            )
        elif name == "manifest.json":
            first, second = (parse_json(read_file(path, MAX_MANIFEST)) for path in paths)
            keys = [key for key in first | second if first.get(key) != second.get(key)]
            total.changes.extend(Change("package", f"{name}: {key}", None, "changed") for key in keys)
        elif read_file(paths[0], MAX_PACKAGE) != read_file(paths[1], MAX_PACKAGE):
            total.changes.append(Change("package", name, None, "changed"))
    if not total.abi_a:
        raise FormatError(f"{args.a}, {args.b}: must have a loadable of the same name, got none")
    return total


def _summary(counts: dict[str, int], what: str) -> str:
    if not counts:
        return f"The {what} are equal."
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
