"""The table of benchmarks/RESULTS.md from results of ``run.py --json``: ``python benchmarks/table.py RESULT.json ...``.

With ``--write`` it goes into the page, without it to the standard output. Of a row that several results have, the last
counts.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "benchmarks" / "RESULTS.md"
BEGIN, END = "<!-- results: benchmarks/table.py -->", "<!-- end of results -->"
REACHED = {"goal": "goal", "limit": "limit", "MISSED": "missed"}


def number(value: float) -> str:
    """Three digits, and thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{float(f'{value:.3g}'):g}"


def remark(details: dict[str, Any]) -> str:
    """Further measurements."""
    pairs = [("nvdla_ms", "int8_ms", "ms"), ("nvdla_ms", "onnxruntime_ms", "ms")]
    pairs += [("batch_images_per_s", "single_images_per_s", "images/s")]
    pairs += [("two_images_per_s", "one_images_per_s", "images/s")]
    said = [f"{number(details[a])} against {number(details[b])} {unit}" for a, b, unit in pairs if {a, b} <= {*details}]
    if "best_ratio" in details:
        said.append(f"best against best {number(details['best_ratio'])}")
    if "busy_to_quiet" in details:
        said.append(f"{number(details['busy_to_quiet'])} × quiet")
    if "added_mib" in details:
        mib = [number(details[key]) for key in ("added_mib", "loadable_mib", "surfaces_mib")]
        said.append("{} MiB for a loadable of {} and surfaces of {} MiB".format(*mib))
    if "peak_mib" in details:
        said.append(f"{details['images']} images; {number(details['peak_mib'])} MiB")
    return "; ".join(said)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    unit = row["unit"].replace("x ", "× ")
    sign = "≥" if unit == "× faster" else "≤"
    limits = f"{sign} {number(row['limit'])} | {sign} {number(row['goal'])}"
    cells = (
        f"`{row['row']}`",
        f"{number(row['value'])} {unit}",
        limits,
        REACHED[row["verdict"]],
        remark(row["details"]),
    )
    return f"| {' | '.join(cells)} |"


def table(rows: Iterable[dict[str, Any]]) -> str:
    """All of it, in Markdown."""
    head = ["| row | result | limit | goal | reached | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *map(line, rows)])


def machine(described: dict[str, Any]) -> str:
    """Description of the machine in one sentence."""
    family, model = described["family_model"].split("/")
    versions = ", ".join(f"{name} {version}" for name, version in described["versions"].items() if name != "nvdla")
    instructions = ", ".join(described["features"])
    commit = described.get("commit")
    said = (
        f"{described['cpu']} (family {family}, model {model}; {instructions}), {described['cores']} cores, "
        f"{described['memory_gib']} GiB, {described['system'].split()[0]}; Python {described['python']}, {versions}"
        f"{'' if commit is None else f'; commit {commit}'}."
    )
    return textwrap.fill(said, 120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--write", action="store_true", help="put it into benchmarks/RESULTS.md")
    args = parser.parse_args()
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in args.results]
    rows = {row["row"]: row for document in documents for row in document["rows"]}
    text = f"{machine(documents[-1]['machine'])}\n\n{table(rows.values())}"
    if not args.write:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
