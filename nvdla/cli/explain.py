"""``nvdla explain``: how convolutions are done, and what bounds them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nvdla.cli.configs import SILICON, add_silicon_options, print_silicon, silicon_of
from nvdla.cli.output import (
    add_format_options,
    add_operation_option,
    output_file,
    print_document,
    print_table,
    print_written,
    say,
    terminal_width,
)
from nvdla.cli.study import add_study_options, requested
from nvdla.util.escaping import Document
from nvdla.util.files import in_package, write_file

if TYPE_CHECKING:
    from nvdla.analysis.study import Study
    from nvdla.emulator.hardware.configuration import Configuration

HELP = """Explain how convolutions run on the hardware: tiles, banks of the convolution buffer, kernel groups, stripes,
fetched bytes, the bottleneck and possible improvements. Works on loadables of any compiler.

  nvdla explain net.nvdla                     every convolution, and what the cycles of a run go to
  nvdla explain net.nvdla 0/17                one operation in detail (or the name of its layer)
  nvdla explain net.nvdla --alternatives      alternatives of every layer and their cycles
  nvdla explain net.nvdla --area --power      also area and power of the configuration
  nvdla explain net.nvdla --svg buffer.svg    banks of the convolution buffer over time"""

FORM_COLUMNS = ("form", "data_banks", "weight_banks", "weights_kept", "data_passes", "weight_passes", "cycles", "built")
LAYER_COLUMNS = ("operations", "layer", "built", "cycles", "fastest", "fastest_cycles", "what_would_help", "then")
LEAST = ("then", "what_would_help", "operations")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    parser.add_argument(
        "operation", nargs="?", metavar="OPERATION", help="TASK/OPERATION, or the beginning of a layer name"
    )
    add_operation_option(parser)
    parser.add_argument(
        "--alternatives",
        action="store_true",
        help="also print alternatives of every layer (always printed for one OPERATION)",
    )
    parser.add_argument("--svg", type=output_file(".svg"), metavar="FILE", help="also draw as SVG")
    add_silicon_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.analysis.cycles.document import caveats, memory_document
    from nvdla.analysis.explain import accounting, chosen, explanations, operation_document
    from nvdla.analysis.layer_forms import with_advice

    request = requested(args)
    study = request.tell()
    names = [*([args.operation] if args.operation else []), *args.op]
    nodes = {node.key: node for name in names for node in chosen(study, name)}.values()
    labels = dict.fromkeys(node.label for node in nodes if node.engine == "conv")
    rows = [row for label in labels or ([] if names else [None]) for row in explanations(study, label)]
    rows = with_advice(study, rows) if not (args.alternatives or args.svg) else rows
    screens = [operation_document(study, node) for node in nodes]
    candidates = _evaluated(study, {row["operation"] for row in rows}) if names or args.alternatives else []
    if args.svg:
        _draw(study, args)
    spent = accounting(study)
    document: Document = {
        "loadable": study.loadable.name,
        "configuration": study.config.name,
        "memory": memory_document(study),
        "convolutions": rows,
        "operations": screens,
        "evaluated": candidates,
        "accounting": spent,
    }
    hidden = {name for option, names in SILICON.items() if not getattr(args, option) for name in names}
    if args.area or args.power:
        document["silicon"] = silicon_of([study.config])
    if print_document(document, args):
        return 0
    if in_package(args.loadable) and not (args.svg or args.alternatives):
        say(f"{study.loadable.name} on {study.config.name}")  # operations of all parts begin with 0/0
    if names:
        _print_operations(screens, rows, candidates, study.config)
    elif args.alternatives:
        print_table(
            f"{study.loadable.name} on {study.config.name}", map(_layer_cells, candidates), LAYER_COLUMNS, LEAST
        )
        say(
            "Cycles of each layer, timed alone. All variants and changes: --json, or 'nvdla explain LOADABLE OPERATION'"
        )
    elif not args.svg:
        _print_rows(rows)
        _print_accounting(spent)
    if not args.svg:
        for line in caveats(study, request.clock):
            say(f"Note: {line}.")
    if "silicon" in document:
        print()
        print_silicon(document["silicon"], hidden)
    return 0


def _evaluated(study: Study, labels: set[str]) -> list[Document]:
    """Candidates evaluated for the layers of these operations."""
    from nvdla.analysis.layer_forms import evaluate_layer, layers_of
    from nvdla.program.naming import builders_choices

    layers = [layer for layer in layers_of(study) if labels & {node.label for node in layer.nodes}]
    kept = builders_choices(study.loadable.name)
    rows = [evaluate_layer(study, layer) for layer in layers]
    return [row | {"by_the_builder": kept.get(row["operations"][0])} for row in rows]


def _draw(study: Study, args: argparse.Namespace) -> None:
    from nvdla.analysis.explain import buffer_svg

    data = buffer_svg(study).encode()
    write_file(args.svg, data)
    print_written(args.svg, len(data), args)


def _print_operations(
    screens: list[Document], rows: list[Document], candidates: list[Document], config: Configuration
) -> None:
    from nvdla.analysis.explain import field_lines, lines
    from nvdla.analysis.layer_forms import builder_lines, evaluation_lines

    for screen in screens:
        for line in lines(screen):
            say(line)
    _print_rows([row | {"advice": ""} for row in rows])  # the evaluated candidates state it
    for candidate in candidates:
        print()
        names = ", ".join(candidate["operations"])
        forms = [_form_cells(form) for form in candidate["forms"]]
        print_table(
            f"Variants of {names}, each timed alone, from the first register write to the interrupt",
            forms,
            FORM_COLUMNS,
        )
        for line in [*evaluation_lines(candidate), *builder_lines(candidate, config)]:
            say(line)
    for screen in screens:
        print()
        say(f"Descriptor of {screen['operation']} {screen['engine']}: fields that are not 0")
        for line in field_lines(screen, terminal_width()):
            say(line)


def _print_rows(rows: list[Document]) -> None:
    from nvdla.analysis.explain import sentences

    for row in rows:
        first, *rest = sentences(row)
        say(first)
        for line in rest:
            say(f"    {line}")


def _print_accounting(spent: dict[str, int] | None) -> None:
    from nvdla.analysis.explain import accounting_lines

    for line in accounting_lines(spent) if spent else ["no total: deadlock"]:
        say(line)


def _form_cells(form: Document) -> Document:
    kept = form["keeps_weights"] if form["parts"] > 1 else None
    passes = f"{form['data_passes']:.2f}"
    variant = f"{form['form']}, weights compressed" if form["compressed"] else form["form"]
    return form | {
        "form": variant,
        "weights_kept": kept,
        "data_passes": passes,
        "built": "yes" if form["chosen"] else None,
    }


def _layer_cells(row: Document) -> Document:
    """A layer in one line: the built variant, the fastest variant, and the change that saves most."""
    built, best = next(form for form in row["forms"] if form["chosen"]), row["forms"][0]
    change = row["changes"][0] if row["changes"] else None
    return {
        "operations": ", ".join(row["operations"]),
        "layer": row["layer"],
        "built": _short_form(built),
        "cycles": row["cycles"],
        "fastest": None if best is built else _short_form(best),
        "fastest_cycles": None if best is built else best["cycles"],
        "what_would_help": change["change"] if change else None,
        "then": f"-{change['saves']:.0%}" if change else None,
    }


def _short_form(form: Document) -> str:
    """ "4 parts of rows, 11+1 banks"."""
    return f"{form['form']}, {form['data_banks']}+{form['weight_banks']} banks"
