"""The real files of other tools, where they are."""

from __future__ import annotations

import json
from pathlib import Path

FORMATS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus" / "formats"


def manifest(folder: str) -> list[dict]:
    """The manifest of a folder of the corpus; empty where there is no corpus."""
    path = FORMATS / folder / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else []
