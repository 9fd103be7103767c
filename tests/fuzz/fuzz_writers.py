"""Fuzz targets: files that the toolkit writes from networks with hostile names and tables.

An input is read byte by byte as choices: a network, names for its tensors and layers, sometimes wrong values in its
tables, and a command. What is written must parse in its language, with every name inside a string, a comment or a text.
"""

from __future__ import annotations

import atexit
import functools
import html.parser
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fuzz_mutator
import numpy as np
from fuzz_builder import Choices
from fuzz_tools import called

from nvdla.compiler.builder import Network, build
from nvdla.errors import FormatError, NvdlaError
from nvdla.interop.containers import registry
from nvdla.interop.containers.tvm import mlf_create, tar
from nvdla.loadable import Loadable, load, to_bytes
from nvdla.registers.printers import printers
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, element_count, numpy_dtype

MARK = "pwn"
#: Pieces of names that end a string, a comment, an element or a line in one of the languages, each with the mark.
PIECES = (
    'pwn"', "pwn'", '", 0}}; int pwn; {{"', "*/ int pwn; /*", "pwn\\", "??/pwn", '??/" pwn', "//pwn", "</title><pwn>",
    "</script><script>pwn()</script>", "' onpwn='", '" onpwn="', "]]><pwn/>", "<!--pwn", "--><pwn>", "&pwn;",
    '"]; pwn [', "\\N pwn", "{pwn|", "$(pwn)", "`pwn`", "%spwn", "#{pwn}", "../pwn", "/tmp/pwn", "pwn\u2028",
    "\u202epwn", "\U0001f980pwn", "!!pwn", "pwn: [", "=pwn()", "pwn" * 90,
)  # fmt: skip
#: What a layer file may hold besides, and a loadable may not.
UNPRINTABLE = ("\npwn", "\0pwn", "\x1b]0;pwn\x07", "\ud800pwn", "\udcffpwn", "\x85pwn", "\tpwn")
#: Values of tables.
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1 << 64, 1e308, float("nan"), float("inf"), "", [], {}, [[]], 0.5)

FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
NETWORK, OUT = FOLDER / "net.nvdla", FOLDER / "out"


# ---- networks


def hostile(c: Choices, pieces: tuple[str, ...] = PIECES) -> str:
    """A name of one to three pieces, with characters between them."""
    words = [c.one_of(pieces) + (chr(c.number(32, 126)) if c.number(0, 1) else "") for _ in range(c.number(1, 3))]
    return "".join(words)


@functools.cache
def networks() -> tuple[tuple[Loadable, str], ...]:
    """Small loadables and their layer files: of the builder, and made by hand."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support.handmade import chain, network

    net = Network("net")
    x = net.input("data", (3, 6, 6))
    convolution = net.convolution("conv", x, np.ones((4, 3, 3, 3)), np.ones(4))
    pool = net.max_pool("pool", net.relu("relu", convolution), 2)
    net.output(net.softmax("prob", net.fully_connected("dense", pool, np.ones((5, 16)))))
    built = build(net, "nv_full", "fp16")
    made = load(built.loadable.to_bytes())
    layers = {"format": "nvdla-layers", "version": 1, "tasks": []}
    return (made, json.dumps(built.sidecar)), (load(to_bytes(network(chain(2)))), json.dumps(layers))


def named(loadable: Loadable, name: Callable[[], str]) -> Loadable:
    """The loadable with other names of its tensors."""
    return replace(loadable, tensors=tuple(replace(each, name=name()) for each in loadable.tensors))


def tables(value: Any, c: Choices, name: Callable[[], str], wrong: bool) -> Any:
    """A layer file with other names; ``wrong``: and here and there another value."""
    if wrong and c.number(0, 15) == 15:
        return c.one_of((*VALUES, name()))
    if isinstance(value, dict):
        return {key: tables(each, c, name, wrong) for key, each in value.items()}
    if isinstance(value, list):
        return [tables(each, c, name, wrong) for each in value]
    return value


def layers_named(document: dict[str, Any], name: Callable[[], str]) -> dict[str, Any]:
    """The layer file with other names of layers and tensors."""
    changed = {key: value for key, value in document.items() if key not in ("tasks", "tensors")}
    changed["tasks"] = [
        {**task, "operations": [{**each, "layer": name()} for each in task.get("operations", ())]}
        for task in document["tasks"]
    ]
    changed["tensors"] = {name(): value for value in document.get("tensors", {}).values()}
    return changed


def put(c: Choices) -> tuple[int, bool]:
    """Write a network with hostile names and its layer file; return its number, and whether only names are changed."""
    number, wrong = c.number(0, len(networks()) - 1), c.number(0, 3) == 3
    loadable, layers = networks()[number]
    data = to_bytes(named(loadable, lambda: hostile(c)))
    if wrong and c.number(0, 1):
        data = fuzz_mutator.mutate_loadable(data, random.Random(c.number(0, 255) << 8 | c.number(0, 255))) or data
    name = lambda: hostile(c, PIECES + UNPRINTABLE)  # noqa: E731
    document = tables(layers_named(json.loads(layers), name), c, name, wrong)
    NETWORK.write_bytes(data)
    Path(f"{NETWORK}.layers.json").write_text(json.dumps(document))
    return number, not wrong


# ---- readers


class Page(html.parser.HTMLParser):
    """The elements of a page, each with its attributes' names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[tuple[str, ...]] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.add((tag, *sorted(key for key, _ in attrs)))


