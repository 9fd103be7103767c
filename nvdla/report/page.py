"""Report as one HTML page, of one loadable or of a pair."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import SupportsFloat, SupportsIndex

import numpy as np

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.compare.comparison import Observation
from nvdla.checks.compare.metrics import compare
from nvdla.checks.compare.runs import aligned_places
from nvdla.errors import FormatError
from nvdla.program.naming import StoredPlace
from nvdla.program.operation import Key, Operation, last_layer
from nvdla.report.document import Side, timing, timings
from nvdla.tensors.real import Ends, Units
from nvdla.util import html
from nvdla.util.escaping import Document, Json, clean, xml_attribute
from nvdla.util.rounding import integer, real

Row = Document


def pairs(left: Side, right: Side) -> list[Row]:
    """One row per pair, ``left`` and ``right`` numbers of operations: with a run of both also how their tensors differ
    (``snr`` in dB against ``right``, None where nothing does; it and ``max`` are of real numbers where both scales are
    known; ``equal``: the share of equal elements)."""
    theirs = {node.key: place for place, node in enumerate(right.study.operations)}
    partners = _matched(left, right)
    seen = [_observed(side) for side in (left, right)]
    rows = []
    for place, node in enumerate(left.study.operations):
        other = partners.get(node.key)
        if other is None:
            continue
        row = {"left": place, "right": theirs[other]}
        rows.append(row | _difference(left, right, seen[0].get(node.key), seen[1].get(other)))
    return rows


def layers_of(left: Side, right: Side) -> list[Row]:
    """One row per layer that both sides have, or per group of layers that one of them joins in an operation
    ("c3+a+r3"): its name, and the numbers of its operations on each side. The layers of a pair of operations are one.
    Empty where a side has no names."""
    sides = [[node.layer for node in side.study.operations] for side in (left, right)]
    if not all(map(any, sides)):
        return []
    matched = _matched(left, right)
    lead: dict[str, str] = {}

    def find(name: str) -> str:
        while lead.setdefault(name, name) != name:
            name = lead[name]
        return name

    theirs = {node.key: node.layer for node in right.study.operations}
    both = [(node.layer, theirs[pair]) for node in left.study.operations if (pair := matched.get(node.key))]
    joined = [f"{mine}+{layer}" for mine, layer in both if mine and layer]
    for layer in filter(None, (*sides[0], *sides[1], *joined)):
        first, *others = layer.split("+")
        for other in others:
            lead[find(other)] = find(first)
    rows: dict[str, Row] = {}
    for side, names in zip(("left", "right"), sides, strict=True):
        for place, name in enumerate(names):
            layer = name or ""
            row = rows.setdefault(find(layer.split("+")[0]), {"name": layer, "left": [], "right": []})
            row[side].append(place)
            row["name"] = max(row["name"], layer, key=lambda text: text.count("+"))
    return [row for row in rows.values() if row["left"] and row["right"]]


def _observed(side: Side) -> dict[Key, Observation]:
    """Return the output of each operation in the side's run."""
    observations = side.view.observations if side.view else []
    return {observation.key: observation for observation in observations}


def _matched(left: Side, right: Side) -> dict[Key, Key]:
    """By position where both have the same engines in the same order, else by layer, engine and what they write."""
    ours, theirs = left.study.operations, right.study.operations
    parts = [_parts(side) for side in (left, right)]
    shapes = [[(node.engine, node.output) for node in nodes] for nodes in (ours, theirs)]
    written = [[of_side.get(node.key) for node in nodes] for nodes, of_side in zip((ours, theirs), parts, strict=True)]
    if shapes[0] == shapes[1] and written[0] == written[1]:
        return {mine.key: other.key for mine, other in zip(ours, theirs, strict=True)}
    if not any(node.layer for node in ours) or not any(node.layer for node in theirs):
        return {ours[mine].key: theirs[other].key for mine, other in aligned_places(*shapes)}
    return _in_turn(_by_kind(ours, parts[0]), _by_kind(theirs, parts[1]))


def _parts(side: Side) -> dict[Key, StoredPlace | None]:
    """Return the places of chains that write less than all of their layer's tensor, for each operation."""
    places = side.names.places
    return {node.key: places.get((chain[-1].task, chain[-1].index)) for chain in side.study.chains for node in chain}


