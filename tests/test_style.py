"""The language of docs/project.md: hits of banned patterns per package may only fall (tests/style_counts.json).

``NVDLA_UPDATE_STYLE=1 pytest tests/test_style.py`` writes lower counts.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ROOT / "tests" / "style_counts.json"
PATTERNS = {
    "is no": r"\b(is|are|was|were) no (?!longer|more than|less than)[a-z]",
    "for ever": r"\bfor ever\b",
    "whoever": r"\b(whoever|whomever|whatever|whichever|nobody|somebody|whom)\b",
    "anew": r"\b(anew|mend(s|ed|ing)?|whence|thereby|wherein|shall)\b",
    "private words": r"\b(house|storeys?|rooms?|neighbours?|neighbouring|crew|weigher|weighed|habits)\b",
    "stands, lies": r"\b(stands?|lies|lay|lie)\b(?! for\b)",
    "beside, behind": r"\b(beside|behind)\b",
    "of its own": r"\b(of (its|their|one's|his) own|of (yours|ours|theirs|mine))\b",
    "data that speaks": r"\b(file|loadable|network|layer|model|header|document|descriptor|register|table|option)s? "
    r"(says?|said|tells?|told|knows?|believes?|wants?|asks?)\b",
    "let pass": r"\b(let pass|lets pass|(is|are|be) told|taken for|hands? on|handed)\b",
    "in silence": r"\bin silence\b",
}
MATCHERS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
#: words that are used as names of variables although they do not name the thing
VAGUE_NAMES = frozenset({"each", "found", "made", "one", "said"})
#: identifiers and file names are American, as those of the libraries that the project uses
BRITISH = re.compile(
    r"(colour|centre|behaviour|neighbour|favour|honour|analys(e|ing)|labell|modell(ed|ing)|"
    r"(equal|normal|recogn|initial|optim|quant|summar|serial|organ|minim|maxim|synchron|visual|general|special)is(e|ing|ation))",
    re.IGNORECASE,
)
START = re.compile(r"(What|Who|Whom|Whether|Of|How|Where|When)\b")


def texts(path: Path) -> Iterator[tuple[str, bool]]:
    """Strings with a space and comments of a file, and whether each is a docstring."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value, id(node) in docstrings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, False


def stored_name(node: ast.Name | ast.arg) -> str | None:
    """Return the name that an argument or the target of an assignment, a loop or a comprehension has."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node.ctx, ast.Store) else None


def defined_name(node: ast.AST) -> str:
    """Return the name that a node defines: of a variable, an argument, an attribute, a function or a class."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Attribute):
        return node.attr if isinstance(node.ctx, ast.Store) else ""
    return (stored_name(node) or "") if isinstance(node, ast.Name | ast.arg) else ""


def counted() -> dict[str, dict[str, int]]:
    """Hits by package and pattern."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(each for top in ("nvdla", "kernels") for each in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if "generated" in parts or parts[:2] == ("nvdla", "kernels"):
            continue
        hits = found.setdefault(".".join(parts[:2] if parts[0] == "nvdla" and len(parts) > 2 else parts[:1]), Counter())
        hits["British names"] += BRITISH.search(path.relative_to(ROOT).as_posix()) is not None
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            hits["British names"] += BRITISH.search(defined_name(node)) is not None
            hits["vague names"] += isinstance(node, ast.Name | ast.arg) and stored_name(node) in VAGUE_NAMES
        for text, is_docstring in texts(path):
            hits.update({name: len(matcher.findall(text)) for name, matcher in MATCHERS.items()})
            hits["docstring start"] += is_docstring and START.match(text.strip()) is not None
    return {package: {name: hits[name] for name in sorted(hits) if hits[name]} for package, hits in found.items()}


def test_banned_patterns_only_become_fewer():
    now = counted()
    if os.environ.get("NVDLA_UPDATE_STYLE"):
        COUNTS.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    more = {
        f"{package}: {name}": f"must be at most {allowed.get(package, {}).get(name, 0)}, got {count}"
        for package, hits in now.items()
        for name, count in hits.items()
        if count > allowed.get(package, {}).get(name, 0)
    }
    assert not more, "docs/project.md has the words to use instead"


def test_vague_names_are_counted_where_they_are_defined():
    tree = ast.parse("def f(found): return [each + made for each in found]")
    names = [stored_name(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.arg)]
    assert sorted(VAGUE_NAMES.intersection(names)) == ["each", "found"]


def test_british_names_are_counted_where_they_are_defined():
    tree = ast.parse("class Normaliser:\n def quantise(self, colour): self.centre = np.CENTRE = colour.grey\n")
    names = [name for node in ast.walk(tree) if BRITISH.search(name := defined_name(node))]
    assert sorted(names) == ["CENTRE", "Normaliser", "centre", "colour", "quantise"]
    assert not BRITISH.search("raised_precision") and not BRITISH.search("advised_ModelLayer")
