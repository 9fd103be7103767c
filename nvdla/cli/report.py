"""``nvdla report``: one self-contained HTML page about a loadable, about two, or pages about a folder of them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from nvdla.cli.output import add_format_options, output_file, print_document, say
from nvdla.cli.packages import inputs_of_parts
from nvdla.cli.study import add_viewing_options, refuse_several, sides_of, studies_of
from nvdla.cli.working import working
from nvdla.errors import NvdlaError, counted
from nvdla.util.escaping import Document
from nvdla.util.files import make_directory, write_file
from nvdla.util.recognition import kind_of

HELP = """Write a self-contained HTML page about a loadable: graph, operations, cycles, timeline, memory, findings. With
an input the page also has the result and the output of every operation.

  nvdla report net.nvdla -o report.html
  nvdla report net.nvdla --input digit.pgm --class-names labels.txt -o report.html
  nvdla report a.nvdla b.nvdla --input digit.pgm             two loadables side by side
  nvdla report net.nvdla -i a.pgm --other-input b.pgm        two runs side by side
  nvdla report DIR -o pages                                  one page per loadable, and an index
  nvdla report net.nvpkg -o pages                            one page per accelerator part, and an index
  nvdla report net.nvpkg -i digit.pgm -o pages               the parts in a run of the package

'nvdla view' opens the same page in a browser. Exit code 1 if the loadable cannot run on the input."""

FORMAT, VERSION = "nvdla-report", 2
FOLDER_FORMAT, FOLDER_VERSION = "nvdla-report-folder", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_viewing_options(parser)
    parser.add_argument(
        "--output",
        "-o",
        type=output_file(".html"),
        metavar="FILE.html",
        help="output page or directory (default: LOADABLE.html)",
    )
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from nvdla.report.page import Data, html_page
    from nvdla.tensors.files import ending

    if kind_of(args.loadable) in ("folder", "package"):
        return _folder(args)
    output = args.output or f"{Path(args.loadable).name}.html"
    ending(output, (".html", ".htm"), "a report")
    with working(f"writing the page of {args.loadable}"):
        sides = sides_of(args)
        data = Data.of([side for side, _ in sides])
        text = html_page(data).encode()
    write_file(output, text)
    errors = [side.view.error for side, _ in sides if side.view is not None and side.view.error is not None]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "loadable": args.loadable,
        "other": args.other,
        "configuration": sides[0][0].study.config.name,
        "output": output,
        "bytes": len(text),
        "sections": data.sections,
        "findings": sides[0][1].as_dict()["counts"],
        "ran": sides[0][0].view is not None and not errors,
        "run_error": errors[0] if errors else None,
    }
    if not print_document(document, args):
        say(f"{output}: {', '.join(data.sections)}")
        if errors:
            say(f"It could not run: {errors[0]}")
    return int(bool(errors))


def _folder(args: argparse.Namespace) -> int:
    """A page for each loadable of a directory or package, and an index of them."""
    from nvdla.report.page import Data, html_page
    from nvdla.report.server import loadables_in, with_host_rows

    refuse_several(args)
    folder, output = Path(args.loadable), Path(args.output or f"{Path(args.loadable).resolve().name}-report")
    rows: list[Document] = []
    paths = loadables_in(folder)
    make_directory(output)
    with tempfile.TemporaryDirectory(prefix="nvdla-report-") as inputs:
        parts = inputs_of_parts(args, args.loadable, Path(inputs))
        _pages(args, folder, output, parts, paths, rows)
    rows = with_host_rows(folder, rows)
    write_file(output / "index.html", html_page(Data.of_index(folder.resolve().name, rows)).encode())
    document = {
        "format": FOLDER_FORMAT,
        "version": FOLDER_VERSION,
        "folder": args.loadable,
        "output": str(output / "index.html"),
        "loadables": rows,
    }
    if not print_document(document, args):
        say(f"{output / 'index.html'}: {counted(len(paths), 'loadable')}")
    return 0


def _pages(
    args: argparse.Namespace,
    folder: Path,
    output: Path,
    parts: dict[str, Document],
    paths: list[Path],
    rows: list[Document],
) -> None:
    """Write the pages, and add their rows of the index. ``parts``: other arguments by the name of a part."""
    from nvdla.report.page import Data, html_page
    from nvdla.report.server import index_row, page_name

    for path in paths:
        row = index_row(path, folder, page_name(path, folder), studies_of(args))
        rows.append(row)
        if row["page"]:
            try:
                with working(f"writing the page of {path}"):
                    sides = sides_of(
                        argparse.Namespace(**vars(args) | parts.get(path.name, {}) | {"loadable": str(path)})
                    )
            except NvdlaError as error:  # it is listed in the index; the other pages are written anyway
                row |= {"error": str(error), "page": None}
            else:
                write_file(output / row["page"], html_page(Data.of([side for side, _ in sides])).encode())
