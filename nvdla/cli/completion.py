"""``nvdla completion``: a script with which a shell completes commands, options and files (written by shtab)."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator, Mapping

from nvdla.emulator.hardware.configuration import configurations
from nvdla.errors import ConfigError
from nvdla.util.escaping import Document

HELP = """Print the completion script of a shell.

  nvdla completion bash > ~/.local/share/bash-completion/completions/nvdla
  nvdla completion zsh > "${fpath[1]}/_nvdla"
  nvdla completion fish > ~/.config/fish/completions/nvdla.fish"""

SHELLS = ("bash", "zsh", "fish", "tcsh")
FILES = re.compile(
    r"(^|[]=])(FILE|DIR|PATH|DATA|MODEL|LOADABLE|NETWORK|OTHER|TRACE|INPUT|OUTPUT|PAGE|GOLDEN|[AB]$)", re.IGNORECASE
)
"""Names of arguments that are files, such as "NETWORK" and "NAME=FILE"."""
CONFIGS = {
    "bash": '_nvdla_config_files() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_nvdla_config_files() {{ _alternative 'names:configuration:({names})' 'files:file:_files'; }}",
}
"""Functions of shells that complete the names of configurations and files."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    try:
        import shtab
    except ImportError:
        raise ConfigError("completion scripts need shtab: pip install 'nvdla[completion]'") from None
    supported = getattr(shtab, "SUPPORTED_SHELLS", SHELLS)
    if args.shell not in supported:
        raise ConfigError(
            f"this version of shtab supports {', '.join(supported)}; install a newer one for {args.shell}"
        )
    parser = whole_parser(args.commands)
    names = " ".join(configurations())
    functions = {shell: text.format(names=names) for shell, text in CONFIGS.items()}
    configs: Document = {**shtab.FILE, **dict.fromkeys(CONFIGS, "_nvdla_config_files"), "preamble": functions}
    for action in _arguments(parser):
        if action.dest.endswith("config") or action.dest == "configuration":
            action.complete = configs  # type: ignore[attr-defined]
        elif FILES.search(str(action.metavar or action.dest)):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(parser, shell=args.shell).rstrip("\n") + "\n"
    # bash completes files where the script has no suggestion, such as in NAME=FILE
    sys.stdout.write(script.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F"))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of all commands that take any text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _arguments(command)
        elif action.nargs != 0 and not action.choices:
            yield action


def whole_parser(known: Mapping[str, tuple[str, str]]) -> argparse.ArgumentParser:
    """One parser with every command: {name: (module, one line of help)}."""
    parser = argparse.ArgumentParser(prog="nvdla")
    commands = parser.add_subparsers(dest="command")
    for name, (module, summary) in known.items():
        importlib.import_module(module).configure(commands.add_parser(name, help=summary, description=summary))
    return parser
