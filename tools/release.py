"""Check whether a release can be made: the checklist of docs/project.md.

    python tools/release.py 0.2.0

Prints every step with its result. The exit code is 0 if all steps are done, else 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESSES = ("Source files", "Documentation", "Issues", "Changelog")


def _text(root: Path, name: str) -> str:
    path = root / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _version(root: Path, version: str) -> bool:
    return f'\n__version__ = "{version}"\n' in _text(root, "nvdla/__init__.py")


def _repeated(root: Path, version: str) -> bool:
    cited = f"\nversion: {version}\n" in _text(root, "CITATION.cff")
    return cited and f'\n  version: "{version}"\n' in _text(root, "recipe/recipe.yaml")


def _changes(root: Path, version: str) -> bool:
    headings = re.findall(r"^## (\S+) - (\S+)", _text(root, "CHANGELOG.md"), flags=re.M)
    dates = dict(headings)
    released = all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) for date in dates.values())
    return bool(headings) and headings[0][0] == version and released


def _fragments(root: Path, version: str) -> bool:
    return [path.name for path in (root / "changelog.d").glob("*")] == ["README.md"]


def _addresses(root: Path, version: str) -> bool:
    urls = _text(root, "pyproject.toml").partition("[project.urls]")[2].partition("\n[")[0]
    return all(re.search(rf'^"?{name}"? = "https://', urls, flags=re.M) for name in ADDRESSES)


def _committed(root: Path, version: str) -> bool:
    done = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=False)
    return done.returncode == 0 and not done.stdout.strip()


STEPS: dict[str, Callable[[Path, str], bool]] = {
    "`nvdla.__version__` is the version of the release": _version,
    "`CITATION.cff` and `recipe/recipe.yaml` have the same version": _repeated,
    "`CHANGELOG.md` has a heading with version and date, and no other version is unreleased": _changes,
    "`changelog.d/` has no fragments left: their lines are in the changelog": _fragments,
    "`pyproject.toml` has the addresses of source, documentation, issues and changelog": _addresses,
    "all changes are committed": _committed,
}


def main(words: list[str], root: Path = ROOT) -> int:
    """Print the steps; return 0 if all are done, 1 if one is not, 2 for wrong usage."""
    if len(words) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", words[0]):
        print("usage: python tools/release.py MAJOR.MINOR.PATCH", file=sys.stderr)
        return 2
    results = {step: check(root, words[0]) for step, check in STEPS.items()}
    for step, done in results.items():
        print(f"- [{'x' if done else ' '}] {step}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
