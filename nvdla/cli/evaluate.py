"""``nvdla evaluate``: accuracy of a network over a data set."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import (
    add_image_options,
    add_limit_option,
    add_strict_option,
    add_trusted_option,
    preprocessing_of,
    tell_warnings,
)
from nvdla.cli.campaigns import (
    add_campaign_options,
    add_data_options,
    check_first_sample,
    input_scale_of,
    journal_of,
    run_with_progress,
    source_of,
    tell_class_order,
    written,
)
from nvdla.cli.output import output_file, print_table, say, tell_proof
from nvdla.errors import FormatError, counted
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from nvdla.experiments.evaluation import EvaluatedNetwork, SampleSource

HELP = """Measure the accuracy of a network over a data set, bit-exactly, on this machine or a Dask cluster.

  nvdla evaluate lenet.loadable digits.npz
  nvdla evaluate net.nvpkg photos/ --against net.onnx --output result.json --workers 4
  nvdla evaluate net.loadable val.csv --scheduler tcp://10.0.0.1:8786 --samples samples.jsonl --resume

DATA: a directory with one subdirectory per class or of files without labels, one image, a .csv or .jsonl manifest
(path, label), .npz (images, labels), .npy with --labels FILE.npy, .tar (WebDataset), .parquet, an address (s3://), or
module:function that yields (sample, label).
Compile (--calibrate), faults and explore read the same kinds of data."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("network", help="loadable, or package of nvdla compile")
    parser.add_argument("data", help="labeled data")
    add_data_options(parser)
    add_limit_option(parser)
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="choose the samples of --limit at random")
    parser.add_argument(
        "--against", metavar="MODEL", help="also run this ONNX or TFLite model: accuracy, agreement, SNR"
    )
    metric = "map (COCO boxes), miou (masks), or a custom metric: f(outputs, label) -> number"
    parser.add_argument("--metric", metavar="map/miou/MODULE:FUNCTION", help=metric)
    decoder = "decoder of boxes or classes: f(outputs, shape); see nvdla.experiments.evaluation.decoders"
    parser.add_argument("--decoder", metavar="MODULE:FUNCTION", help=decoder)
    predict = "need no labels: write results to --samples, and compare them with those of --against"
    parser.add_argument("--predict-only", action="store_true", help=predict)
    parser.add_argument("--judge", metavar="NAME", help="output of the network that labels are of (default: the first)")
    add_strict_option(parser)
    parser.add_argument("--stop-on-error", action="store_true", help="stop at samples that cannot be read")
    add_trusted_option(parser)
    parser.add_argument("--report", type=output_file(".html"), metavar="PAGE.html", help="also write an HTML page")
    add_image_options(parser)
    add_campaign_options(parser)


def run(args: argparse.Namespace) -> int:
    """0, also with damaged samples (they are counted apart); 2 where nothing could be judged."""
    from nvdla.experiments.campaign.journal import read
    from nvdla.experiments.evaluation import Evaluation, open_network, summarize
    from nvdla.tensors.images import PixelConversion

    if args.limit is not None and args.limit < 1:
        raise FormatError(f"--limit {args.limit}: must be at least 1")
    source = source_of(args)
    pixels = preprocessing_of(args) or PixelConversion()
    scale = input_scale_of(args)
    options = pixels, scale, args.strict, args.trusted, args.judge
    network = open_network(args.network, args.config, 1, *options)
    tell_warnings(args.network, network.warnings())  # what is wrong is said here, once
    table = Evaluation(
        os.path.realpath(args.network),
        source,
        args.config,
        pixels,
        scale,
        args.metric,
        args.against,
        args.predict_only,
        args.limit,
        args.shuffle,
        args.strict,
        args.trusted,
        args.stop_on_error,
        args.decoder,
        args.judge,
    )
    if table.decode is None and not args.judge:
        _tell_judged(network, source, args)
    count = len(source)
    if 0 < count < sys.maxsize:
        check_first_sample(network, source, args)
    total = None if count == sys.maxsize else min(count, args.limit or count)
    with journal_of(table, args) as journal:
        run_with_progress(table, journal, args, total)
        summed = summarize(read(journal.path))
        summary = summed.document(source.classes)
        if "float" in summary:
            summary["float"]["reference"] = table.reference
    if not summed.samples and (summed.damaged or not args.shard):
        raise FormatError(summed.problem or "")
    tell_proof(args, *network.configurations())
    document = {
        "format": "nvdla-evaluation",
        "version": 1,
        "network": args.network,
        "data": args.data,
        "settings": table.settings(),
        "summary": summary,
    }
    _tell(document, args)
    if not args.predict_only:
        tell_class_order(source, args)
    if args.limit and (total is None or total < count):
        say(f"nvdla evaluate: evaluated only {counted(args.limit, 'sample')}", sys.stderr)
    return 0


def _tell_judged(network: EvaluatedNetwork, source: SampleSource, args: argparse.Namespace) -> None:
    """Print which of several outputs is judged. Raises FormatError if it has fewer numbers than there are classes."""
    if len(network.output_names) < 2:
        return
    first, *others = network.output_names
    advice = f"--judge NAME chooses another output ({', '.join(others)})"
    classes = len(source.classes or [])
    if 0 < network.outputs < classes and not args.predict_only:
        wanted = f"must have a number for each of {classes} classes, got {counted(network.outputs, 'number')}"
        raise FormatError(f"{args.data}: output {first}: {wanted}. {advice}.")
    say(f"nvdla evaluate: judges output {first}; {advice}", sys.stderr)


def _tell(document: Document, args: argparse.Namespace) -> None:
    from nvdla.experiments.evaluation.metrics import class_texts, percent
    from nvdla.experiments.evaluation.table import figures, page

    summary = document["summary"]
    if written(document, f"{Path(args.network).name} on {Path(args.data).name}", page, args):
        return
    print_table(
        f"{args.network} on {args.data}", [{"metric": name, "value": value} for name, value in figures(summary)]
    )
    rows = [
        {
            "class": name,
            "samples": row["samples"],
            "precision": percent(row["precision"]),
            "recall": percent(row["recall"]),
        }
        for name, row in zip(class_texts(summary.get("classes", [])), summary.get("classes", []), strict=True)
    ]
    if 0 < len(rows) <= 50:
        print_table("Classes", rows)
    pixels = summary.get("segmentation", {}).get("classes", [])
    if pixels:
        named = [{**row, "class": name} for name, row in zip(class_texts(pixels), pixels, strict=True)]
        print_table("Pixels", named, ("class", "pixels", "iou"))
    for problem in summary.get("problems", []):
        say(f"damaged: {problem['id']}: {problem['error']}", sys.stderr)
