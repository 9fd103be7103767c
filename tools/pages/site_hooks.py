"""What mkdocs does with the pages of this repository: pages from outside docs/, links out of it, drawings.

mkdocs imports this file as a hook (mkdocs.yml).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

ROOT = Path(__file__).resolve().parents[2]
#: pages that lie elsewhere in the repository -> their names in the site
OUTSIDE = {"CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "SECURITY.md": "SECURITY.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Pages that are made, or that lie beside docs/."""
    from mkdocs.structure.files import File

    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=relinked(text, ROOT, ROOT / "docs")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that leave docs/ lead to the site's copy, or become plain text; drawings become pictures."""
    if page.file.src_uri not in OUTSIDE.values():
        markdown = relinked(markdown, ROOT / "docs", ROOT / "docs")
    return re.sub(r"```mermaid\n(.*?)```", lambda found: storeys_as_list(found[1]), markdown, flags=re.S)


def relinked(text: str, folder: Path, docs: Path) -> str:
    """``text`` of a page in ``folder``, as a page of ``docs``: links out of the site become plain text."""

    def again(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = (folder / target).resolve()
        if path.parent == docs and path.exists():
            return f"{picture}[{words}]({path.name}{anchor})"
        if path.is_relative_to(docs) and path.exists():
            return f"{picture}[{words}]({path.relative_to(docs)}{anchor})"
        if path.name in OUTSIDE and path.parent == ROOT:
            return f"[{words}]({OUTSIDE[path.name]}{anchor})"
        return f"{words}" if words.startswith("`") or words.strip("`") == path.name else f"{words} (`{target}`)"

    return LINK.sub(again, text)


def storeys_as_list(mermaid: str) -> str:
    """The storeys of the architecture drawing as a table: the drawing itself needs a script of another host."""
    rows = re.findall(r"subgraph s(\d+)\[.*?\]\n(.*?)\n  end", mermaid, flags=re.S)
    lines = ["| storey | packages |", "|---|---|"]
    return "\n".join([*lines, *(f"| {number} | {', '.join(names.split())} |" for number, names in rows)]) + "\n"
