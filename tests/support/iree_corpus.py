"""Where the real IREE files are, and what is recorded of them."""

from __future__ import annotations

import json
from pathlib import Path

FORMATS = Path(__file__).parents[2] / ".." / "shared" / "corpus" / "formats"


def irpa_records() -> list[dict]:
    path = FORMATS / "irpa" / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else []


def vmfb_records() -> list[dict]:
    path = FORMATS / "vmfb" / "manifest.json"
    return json.loads(path.read_text())["files"] if path.exists() else []
