"""Hooks of mkdocs for the pages of this repository: pages outside docs/, links to them, generated pages.

mkdocs imports this file as a hook (mkdocs.yml).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

ROOT = Path(__file__).resolve().parents[2]
#: pages outside docs/ -> their names in the site
OUTSIDE = {
    "CHANGELOG.md": "CHANGELOG.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "benchmarks/RESULTS.md": "RESULTS.md",
}
SHIM = re.compile(r'<script src="https://unpkg[^"]*"></script>')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add generated pages, and pages outside docs/."""
    from mkdocs.structure.files import File

    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=relinked(text, (ROOT / source).parent, ROOT / "docs")))
    for path in (ROOT / "docs").glob("*.ipynb"):
        files.append(File.generated(config, f"{path.stem}.md", content=notebook_page(path)))
    files.append(File.generated(config, "json.md", content=json_page(ROOT / "docs" / "json")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Change links out of docs/ to the copy in the site, or to plain text."""
    return markdown if page.file.src_uri in OUTSIDE.values() else relinked(markdown, ROOT / "docs", ROOT / "docs")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Docstrings name things by role (:func:), which a reader need not see."""
    return re.sub(r":(?:mod|func|class|meth|data|attr|const|exc):(?=<code>)", "", html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Replace the script of another host, which the offline search loads, by the copy of the site."""
    return SHIM.sub('<script src="pictures/worker.js"></script>', output)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Remove that script from the page of missing pages, which only servers show."""
    return SHIM.sub("", output_content)


def on_post_build(config: Any) -> None:
    """Write llms.txt: the index of pages as Markdown, one line per page with its title and first paragraph."""
    site = Path(config["site_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for section, pages in _sections(config["nav"]):
        lines += ["", f"## {section}", ""]
        for title, name in pages:
            page = "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"
            lines.append(f"- [{title}]({page}): {purpose_of(_text(name))}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sections(nav: list[Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return (section, pages) of the navigation; pages outside a section are in the section Start."""
    yield "Start", [next(iter(entry.items())) for entry in nav if isinstance(next(iter(entry.values())), str)]
    for entry in nav:
        for section, inside in entry.items():
            if isinstance(inside, list):
                yield section, list(_flat(inside))


def _flat(entries: list[Any]) -> Iterator[tuple[str, str]]:
    for title, inside in (pair for entry in entries for pair in entry.items()):
        if isinstance(inside, str):
            yield title, inside
        else:
            yield from _flat(inside)


def _text(name: str) -> str:
    """Return the text of a page of the site."""
    docs = ROOT / "docs"
    if name == "json.md":
        return json_page(docs / "json")
    if (notebook := (docs / name).with_suffix(".ipynb")).exists():
        return notebook_page(notebook)
    source = next((ROOT / path for path, made in OUTSIDE.items() if made == name), docs / name)
    return source.read_text(encoding="utf-8")


def purpose_of(text: str) -> str:
    """Return the first paragraph of a page on one line, without links and pictures."""
    parts = text.split("\n\n")[1:]
    plain = next((part for part in parts if re.match(r"[\w`*\[]", part)), "")
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split()))


def relinked(text: str, folder: Path, docs: Path) -> str:
    """``text`` of a page in ``folder``, as a page of ``docs``: links out of the site become plain text."""

    def again(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = (folder / target).resolve()
        if words.rpartition("/")[2] == path.name and path.suffix == ".md" and path.exists():
            words = title_of(path)
        if path == docs / "json":
            return f"[{words}](json.md{anchor})"
        if path.suffix == ".ipynb" and path.parent == docs and path.exists():
            return f"[{words}]({path.stem}.md{anchor})"
        if path.parent == docs and path.exists():
            return f"{picture}[{words}]({path.name}{anchor})"
        if path.is_relative_to(docs) and path.exists():
            return f"{picture}[{words}]({path.relative_to(docs)}{anchor})"
        if path.is_relative_to(ROOT) and (source := path.relative_to(ROOT).as_posix()) in OUTSIDE:
            return f"[{words}]({OUTSIDE[source]}{anchor})"
        return f"{words}" if words.startswith("`") or words.strip("`") == path.name else f"{words} (`{target}`)"

    return LINK.sub(again, text)


def title_of(path: Path) -> str:
    """Return the heading of a page up to the colon: "nvdla lint" of "nvdla lint: check ..."; of tutorials the rest."""
    heading = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return heading.removeprefix("Tutorial: ").partition(":")[0]


def notebook_page(path: Path) -> str:
    """A notebook as a page: cells of code with what they printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output.get("text", ())) for output in cell["outputs"])
        parts += [f"```text\n{printed.rstrip()}\n```"] if printed else []
    first, *rest = parts
    return "\n\n".join([first, f"The notebook: [{path.name}]({path.name}).", *rest]) + "\n"


def json_page(folder: Path) -> str:
    """The JSON Schemas as tables of keys."""
    parts = [
        "# JSON documents",
        "`--json` prints one document. It begins with `format` and `version`; where a command fails it is "
        "`nvdla-error`, with exit code 2. Keys are stable: a new key may come, a key that changes its meaning changes "
        "`version`. "
        "Each format has a JSON Schema (draft 2020-12), which the tests hold against real output.",
    ]
    for path in sorted(folder.glob("*.schema.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        name = path.name.removesuffix(".schema.json")
        parts += [f"## {name}", f"{schema['title']}. [{path.name}](json/{path.name})"]
        parts += _keys(schema)
        for part, inner in schema.get("$defs", {}).items():
            parts += [f"### {name}: {part}", *_keys(inner)]
    return "\n\n".join(parts) + "\n"


def _keys(schema: dict[str, Any]) -> list[str]:
    """A table of an object's keys; those of objects inside follow with a dot."""
    rows = list(_rows(schema, ""))
    return ["\n".join(["| key | type | meaning |", "|---|---|---|", *rows])] if rows else []


def _rows(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in schema.get("properties", {}).items():
        name, text = f"{prefix}{key}", value.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {_type(value)} | {text} |"
        yield from _rows(value, f"{name}.")
        yield from _rows(value.get("items", {}), f"{name}[].")


def _type(schema: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    types = schema.get("type", "any")
    words = " or ".join(types) if isinstance(types, list) else types
    return f"{words} of {_type(schema['items'])}" if schema.get("items") else words
