"""The report: one HTML page that needs nothing else, neither files nor a network."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

import nvdla
from nvdla.analysis.study import Study
from nvdla.doctor.examination import Examination
from nvdla.report import sections
from nvdla.report.html import Html, joined, tag
from nvdla.report.run import RunView


@dataclass(frozen=True)
class Report:
    """``text``: the page; ``sections``: their names; ``graph``: "drawing" or "table"."""

    text: str
    sections: list[str]
    graph: str


@cache
def asset(name: str) -> str:
    """A file that lies beside this module."""
    return resources.files("nvdla.report").joinpath(name).read_text(encoding="utf-8")


def make_report(study: Study, examination: Examination, view: RunView | None, clock: float) -> Report:
    """The page about a loadable, with a run on an input if there was one. ``clock`` in MHz."""
    drawing, kind = sections.graph(study)
    parts: dict[str, Html] = {"Overview": sections.overview(study, clock, examination)}
    if view is not None:
        parts["Result"] = sections.result(view)
    parts["Findings"] = sections.findings(examination)
    parts["Operations"] = sections.operations(study, clock)
    parts["Schedule"] = sections.schedule(study, clock)
    parts["Memory"] = sections.memory(study)
    if view is not None and view.error is None:
        parts["Values"] = sections.values(view, examination)
    parts["Graph"] = drawing
    return Report(_document(study, parts), list(parts), kind)


def _document(study: Study, parts: dict[str, Html]) -> str:
    script = asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The page may run this script and nothing else, whatever names a loadable brings along.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = study.title
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Html(f"<style>{asset('report.css')}</style>"),
    )
    links = [tag("a", name, href=f"#{name.lower()}") for name in parts]
    header = tag(
        "header",
        tag("h1", title),
        tag("nav", *links, aria_label="Sections"),
        tag("button", "Dark or light", type="button", id="theme"),
    )
    body = [
        tag("section", tag("h2", name), content, id=name.lower(), aria_label=name) for name, content in parts.items()
    ]
    about = f"Made by nvdla {nvdla.__version__}. Press / to search, arrow keys move through rows."
    footer = tag("footer", about)
    inner = tag("body", header, tag("main", *body), footer, Html(f"<script>{script}</script>"))
    page = tag("html", head, inner, lang="en")
    return f"<!DOCTYPE html>\n{joined((page,))}\n"
