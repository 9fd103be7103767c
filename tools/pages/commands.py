"""docs/commands.md, from the parsers of the commands."""

from __future__ import annotations

import argparse
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nvdla.cli.main import COMMANDS

INTRODUCTION = """# Commands

This page lists every command with its options. It was made by `python tools/pages/commands.py`; do not edit.

`nvdla COMMAND --help` prints the same. `nvdla-run` is `nvdla run`. Exit codes: 0 success, 1 a difference or a failed
check, 2 wrong usage or input (one line on standard error), 130 interrupted. [Settings](install.md#settings) change
defaults. Commands print tables and have the options `--json`, `--csv`, `--tsv` and `--wide` (all columns), unless a
line "Output" names others. `-` as a file to write is standard output. Options that several commands share are at the
[end](#shared-options)."""
FORMATS = {"--json", "--yaml", "--csv", "--tsv", "--help", "--wide"}
_HEADER = ("| argument | meaning |", "|---|---|")
COMMON = "#common-options"
USUAL_FORMATS = ["`--json`", "`--csv`", "`--tsv`", "`--wide`"]
UNTITLED = ("positional arguments", "options", "optional arguments")  # argparse's own groups
#: command -> page of the guide
GUIDES = {"run": "python-api", "inspect": "tutorial-look", "hexdump": "tutorial-look", "samples": "install",
          "configs": "support", "cache": "performance", "completion": "install", "version": "install",
          "extract": "tutorial-look", "view": "report", "graph": "report", "export": "report", "diff": "compare",
          "layers": "compare", "timeline": "cycles", "explore": "cycles", "memory": "explain", "tensor": "files",
          "container": "files", "serve": "registers", "program": "registers", "csb": "registers",
          "trace": "registers"}  # fmt: skip
CODE_WIDTH = 96
"""Characters of a line of code on a page."""
SHARED_BY = 3
"""Number of commands that must share an option, or a group of options, for it to be listed once."""


def titles(docs: Path) -> dict[str, str]:
    """The pages of a folder by name, with their headings."""
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in docs.glob("*.md")}


def commands_page(known: Mapping[str, str]) -> str:
    """docs/commands.md. ``known``: titles of the guides by name."""
    parts = [INTRODUCTION, "", "| command | does |", "|---|---|"]
    parts += [f"| [{name}](#{name}) | {text} |" for name, (_, text) in COMMANDS.items()]
    parsers = {name: _parser(name) for name in COMMANDS}
    shared, common = _shared(parsers.values()), _common(parsers.values())
    for name, parser in parsers.items():
        parts += ["", f"## {name}", ""]
        parts += list(_command(parser, name, shared, common))
        guide = GUIDES.get(name, name)
        parts += ["", f"More: [{known[guide]}]({guide}.md)."] if guide in known else []
    parts += ["", "## Shared options", "", f"### Common options {{{COMMON}}}", "", *_HEADER, *sorted(common)]
    for (title, table), anchor in shared.items():
        parts += ["", f"### {title} {{#{anchor}}}", "", table]
    parts += ["", "Next: [glossary](glossary.md), [troubleshooting](troubleshooting.md)."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)) + "\n"


def _parser(name: str) -> argparse.ArgumentParser:
    """Parser of a command."""
    imported = importlib.import_module(COMMANDS[name][0])
    parser = argparse.ArgumentParser(prog=f"nvdla {name}", description=imported.HELP)
    imported.configure(parser)
    return parser


def _shared(parsers: Iterable[argparse.ArgumentParser]) -> dict[tuple[str, str], str]:
    """Titles and tables of the groups of options that several commands have, with their anchors."""
    groups = [(_title(group), _group(group)) for parser in parsers for group in _titled(parser)]
    found = [group for group, count in Counter(groups).items() if count >= SHARED_BY]
    return {(title, table): f"shared-{re.sub('[^a-z]+', '-', title.lower()).strip('-')}" for title, table in found}


def _common(parsers: Iterable[argparse.ArgumentParser]) -> set[str]:
    """Rows of the options that several commands have outside of groups."""
    leaves = [leaf for parser in parsers for leaf in _leaves(parser)]
    rows = Counter(_row(action) for leaf in leaves for action in _ungrouped(leaf) if action.option_strings)
    return {row for row, count in rows.items() if count >= SHARED_BY}


def _leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Parsers of the sub-commands, or the parser itself."""
    commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [leaf for action in commands for leaf in action.choices.values()] or [parser]


def _ungrouped(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Arguments outside of titled groups, without output formats."""
    grouped = {id(action) for group in _titled(parser) for action in group._group_actions}
    hidden = FORMATS | {argparse.SUPPRESS}
    rows = [action for action in parser._actions if id(action) not in grouped and action.help not in hidden]
    return [a for a in rows if not FORMATS & set(a.option_strings) and not isinstance(a, argparse._SubParsersAction)]


def _titled(parser: argparse.ArgumentParser) -> list[argparse._ArgumentGroup]:
    return [group for group in parser._action_groups if group.title not in UNTITLED]


def _title(group: argparse._ArgumentGroup) -> str:
    return _sentence(group.title or "").rstrip(".")


