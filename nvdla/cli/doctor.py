"""``nvdla doctor``: is the quantized network sound?"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import nvdla
from nvdla.checks.doctor.doctor import DoctorReport, examine
from nvdla.cli.arguments import (
    add_input_options,
    add_layers_option,
    add_machine_options,
    add_warnings_option,
    names_of,
    surfaces_of_runs,
)
from nvdla.cli.lint import place_of_finding, print_findings, summary
from nvdla.cli.output import add_format_options, add_row_options, chosen, print_document, print_table, say
from nvdla.cli.working import working
from nvdla.errors import counted
from nvdla.loadable import load as load_loadable
from nvdla.program.naming import is_scale, read_calibration
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from nvdla.runtime import Runtime

HELP = """Check a loadable: scales implied by converters, weights and biases, lookup tables, known compiler bugs, all
rules of 'nvdla lint'. With --input (repeatable) the loadable also runs: saturation, histograms, unused range, dead
channels, lookups out of range. With --scales the scale table is checked too.

Every check is explained in docs/doctor.md. Exit code 1 for errors (with --warnings-as-errors also for warnings)."""

FORMAT, VERSION = "nvdla-doctor", 1
BARS = " ▁▂▃▄▅▆▇█"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    add_input_options(parser)
    add_machine_options(parser)
    add_layers_option(parser)
    parser.add_argument("--converters", action="store_true", help="list the scale of every converter")
    add_warnings_option(parser)
    add_row_options(parser, sort=False)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    loadable = load_loadable(args.loadable)

    def inputs(runtime: Runtime) -> list[list[bytes]]:
        return surfaces_of_runs(runtime, args)

    with working(f"examining {args.loadable}"):
        found = _examined(args, loadable, inputs)
    shown = replace(
        found,
        findings=tuple(chosen(found.findings, args, place_of_finding)),
        tensors=chosen(found.tensors, args),
        scales=chosen(found.scales, args),
    )
    document = {"format": FORMAT, "version": VERSION, **shown.as_dict(), "loadable": args.loadable}
    document["counts"] = found.as_dict()["counts"]
    if not print_document(document, args):
        _print(args, shown, document["counts"])
    return int(bool(found.count("error")) or (args.warnings_as_errors and bool(found.count("warning"))))


def _examined(
    args: argparse.Namespace, loadable: nvdla.Loadable, inputs: Callable[[Runtime], list[list[bytes]]] | None
) -> DoctorReport:
    table = read_calibration(args.scales) if args.scales else None
    if table is not None and not all(is_scale(entry.get("scale")) for entry in table.values()):
        args.scales = None  # the checks report the table; the layer file has the scales of the tensors
    return examine(
        loadable,
        args.config,
        args.abi,
        names=names_of(args, loadable),
        calibration=table,
        inputs=inputs if args.input or args.random_input is not None or not loadable.inputs else None,
        threads=args.threads,
        random=bool(loadable.inputs) and not args.input,
    )


def _print(args: argparse.Namespace, found: DoctorReport, counts: dict[str, int]) -> None:
    print_findings(found.findings)
    if args.converters:
        print_table("scales", found.scales)
    if found.tensors:
        outputs = [_tensor(tensor) for tensor in found.tensors]
        print_table(f"outputs of {counted(found.runs, 'run')}", outputs, least=("histogram", "type", "shape", "layer"))
    say(f"{args.loadable} on {found.configuration}: {summary(counts)}.")
    if found.runs and args.random_input is not None and not args.input:
        print("The inputs were random: saturation, unused range and dead channels of real data are not judged.")
    if not found.runs and not found.run_error:
        print("It was not run: give --input IMAGE (as often as you like) for saturation, range and dead channels.")


def _tensor(each: Document) -> Document:
    return {
        "operation": f"{each['task']}/{each['operation']} {each['engine'].upper()}",
        "layer": each["layer"],
        "shape": each["shape"][1:],
        "type": each["dtype"],
        "min": each["min"],
        "max": each["max"],
        "zero": f"{each['zero_share']:.1%}",
        "at_ends": f"{each['saturated_share']:.2%}",
        "dead": each["dead_count"] or None,
        "histogram": bars(each["histogram"]["counts"]),
    }


def bars(counts: list[int]) -> str:
    """Counts as a row of bars; every count above 0 is visible."""
    highest = max(counts, default=0)
    if not highest:
        return ""
    return "".join(BARS[0 if not count else max(1, round(8 * count / highest))] for count in counts)
