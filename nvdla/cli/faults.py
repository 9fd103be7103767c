"""``nvdla faults``: which faults in the hardware matter."""

from __future__ import annotations

import argparse
import csv
import io
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import (
    add_image_options,
    add_limit_option,
    add_strict_option,
    add_trusted_option,
    preprocessing_of,
    tell_warnings,
    whole_command,
)
from nvdla.cli.campaigns import (
    add_campaign_options,
    add_data_options,
    add_result_options,
    input_scale_of,
    journal_of,
    run_with_progress,
    source_of,
    written,
)
from nvdla.cli.output import print_table, say, tell_proof
from nvdla.errors import FormatError, NvdlaError, counted
from nvdla.util.escaping import Document
from nvdla.util.files import read_file, write_file
from nvdla.util.rounding import integer, is_digits

if TYPE_CHECKING:
    from nvdla.experiments.evaluation import EvaluatedNetwork
    from nvdla.experiments.vulnerability.table import Target

HELP = """Inject hardware faults and count their effects: masked, different class, refused, hang.

  nvdla faults lenet.loadable digits.npz --where weight --count 1000
  nvdla faults lenet.loadable digits.npz --where weight,surface,register --margin 0.02 --report page.html
  nvdla faults lenet.loadable digits.npz --fault "mac kernel=3 channel=2 set=0 permanent" --every --limit 360

Locations: weight, input, surface, memory, operand, cbuf, mac, cacc, lut, register, descriptor (docs/faults.md). Each
fault is injected into one sample, or into all samples with --every; in a package, into its accelerator parts."""

MAX_FAULTS = 10_000_000
MAX_LIST = 1 << 28
DEFAULT_COUNT, DEFAULT_SAMPLES = 400, 16
COLUMNS = ("faults", "masked", "same top-1", "wrong top-1", "wrong top-5", "refused", "hang", "SDC-1")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("network", help="loadable or package")
    parser.add_argument("data", help="samples (formats: see nvdla evaluate); labels are optional")
    add_data_options(parser)
    group = parser.add_argument_group("the faults")
    group.add_argument(
        "--where", default="weight", metavar="A,B", help="fault locations, sampled in equal shares (default: weight)"
    )
    group.add_argument(
        "--what",
        default="flip",
        metavar="A,B",
        help="fault models: flip, stuck0, stuck1, random, set=V (default: flip)",
    )
    group.add_argument("--bits", default="", metavar="A,B", help="affected bits (default: all bits of the word)")
    group.add_argument("--operation", default="", metavar="T/O", help="inject faults into one operation only")
    group.add_argument(
        "--permanent", action="store_true", help="permanent faults instead of faults during one operation"
    )
    group.add_argument("--count", type=int, metavar="N", help=f"number of faults (default: {DEFAULT_COUNT})")
    group.add_argument("--margin", type=float, metavar="E", help="inject enough faults for a margin of error below E")
    group.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="C",
        help="confidence level of intervals and --margin (default: 0.95)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    group.add_argument("--fault", action="append", metavar="TEXT", help="inject this fault (repeatable)")
    group.add_argument("--list", metavar="FILE", help="file with one fault per line")
    add_limit_option(group, DEFAULT_SAMPLES)
    group.add_argument("--every", action="store_true", help="inject every fault into every sample instead of one")
    add_result_options(parser)
    add_strict_option(parser)
    add_trusted_option(parser)
    add_image_options(parser)
    add_campaign_options(parser)


