"""``nvdla datasheet``: one page about a hardware configuration and networks on it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from nvdla.analysis.explain import USES
from nvdla.analysis.silicon import RELATIVE, fpga_verdicts, silicon
from nvdla.cli.arguments import add_coefficients_option, add_limit_option
from nvdla.cli.campaigns import add_calibrate_option, add_label_options, source_of, tell_class_order
from nvdla.cli.output import add_format_options, output_file, print_document, print_written, say, tell_proof
from nvdla.cli.study import add_timing_options, timing_of
from nvdla.emulator.hardware.configuration import Configuration, configuration, proof, proof_lines
from nvdla.errors import FormatError
from nvdla.experiments.campaign.journal import Record
from nvdla.experiments.exploration import (
    HEAD,
    cells_of,
    cycle_notes,
    extrapolated,
    label,
    page_of,
    plot_section,
    remarks,
    silicon_section,
    words,
)
from nvdla.util import html
from nvdla.util.escaping import Document
from nvdla.util.files import read_file, write_file

HELP = """Write a datasheet of a configuration as one HTML page: features, proof, area, power, FPGA boards.

Each network adds frames per second, traffic, CBUF use, relative energy, accuracy and sensitivity to faults.

  nvdla datasheet my.yaml -o page.html
  nvdla datasheet nv_small net.loadable --data digits.npz --faults faults.json -o page.html
  nvdla datasheet my.yaml net.onnx --others nv_small,nv_large --table points.csv -o page.html

A model (.onnx, .tflite, .prototxt) is compiled for the configuration and for --others, and the page plots them with
their Pareto front over area, power, energy, bandwidth or accuracy. Exit code 1 if a network cannot run or deadlocks."""

MAX_FAULTS = 1 << 26


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("configuration", help="configuration: a name or a .yaml file")
    parser.add_argument("network", nargs="*", help="models (.onnx, .tflite, .prototxt) or loadables")
    parser.add_argument(
        "--output", "-o", required=True, type=output_file(".html"), metavar="PAGE.html", help="HTML page to write"
    )
    parser.add_argument("--others", metavar="A,B", help="configurations to compare models on: names or .yaml files")
    parser.add_argument("--precision", default="int8", choices=("int8", "int16", "fp16"), help="precision of models")
    add_calibrate_option(parser)
    parser.add_argument("--data", metavar="DATA", help="labeled data for accuracy (formats: see nvdla evaluate)")
    add_label_options(parser)
    add_limit_option(parser)
    parser.add_argument(
        "--faults", action="append", default=[], metavar="FILE.json", help="add results of 'nvdla faults' (repeatable)"
    )
    add_coefficients_option(parser)
    parser.add_argument(
        "--table",
        type=output_file(".csv"),
        metavar="FILE.csv",
        help="also write the table as CSV (one row per fault or point)",
    )
    add_timing_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when a network is impossible or a run of it never ends."""
    from nvdla.analysis.cycles.document import conditions
    from nvdla.analysis.silicon import fpga_verdicts, silicon
    from nvdla.experiments.exploration import points_csv

    config = configuration(args.configuration)
    memory, software, clock, board = timing_of(args)
    faults = [_faults(path) for path in args.faults]
    others = [configuration(name) for name in args.others.split(",")] if args.others else []
    points = [point for network in args.network for point in _points(network, args)]
    stated = conditions(memory, software, clock, board, config, states_clock=True)
    table = points_csv([point for point in points if "error" not in point])
    data = datasheet(config, points, faults, table, stated).encode()
    write_file(args.output, data)
    if args.table:
        write_file(args.table, table.encode())
    document = {"configuration": config.name, "output": args.output, "bytes": len(data), "networks": points}
    document |= {"silicon": silicon(config), "fpga": fpga_verdicts(config)}
    tell_proof(args, config, *others)
    if not print_document(document, args):
        print_written(args.output, len(data), args)
        for point in points:
            if "error" in point:
                say(f"{point['network']} on {point['config']}: impossible: {point['error']}")
    return 1 if any("error" in point or point["deadlock"] for point in points) else 0


def _points(network: str, args: argparse.Namespace) -> list[Document]:
    """The records of a network on the configuration and on the others, with its name."""
    from nvdla.experiments.exploration import MODELS, Exploration, Point

    memory, software, clock, _ = timing_of(args)
    others = args.others.split(",") if args.others and network.endswith(MODELS) else []  # a loadable keeps its own
    names = [args.configuration, *others]
    points = [
        Point(name, args.precision, memory.bytes_per_cycle, memory.latency, memory.shared)
        for name in dict.fromkeys(names)
    ]
    source = source_of(args) if args.data else None
    if source is not None:
        tell_class_order(source, args)
    path = os.path.realpath(network)
    table = Exploration(
        path,
        points,
        args.calibrate,
        source=source,
        limit=args.limit,
        clock=clock,
        software=software,
        coefficients=args.coefficients,
    )
    records = table.open()(list(table.tasks()))
    return [
        {"network": Path(network).name, **{key: record[key] for key in record if key != "key"}} for record in records
    ]