def _elements_of_page(data: bytes) -> set[tuple[str, ...]]:
    return Page(data.decode()).elements


def _elements_of_drawing(data: bytes) -> set[tuple[str, ...]]:
    return {(each.tag, *sorted(each.attrib)) for each in ElementTree.fromstring(data.decode()).iter()}


def _outside(text: str, data: str, what: str) -> None:
    """Nothing of a name, and no quote, outside of what ``data`` matches."""
    rest = re.sub(data, " ", text, flags=re.DOTALL)
    if MARK in rest or '"' in rest or not rest.isascii():
        place = re.search(rf'{MARK}|"|[^\x00-\x7f]', rest)
        raise RuntimeError(f"{what}: a name is code: {rest[max(place.start() - 30, 0) : place.end() + 30]!r}")


_TRIGRAPHS = {
    "??/": "\\",
    "??'": "^",
    "??(": "[",
    "??)": "]",
    "??!": "|",
    "??<": "{",
    "??>": "}",
    "??-": "~",
    "??=": "#",
}
_C_DATA = r"""/\*.*?\*/|//[^\n]*|"(?:\\[^\n]|[^"\\\n])*"|'(?:\\[^\n]|[^'\\\n])+'"""


def _c(data: bytes) -> None:
    text = re.sub(r"\?\?[/'()!<>=-]", lambda found: _TRIGRAPHS[found[0]], data.decode()).replace("\\\n", "")
    _outside(text, _C_DATA, "C")


def _dot(data: bytes) -> None:
    _outside(data.decode(), r'"(?:\\.|[^"\\])*"', "DOT")


def _json(data: bytes) -> None:
    def refuse(number: str) -> None:
        raise RuntimeError(f"JSON: {number}")

    json.loads(data, parse_constant=refuse)


def _onnx(data: bytes) -> None:
    import onnx

    onnx.load_model_from_string(data)


def _no_name(data: bytes) -> None:
    if MARK.encode() in data:
        raise RuntimeError("a name is in a file that has no place for any")


READERS: dict[str, Callable[[bytes], Any]] = {
    ".html": _elements_of_page, ".svg": _elements_of_drawing, ".c": _c, ".h": _c, ".dot": _dot, ".json": _json,
    ".onnx": _onnx,
}  # fmt: skip


def read_back(data: bytes, ending: str) -> set[tuple[str, ...]]:
    """Parse a file; return the elements of a page or drawing. Raises where it is not what its ending says."""
    try:
        elements = READERS.get(ending, _no_name)(data) or set()
    except (ValueError, ElementTree.ParseError) as error:
        raise RuntimeError(f"{ending}: {error}") from error
    for words in elements:
        if any(MARK in word for word in words):
            raise RuntimeError(f"{ending}: an element from a name: {words}")
    return elements


# ---- commands


def _written() -> Iterator[Path]:
    return (path for path in sorted(OUT.rglob("*")) if path.is_file())


def wrote(words: list[str]) -> set[tuple[str, ...]]:
    """Run a command and parse what it wrote; return the elements of pages and drawings."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    before = set(FOLDER.iterdir())
    called(words)
    if extra := set(FOLDER.iterdir()) - before:
        raise RuntimeError(f"{words[0]}: wrote {extra} beside its output")
    found = set()
    for path in _written():
        if MARK in path.name:
            raise RuntimeError(f"{words[0]}: a file has a name from the network: {path.name[:80]!r}")
        found |= read_back(path.read_bytes(), path.suffix)
    return found


@functools.cache
def harmless(number: int, words: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The elements that the command writes for the network with harmless names."""
    loadable, layers = networks()[number]
    counts = iter(range(1 << 20))
    NETWORK.write_bytes(to_bytes(named(loadable, lambda: f"tensor{next(counts)}")))
    document = layers_named(json.loads(layers), lambda: f"layer{next(counts)}")
    Path(f"{NETWORK}.layers.json").write_text(json.dumps(document))
    return wrote(list(words))


