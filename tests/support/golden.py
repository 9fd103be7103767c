"""Cases of the corpus and how they are compared."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path

import nvdla

CORPUS = (Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus").resolve()
LOADABLES = CORPUS / "loadables"
REGRESSION = CORPUS / "kmd-regression"


@cache
def manifest(folder: Path) -> list[dict]:
    path = folder / "manifest.json"
    return json.loads(path.read_text())["cases"] if path.exists() else []


def quick(cases: list[dict]) -> list[dict]:
    """The smallest case of each configuration, precision, profile and operation set, and every refusal."""
    chosen: dict[object, dict] = {}
    for case in sorted(cases, key=lambda case: case["size"]):
        kinds = tuple(sorted(case.get("op_count", {})))
        flags = tuple(flag for flag in case.get("flags", []) if flag != "nhwc")
        key = (case["config"], case["precision"], case["profile"], kinds, flags, _image(case), case["batch"] > 1)
        if case["expect"] != "ok":
            key = case["path"]
        chosen.setdefault(key, case)
    return [case for case in cases if any(case is other for other in chosen.values())]


def _image(case: dict) -> bool:
    return any(each["pixel_format"] < 36 for each in case.get("inputs", []))


def read(folder: Path, described: dict) -> bytes:
    data = (folder / described["file"]).read_bytes()
    return gzip.decompress(data) if described["file"].endswith(".gz") else data


def inputs_of(case: dict) -> list[bytes]:
    return [read(LOADABLES, described) for described in case.get("inputs", [])]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def runtime_of(case: dict) -> nvdla.Runtime:
    return nvdla.Runtime(nvdla.load(LOADABLES / case["path"]), config=case["config"])


def golden_log(path: Path) -> list[tuple]:
    """A CSB log as the runtime's: writes and the firmware's steps.

    "irq" lines are left out: they show the status when the interrupt came, the write that follows what the handler
    read a little later.
    """
    lines = []
    with gzip.open(path, "rt") as file:
        for words in map(str.split, file):
            if words[0] == "W":
                lines.append(("W", int(words[1], 16), int(words[2], 16)))
            elif words[1] == "address":
                lines.append(("address", int(words[2]), int(words[3], 16)))
            elif words[1] in ("program", "enable", "complete"):
                values = [word.partition("=")[2] for word in words[2:]]
                lines.append((words[1], int(values[0]), values[1], int(values[2])))
    return lines