Kind = tuple[str, str, StoredPlace | None, tuple[int, ...] | None]


def _by_kind(nodes: list[Operation], parts: dict[Key, StoredPlace | None]) -> dict[Kind, list[Key]]:
    """Operations by engine, layer and what they write: a part of a tensor, or an intermediate result of this shape. The
    last part completes the tensor, so it is its counterpart, too, where another loadable writes all of it at once."""
    kinds = defaultdict[Kind, list[Key]](list)
    for node in nodes:
        part = parts.get(node.key)
        shape = node.output if part is not None and part.tensor is None else None
        kinds[node.engine, last_layer(node.layer), part, shape].append(node.key)
    whole = {kind[:2]: keys[-1] for kind, keys in kinds.items() if kind[2] is not None and kind[2].tensor is not None}
    for (engine, layer), key in whole.items():
        kinds.setdefault((engine, layer, None, None), [key])
    return kinds


def _in_turn(ours: dict[Kind, list[Key]], theirs: dict[Kind, list[Key]]) -> dict[Key, Key]:
    """The first of a kind with the first of that kind, and so on. Of several intermediate results it is not known which
    of them is which."""
    matches: dict[Key, Key] = {}
    for kind, keys in ours.items():
        _, _, part, _ = kind
        others = theirs.get(kind, [])
        if part is None or part.tensor is not None or len(keys) == len(others) == 1:
            matches |= zip(keys, others, strict=False)
    return matches


def _difference(left: Side, right: Side, observation: Observation | None, other: Observation | None) -> Row:
    if observation is None or other is None or observation.tensor.shape != other.tensor.shape:
        return {}
    places = observation.positions, other.positions
    if places[0] is not None and places[1] is not None and np.array_equal(places[0], places[1]):
        observation, other = replace(observation, whole=None), replace(other, whole=None)  # the last of equal parts
    sides = ((left, observation), (right, other))
    units = [seen.units(side.names) for side, seen in sides]
    ends = [
        Ends.of(unit, seen.at_limits(side.names, seen.is_part, True), seen.tensor)
        for unit, (side, seen) in zip(units, sides, strict=True)
    ]
    if None in units:
        unknown = observation.is_intermediate and not left.names.agree(right.names)
        if observation.dtype != other.dtype or unknown:
            return {}
        units, ends = [Units(), Units()], []
    first, second = (
        unit.real(seen.tensor) for seen, unit in zip((observation, other), units, strict=True) if unit is not None
    )
    for of_side in filter(None, ends):
        first, second = of_side.limit(first), of_side.limit(second)
    if np.array_equal(first, second, equal_nan=True):
        return {"snr": None, "max": 0.0, "equal": 1.0}
    comparison = compare(second, first)  # the second is the reference, as in nvdla compare
    snr = comparison.snr_db if math.isfinite(comparison.snr_db) else None
    largest = comparison.max_abs if math.isfinite(comparison.max_abs) else None
    return {"snr": snr, "max": largest, "equal": 1 - comparison.count / max(comparison.elements, 1)}


FORMAT, VERSION = "nvdla-view", 1
#: in the order in which they are in the page's one script
SCRIPTS = ("data", "plane", "layout", "graph", "charts", "tensors", "panel", "tables", "serve", "main")


