"""Writes the JSON form of the register maps and the configurations next to their YAML: ``python tools/tables.py``.

The YAML files are the source, for people; JSON is what the toolkit reads, fifty times faster. Tests compare both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

HARDWARE = Path(__file__).resolve().parents[1] / "nvdla" / "emulator" / "hardware"


def sources() -> list[Path]:
    """The YAML files."""
    return sorted([*HARDWARE.glob("*.yaml"), *(HARDWARE / "registers").glob("*.yaml")])


def json_of(source: Path) -> str:
    """A line for each entry of the first two levels."""
    table: dict[str, dict[str, Any]] = yaml.safe_load(source.read_text(encoding="utf-8"))
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_entry(entry)}" for name, entry in table.items()) + "\n}\n"


def _entry(entry: dict[str, Any]) -> str:
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items()) + "}"


def main() -> None:
    for source in sources():
        source.with_suffix(".json").write_text(json_of(source), encoding="utf-8")


if __name__ == "__main__":
    main()
