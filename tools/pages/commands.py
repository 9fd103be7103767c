"""docs/commands.md, from the parsers of the commands."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvdla.cli.main import COMMANDS

INTRODUCTION = """# Commands

Made from the commands' own help by `python tools/pages/commands.py`; do not edit.

`nvdla COMMAND --help` prints the same. `nvdla-run` is `nvdla run`. Exit codes: 0 fine, 1 a difference or a failed
check, 2 bad usage or bad input (one line on standard error), 130 interrupted. Files of settings give defaults:
[first minutes](install.md#settings-of-a-folder)."""
FORMATS = {"--json", "--yaml", "--csv", "--tsv", "--help"}
UNTITLED = ("positional arguments", "options", "optional arguments")  # argparse's own groups
#: command -> page of the guide
GUIDES = {"run": "python-api", "inspect": "tutorial-look", "hexdump": "tutorial-look", "samples": "install",
          "configs": "support", "cache": "install", "completion": "install", "version": "install", "program":
          "register-programs", "serve": "register-server", "container": "containers", "extract": "tutorial-look",
          "view": "report"}  # fmt: skip


def titles(docs: Path) -> dict[str, str]:
    """The pages of a folder by name, with their headings."""
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in docs.glob("*.md")}


def commands_page(known: Mapping[str, str]) -> str:
    """docs/commands.md. ``known``: the guides that there are, with their titles."""
    parts = [INTRODUCTION, "", "| command | does |", "|---|---|"]
    parts += [f"| [{name}](#{name}) | {text} |" for name, (_, text) in COMMANDS.items()]
    for name, (module, _) in COMMANDS.items():
        imported = importlib.import_module(module)
        parser = argparse.ArgumentParser(prog=f"nvdla {name}", description=imported.HELP)
        imported.configure(parser)
        parts += ["", f"## {name}", ""]
        parts += list(_command(parser, name))
        guide = GUIDES.get(name, name)
        parts += ["", f"More: [{known[guide]}]({guide}.md)."] if guide in known else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)) + "\n"


def _command(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """A command's description, arguments and sub-commands."""
    yield from _description(parser.description or "")
    yield from _usage(parser)
    yield from _arguments(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help for each in action._choices_actions}
            for word, sub in action.choices.items():
                yield from ("", f"### {name} {word}", "", _sentence(helps.get(word) or ""), "")
                yield from _usage(sub)
                yield from _arguments(sub)


def _description(text: str) -> Iterator[str]:
    """Indented lines are examples."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    for paragraph in paragraphs:
        if paragraph.startswith("  "):
            yield from (
                "```python" if paragraph.strip().startswith(">>>") else "```sh",
                *(re.sub(r"\s{3,}", "  # ", line.strip()) for line in paragraph.splitlines()),
                "```",
                "",
            )
        else:
            yield from (_sentence(" ".join(paragraph.split())), "")


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
    """A word of the command line, as usages show how often it may stand."""
    name = _name(action.metavar or ("/".join(map(str, action.choices)) if action.choices else action.dest))
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name.split()[-1]} ...]"}
    return forms.get(str(action.nargs), name)


def _name(place: object) -> str:
    return " ".join(place) if isinstance(place, tuple) else str(place)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Tables of arguments (those of no group first, then each group under its title); the options of every command's
    formats in one sentence."""
    rows = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    rows = [action for action in rows if not isinstance(action, argparse._SubParsersAction)]
    titled = [group for group in parser._action_groups if group.title not in UNTITLED]
    grouped = {id(action) for group in titled for action in group._group_actions}
    yield from _table([action for action in rows if id(action) not in grouped])
    for group in titled:
        yield from ("", f"{_sentence(group.title or '').rstrip('.')}:", "")
        yield from _table(group._group_actions)
    formats = [f"`{word}`" for action in rows for word in action.option_strings if word in FORMATS - {"--help"}]
    if formats:
        yield from ("", f"Output for programs: {', '.join(formats)}.")


def _table(actions: list[argparse.Action]) -> Iterator[str]:
    """A row an argument, files before options; without those of :data:`FORMATS`."""
    listed = [action for action in actions if not FORMATS & set(action.option_strings)]
    if listed:
        yield from ("| argument | meaning |", "|---|---|")
    for action in sorted(listed, key=lambda action: (bool(action.option_strings), action.dest == "wide")):
        yield f"| {_argument(action)} | {_help(action)} |"


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