def _faults(path: str) -> Document:
    """A document of ``nvdla faults``. Raises FormatError for any other file."""
    try:
        document = json.loads(read_file(path, MAX_FAULTS, "results of nvdla faults"))
        kind = document["format"] if isinstance(document, dict) else type(document).__name__
    except (ValueError, KeyError) as error:
        raise FormatError(f"{path}: must be the JSON of 'nvdla faults', got {type(error).__name__}: {error}") from None
    if kind != "nvdla-faults":
        raise FormatError(f"{path}: format: must be nvdla-faults, got {kind}")
    return dict(document)


#: fields of a configuration on its page, in words; those that only the emulator needs are left out
FIELDS = {
    "precisions": "precisions",
    "memory_atom": "memory atom, bytes",
    "mac_atomic_c": "MAC array, channels",
    "mac_atomic_k": "MAC array, kernels",
    "cbuf_banks": "CBUF banks",
    "cbuf_bank_bytes": "CBUF bank, bytes",
    "cbuf_bank_width": "CBUF bank width, bytes",
    "sdp_bs_throughput": "SDP X1, elements per cycle",
    "sdp_bn_throughput": "SDP X2, elements per cycle",
    "sdp_ew_throughput": "SDP Y, elements per cycle",
    "sdp_lut": "SDP lookup tables",
    "pdp_throughput": "PDP, elements per cycle",
    "cdp_throughput": "CDP, elements per cycle",
    "bdma": "BDMA",
    "rubik": "Rubik",
    "winograd": "Winograd mode",
    "weight_compression": "compressed weights",
    "batch": "hardware batches",
    "max_batch": "largest hardware batch",
    "dram_width_bits": "memory port, bits",
    "dram_latency_cycles": "memory latency that its queues are made for, cycles",
    "cvsram": "CVSRAM",
    "cvsram_width_bits": "CVSRAM port, bits",
    "address_bits": "address bits",
    "register_map": "register map",
    "rtl_branch": "branch of the RTL",
}

_FAULT_HEAD = ("network", "faults", "runs", "silent wrong class", "interval", "stopped")


def datasheet(
    config: Configuration,
    points: Sequence[Record],
    faults: Sequence[Document] = (),
    table: str = "",
    conditions: str = "",
) -> str:
    """Return a page about one configuration.

    Args:
        config: the configuration.
        points: records of an :class:`Exploration`, each with the ``network`` that it is of; those of other
            configurations are compared with it.
        faults: documents of ``nvdla faults``.
        table: the points as CSV.
        conditions: clock, memory and firmware of the points.

    Returns:
        A self-contained HTML page. Every published number has its source, and what no model was compared with is
        marked as extrapolated.
    """
    done = [point for point in points if "error" not in point]
    lines = [f"{point['network']}: {line}" for point in done for line in remarks([point])]
    lines = [*extrapolated(done), *dict.fromkeys(lines)]
    failures = (f"{point['network']} on {point['config']}: {point['error']}" for point in points if "error" in point)
    values = {name: getattr(config, name) for name in FIELDS} | {"max_batch": config.max_batch or 1}
    fields = [(text, _field(values[name])) for name, text in FIELDS.items()]
    silicons = [silicon(config), *(point["silicon"] for point in done)]
    plot = plot_section(done, html.table(("network", *HEAD), map(_network_row, done)))
    csv = html.download("points.csv", table, "The points as CSV") if table and done else ""
    return page_of(
        f"{config.name}: datasheet",
        plot,
        html.section("Configuration", html.table((), fields)),
        _proof_section(config),
        silicon_section(silicons),
        html.section("FPGA boards", _verdict_table(config), "Public reports of this configuration, NVDLA alone."),
        html.section("Networks", html.paragraph(f"{RELATIVE}.") + plot + csv if done else "", f"{conditions}."),
        html.section("Where the cycles go", html.table(("network", *words(USES)), map(_uses_row, done))),
        html.section("Fault sensitivity", html.table(_FAULT_HEAD, map(_fault_row, faults))),
        html.section("Notes", html.items([*lines, *cycle_notes()] if done else [])),
        html.section("Impossible", html.items(failures)),
    )


def _field(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not built" if value is None else str(value)


def _proof_section(config: Configuration) -> str:
    proofs = proof(config)
    rows = [
        (feature, basis or "extrapolated", proofs["cycles"][feature] or "extrapolated")
        for feature, basis in proofs["results"].items()
    ]
    table = html.table(("feature", "results compared with", "cycles compared with"), rows)
    return html.section("What is proven", table + html.items(proof_lines(config)))


def _verdict_table(config: Configuration) -> str:
    head = ("board", "device", "verdict", "reason", "source")
    return html.table(head, [[verdict[key] or "-" for key in head] for verdict in fpga_verdicts(config)])


def _network_row(point: Record) -> tuple[str, ...]:
    return point["network"], *cells_of(point)


def _uses_row(point: Record) -> tuple[str, ...]:
    cycles, total = point["accounting"] or {}, point["cycles"] or 1
    return label(point), *(f"{cycles[use] / total:.1%}" if cycles else "-" for use in USES)


def _fault_row(document: Document) -> tuple[str, ...]:
    summary = document["summary"]["all"]
    silent, stopped = summary["sdc1"], summary["stopped"]
    interval = f"{silent['low']:.2%} to {silent['high']:.2%}"
    return (
        document["network"],
        f"{summary['faults']:,}",
        f"{summary['samples']:,}",
        f"{silent['value']:.2%}",
        f"{interval} ({document['summary']['confidence']:.0%})",
        f"{stopped['value']:.2%}",
    )
