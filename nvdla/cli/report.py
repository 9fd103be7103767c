"""``nvdla report``: one self-contained HTML page about a loadable."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvdla.cli.arguments import add_input_options, surfaces_of_runs
from nvdla.cli.output import add_format_options, print_document, say
from nvdla.cli.study import add_study_options, study_of
from nvdla.files import write_file

HELP = """One HTML page about a loadable, which needs no network: overview, graph, operations with cycles, schedule,
memory, findings; with an input also the result, and what every operation wrote.

  nvdla report net.nvdla -o report.html
  nvdla report net.nvdla --input digit.pgm --labels labels.txt -o report.html

The graph is drawn by graphviz where it is installed (Debian: apt-get install graphviz), else shown as a table.
Exit code 1 when the loadable cannot run on the input."""

FORMAT, VERSION = "nvdla-report", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_study_options(parser)
    add_input_options(parser)
    parser.add_argument("--labels", metavar="FILE", help="names of the classes, one a line")
    parser.add_argument("--output", "-o", metavar="FILE.html", help="the page (default: LOADABLE.html, here)")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.program.naming import names_for
    from nvdla.report.page import make_report
    from nvdla.report.run import examine_and_run
    from nvdla.tensors.files import ending
    from nvdla.tensors.ranking import read_labels

    output = args.output or f"{Path(args.loadable).name}.html"
    ending(output, (".html", ".htm"), "a report")
    labels = read_labels(args.labels) if args.labels else None
    study = study_of(args, refuses=False)
    examination, view = examine_and_run(study, names_for(args.loadable, args.layers), _inputs(args), labels)
    report = make_report(study, examination, view, args.clock)
    data = report.text.encode()
    write_file(output, data)
    failed = view is not None and view.error is not None
    document = {
        "format": FORMAT,
        "version": VERSION,
        "loadable": args.loadable,
        "configuration": study.config.name,
        "output": output,
        "bytes": len(data),
        "sections": report.sections,
        "graph": report.graph,
        "findings": examination.as_dict()["counts"],
        "ran": view is not None and not failed,
        "run_error": view.error if view is not None else None,
    }
    if not print_document(document, args):
        _print(document)
    return int(failed)


def _inputs(args: argparse.Namespace) -> Callable[[Any], list[list[bytes]]] | None:
    if not args.input and args.random_input is None:
        return None
    return lambda runtime: surfaces_of_runs(runtime, args)


def _print(document: dict[str, Any]) -> None:
    say(f"{document['output']}: {document['bytes']:,} bytes, {', '.join(document['sections'])}")
    if document["graph"] == "table":
        print("The graph is a table: install graphviz for a drawing (Debian: apt-get install graphviz).")
    if document["run_error"]:
        say(f"It could not run: {document['run_error']}")
