"""Server of ``nvdla view``, for one loadable or a directory.

Only the loopback interface is listened on. Every address holds a token that is made again each time; a request without
it, for another host (DNS rebinding) or from another page is refused.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from nvdla.analysis.memory import MemoryMap
from nvdla.analysis.study import Study
from nvdla.errors import FormatError, NvdlaError, counted, printable
from nvdla.report.page import Data, html_page, packed, policy
from nvdla.util.escaping import Document
from nvdla.util.files import in_package, is_zip_file, packed_files
from nvdla.util.rounding import is_digits

HOST = "127.0.0.1"
#: bytes of a file that may be dropped
MAX_FILE = 64 << 20
#: seconds that a connection may be silent
IDLE = 30.0
#: seconds without accepting after a failure
BACK_OFF = 0.2
MOST_FIELDS = 16
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageSource(Protocol):
    """Source of the pages. ``net``: the chosen loadable of a directory's index, else ""."""

    def page(self, net: str) -> Data:
        """The page's data. Raises NvdlaError."""

    def run(self, net: str, name: str, tensor: str, data: bytes, resize: bool = False) -> Data:
        """The page's data after a run on a file called ``name`` as the input ``tensor`` ("": the only one), whose
        pictures are scaled to the size of the input with ``resize``. Raises NvdlaError."""


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class ViewServer:
    """Serves a source's pages on a ``port`` of the loopback interface (0: any free one)."""

    def __init__(self, source: PageSource, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self.lock = threading.Lock()  # one run at a time
        self.source = source
        self.ending = False  # an exception of a signal could be lost, where Python ignores exceptions
        self._server = _Server((HOST, port), _Handler)
        self._server.view = self
        self.port = int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """Return the address to open in a browser."""
        return f"http://{HOST}:{self.port}/?{urlencode({'token': self.token})}"

    def serve(self) -> None:
        """Answers until :meth:`stop` is called from another thread, or ``ending`` is set by a signal."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Ends :meth:`serve` and gives the port back."""
        self._server.shutdown()
        self.close()

    def close(self) -> None:
        """Gives the port back, once :meth:`serve` has ended."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    view: ViewServer

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection. Where the system has no descriptor left, the loop would try again at full speed."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(BACK_OFF)
            raise

    def service_actions(self) -> None:
        """Check for shutdown; called several times per second."""
        if self.view.ending:
            raise KeyboardInterrupt

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closes the connection."""


class _Handler(BaseHTTPRequestHandler):
    timeout = IDLE
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """The page, or a tensor of it; with ``net`` that of a loadable of the index."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """A file that was dropped on the page."""
        self._answer(self._run)

    def _answer(self, make: Callable[[Mapping[str, str]], tuple[str, bytes]]) -> None:
        """Every request has an answer, also a bad one."""
        status, kind, wanted = HTTPStatus.OK, "text/plain", ""
        try:
            kind, data = make(self._checked())
        except _Refused as refusal:
            self.close_connection = True  # there may be a body that nothing reads
            status, data = refusal.status, f"{refusal}\n".encode()
        except NvdlaError as error:
            status, data = HTTPStatus.UNPROCESSABLE_ENTITY, f"{printable(str(error))}\n".encode()
            wanted = error.input
        except OSError:  # the connection
            self.close_connection = True
            return
        except Exception as error:
            self.close_connection = True
            status, data = HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error: {type(error).__name__}\n".encode()
        self._send(status, kind, data, wanted)

    def _checked(self) -> Mapping[str, str]:
        """The words of the query, of a request that is allowed to be made."""
        view = self.server.view
        own = {f"{name}:{view.port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in own:
            raise _Refused(HTTPStatus.FORBIDDEN, "this server answers only to its own address")
        if self.headers.get("Origin") not in {None, *(f"http://{name}" for name in own)}:
            raise _Refused(HTTPStatus.FORBIDDEN, "requests from other pages are refused")
        try:
            fields = parse_qs(urlsplit(self.path).query, max_num_fields=MOST_FIELDS)
        except ValueError:
            what = f"the address must be one of this server, with at most {MOST_FIELDS} fields"
            raise _Refused(HTTPStatus.BAD_REQUEST, what) from None
        words = {key: values[0] for key, values in fields.items()}
        if not hmac.compare_digest(words.get("token", "").encode(), view.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, "the address lacks its token: open the one that 'nvdla view' printed")
        return words

    def _get(self, words: Mapping[str, str]) -> tuple[str, bytes]:
        return {"/tensor": self._tensor, "/timing": self._timing}.get(urlsplit(self.path).path, self._page)(words)

    def _page(self, words: Mapping[str, str]) -> tuple[str, bytes]:
        if urlsplit(self.path).path != "/":
            raise _Refused(HTTPStatus.NOT_FOUND, "there is one page, /, its tensors, /tensor, and its cycles, /timing")
        with self.server.view.lock:
            data = self.server.view.source.page(words.get("net", ""))
        if data.document["kind"] == "index":
            for row in data.document["rows"]:
                query = urlencode({"token": self.server.view.token, "net": row["name"]})
                row["page"] = None if row["error"] else f"?{query}"
        return "text/html; charset=utf-8", html_page(data, served=True).encode()

    def _tensor(self, words: Mapping[str, str]) -> tuple[str, bytes]:
        """All elements of a tensor, of which the page holds every so many."""
        with self.server.view.lock:
            data = self.server.view.source.page(words.get("net", ""))
        elements = data.tensor(words.get("side", ""), words.get("tensor", ""), words.get("mark", ""))
        return "application/octet-stream", elements

    def _timing(self, words: Mapping[str, str]) -> tuple[str, bytes]:
        """Cycles with another memory."""
        with self.server.view.lock:
            data = self.server.view.source.page(words.get("net", ""))
        document = data.timing(words.get("side", ""), words.get("latency", ""), words.get("bandwidth", ""))
        return "application/json", json.dumps(document).encode()

    def _run(self, words: Mapping[str, str]) -> tuple[str, bytes]:
        if urlsplit(self.path).path != "/run":
            raise _Refused(HTTPStatus.NOT_FOUND, "files go to /run")
        length = self.headers.get("Content-Length", "")
        if not is_digits(length):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the file is missing (Content-Length)")
        if len(length) > 20 or int(length) > MAX_FILE:
            what = f"the file has {length[:20]} bytes, the limit is {MAX_FILE}"
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)
        data = self.rfile.read(int(length))
        with self.server.view.lock:
            net, name, tensor = (words.get(key, "") for key in ("net", "name", "input"))
            run_result = self.server.view.source.run(net, name, tensor, data, words.get("resize") == "1")
        document, elements = packed(run_result)
        return "application/json", json.dumps({"document": document, "elements": elements}).encode()

    def _send(self, status: HTTPStatus, kind: str, data: bytes, wanted: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if kind.startswith("text/html"):
            self.send_header("Content-Security-Policy", f"{policy(served=True)}; frame-ancestors 'none'")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if wanted:  # the input that needs a file
            self.send_header("Nvdla-Input", quote(wanted))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not news either, and the token is not for logs."""

    def version_string(self) -> str:
        """Says nothing about versions."""
        return "nvdla"


ENDINGS = (".nvdla", ".loadable")
MAX_FILES = 500

Row = Document


def loadables_in(folder: Path) -> list[Path]:
    """The loadables in a directory, in the directories in it, or in a package, by name.

    Raises:
        FormatError: there is none, or too many.
    """
    if is_zip_file(folder):
        return sorted(folder / name for name in packed_files(folder, ".loadable"))
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise FormatError(f"{folder}: no loadables in this directory (files that end in {' or '.join(ENDINGS)})")
    if len(paths) > MAX_FILES:
        raise FormatError(f"{folder}: {len(paths)} loadables: an index has at most {MAX_FILES}")
    return paths


def index_row(path: Path, folder: Path, page: str | None, study_of: Callable[[Path], Study]) -> Row:
    """One loadable; ``page``: where its own page is. What is wrong with a file is in its row."""
    row: Row = {"name": path.relative_to(folder).as_posix(), "page": page, "bytes": _size(path), "error": None}
    try:
        study = study_of(path)
        row["configuration"] = study.config.name
        row["operations"] = len(study.operations)
        row["cycles"] = study.schedule.total
        row["macs"] = sum(estimate.macs for estimate in study.estimates.values())
        row["peak"] = sum(space["peak_live"] for space in MemoryMap.of(study).spaces())
    except NvdlaError as error:
        row |= {"error": str(error), "page": None}
    return row


def _size(path: Path) -> int:
    inside = in_package(path)
    return packed_files(inside[0])[inside[1]] if inside else path.stat().st_size


def with_host_rows(package: Path, rows: list[Row]) -> list[Row]:
    """Add the host parts of a package to the rows of its loadables, in the order of a run; a directory has none."""
    from nvdla.compiler.frontend.package import unpack

    if not is_zip_file(package):
        return rows
    parts = list(enumerate(unpack(package).parts))
    total = sum(part.macs for _, part in parts)
    host = [
        {
            "name": f"part{number} (host): {', '.join(sorted({row['op'] for row in part.rows}))}",
            "page": None,
            "host": True,
            "bytes": len(part.model),
            "macs": part.macs,
            "error": f"runs on the host, not timed: {counted(len(part.nodes), 'node')}"
            + (f", {part.macs / total:.0%} of the multiplications" if total else "")
            + "".join(dict.fromkeys(f"; {row['op']}: {row['reason']}" for row in part.rows)),
        }
        for number, part in parts
        if part.loadable is None
    ]
    return sorted([*rows, *host], key=lambda row: int(re.sub(r"\D.*", "", str(row["name"]).removeprefix("part")) or 0))


def page_name(path: Path, folder: Path) -> str:
    """A file name for a loadable's page that nothing else in the folder has."""
    return path.relative_to(folder).as_posix().replace("/", "__") + ".html"
