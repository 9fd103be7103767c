"""The ``nvdla`` command: finds the sub-command, runs it, and turns every error into one line and an exit code.

Exit codes: 0 fine, 1 a difference or a failed check, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

import nvdla
from nvdla.cli import interrupts, output, settings
from nvdla.cli.ctrl_c import say
from nvdla.cli.working import line_of_work
from nvdla.errors import NvdlaError, on_one_line

# Command -> module (imported only when it is the one asked for) and one line of help.
COMMANDS = {
    "compile": ("nvdla.cli.compile", "compile an ONNX or Caffe model into a loadable"),
    "run": ("nvdla.cli.run", "run a loadable on an image or raw tensors, bit-exactly"),
    "inspect": ("nvdla.cli.inspect", "what is in a loadable: tasks, operations, tensors, memory, relocations"),
    "layers": ("nvdla.cli.layers", "which layer of its Caffe or ONNX model each operation is"),
    "hexdump": ("nvdla.cli.hexdump", "bytes of a blob, with the structures that lie on them"),
    "extract": ("nvdla.cli.extract", "write a blob's bytes to a file"),
    "compare": ("nvdla.cli.compare", "compare a run with goldens, another run or loadable, or a float model"),
    "doctor": ("nvdla.cli.doctor", "is it sound: scales, saturation, dead channels, compiler faults"),
    "lint": ("nvdla.cli.lint", "may this loadable run on that configuration"),
    "diff": ("nvdla.cli.diff", "how two loadables differ: tables, descriptors, weights"),
    "memory": ("nvdla.cli.memory", "where memory goes: addresses, lifetimes, reuse, overlaps, peak"),
    "graph": ("nvdla.cli.graph", "operations, tensors, dependencies as DOT, SVG or JSON"),
    "cycles": ("nvdla.cli.cycles", "how many cycles every operation takes"),
    "explain": ("nvdla.cli.explain", "how convolutions are done: tiles, banks, kernel groups, what bounds them"),
    "timeline": ("nvdla.cli.timeline", "when every operation runs: a trace for Perfetto, or a picture"),
    "tensor": ("nvdla.cli.tensor", "tensors between files, layouts and element types"),
    "view": ("nvdla.cli.view", "look at a loadable in the browser, and run what is dropped on the page"),
    "report": ("nvdla.cli.report", "one self-contained HTML page about a loadable"),
    "export": ("nvdla.cli.export", "a loadable for other viewers: ONNX (Netron), node data (Model Explorer)"),
    "trace": ("nvdla.cli.trace", "replay a hardware register trace"),
    "evaluate": ("nvdla.cli.evaluate", "accuracy over a data set, on one machine or many"),
    "faults": ("nvdla.cli.faults", "faults in the hardware: which are masked, change the class, are refused, hang"),
    "explore": ("nvdla.cli.explore", "one network over configurations and memories: cycles, traffic, accuracy"),
    "program": ("nvdla.cli.program", "write the register program of a loadable: .cfg, .txn, C, JSON, images"),
    "csb": ("nvdla.cli.csb", "logs of register accesses: decode, compare, run"),
    "container": ("nvdla.cli.container", "neighbouring compiled-model containers: IREE, TVM"),
    "serve": ("nvdla.cli.serve", "serve loadables to TVM RPC clients"),
    "samples": ("nvdla.cli.samples", "small networks and images to try things on"),
    "configs": ("nvdla.cli.configs", "the hardware configurations and what they have"),
    "cache": ("nvdla.cli.cache", "compiled kernels: where they are kept, and clear them"),
    "completion": ("nvdla.cli.completion", "completion of commands and options for your shell"),
    "version": ("nvdla.cli.version", "versions of the toolkit and of what it stands on"),
}

ENDED_BY_CTRL_C = frozenset({"serve", "view"})  # commands for which it is no interruption


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``nvdla``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        words[0] = "version"
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return _fail("nvdla", f"unknown command {words[0]!r}; {hint}'nvdla --help' lists them", words, "UsageError")
    return run_command(words[0], words[1:])


def run_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``nvdla-run`` (the same as ``nvdla run``)."""
    return run_command("run", list(sys.argv[1:] if argv is None else argv), prog="nvdla-run")


