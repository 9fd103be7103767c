"""What the pages promise is true: examples run, shown output is real, named functions exist, links lead somewhere."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import WIDTH, page_module, wrapped

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")]
PAGES = [*OUTSIDE, *sorted((ROOT / "docs").glob("*.md"))]
MOST_WORDS = 60_000
"""Size of docs/ in words: measurements belong in benchmarks/RESULTS.md, and every subject has one page."""
SHOWN = [ROOT / "README.md", ROOT / "docs" / "troubleshooting.md"]
UPDATE = bool(os.environ.get("NVDLA_UPDATE_DOCS"))
EXAMPLES = [ROOT / "README.md", ROOT / "docs" / "python-api.md", ROOT / "docs" / "compare.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def numbered(pages, language):
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in pages
        for number, block in enumerate(blocks(page, language))
    ]


@pytest.fixture
def in_a_copy(tmp_path, monkeypatch):
    """Examples run where samples/ is, and what they write is thrown away."""
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", numbered(EXAMPLES, "python"))
def test_an_example_in_python_runs(code, in_a_copy, capsys):
    exec(compile(code, "example", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    for said in re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.M):
        assert said in printed, said


@pytest.mark.parametrize("block", numbered(SHOWN, "console"))
def test_the_output_that_a_page_shows_is_real(block, in_a_copy, nvdla_command, monkeypatch):
    """``NVDLA_UPDATE_DOCS=1`` puts the nearest real line in the place of one that is not real."""
    monkeypatch.setattr("nvdla.cli.output.terminal_width", lambda: WIDTH)
    first, *shown = block.splitlines()
    program, *words = shlex.split(first.removeprefix("$ "))
    assert program == "nvdla"
    _, out, err = nvdla_command(*words)
    said = {untimed(line): line for line in wrapped(out + err)}
    wrong = [line for line in shown if line != "..." and untimed(line) not in said]
    if UPDATE:
        replace_lines({line: difflib.get_close_matches(line, said.values(), 1, 0.3) for line in wrong})
    assert UPDATE or not wrong


COMMANDS_OF_README = [
    block for block in blocks(ROOT / "README.md", "sh") if all(line.startswith("nvdla ") for line in block.splitlines())
]


@pytest.mark.parametrize("block", COMMANDS_OF_README, ids=lambda block: block.split()[1])
def test_commands_of_the_readme_run(block, in_a_copy, nvdla_command):
    """Blocks that show no output are still run, line after line."""
    if "compile" in block:
        pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    for line in block.splitlines():
        code, _, err = nvdla_command(*shlex.split(line)[1:])
        assert code == 0, (line, err)


def test_the_readme_has_such_blocks():
    assert len(COMMANDS_OF_README) >= 3


def examples_of_help() -> Iterator[str]:
    """Lines of the commands' --help that are made of samples, and not of files that only a reader has."""
    from nvdla.cli.main import COMMANDS

    for module, _ in COMMANDS.values():
        for line in importlib.import_module(module).HELP.splitlines():
            line = re.sub(r"\s{3,}.*$", "", line.strip())
            if line.startswith("nvdla ") and " lenet.loadable" in line:
                yield line


@pytest.mark.slow
@pytest.mark.parametrize("line", list(examples_of_help()))
def test_examples_of_help_run_on_the_samples(line, in_a_copy, nvdla_command, monkeypatch):
    monkeypatch.chdir("samples")
    for option, value in (("--count", "40"), ("--margin", "0.2"), ("--limit", "20")):  # the same in seconds
        line = re.sub(rf"{option} \S+", f"{option} {value}", line)
    code, _, err = nvdla_command(*shlex.split(line)[1:])
    assert code == 0, err


def replace_lines(lines: dict[str, list[str]]) -> None:
    for page in SHOWN:
        text = page.read_text(encoding="utf-8")
        for line, near in lines.items():
            text = text.replace(f"\n{line}\n", f"\n{near[0]}\n" if near else "\n")
        page.write_text(text, encoding="utf-8")