def commanded(data: bytes, commands: tuple[tuple[str, ...], ...]) -> None:
    """One of the commands on a network with hostile names: an error in one line, or files that parse."""
    c = Choices(data)
    words = c.one_of(commands)
    usual = [harmless(number, words) for number in range(len(networks()))]
    number, names_only = put(c)
    extra = wrote(list(words)) - usual[number]
    if names_only and extra:
        raise RuntimeError(f"{words[0]}: elements that harmless names do not make: {sorted(extra)[:3]}")


def program_input(data: bytes) -> None:
    """Register programs in every form."""
    forms = [("program", str(NETWORK), "--format", form, "-o", str(OUT), "--json") for form in sorted(printers())]
    commanded(data, (*forms, *[each for each in forms if each[3] in ("c", "json")] * 4))


def report_input(data: bytes) -> None:
    """The page about a loadable."""
    commanded(data, (("report", str(NETWORK), "-o", str(OUT / "page.html"), "--json"),))


def export_input(data: bytes) -> None:
    """Graphs, drawings and numbers for other viewers."""
    files = (
        ("export", "--node-data", OUT), ("export", "--output", OUT / "net.onnx"), ("graph", "-o", OUT / "net.dot"),
        ("graph", "-o", OUT / "net.svg"), ("graph", "-o", OUT / "net.json"), ("timeline", "-o", OUT / "net.svg"),
        ("timeline", "-o", OUT / "net.json"), ("memory", "--svg", OUT / "net.svg"),
    )  # fmt: skip
    commanded(data, tuple((command, str(NETWORK), option, str(path)) for command, option, path in files))


# ---- containers


def _parameter(c: Choices) -> Parameter:
    name = hostile(c, (*PIECES, *UNPRINTABLE, "", "a", "a")) if c.number(0, 3) else ""
    dtype = c.one_of((*ELEMENT_BITS, "float32", "int8"))
    shape = tuple(c.one_of((0, 1, 2, 3, 7)) for _ in range(c.number(0, 5)))
    metadata = {hostile(c): c.one_of((*VALUES, hostile(c)))} if c.number(0, 3) == 3 else {}
    size = (element_count(shape) * ELEMENT_BITS[dtype] + 7) // 8
    held = bytes(index % 251 for index in range(size + c.one_of((0, 0, 0, 0, 0, 0, 0, 1))))
    if c.number(0, 7) == 7:
        return Parameter(name, dtype, shape, None, size, held[: c.one_of((1, 2, 3, 4))], metadata)
    return Parameter.from_bytes(name, held, dtype, shape, metadata)


def create_input(data: bytes) -> None:
    """Every container that can be created, with hostile parameters: FormatError, or the same comes back."""
    c = Choices(data)
    if c.number(0, 7) == 7:
        return _library(c)
    handler = c.one_of([registry.formats()[name] for name in sorted(registry.formats())])
    given = [_parameter(c) for _ in range(c.number(0, 3))]
    try:
        made = handler.create(given)
    except FormatError:
        return None
    container = handler.open(registry.Source.of(made))
    problems = [str(each) for each in container.verify(False) if each.severity.name == "ERROR"]
    if problems:
        raise RuntimeError(f"{handler.name}: what was created does not verify: {problems[0]}")
    left = container.parameters()
    for each in given:
        same = [its for its in left if its.name == each.name and bytes(its.as_bytes()) == bytes(each.as_bytes())]
        if not same:
            raise RuntimeError(f"{handler.name}: parameter {each.name[:40]!r} does not come back")
        left = [its for its in left if its is not same[0]]
        stored = {None, "uint8", numpy_dtype(each.dtype).name}  # where a type is not the format's
        kept = same[0].shape == each.shape if same[0].dtype == each.dtype else same[0].dtype in stored
        if not kept:
            raise RuntimeError(f"{handler.name}: {each.dtype} {each.shape} is {same[0].dtype} {same[0].shape}")
    if left:
        raise RuntimeError(f"{handler.name}: {len(left)} parameters that were not given")
    if handler.create(given) != made:
        raise RuntimeError(f"{handler.name}: the same parameters gave other bytes")
    return None


def _library(c: Choices) -> None:
    """A model library of a network with hostile names: its C, JSON and the rest."""
    loadable, _ = c.one_of(networks())
    try:
        name = c.one_of(("net", hostile(c).replace(MARK, "net")))  # the files and functions are named after it
        made = mlf_create.pack([(name, load(to_bytes(named(loadable, lambda: hostile(c)))))], when=0)
    except NvdlaError:
        return
    for member in tar.read(made).members:
        if MARK in member.name or not re.fullmatch(r"\.?/?(\w[\w.-]*/?)*", member.name, re.ASCII):
            raise RuntimeError(f"mlf: a member has a name from the network: {member.name[:80]!r}")
        ending = Path(member.name).suffix
        if member.kind == "file" and ending in (".c", ".h", ".json"):
            read_back(bytes(member.data), ending)


def seeds() -> list[bytes]:
    """Random choices."""
    return [random.Random(number).randbytes(96) for number in range(48)]