def usage() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return f"usage: nvdla COMMAND ...\n\n{nvdla.__doc__}\n\ncommands:\n{rows}\n\n'nvdla COMMAND --help' explains one."


class _BadUsage(Exception):
    """Words that a parser does not take: the program's name and what is wrong."""


class _Parser(argparse.ArgumentParser):
    """Bad usage is one line, as the contract of exit code 2 says; options may stand between the other words."""

    _options_first = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse by itself refuses ``A --input X B`` where B may be missing. Options are taken first, then the
        rest; commands with sub-commands leave that to those, and behind ``--`` nothing is an option."""
        if self._options_first or self._subparsers is not None or "--" in args:
            return super().parse_known_args(args, namespace)
        self._options_first = True
        try:
            return self.parse_known_intermixed_args(self._without_wrong_values(args), namespace)
        finally:
            self._options_first = False

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """argparse by itself takes ``--option=--`` for an option without its value, and gives an empty list."""
        if action.option_strings and "--" in arg_strings:
            raise argparse.ArgumentError(action, "'--' is no value")
        return super()._get_values(action, arg_strings)

    def _without_wrong_values(self, words: Sequence[str]) -> list[str]:
        """``--random-input NET`` as ``--random-input=0 NET``: an option whose number may be missing takes no file."""
        result = list(words)
        for at, (word, following) in enumerate(pairwise(words)):
            option = self._option_string_actions.get(word)
            if option is not None and option.nargs == "?" and re.match(r"[^-\d]", following):
                result[at] = f"{word}={option.const}"
        return result

    def error(self, message: str) -> NoReturn:
        shortened = re.sub(r"'([^']{80})[^']+'", r"'\1...'", message)
        raise _BadUsage(self.prog, f"{shortened} (see '{self.prog} --help')")


def run_command(name: str, words: Sequence[str], prog: str | None = None) -> int:
    """Run one sub-command and return its exit code. Whatever goes wrong is one line on standard error."""
    prog = prog or f"nvdla {name}"
    with interrupts.noted(prog) as heard:
        try:
            _prepare_streams()
            module = importlib.import_module(COMMANDS[name][0])
            parser = _Parser(prog=prog, description=module.HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
            module.configure(parser)
            settings.apply(parser)
            args = parser.parse_args(words)
            args.command_name, args.command_words, args.commands = name, list(words), COMMANDS
            with line_of_work(prog), output.tables_as(args):
                code = module.run(args)
            sys.stdout.flush()
            return code if code or not heard or name in ENDED_BY_CTRL_C else say(prog)
        except _BadUsage as error:
            where, what = error.args
            return _fail(where, what, words, "UsageError")
        except NvdlaError as error:
            if heard:
                return say(prog)
            return _fail(prog, str(error), words, type(error).__name__)
        except BrokenPipeError:
            _silence_output()  # the reader of our output has gone: nothing more to say
            return 0
        except OSError as error:
            if heard:
                return say(prog)
            where = f"{error.filename}: " if error.filename else ""
            return _fail(prog, f"{where}{error.strerror or error}", words, "OSError")
        except MemoryError:
            return _fail(prog, "out of memory", words, "MemoryError")
        except KeyboardInterrupt:
            return say(prog)
        except Exception as error:
            if heard:
                return say(prog)
            if os.environ.get("NVDLA_TRACEBACK"):
                raise
            what = f"{type(error).__name__}: {error}"
            text = f"internal error, please report it (NVDLA_TRACEBACK=1 shows where): {what}"
            return _fail(prog, text, words, type(error).__name__)


def _prepare_streams() -> None:
    """Names from files may hold characters that the terminal's encoding lacks; a caller may have closed a stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the life of the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence_output() -> None:
    """Drop what is still to be written, so that the interpreter does not stumble over it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(prog: str, message: str, words: Sequence[str], error: str) -> int:
    """One line: no line breaks, and nothing from a file that would steer a terminal; with ``--json`` a document too."""
    message = on_one_line(message)
    try:
        if "--json" in words:
            output.print_error(prog.replace("-", " ").split(" ")[1] if prog != "nvdla" else "", error, message)
        sys.stdout.flush()
    except (OSError, ValueError):  # a full disk behind our output, or a closed one
        _silence_output()
    print(f"{prog}: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
