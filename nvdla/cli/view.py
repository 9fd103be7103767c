"""``nvdla view``: a loadable, or a folder of them, in the browser."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvdla.cli.output import framed
from nvdla.cli.viewing import add_viewing_options, sides_of
from nvdla.cli.working import at_rest
from nvdla.errors import FormatError

if TYPE_CHECKING:
    from nvdla.report.page import Data

HELP = """Look at a loadable in the browser: graph, operations with all that is known of them, tensors, cycles, memory.
An image that is dropped on the page is run, and what every operation wrote is shown.

  nvdla view net.nvdla
  nvdla view net.nvdla --input digit.pgm --labels labels.txt
  nvdla view a.nvdla b.nvdla --input digit.pgm              two loadables side by side
  nvdla view FOLDER                                         an index of the loadables in a folder

Listens on the loopback interface alone, and answers only to the address that is printed. Ends with Ctrl-C. The same
page as a file: 'nvdla report'."""

MAX_KEPT = 8  # pages of a folder's loadables


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_viewing_options(parser)
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address, open no browser")
    parser.add_argument("--json", action="store_true", help="print the address as JSON")


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted; exit code 0 then."""
    from nvdla.report.server import ViewServer

    if not 0 <= args.port < 1 << 16:
        raise FormatError(f"--port {args.port}: must be 0 to 65535")
    with tempfile.TemporaryDirectory(prefix="nvdla-view-") as folder:
        source = Folder(args) if Path(args.loadable).is_dir() else Single(args, Path(folder))
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
def _signals_end(server: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the server."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, lambda *_: setattr(server, "ending", True)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _announce(server: Any, args: argparse.Namespace) -> None:
    """Flushed at once, so that a program that started the server can read the address."""
    if args.json:
        print(json.dumps(framed({"url": server.address, "port": server.port}, "view")), flush=True)
    else:
        print(f"{server.address}\nOpen it in a browser on this machine; Ctrl-C ends.", flush=True)
    if not args.no_browser and sys.stdout.isatty() and _has_screen():
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()


def _has_screen() -> bool:
    """Where there is none, a browser in the terminal would come up."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class Single:
    """One loadable or two. ``folder``: where dropped files lie while the command runs."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._dropped: dict[str, str] = {}  # input -> file
        self._names: dict[str, str] = {}  # file -> what it was called
        self._data = self._made(args)  # what is wrong with the file is said before anything is served

    def page(self, net: str) -> Data:
        """The page of the latest run."""
        return self._data

    def run(self, net: str, name: str, tensor: str, data: bytes) -> Data:
        """Runs on a dropped file; files that were dropped for other inputs stay."""
        from nvdla.tensors.files import INPUT_ENDINGS, ending

        path = self._folder / f"{len(self._names)}{ending(name, INPUT_ENDINGS, 'an input')}"
        path.write_bytes(data)
        if tensor in self._dropped:
            Path(self._dropped[tensor]).unlink()
        self._dropped[tensor] = str(path)
        self._names[str(path)] = name
        given = [f"{key}={value}" if key else value for key, value in self._dropped.items()]
        changes = {"input": given, "other_input": [], "random_input": None}
        try:
            self._data = self._made(argparse.Namespace(**vars(self._args) | changes))
        except FormatError as error:
            text = str(error)
            for place, called in self._names.items():
                text = text.replace(place, called)
            raise FormatError(text) from None
        return self._data

    @staticmethod
    def _made(args: argparse.Namespace) -> Data:
        from nvdla.report.page import Data

        return Data.of([side for side, _ in sides_of(args)])


class Folder:
    """The loadables of a folder: an index, and the page of each when it is asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        from nvdla.report.folder import loadables_in

        if args.other or args.input or args.random_input is not None:
            raise FormatError(f"{args.loadable} is a folder: its loadables are shown one by one, and none is run")
        self._args, self._folder = args, Path(args.loadable)
        self._paths = {path.relative_to(self._folder).as_posix(): path for path in loadables_in(self._folder)}
        self._rows: list[dict[str, Any]] = []
        self._opened: dict[str, tuple[Single, tempfile.TemporaryDirectory[str]]] = {}

    def page(self, net: str) -> Data:
        """The index, or a loadable's page."""
        from nvdla.report.folder import index_row
        from nvdla.report.page import Data

        if net:
            return self._single(net).page("")
        if not self._rows:
            self._rows = [index_row(path, self._folder, "") for path in self._paths.values()]
        return Data.of_index(self._folder.resolve().name, self._rows)

    def run(self, net: str, name: str, tensor: str, data: bytes) -> Data:
        """Runs one of them."""
        return self._single(net).run("", name, tensor, data)

    def _single(self, net: str) -> Single:
        if net not in self._paths:  # nothing but what the index lists is opened
            raise FormatError(f"{net}: no such loadable in {self._folder}")
        if net not in self._opened:
            folder = tempfile.TemporaryDirectory(prefix="nvdla-view-")
            args = argparse.Namespace(**vars(self._args) | {"loadable": str(self._paths[net])})
            self._opened[net] = Single(args, Path(folder.name)), folder
            if len(self._opened) > MAX_KEPT:
                self._opened.pop(next(iter(self._opened)))[1].cleanup()
        return self._opened[net][0]
