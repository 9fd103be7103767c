"""``nvdla completion``: a script with which a shell completes commands and options (written by shtab)."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping

from nvdla.errors import ConfigError

HELP = """Print the completion script of a shell.

  nvdla completion bash > ~/.local/share/bash-completion/completions/nvdla
  nvdla completion zsh > "${fpath[1]}/_nvdla"
  nvdla completion fish > ~/.config/fish/completions/nvdla.fish"""

SHELLS = ("bash", "zsh", "fish", "tcsh")


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
    sys.stdout.write(shtab.complete(whole_parser(args.commands), shell=args.shell).rstrip("\n") + "\n")
    return 0


def whole_parser(known: Mapping[str, tuple[str, str]]) -> argparse.ArgumentParser:
    """One parser with every command: {name: (module, one line of help)}."""
    parser = argparse.ArgumentParser(prog="nvdla")
    commands = parser.add_subparsers(dest="command")
    for name, (module, summary) in known.items():
        importlib.import_module(module).configure(commands.add_parser(name, help=summary, description=summary))
    return parser
