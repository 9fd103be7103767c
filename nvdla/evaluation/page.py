"""The page of an evaluation: figures, the confusion matrix as a picture, classes, damaged samples."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; font-size: 11px; }
"""
CELL = 28
LARGEST = 60  # classes in the picture; the matrix of more is in the JSON alone


def page(document: dict[str, Any], title: str) -> str:
    """One HTML page that needs nothing else."""
    summary = document["summary"]
    parts = [
        "<!DOCTYPE html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _figures(summary),
        _confusion(summary),
        _classes(summary),
        _problems(summary),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part)


def share(figure: dict[str, Any]) -> str:
    """A share in percent with its standard error."""
    if figure["value"] is None:
        return "-"
    error = "" if figure["standard_error"] is None else f" ± {100 * figure['standard_error']:.2f}"
    return f"{100 * figure['value']:.2f}{error}%"


def number(figure: dict[str, Any]) -> str:
    """A mean with its standard error."""
    if figure["value"] is None:
        return "-"
    error = "" if figure["standard_error"] is None else f" ± {figure['standard_error']:.3g}"
    return f"{figure['value']:.6g}{error}"


def figures(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, figure) rows of a summary, for the page and for the terminal."""
    rows = [("samples", f"{summary['samples']:,}")]
    if summary["damaged"]:
        rows.append(("damaged samples", f"{summary['damaged']:,}"))
    for name, text, form in (
        ("top1", "top-1 accuracy", share),
        ("top5", "top-5 accuracy", share),
        ("squared_error", "mean squared error", number),
        ("metric", "metric", number),
    ):
        if name in summary:
            rows.append((text, form(summary[name])))
    if "float" in summary:
        rows.append(("same top-1 as the float model", share(summary["float"]["agreement"])))
        if summary["float"]["snr_db"] is not None:
            rows.append(("SNR against the float model", f"{summary['float']['snr_db']:.1f} dB"))
    return rows


def _figures(summary: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{escape(what)}</td><td>{escape(figure)}</td></tr>" for what, figure in figures(summary))
    return f"<table>{rows}</table>"


def _confusion(summary: dict[str, Any]) -> str:
    """The matrix as a picture: rows are labels, columns what the network says; a cell is its share of the row."""
    classes = summary.get("classes", [])
    if not classes or len(classes) > LARGEST:
        return ""
    names = [str(each["name"] or each["class"]) for each in classes]
    place = {each["class"]: number for number, each in enumerate(classes)}
    totals = {each["class"]: each["samples"] for each in classes}
    margin = 12 + 7 * max(map(len, names))
    size = margin + CELL * len(classes) + 10
    cells = []
    for row in summary["confusion"]:
        x, y = margin + CELL * place[row["found"]], margin + CELL * place[row["label"]]
        part = row["count"] / totals[row["label"]]
        colour = "#2a9d5c" if row["label"] == row["found"] else "#d1495b"
        title = f"label {names[place[row['label']]]}, found {names[place[row['found']]]}: {row['count']}"
        cells.append(
            f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}" '
            f'fill-opacity="{0.25 + 0.75 * part:.3f}"><title>{escape(title)}</title></rect>'
            f'<text x="{x + CELL / 2}" y="{y + CELL / 2 + 4}" text-anchor="middle">{row["count"]}</text>'
        )
    for number_, name in enumerate(names):
        at = margin + CELL * number_ + CELL / 2
        cells.append(f'<text x="{margin - 6}" y="{at + 4}" text-anchor="end">{escape(name)}</text>')
        cells.append(f'<text transform="translate({at + 4},{margin - 6}) rotate(-90)">{escape(name)}</text>')
    return (
        f"<h2>Confusion</h2><p>Rows: labels. Columns: what the network says.</p>"
        f'<svg viewBox="0 0 {size} {size}" width="{size}" role="img">{"".join(cells)}</svg>'
    )


def _classes(summary: dict[str, Any]) -> str:
    classes = summary.get("classes")
    if not classes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(str(each['name'] or each['class']))}</td><td>{each['samples']}</td>"
        f"<td>{share(each['precision'])}</td><td>{share(each['recall'])}</td></tr>"
        for each in classes
    )
    return (
        f"<h2>Classes</h2><table><tr><th>class</th><th>samples</th><th>precision</th><th>recall</th></tr>{rows}</table>"
    )


def _problems(summary: dict[str, Any]) -> str:
    if not summary.get("problems"):
        return ""
    rows = "".join(f"<li>{escape(each['id'])}: {escape(each['error'])}</li>" for each in summary["problems"])
    return f"<h2>Damaged samples</h2><ul>{rows}</ul>"
