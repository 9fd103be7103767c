"""``nvdla view``: a loadable, or a folder of them, in the browser."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import add_port_option
from nvdla.cli.output import announce
from nvdla.cli.packages import inputs_of_parts
from nvdla.cli.study import add_viewing_options, refuse_several, sides_of, studies_of
from nvdla.cli.working import at_rest, ending_signals
from nvdla.errors import FormatError, NvdlaError
from nvdla.util.escaping import Document, Json
from nvdla.util.recognition import kind_of

if TYPE_CHECKING:
    from nvdla.report.page import Data
    from nvdla.report.server import ViewServer

HELP = """Show a loadable in the browser: graph, operations, tensors, cycles, memory. Drop an image on the page to
run it and to see the output of every operation.

  nvdla view net.nvdla
  nvdla view net.nvdla --input digit.pgm --class-names labels.txt
  nvdla view a.nvdla b.nvdla --input digit.pgm              two loadables side by side
  nvdla view DIR                                            index of the loadables in a directory
  nvdla view net.nvpkg                                      index of the parts of a package; images run all parts
  nvdla view net.nvpkg --input digit.pgm                    the parts in a run of the package

The server listens on the loopback interface only and answers only requests for the printed address. Stop it with
Ctrl-C. 'nvdla report' writes the same page to a file."""

MAX_KEPT = 8  # pages of a folder's loadables


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_viewing_options(parser)
    add_port_option(parser, 0)
    parser.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")
    parser.add_argument("--json", action="store_true", help="print JSON (stable keys) instead of tables")


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted; exit code 0 then."""
    from nvdla.report.server import ViewServer

    if not 0 <= args.port < 1 << 16:
        raise FormatError(f"--port {args.port}: must be 0 to 65535")
    with tempfile.TemporaryDirectory(prefix="nvdla-view-") as folder:
        several = kind_of(args.loadable) in ("folder", "package")
        source = Folder(args) if several else Single(args, Path(folder))
        server = ViewServer(source, args.port)
        try:
            with _signals_end(server):
                _announce(server, args)
                at_rest()
                server.serve()
        except KeyboardInterrupt:
            pass  # it is how this command ends
        finally:
            server.close()
    return 0


