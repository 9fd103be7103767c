#!/usr/bin/env python3
"""Regenerate the committed FlatBuffers bindings from the schemas in this folder.

    python fbs/regenerate.py            write the bindings
    python fbs/regenerate.py --check    write nothing; exit 1 when the committed bindings are not what flatc makes

Needs flatc (Debian: flatbuffers-compiler). The committed files come from the version named below; another version may
lay out the same code differently.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FLATC_VERSION = "2.0.8"
HERE = Path(__file__).resolve().parent

#: schema in this folder -> folder of its bindings, relative to the repository
SCHEMAS = {
    "loadable.fbs": "nvdla/loadable/generated",
    "tflite.fbs": "nvdla/compiler/frontend/tflite/generated",
}


def flatc_version() -> str | None:
    """Version of the installed flatc, or None where there is none."""
    if shutil.which("flatc") is None:
        return None
    answer = subprocess.run(["flatc", "--version"], capture_output=True, text=True, check=True).stdout
    return answer.split()[-1]


def generate(schema: str, folder: Path) -> dict[str, bytes]:
    """Bindings of one schema as {file name: content}, made in ``folder``."""
    command = ["flatc", "--python", "--gen-onefile", "-o", str(folder), str(HERE / schema)]
    subprocess.run(command, check=True)
    # flatc also makes an empty __init__.py; the package has its own.
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*_generated.py"))}


def stale(schema: str, target: str) -> list[str]:
    """Committed files of one schema that differ from what flatc makes of it, as readable lines."""
    with tempfile.TemporaryDirectory() as scratch:
        made = generate(schema, Path(scratch))
    lines = []
    for name, content in made.items():
        path = HERE.parent / target / name
        if not path.is_file() or path.read_bytes() != content:
            lines.append(f"{target}/{name} is not what flatc {flatc_version()} makes of fbs/{schema}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="regenerate the FlatBuffers bindings")
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    version = flatc_version()
    if version is None:
        print("flatc is not installed (Debian: apt install flatbuffers-compiler)", file=sys.stderr)
        return 2
    if version != FLATC_VERSION:
        print(f"note: flatc is {version}, the committed bindings were made by {FLATC_VERSION}", file=sys.stderr)
    if arguments.check:
        lines = [line for schema, target in SCHEMAS.items() for line in stale(schema, target)]
        print("\n".join(lines) or "bindings are up to date")
        return 1 if lines else 0
    for schema, target in SCHEMAS.items():
        with tempfile.TemporaryDirectory() as scratch:
            for name, content in generate(schema, Path(scratch)).items():
                (HERE.parent / target / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