def _tell_output(network: EvaluatedNetwork, count: int, label: object) -> None:
    """Print whose output the outcomes are of several, and what they are where it has no classes. ``count``: numbers of
    the output."""
    name, *others = network.output_names
    if others:
        say(f"nvdla faults: the outcomes are those of output {name}, not of {', '.join(others)}", sys.stderr)
    if count == 1:
        say(f"{name} has one number, not classes: changed numbers count as {COLUMNS[2]}", sys.stderr)
    elif label is not None and not isinstance(label, int):
        say(f"{name}: the labels are not classes: the top class is the place of the largest number", sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when faults could not be tried."""
    from nvdla.experiments.campaign.journal import read
    from nvdla.experiments.evaluation import open_network
    from nvdla.experiments.evaluation.metrics import normal_quantile
    from nvdla.experiments.vulnerability import FaultCampaign, summarize
    from nvdla.experiments.vulnerability.table import target_of
    from nvdla.tensors.images import PixelConversion

    normal_quantile(args.confidence)
    if args.limit < 1:
        raise FormatError(f"--limit {args.limit}: must be at least 1")
    source = source_of(args)
    pixels = preprocessing_of(args) or PixelConversion()
    scale = input_scale_of(args)
    network = open_network(args.network, args.config, 1, pixels, scale, args.strict, args.trusted)
    tell_warnings(args.network, network.warnings())
    faults = _faults(target_of(network, args.network), args)
    positions = _positions(len(source), args)
    stream = len(source) == sys.maxsize
    first = next(iter(source.payloads(positions)))[1] if stream else source.sample(positions[0])
    with whole_command(args):
        sample = network.prepare(first.value)  # what does not fit is reported here, once
        _tell_output(network, network.run([sample]).shape[1], first.label)
    table = FaultCampaign(
        os.path.realpath(args.network),
        source,
        faults,
        positions,
        args.config,
        pixels,
        scale,
        args.every,
        args.trusted,
    )
    with journal_of(table, args) as journal:
        run_with_progress(table, journal, args, len(faults))
        if args.table:
            _write_table(args.table, read(journal.path))
        summary = summarize(read(journal.path), args.confidence)
    tell_proof(args, *network.configurations())
    document = {
        "format": "nvdla-faults",
        "version": 1,
        "network": args.network,
        "data": args.data,
        "samples": len(positions),
        "settings": table.settings(),
        "summary": summary,
    }
    _tell(document, args)
    return 1 if summary["not_tried"] else 0


def _faults(target: Target, args: argparse.Namespace) -> list[str]:
    """The texts of the faults: those that were given, or drawn from all that the network has."""
    from itertools import islice

    from nvdla.emulator.faults import parse
    from nvdla.experiments.vulnerability import draw, sample_size
    from nvdla.experiments.vulnerability.table import strata_of

    given = [("", text) for text in args.fault or []] + (_lines(args.list) if args.list else [])
    if given:
        if args.count is not None or args.margin is not None:
            raise FormatError("--fault and --list specify the faults: omit --count and --margin")
        faults = []
        for where, text in given:
            try:
                fault = parse(text)
                target.check(fault)
            except NvdlaError as error:
                raise FormatError(f"{where}{error}") from error
            faults.append(str(fault))
        return faults
    known_strata = strata_of(target, args.where.split(","), args.operation, args.permanent)
    count = DEFAULT_COUNT if args.count is None else args.count
    if args.margin is not None:
        if args.count is not None:
            raise FormatError("--count and --margin exclude each other: omit one")
        count = sample_size(sum(stratum.population for stratum in known_strata), args.margin, args.confidence)
    if not 1 <= count <= MAX_FAULTS:
        raise FormatError(f"{count} faults: must be 1 .. {MAX_FAULTS}")
    bits = [_bit(word) for word in args.bits.split(",") if word]
    chosen = islice(draw(known_strata, _effects(args.what, args), bits, args.permanent, args.seed), count)
    return [str(fault) for fault in chosen]


def _effects(text: str, args: argparse.Namespace) -> list[str]:
    words = text.split(",")
    for word in words:
        kind, _, value = word.partition("=")
        if kind not in ("flip", "stuck0", "stuck1", "random", "set") or (kind == "set") != bool(value):
            raise FormatError(f"--what {word!r}: must be flip, stuck0, stuck1, random or set=VALUE")
        if kind == "flip" and args.permanent and {"lut", "register"} & set(args.where.split(",")):
            raise FormatError("--permanent: effect of registers and tables: must be stuck0 or stuck1")
    return words


def _bit(word: str) -> int:
    if not is_digits(word) or len(word) > 9:
        raise FormatError(f"--bits {word!r}: must be numbers of bits, 0 the lowest")
    return integer(word)


def _lines(path: str) -> list[tuple[str, str]]:
    """The faults of a file, each with its place there."""
    text = read_file(path, MAX_LIST, "list of faults").decode("utf-8", "replace")
    lines = [(f"{path}:{number}: ", line.split("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(where, line) for where, line in lines if line]


def _positions(count: int, args: argparse.Namespace) -> list[int]:
    """The samples: at random; of a Python function the first ones."""
    if count == sys.maxsize:
        return list(range(args.limit))
    return sorted(random.Random(args.seed).sample(range(count), min(count, args.limit)))


def _write_table(path: str, records: Iterable[Document]) -> None:
    from nvdla.experiments.vulnerability.table import OUTCOMES

    stream = io.StringIO()
    columns = ("fault", "kind", "engine", "operation", "layer", "bit", "effect", "samples", *OUTCOMES, "right", "error")
    writer = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for record in records:
        writer.writerow({**record, **record.get("outcomes", {})})
    write_file(path, stream.getvalue().encode())


def _tell(document: Document, args: argparse.Namespace) -> None:
    from nvdla.experiments.vulnerability.summary import WORDS, page, sdc_note

    summary = document["summary"]
    if written(document, f"Faults in {Path(args.network).name} on {Path(args.data).name}", page, args):
        return
    print_table(f"Faults in {args.network} on {args.data}", [_row("", "all", summary["all"])])
    say(sdc_note(summary))
    print()
    for name, heading in WORDS.items():
        rows = summary[f"by_{name}"]
        if len(rows) > 1 or (name == "layer" and rows):
            print_table(heading, [_row(name, row[name], row) for row in rows])
    accuracy = summary["all"].get("accuracy")
    if accuracy:
        runs = f"{counted(summary['all']['samples'], 'run')} on at most {counted(args.limit, 'sample')} (--limit)"
        say(f"right classes in {runs}: {accuracy['healthy']:.2%} without faults, {accuracy['faulty']:.2%} with them")
    for problem in summary["problems"]:
        say(f"not tried: {problem['fault']}: {problem['error']}", sys.stderr)


def _row(name: str, key: object, group: Document) -> Document:
    from nvdla.experiments.evaluation.metrics import percent
    from nvdla.experiments.vulnerability.table import OUTCOMES

    values = [group["faults"], *(group["outcomes"][outcome] for outcome in OUTCOMES), percent(group["sdc1"])]
    return {name or "group": key, **dict(zip(COLUMNS, values, strict=True))}