def _group(group: argparse._ArgumentGroup) -> str:
    return "\n".join(_table(group._group_actions))


def _command(
    parser: argparse.ArgumentParser, name: str, shared: Mapping[tuple[str, str], str], common: set[str]
) -> Iterator[str]:
    """Description, arguments and sub-commands of a command."""
    yield from _description(parser.description or "")
    yield from _usage(parser)
    yield from _arguments(parser, shared, common)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help for each in action._choices_actions}
            for word, sub in action.choices.items():
                yield from ("", f"### {name} {word}", "", _sentence(helps.get(word) or ""), "")
                yield from _usage(sub)
                yield from _arguments(sub, shared, common)


def _description(text: str) -> Iterator[str]:
    """Indented lines are examples."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    for paragraph in paragraphs:
        if paragraph.startswith("  "):
            yield from (
                "```python" if paragraph.strip().startswith(">>>") else "```sh",
                *(part for line in paragraph.splitlines() for part in _example(line.strip())),
                "```",
                "",
            )
        else:
            yield from (_sentence(" ".join(paragraph.split())), "")


def _example(line: str) -> list[str]:
    """Return the lines of a command with its comment, which is above a long command. Commands end before an option."""
    command, _, comment = re.sub(r"\s{3,}", "  # ", line).partition("  # ")
    if comment:
        whole = f"{command}  # {comment}"
        return [whole] if len(whole) <= CODE_WIDTH else [f"# {comment}", command]
    end = command.rfind(" --", 0, CODE_WIDTH) if len(command) > CODE_WIDTH else len(command)
    return [command] if end == len(command) else [f"{command[:end]} \\", f"   {command[end:]}"]


def _sentence(text: str) -> str:
    text = _plain(text)
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", ":")) else f"{text}."


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    needed = [f"{action.option_strings[0]} {action.metavar or action.dest.upper()}"
              for action in parser._actions if action.option_strings and action.required]  # fmt: skip
    places = [_place(action) for action in parser._actions if not action.option_strings]
    yield from ("```", " ".join([parser.prog, *places, *needed, "[options]"]), "```", "")


def _place(action: argparse.Action) -> str:
    """A word of the command line with its number of repetitions, as in usage lines."""
    name = _name(action.metavar or ("/".join(map(str, action.choices)) if action.choices else action.dest))
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name.split()[-1]} ...]"}
    return forms.get(str(action.nargs), name)


def _name(place: object) -> str:
    return " ".join(place) if isinstance(place, tuple) else str(place)


def _arguments(
    parser: argparse.ArgumentParser, shared: Mapping[tuple[str, str], str], common: set[str]
) -> Iterator[str]:
    """Tables of arguments (those of no group first, then each group under its title); output formats, shared options
    and groups in one sentence each."""
    rows = _ungrouped(parser)
    yield from _table([action for action in rows if _row(action) not in common])
    links = [f"`{action.option_strings[0]}`" for action in rows if _row(action) in common]
    links = [f"[common]({COMMON}) {', '.join(links)}"] if links else []
    for group in _titled(parser):
        if anchor := shared.get((_title(group), _group(group))):
            links.append(f"[{_title(group)}](#{anchor})")
        else:
            yield from ("", f"{_title(group)}:", "", _group(group))
    words = [word for action in parser._actions for word in action.option_strings]
    formats = [f"`{word}`" for word in words if word in FORMATS - {"--help"}]
    if formats != USUAL_FORMATS and not any(isinstance(a, argparse._SubParsersAction) for a in parser._actions):
        yield from ("", f"Output: {', '.join(formats) or 'text'}.")
    if links:
        yield from ("", f"Shared options: {'; '.join(links)}.")


def _table(actions: list[argparse.Action]) -> Iterator[str]:
    """A row an argument, files before options; without those of :data:`FORMATS`."""
    listed = [action for action in actions if not FORMATS & set(action.option_strings)]
    if listed:
        yield from _HEADER
    yield from (_row(action) for action in sorted(listed, key=lambda action: bool(action.option_strings)))


def _row(action: argparse.Action) -> str:
    return f"| {_argument(action)} | {_help(action)} |"


def _argument(action: argparse.Action) -> str:
    value = action.metavar or (" ".join(["/".join(map(str, action.choices))]) if action.choices else action.dest)
    value = _name(value)
    if not action.option_strings:
        return "`" + _place(action).replace("|", "/") + "`"
    takes = action.nargs != 0
    if action.nargs == "?":
        value = f"[{value}]"
    return ", ".join(f"`{word} {_upper(value, action)}`" if takes else f"`{word}`" for word in action.option_strings)


def _upper(value: str, action: argparse.Action) -> str:
    return value if action.metavar or action.choices else value.upper()


def _help(action: argparse.Action) -> str:
    text = (action.help or "") % {"default": action.default, "prog": "nvdla", "dest": action.dest}
    return _plain(text)


def _plain(text: str) -> str:
    """Text in a table of Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


if __name__ == "__main__":
    DOCS = Path(__file__).resolve().parents[2] / "docs"
    page = commands_page(titles(DOCS))
    (DOCS / "commands.md").write_text(page, encoding="utf-8")