def untimed(line: str) -> str:
    return re.sub(r"in [\d.]+ ms", "in some ms", line.rstrip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
        if target.endswith(".md") or not target:
            assert anchor in anchors(page.parent / target if target else page), (target, anchor)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as the site and code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.M)
    named = {found[1] for line in headings if (found := re.search(r"\{#([\w-]+)\}$", line))}
    return named | {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


def test_pages_named_in_code_exist():
    for folder in ("nvdla", "kernels", "tools", "benchmarks", "tests"):
        for path in (ROOT / folder).glob("**/*.py"):
            for name in re.findall(r"\bdocs/([\w-]+\.md)", path.read_text(encoding="utf-8")):
                assert (ROOT / "docs" / name).exists() or name in NO_PAGES, (path, name)


NO_PAGES = {"x.md"}
"""Names in examples."""


def test_the_readme_fits_on_three_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_documentation_is_not_too_long():
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda item: -item[1])[:5]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_output_on_a_page_fits_its_width(page):
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_begins_with_its_purpose_and_ends_with_the_next_page(page):
    title, blank, purpose = page.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ") and not blank and re.match(r"`?\w", purpose), purpose
    assert page.name == "README.md" or re.search(r"^Next: .*\]\(", page.read_text(encoding="utf-8"), flags=re.M)


@pytest.mark.parametrize("script", ["bars.py", "table.py"])
def test_the_results_have_places_for_generated_tables(script):
    source = (ROOT / "benchmarks" / script).read_text(encoding="utf-8")
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    marks = re.search(r'^BEGIN, END = "(.*?)", "(.*?)"$', source, flags=re.M)
    assert marks and text.count(marks[1]) == text.count(marks[2]) == 1


def test_fragments_of_the_changelog_have_a_type():
    for path in (ROOT / "changelog.d").iterdir():
        assert re.fullmatch(r"README\.md|[\w-]+\.(added|changed|fixed|removed|security)\.md", path.name), path.name


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_the_navigation_of_the_site_has_every_page():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"[\w-]+\.md", navigation)
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - set(listed) == set(), "add it to mkdocs.yml"


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command, and every sub-command, with its parser."""
    from nvdla.cli.main import COMMANDS

    for name, (module, _) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=name)
        importlib.import_module(module).configure(parser)
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        yield name, parser
        yield from ((f"{name} {word}", sub) for action in inner for word, sub in action.choices.items())


def test_every_argument_is_explained_and_defaults_have_one_form():
    for name, parser in parsers():
        for action in parser._actions:
            if action.help is argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
                continue
            said = (name, action.option_strings or action.dest, action.help)
            assert action.help and not action.help.startswith("default"), said
            assert not re.search(r"\(default [^:)]", action.help), said
            takes = action.nargs != 0 and action.option_strings and not action.choices
            assert not takes or action.metavar or len(action.dest) <= 9, said


def test_an_option_of_several_values_can_be_repeated():
    """``--merge a b`` and ``--merge a --merge b`` are the same."""
    for name, parser in parsers():
        for action in parser._actions:
            if action.option_strings and action.nargs in ("+", "*"):
                assert isinstance(action, argparse._ExtendAction), (name, action.option_strings)


def test_tables_of_every_command_can_be_had_as_csv():
    for name, parser in parsers():
        words = {word for action in parser._actions for word in action.option_strings}
        if "--json" in words and name not in ("view", "serve", "trace replay"):  # these print lines, no tables
            assert {"--csv", "--tsv", "--wide"} <= words, name


def test_the_page_of_commands_is_current():
    module = page_module("commands")
    made = module.commands_page(module.titles(ROOT / "docs"))
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == made, "python tools/pages/commands.py"


#: words of the project's own building and planning, which no user needs
INTERNAL = re.compile(
    r"\b(moonshots?|storeys?|acceptance|rooms|(a|each|every|one|this) room|the house|house rules?|the bars?)\b"
    r"|\| (bar|moonshot) \|",
    flags=re.I,
)
FOR_CONTRIBUTORS = {"architecture.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in FOR_CONTRIBUTORS], ids=lambda page: page.name
)
def test_user_pages_have_no_internal_words(page):
    text = re.sub(r"^```.*?^```|<!--.*?-->|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert [found[0] for found in INTERNAL.finditer(text)] == []


def test_the_guard_knows_internal_words():
    assert INTERNAL.search("two rooms") and INTERNAL.search("in the house") and INTERNAL.search("the bar is 3")
    assert not INTERNAL.search("there is no room for it; a bar for each buffer")


def test_every_numeric_rule_names_functions_that_exist():
    text = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    names = re.findall(r"`(kernels(?:\.\w+)+)`", text)
    assert len(names) > 30
    for name in names:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"nvdla.{module}"), function)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_pages_show_exist(page):
    """Every ``nvdla COMMAND --option`` in a page is known to the command's parser."""
    from nvdla.cli.main import COMMANDS

    for name, rest in re.findall(r"^\$? ?nvdla (\w+)((?: .*)?)$", page.read_text(encoding="utf-8"), flags=re.M):
        if name not in COMMANDS or "COMMAND" in rest:
            continue
        parser = argparse.ArgumentParser()
        importlib.import_module(COMMANDS[name][0]).configure(parser)
        known = set(re.findall(r"--[\w-]+", all_help(parser)))
        assert set(re.findall(r"(?<= )--[a-z][\w-]*", rest.partition(" # ")[0])) <= known, (name, rest)


def all_help(parser: argparse.ArgumentParser) -> str:
    """The help of a parser and of all its sub-commands."""
    text = parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            text += "".join(map(all_help, action.choices.values()))
    return text
