"""``nvdla layers``: which layer of its model each operation of a loadable is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvdla.checks.lint.linter import refusal
from nvdla.cli.arguments import add_config_option, add_model_options, add_scales_option
from nvdla.cli.output import add_format_options, add_row_options, chosen, print_document, print_table, say, tell_proof
from nvdla.errors import ConfigError, FormatError, counted
from nvdla.loadable import load as load_loadable
from nvdla.program import naming
from nvdla.program.naming import from_calibration, names_for
from nvdla.program.operation import Key, Operation
from nvdla.program.program import Program
from nvdla.util.escaping import Document

HELP = """Find the model layer of each operation by structure, shapes and weights, and write the names into the layer
file LOADABLE.layers.json. inspect, cycles, memory, graph, timeline, explain, compare, doctor and report read it.

  nvdla layers net.nvdla --caffe net.prototxt net.caffemodel
  nvdla layers net.nvdla --caffe net.prototxt --scales calibration.json
  nvdla layers net.nvdla --onnx net.onnx --dry-run
  nvdla layers net.nvdla                                 print the known names

Each name has a confidence: "weights" (the operation has the weights of the layer), "structure" (no other layer fits) or
"order" (other layers fit as well). Exit code 1 if an operation has no name."""

FORMAT, VERSION = "nvdla-layers-found", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("loadable", help="the loadable")
    model = parser.add_mutually_exclusive_group()
    add_model_options(model)
    add_scales_option(parser)
    add_config_option(parser)
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--force", action="store_true", help="replace layer names written by the compiler")
    add_row_options(parser)
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    loadable = load_loadable(args.loadable)
    if args.scales and not (args.caffe or args.onnx):
        raise FormatError(f"--scales {args.scales}: --scales needs a model: add --caffe or --onnx")
    program = Program.of(loadable, args.config, args.abi)
    if args.config != "auto" and (reason := refusal(program)) is not None:
        raise ConfigError(f"{args.loadable} cannot run on {args.config}: {reason}")
    tell_proof(args, program.config)
    written = None
    if args.caffe or args.onnx:
        recognition, network = _recognized(args, program)
        names, confidence, unused = recognition.layers, recognition.confidence, recognition.unused
        written = None if args.dry_run else _write(args, program, network, recognition)
    else:
        names, confidence, unused = names_for(args.loadable).layers, _known_confidence(args.loadable), []
    parts = _parts(program, names)
    rows = [
        {
            "operation": operation.label,
            "engine": operation.engine,
            "layer": names.get((operation.task, operation.index)),
            "part": parts.get(operation.key),
            "confidence": confidence.get((operation.task, operation.index)),
            "what": operation.what,
        }
        for operation in program.operations
    ]
    named = sum(row["layer"] is not None for row in rows)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "loadable": args.loadable,
        "configuration": program.config.name,
        "named": named,
        "unused": unused,
        "layer_file": written,
        "operations": chosen(rows, args),
    }
    if not print_document(document, args):
        _print(document, rows, searched=bool(args.caffe or args.onnx))
    return int(named < len(rows))


def _parts(program: Program, names: Mapping[tuple[int, int], str]) -> dict[Key, str]:
    """Return "2/12" for the operations of the second of 12 convolutions of a layer: what is on the fly with it, too."""
    layers: dict[tuple[int, str], list[list[Operation]]] = {}
    for chain in program.chains:
        layer = names.get((chain[0].task, chain[0].index))
        if chain[0].engine == "conv" and layer is not None:
            layers.setdefault((chain[0].task, layer), []).append(chain)
    return {
        operation.key: f"{number}/{len(chains)}"
        for chains in layers.values()
        if len(chains) > 1
        for number, chain in enumerate(chains, 1)
        for operation in chain
    }


def _recognized(args: argparse.Namespace, program: Program) -> tuple[Any, str]:
    """Names that were found, and the name of the model."""
    from nvdla.checks.layers import caffe_graph, onnx_graph, recognize

    if args.caffe and len(args.caffe) > 2:
        raise FormatError(f"--caffe: must be a .prototxt and a .caffemodel, got {len(args.caffe)} files")
    if args.caffe:
        files = sorted(args.caffe, key=lambda name: str(name).endswith(".caffemodel"))
        graph = caffe_graph(*files)
    else:
        graph = onnx_graph(args.onnx)
    source = files[0] if args.caffe else args.onnx
    return recognize(program.loadable, graph, program.config.name, program.abi.name), graph.name or Path(source).stem


def _write(args: argparse.Namespace, program: Program, network: str, recognition: Any) -> str:
    """Write the layer file; returns its path. Raises FormatError where the compiler's own names would be lost."""
    from nvdla.checks.layers.match import layer_file
    from nvdla.compiler.builder.compiler import save

    before = naming.load(args.loadable)
    if before is not None and not args.force and not _was_found(before):
        raise FormatError(
            f"{naming.path_of(args.loadable)} exists, with names from the compiler. --force "
            "replaces them; --dry-run only prints the names found"
        )
    known = 0 if before is None else len(naming.layers(before))
    if len(recognition.layers) < known and not args.force:
        raise FormatError(
            f"{naming.path_of(args.loadable)} has the names of {counted(known, 'operation')}, this model those of "
            f"{len(recognition.layers)}: it may be another network. --force replaces the names; --dry-run only prints "
            "those found"
        )
    scales = from_calibration(args.scales).scales if args.scales else {}
    return str(save(layer_file(program, network, recognition, scales, before), args.loadable))


def _was_found(document: Document) -> bool:
    """Return whether this command wrote a layer file."""
    operations = [operation for task in document["tasks"] for operation in task.get("operations", ())]
    return all("confidence" in operation for operation in operations)


def _known_confidence(loadable: str) -> dict[tuple[int, int], str]:
    document = naming.load(loadable) or {"tasks": []}
    return {
        (int(task["task"]), int(operation["index"])): str(operation["confidence"])
        for task in document["tasks"]
        for operation in task.get("operations", ())
        if "confidence" in operation
    }


def _print(document: Document, every_row: list[Document], searched: bool) -> None:
    """``every_row``: of all operations; ``searched``: a model was given."""
    rows, count = document["operations"], len(every_row)
    print_table(f"{document['loadable']} on {document['configuration']}", rows)
    doubtful = sum(row["confidence"] == "order" for row in rows)
    doubt = f", {doubtful} of them uncertain (order)" if doubtful else ""
    hint = "" if document["named"] or searched else " Find them with --onnx MODEL or --caffe FILE."
    say(f"{document['named']} of {count} operations have names{doubt}.{hint}")
    nameless = next((row for row in every_row if row["layer"] is None), None)
    if searched and nameless is not None:
        what = f"{nameless['operation']} ({nameless['engine'].upper()}, {nameless['what']})"
        say(f"First operation without a name: {what}.")
    if document["unused"]:
        say(f"Layers without an operation: {', '.join(document['unused'])}.")
    if document["layer_file"]:
        say(f"Written to {document['layer_file']}.")