@contextmanager
def _signals_end(server: ViewServer) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end the server."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, *ending_signals()]
    before = [signal.signal(number, lambda *_: setattr(server, "ending", True)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _announce(server: ViewServer, args: argparse.Namespace) -> None:
    lines = [server.address, "Open it in a browser on this machine; Ctrl-C ends."]
    announce({"url": server.address, "port": server.port}, lines, args)
    if not args.no_browser and sys.stdout.isatty() and _has_screen():
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()


def _has_screen() -> bool:
    """Return whether a graphical browser exists; without one, a text browser would start in the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class Single:
    """One loadable or two. ``folder``: directory of dropped files while the command runs."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._dropped: dict[str, tuple[str, str]] = {}  # input -> file, and what it was called
        self._numbers = itertools.count()
        self._data = self._made(args)  # what is wrong with the file is said before anything is served

    def page(self, net: str) -> Data:
        """The page of the latest run."""
        return self._data

    def run(self, net: str, name: str, tensor: str, data: bytes, resize: bool = False) -> Data:
        """Run on a dropped file. Files that were dropped for other inputs stay, unless an error names them.

        Raises:
            FormatError: ``tensor`` is not an input, the file is refused, or other inputs have no file yet.
        """
        from nvdla.tensors.files import INPUT_ENDINGS, ending

        inputs = self._data.document["sides"][0]["inputs"]
        tensor = inputs[0] if not tensor and len(inputs) == 1 else tensor
        if tensor not in inputs:
            raise FormatError(f"{name}: input must be one of {', '.join(inputs) or 'none'}, got {tensor!r}.")
        path = self._folder / f"{next(self._numbers)}{ending(name, INPUT_ENDINGS, 'an input')}"
        path.write_bytes(data)
        before = dict(self._dropped)
        self._dropped[tensor] = str(path), name
        if missing := [key for key in inputs if key not in self._dropped]:
            waiting = FormatError(f"{name} is input {tensor}. Now give a file for input {missing[0]}.")
            waiting.input = missing[0]
            raise waiting
        given = [f"{key}={file}" for key, (file, _) in self._dropped.items()]
        changes = _run_changes(self._args, given, resize) | {"other_input": []}
        try:
            self._data = self._made(argparse.Namespace(**vars(self._args) | changes))
        except NvdlaError as error:
            text = _text_for_page(error, self._dropped.values())
            if error.input:
                del self._dropped[error.input]
            if error.input == tensor and tensor in before:
                self._dropped[tensor] = before[tensor]
            refused = FormatError(text)
            refused.input = error.input
            raise refused from None
        finally:
            self._remove_unused()
        return self._data

    def _remove_unused(self) -> None:
        used = {file for file, _ in self._dropped.values()}
        for file in self._folder.iterdir():
            if str(file) not in used:
                file.unlink()

    @staticmethod
    def _made(args: argparse.Namespace) -> Data:
        from nvdla.report.page import Data

        return Data.of([side for side, _ in sides_of(args)], served=True)


def _run_changes(args: argparse.Namespace, words: list[str], resize: bool) -> Document:
    """Arguments of a run on dropped files."""
    resized: Document = {"resize": args.resize or "input"} if resize else {}
    return {"input": words, "random_input": None} | resized


def _text_for_page(error: NvdlaError, dropped: Iterable[tuple[str, str]]) -> str:
    """An error in the words of the page: names of dropped files instead of copies, the tick box instead of its option.

    ``dropped``: each file, and what it was called.
    """
    text = str(error).replace("use --resize", "tick 'resize'")
    for file, called in dropped:
        text = text.replace(file, called)
    return text


class Folder:
    """The loadables of a folder: an index, and the page of each when it is asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        from nvdla.report.server import loadables_in

        refuse_several(args)
        self._args, self._folder = args, Path(args.loadable)
        self._inputs = tempfile.TemporaryDirectory(prefix="nvdla-view-")
        self._parts = inputs_of_parts(args, args.loadable, Path(self._inputs.name))
        self._paths = {path.relative_to(self._folder).as_posix(): path for path in loadables_in(self._folder)}
        self._rows: list[dict[str, Json]] = []
        self._opened: dict[str, tuple[Single, tempfile.TemporaryDirectory[str]]] = {}

    def page(self, net: str) -> Data:
        """The index, or a loadable's page."""
        from nvdla.report.page import Data
        from nvdla.report.server import index_row, with_host_rows

        if net:
            return self._single(net).page("")
        if not self._rows:
            rows = [index_row(path, self._folder, "", studies_of(self._args)) for path in self._paths.values()]
            self._rows = with_host_rows(self._folder, rows)
        return Data.of_index(self._folder.resolve().name, self._rows)

    def run(self, net: str, name: str, tensor: str, data: bytes, resize: bool = False) -> Data:
        """Run one of them; of a package all parts, on its only input.

        Raises:
            FormatError: The file is refused, or the package has several inputs.
        """
        if kind_of(self._args.loadable) != "package":
            return self._single(net).run("", name, tensor, data, resize)
        from nvdla.tensors.files import INPUT_ENDINGS, ending

        inputs = tempfile.TemporaryDirectory(prefix="nvdla-view-")
        path = Path(inputs.name, f"dropped{ending(name, INPUT_ENDINGS, 'an input')}")
        path.write_bytes(data)
        args = argparse.Namespace(**vars(self._args) | _run_changes(self._args, [str(path)], resize))
        try:
            parts = inputs_of_parts(args, args.loadable, Path(inputs.name))
        except NvdlaError as error:
            inputs.cleanup()
            raise FormatError(_text_for_page(error, [(str(path), name)])) from None
        self._inputs.cleanup()
        self._inputs, self._parts = inputs, parts
        while self._opened:
            self._opened.popitem()[1][1].cleanup()
        return self.page(net)

    def _single(self, net: str) -> Single:
        if net not in self._paths:  # nothing but what the index lists is opened
            raise FormatError(f"{net}: must be a loadable in {self._folder}")
        if net not in self._opened:
            folder = tempfile.TemporaryDirectory(prefix="nvdla-view-")
            changes = self._parts.get(net, {}) | {"loadable": str(self._paths[net])}
            args = argparse.Namespace(**vars(self._args) | changes)
            self._opened[net] = Single(args, Path(folder.name)), folder
            if len(self._opened) > MAX_KEPT:
                self._opened.pop(next(iter(self._opened)))[1].cleanup()
        return self._opened[net][0]
