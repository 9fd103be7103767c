"""Two results of ``run.py --json``, row by row: ``python benchmarks/compare.py BEFORE.json AFTER.json``.

A row is "better" or "worse" when its value has moved by more than the noise of both measurements (half of their
interquartile range, and at least 5 %); exit code 1 when any is worse.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nvdla.cli.output import print_table

LEAST_NOISE = 0.05


def verdict(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The row of the table for two measurements of one row."""
    change = after["value"] / before["value"] - 1
    noise = max(LEAST_NOISE, sum(row["details"].get("noise", 0.0) for row in (before, after)))
    gain = change if after["unit"] == "x faster" else -change
    word = "same" if abs(gain) <= noise else "better" if gain > 0 else "worse"
    return {
        "row": after["row"],
        "before": float(f"{before['value']:.3g}"),
        "after": float(f"{after['value']:.3g}"),
        "unit": after["unit"],
        "change_%": round(change * 100, 1),
        "noise_%": round(noise * 100, 1),
        "verdict": word,
    }


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: compare.py BEFORE.json AFTER.json", file=sys.stderr)
        return 2
    before, after = (
        {row["row"]: row for row in json.loads(Path(name).read_text(encoding="utf-8"))["rows"]} for name in sys.argv[1:]
    )
    rows = [verdict(before[name], after[name]) for name in after if name in before]
    print_table("benchmarks", rows)
    return 1 if any(row["verdict"] == "worse" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
