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
from nvdla.cli.lint import hidden, place_of_finding, print_findings, summary, tested
from nvdla.cli.output import add_format_options, add_row_options, chosen, print_document, print_table, say, tell_proof
from nvdla.cli.working import working
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import FormatError, counted
from nvdla.loadable import load as load_loadable
from nvdla.program.naming import Names, is_scale, read_calibration
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
        report, damage = _examined(args, loadable, inputs)
    if report.configuration:
        tell_proof(args, configuration(report.configuration if args.config == "auto" else args.config))
    shown = replace(
        report,
        findings=tuple(chosen(report.findings, args, place_of_finding)),
        tensors=chosen(report.tensors, args),
        scales=chosen(report.scales, args),
    )
    document = {"format": FORMAT, "version": VERSION, **shown.as_dict(), "loadable": args.loadable}
    document["counts"] = report.as_dict()["counts"]
    if not print_document(document, args):
        _print(args, shown, summary(document["counts"]) + hidden(report.findings, shown.findings))
    if damage is not None:
        raise damage
    return int(bool(report.count("error")) or (args.warnings_as_errors and bool(report.count("warning"))))


def _examined(
    args: argparse.Namespace, loadable: nvdla.Loadable, inputs: Callable[[Runtime], list[list[bytes]]] | None
) -> tuple[DoctorReport, FormatError | None]:
    """The report, and what is wrong with the layer file next to the loadable, which is checked without it then."""
    table = read_calibration(args.scales) if args.scales else None
    if table is not None and not all(is_scale(entry.get("scale")) for entry in table.values()):
        # The checks report the table; the layer file has the scales of the tensors.
        args = argparse.Namespace(**{**vars(args), "scales": None})
    damage = None
    try:
        names = names_of(args, loadable)
    except FormatError as error:
        if args.layers or args.scales or args.input or args.json or args.csv or args.tsv:
            raise
        names, damage = Names(), error
    report = examine(
        loadable,
        args.config,
        args.abi,
        names=names,
        calibration=table,
        inputs=inputs if args.input or args.random_input is not None or not loadable.inputs else None,
        threads=args.threads,
        random=bool(loadable.inputs) and not args.input,
    )
    return report, damage


def _print(args: argparse.Namespace, report: DoctorReport, verdict: str) -> None:
    print_findings(report.findings)
    if args.converters:
        print_table("scales", report.scales)
    if report.tensors:
        outputs = [_tensor(tensor) for tensor in report.tensors]
        of_runs = [counted(report.runs, "run")] * bool(report.runs) + ["a run that did not end"] * bool(
            report.run_error
        )
        title = f"outputs of {' and '.join(of_runs)}"
        print_table(title, outputs, least=("histogram", "type", "shape", "layer"))
    say(f"{tested(args.loadable, report.configuration)}: {verdict}.")
    if report.runs and args.random_input is not None and not args.input:
        say("The input was random, so saturation, unused range and dead channels are not checked.")
    if not report.runs and not report.run_error:
        say("Static checks only. Add --input IMAGE (repeatable) to check saturation, range and dead channels.")


def _tensor(tensor: Document) -> Document:
    return {
        "operation": f"{tensor['task']}/{tensor['operation']} {tensor['engine'].upper()}",
        "layer": tensor["layer"],
        "shape": tensor["shape"][1:],
        "type": tensor["dtype"],
        "min": tensor["min"],
        "max": tensor["max"],
        "zero": f"{tensor['zero_share']:.1%}",
        "at_ends": f"{tensor['saturated_share']:.2%}",
        "dead": tensor["dead_count"] or None,
        "histogram": bars(tensor["histogram"]["counts"]),
    }


def bars(counts: list[int]) -> str:
    """Counts as a row of bars; every count above 0 is visible."""
    highest = max(counts, default=0)
    if not highest:
        return ""
    return "".join(BARS[0 if not count else max(1, round(8 * count / highest))] for count in counts)