@dataclass(frozen=True)
class Data:
    """Content of a page.

    ``document``: plain data; ``elements``: the bytes of its tensors, thinned out; ``whole``: the tensors (C, H, W) of
    each side, for the server of the page.
    """

    document: Document
    elements: bytes
    whole: list[list[np.ndarray]] = field(default_factory=list, repr=False)
    studies: list[Study] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, sides: list[Side], served: bool = False) -> Data:
        """Return the data of one loadable, or of two side by side. Closes the sides' pictures.

        Args:
            sides: One side or two.
            served: A server computes the cycles with other memories; otherwise the data contain a table.
        """
        blocks, start = [], 0
        for side in sides:
            block = side.pictures.close()
            for row in side.pictures.rows:
                row["offset"] += start
            blocks.append(block)
            start += len(block)
        whole = [side.pictures.arrays for side in sides]
        document = _frame("view") | {"sides": [side.document for side in sides], "pairs": [], "mark": _mark(whole)}
        if len(sides) == 2:
            document |= {"pairs": pairs(*sides), "layers": layers_of(*sides)}
        for side in sides:
            side.document["timings"] = [] if served else timings(side.study)
        return cls(document, b"".join(blocks), whole, [side.study for side in sides])

    @classmethod
    def of_index(cls, folder: str, rows: Sequence[Mapping[str, Json]]) -> Data:
        """The data of an index: one row per loadable."""
        return cls(_frame("index") | {"folder": folder, "rows": rows}, b"")

    def tensor(self, side: str, number: str, mark: str) -> bytes:
        """Return all elements of a tensor, little-endian, in the order (C, H, W).

        ``mark``: that of the document on the page. Raises FormatError if the tensor does not exist, or the page shows
        another run.
        """
        if mark != self.document.get("mark"):
            raise FormatError("the results were replaced by a later run: reload the page")
        try:
            array = {str(at): dict(enumerate(arrays)) for at, arrays in enumerate(self.whole)}[side][integer(number)]
        except (KeyError, ValueError):
            raise FormatError(f"side {side!r} has no tensor {number!r}") from None
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()

    def timing(self, side: str, latency: str, bandwidth: str) -> Document:
        """Return the cycles of a side with another memory (:func:`nvdla.report.document.timing`).

        Raises:
            FormatError: The side does not exist, or a number is none.
            ConfigError: A number is out of range.
        """
        try:
            study = {str(at): study for at, study in enumerate(self.studies)}[side]
            return timing(study, integer(latency), real(bandwidth))
        except (KeyError, ValueError):
            wanted = f"side {side!r}, latency {latency!r}, bandwidth {bandwidth!r}"
            raise FormatError(f"{wanted}: must be a side of the page, cycles and bytes per cycle") from None

    @property
    def title(self) -> str:
        """Return the title of the page."""
        if self.document["kind"] == "index":
            return f"Loadables in {self.document['folder']}"
        return " and ".join(side["title"] for side in self.document["sides"])

    @property
    def sections(self) -> list[str]:
        """The views that the page has."""
        if self.document["kind"] == "index":
            return ["Index"]
        sections = ["Graph", "Overview", "Operations", "Cycles", "Timeline", "Memory", "Findings"]
        if any(side["run"] and not side["run"]["error"] for side in self.document["sides"]):
            sections.append("Values")
        sections.append("File")
        return [*sections, "Compare"] if len(self.document["sides"]) > 1 else sections


def _mark(whole: list[list[np.ndarray]]) -> str:
    """Tells one run's tensors from another's."""
    digest = hashlib.sha256()
    for array in (array for arrays in whole for array in arrays):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _frame(kind: str) -> dict[str, Json]:
    return {"format": FORMAT, "version": VERSION, "kind": kind, "made": f"nvdla {nvdla.__version__}"}


@cache
def asset(name: str) -> str:
    """A file of the page."""
    return resources.files("nvdla.report").joinpath("page").joinpath(name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """The page's script."""
    return "\n".join(("'use strict';", "const view = {};", *(asset(f"{name}.js") for name in SCRIPTS)))


def policy(served: bool = False) -> str:
    """The page may run its own script and nothing else, even with hostile names in a loadable; nothing is loaded.
    ``served``: it may talk to the server that it came from."""
    return html.policy(script(), "; connect-src 'self'" if served else "")


def packed(data: Data) -> tuple[str, str]:
    """Document and elements, compressed, as text."""
    text = json.dumps(_clean(data.document), separators=(",", ":"), allow_nan=False, default=_plain)
    return _packed(text.encode()), _packed(data.elements)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _plain(value: SupportsIndex | SupportsFloat) -> int | float:
    return int(value) if isinstance(value, SupportsIndex) else float(value)


def _clean(value: object) -> object:
    """Numbers that JSON lacks become nothing; texts lose characters that no page can show."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def html_page(data: Data, served: bool = False) -> str:
    """Return the page as text; ``served``: a server answers its requests."""
    packed_document, elements = packed(data)
    return html.document(
        data.title,
        '<div id="app"></div><noscript><p>This page needs JavaScript.</p></noscript>'
        f'<div id="document" hidden>{packed_document}</div><div id="elements" hidden>{elements}</div>'
        f"<script>{script()}</script>",
        style=asset("page.css"),
        head=f'<meta http-equiv="Content-Security-Policy" content={xml_attribute(policy(served))}>'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
        attributes=f'data-served="{int(served)}"',
    )
