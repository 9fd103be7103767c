"""Arguments that ``nvdla report`` and ``nvdla view`` share: one loadable or two, and the runs that are shown."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import add_input_options, names_of, surfaces_of_runs
from nvdla.cli.study import add_study_options, requested
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from nvdla.checks.doctor.doctor import DoctorReport
    from nvdla.report.document import Side
    from nvdla.runtime import Runtime


def add_viewing_options(parser: argparse.ArgumentParser) -> None:
    """The loadable or folder, a second loadable, inputs, labels."""
    add_study_options(parser)
    parser.add_argument("other", nargs="?", help="second loadable, shown next to the first")
    add_input_options(parser)
    parser.add_argument(
        "--other-input", action="append", default=[], metavar="[NAME=]FILE", help="input of the second run"
    )
    parser.add_argument("--other-config", metavar="NAME", help="configuration of the second loadable")
    parser.add_argument("--labels", metavar="FILE", help="file with one class name per line")


def sides_of(args: argparse.Namespace) -> list[tuple[Side, DoctorReport]]:
    """One side or two, examined and run. Raises NvdlaError."""
    from nvdla.tensors.real import read_labels

    labels = read_labels(args.labels) if args.labels else None
    asked = [args]
    if args.other or args.other_input or args.other_config:
        asked.append(_beside(args))
    made = [_side(each, labels, len(asked)) for each in asked]
    _tell_apart([side.document for side, _ in made], asked)
    return made


def _tell_apart(documents: list[Document], asked: list[argparse.Namespace]) -> None:
    """Two sides of one title are called after what differs: their files, or the inputs of their runs."""
    if len(documents) < 2 or documents[0]["title"] != documents[1]["title"]:
        return
    for document, args in zip(documents, asked, strict=True):
        if asked[0].loadable != asked[1].loadable:
            document["title"] += f" ({args.loadable})"
        elif asked[0].input != asked[1].input:
            document["title"] += "".join(f", {Path(each).name}" for each in args.input)


def _beside(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of the second side: what is not said of it is as for the first."""
    config = args.other_config or ("auto" if args.other else args.config)
    changes = {"loadable": args.other or args.loadable, "input": args.other_input or args.input, "config": config}
    return argparse.Namespace(**vars(args) | changes | ({"layers": None} if args.other else {}))


def _side(args: argparse.Namespace, labels: list[str] | None, sides: int) -> tuple[Side, DoctorReport]:
    from nvdla.report.document import make_side

    request = requested(args, refuses=False)
    study = request.tell()
    names = names_of(args, study.loadable)
    return make_side(study, names, request.clock, _inputs(args), labels, sides)


def _inputs(args: argparse.Namespace) -> Callable[[Runtime], list[list[bytes]]] | None:
    if not args.input and args.random_input is None:
        return None
    return lambda runtime: surfaces_of_runs(runtime, args)
