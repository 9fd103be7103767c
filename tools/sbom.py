"""A software bill of materials of an installed nvdla, as CycloneDX 1.5 JSON, for release notes.

    python tools/sbom.py [--wheel dist/nvdla-X.whl] [--output sbom.json]

Lists nvdla and every package that it needs, directly or not, with the versions installed where this runs (a fresh
environment with nothing but nvdla, for a release): name, version, license, package URL, dependencies. Optional extras
are left out. ``--wheel`` adds the checksum of the wheel that is released.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

NAME = "nvdla"


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(distribution: metadata.Distribution) -> list[str]:
    """Normal names of the packages that it needs here and now (no extras, only markers that hold)."""
    from packaging.requirements import Requirement

    found = [Requirement(text) for text in distribution.requires or ()]
    return sorted({normal(each.name) for each in found if each.marker is None or each.marker.evaluate({"extra": ""})})


def license_of(distribution: metadata.Distribution) -> list[dict[str, Any]]:
    """License of a package: an expression, or a name."""
    meta = distribution.metadata
    if meta.get("License-Expression"):
        return [{"expression": meta["License-Expression"]}]
    named = [each.rpartition(" :: ")[2] for each in meta.get_all("Classifier") or () if each.startswith("License ::")]
    text = (meta.get("License") or "").strip().splitlines()
    names = named or [line for line in text[:1] if line]
    return [{"license": {"name": name}} for name in names]


def component(distribution: metadata.Distribution) -> dict[str, Any]:
    name, version = normal(distribution.metadata["Name"]), distribution.version
    reference = f"pkg:pypi/{name}@{version}"
    found = {"type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference}
    return {**found, "licenses": license_of(distribution)}


def materials() -> dict[str, metadata.Distribution]:
    """nvdla and all that it needs, by normal name."""
    found: dict[str, metadata.Distribution] = {}
    open_ends = [NAME]
    while open_ends:
        name = open_ends.pop()
        if name not in found:
            found[name] = metadata.distribution(name)
            open_ends += needs(found[name])
    return found


def document(wheel: Path | None = None) -> dict[str, Any]:
    """The bill. The same environment and wheel give the same bytes (no time, a serial number from the content)."""
    found = materials()
    components = {name: component(each) for name, each in sorted(found.items())}
    own = {**components.pop(NAME), "type": "application"}
    if wheel is not None:
        own["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    references = {name: each["bom-ref"] for name, each in components.items()} | {NAME: own["bom-ref"]}
    graph = [
        {"ref": references[name], "dependsOn": [references[other] for other in needs(each)]}
        for name, each in sorted(found.items())
    ]
    content = json.dumps([own, components, graph], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": own},
        "components": list(components.values()),
        "dependencies": graph,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="the wheel that is released")
    parser.add_argument("--output", type=Path, help="default: standard output")
    args = parser.parse_args()
    text = json.dumps(document(args.wheel), indent=2) + "\n"
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
