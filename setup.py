"""The long description is README.md with links that hold on a package index; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?![a-z]+:)([^)]*)\)")


def long_description(readme: str, source: str = "") -> str:
    """Make relative links absolute below ``source``, a page of the repository; without one, turn them into text."""
    return LINK.sub(rf"\1[\2]({source}/\3)" if source else lambda found: "" if found[1] else found[2], readme)


def source_page(pyproject: str) -> str:
    """The address below which the repository's files are shown: [project.urls] "Source files", or none."""
    found = re.search(r'^"Source files" = "(https://[^"]+)"$', pyproject, flags=re.M)
    return found[1].rstrip("/") if found else ""


if __name__ == "__main__":
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    where = source_page((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setup(long_description=long_description(text, where), long_description_content_type="text/markdown")
