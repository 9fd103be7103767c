"""Command ``nvdla``: usage, commands, errors and interrupts.

Python raises KeyboardInterrupt between two bytecode instructions. That is not enough: a compiler or an import may take
the exception for an internal failure or drop it in a C callback, and a long call into C does not get to it.
So the first Ctrl-C is noted, and who has not ended a moment later is ended from a thread.

Exit codes: 0 fine, 1 a difference or a failed check, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import IO, Any, NoReturn

import nvdla
from nvdla.cli import output, settings
from nvdla.cli.ctrl_c import leave_at_once, say
from nvdla.cli.working import line_of_work
from nvdla.errors import FormatError, NvdlaError, on_one_line
from nvdla.util.escaping import Document
from nvdla.util.rounding import integer, real

#: seconds that a command has for ending by itself
GRACE = 0.5


@contextlib.contextmanager
def noted(prog: str) -> Iterator[list[int]]:
    """Within, Ctrl-C raises KeyboardInterrupt, is noted in the list, and ends the process after :data:`GRACE`."""
    signals: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    ours = usual in (signal.default_int_handler, leave_at_once)
    if not ours or threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def note(number: int, frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    hook = sys.unraisablehook
    sys.unraisablehook = lambda problem: None if signals else hook(problem)  # what C code dropped
    signal.signal(signal.SIGINT, note)
    try:
        with _watched(prog):
            yield signals
    finally:
        signal.signal(signal.SIGINT, usual)
        sys.unraisablehook = hook


@contextlib.contextmanager
def _watched(prog: str) -> Iterator[None]:
    """A thread that hears of Ctrl-C while the main thread is in C code, and ends the process where that goes on."""
    if not hasattr(os, "set_blocking"):
        yield
        return
    hear, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    ended = threading.Event()
    threading.Thread(target=_listen, args=(hear, ended, prog), name="nvdla-interrupts", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(tell)  # the thread reads the end of the pipe, and closes its side


def _listen(hear: int, ended: threading.Event, prog: str) -> None:
    while heard := os.read(hear, 1):
        if heard[0] == signal.SIGINT and not ended.wait(GRACE) and not _ends_after_starting(ended):
            _remove_parts()
            os._exit(say(prog))
    os.close(hear)


def _ends_after_starting(ended: threading.Event) -> bool:
    """Wait until processes that are being started can be ended."""
    threads: Any = sys.modules.get("nvdla.kernels.threads")
    if not threads or not threads.STARTING.locked():
        return False
    with threads.STARTING:
        pass
    return ended.wait(GRACE)


def _remove_parts() -> None:
    """Files that were being written, where anything has been written yet."""
    files: Any = sys.modules.get("nvdla.util.files")
    for path in list(files.UNFINISHED) if files else ():
        with contextlib.suppress(OSError):
            os.unlink(path)


# Command -> module (imported only when it is the one asked for) and one line of help.
COMMANDS = {
    "compile": ("nvdla.cli.compile", "compile an ONNX, TFLite, PyTorch or Caffe model into a loadable"),
    "run": ("nvdla.cli.run", "run a loadable on an image or raw tensors, bit-exactly"),
    "inspect": ("nvdla.cli.inspect", "show tasks, operations, tensors, memory and relocations"),
    "layers": ("nvdla.cli.layers", "find the model layer of every operation (Caffe or ONNX)"),
    "hexdump": ("nvdla.cli.hexdump", "show the bytes of a blob with its structures"),
    "extract": ("nvdla.cli.extract", "write a blob to a file"),
    "compare": ("nvdla.cli.compare", "compare a run with golden files, another loadable or a float model"),
    "doctor": ("nvdla.cli.doctor", "check scales, saturation, dead channels and known compiler bugs"),
    "lint": ("nvdla.cli.lint", "check whether a loadable can run on a configuration"),
    "diff": ("nvdla.cli.diff", "show the differences of two loadables: tables, descriptors, weights"),
    "memory": ("nvdla.cli.memory", "show the memory map: addresses, lifetimes, reuse, overlaps, peak"),
    "graph": ("nvdla.cli.graph", "write the graph of operations and tensors as DOT, SVG or JSON"),
    "cycles": ("nvdla.cli.cycles", "estimate the cycles of every operation"),
    "explain": ("nvdla.cli.explain", "explain convolutions: tiles, banks, kernel groups, bottlenecks"),
    "timeline": ("nvdla.cli.timeline", "write the schedule as a Perfetto trace or an SVG"),
    "tensor": ("nvdla.cli.tensor", "convert tensors between files, layouts and element types"),
    "view": ("nvdla.cli.view", "show a loadable in the browser and run it on dropped images"),
    "report": ("nvdla.cli.report", "write a self-contained HTML page about a loadable"),
    "export": ("nvdla.cli.export", "export a loadable to other viewers: Netron, Model Explorer"),
    "trace": ("nvdla.cli.trace", "replay a hardware register trace and report its checks"),
    "evaluate": ("nvdla.cli.evaluate", "measure accuracy over a data set, on one machine or many"),
    "faults": ("nvdla.cli.faults", "inject hardware faults and count their effects"),
    "explore": ("nvdla.cli.explore", "compare configurations and memories for one network"),
    "datasheet": ("nvdla.cli.datasheet", "write a page about a configuration: features, area, power, speed"),
    "program": ("nvdla.cli.program", "write the register program of a loadable: .cfg, .txn, C, JSON, images"),
    "csb": ("nvdla.cli.csb", "decode, compare and replay logs of register accesses"),
    "container": ("nvdla.cli.container", "read and write other model formats: IREE, TVM, safetensors, GGUF"),
    "serve": ("nvdla.cli.serve", "serve loadables to TVM RPC clients, or the registers to a driver"),
    "samples": ("nvdla.cli.samples", "copy the sample networks and images"),
    "configs": ("nvdla.cli.configs", "list the hardware configurations"),
    "cache": ("nvdla.cli.cache", "show, fill or clear the cache of compiled kernels"),
    "completion": ("nvdla.cli.completion", "print the completion script for a shell"),
    "version": ("nvdla.cli.version", "print the version of the toolkit, with --verbose also of its dependencies"),
}

GROUPS = {
    "Start": "run samples view",
    "Models": "compile evaluate explore",
    "Inspect": "inspect layers graph memory hexdump extract diff report export",
    "Performance": "cycles timeline explain datasheet",
    "Debug": "compare doctor lint faults",
    "Hardware": "program trace csb serve configs",
    "Files": "tensor container",
    "Setup": "cache completion version",
}
BEGINNERS = """New here?
  nvdla run --demo                                    run a sample network
  nvdla compile net.onnx --calibrate images/ -o net   compile your own network
  nvdla view net.loadable                             look inside"""
FOOTER = "'nvdla COMMAND --help' lists the options of a command. '-' as a file to write is standard output."

OTHER_NAMES = {
    "benchmark": "evaluate", "build": "compile", "check": "lint", "convert": "compile", "disassemble": "inspect",
    "dump": "hexdump", "info": "inspect", "profile": "cycles", "show": "view", "simulate": "run", "validate": "lint",
    "verify": "lint",
}  # fmt: skip
"""Names of other tools for commands."""

ENDED_BY_CTRL_C = frozenset({"serve", "view"})  # commands that Ctrl-C ends normally


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``nvdla``."""
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _silence_output()
        return 0


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        words[0] = "version"
    if words[0] not in COMMANDS:
        from nvdla.util.files import is_file

        if os.path.exists(words[0]) or is_file(words[0]):
            return _describe(words[0], words)
        if "." in words[0][1:] or os.sep in words[0]:
            return _fail("nvdla", f"{words[0]}: no such file", words, "FormatError")
        near = [OTHER_NAMES[words[0]]] if words[0] in OTHER_NAMES else difflib.get_close_matches(words[0], COMMANDS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return _fail("nvdla", f"unknown command {words[0]!r}; {hint}'nvdla --help' lists them", words, "UsageError")
    return run_command(words[0], words[1:])


def run_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``nvdla-run`` (the same as ``nvdla run``)."""
    return run_command("run", list(sys.argv[1:] if argv is None else argv), prog="nvdla-run")


def _describe(path: str, words: Sequence[str]) -> int:
    """Print the kind of a file and the command that reads it; returns the exit code."""
    from nvdla.util.recognition import KINDS, kind_of

    kind = kind_of(path)
    if not kind:
        return _fail("nvdla", f"{path}: unknown kind of file. 'nvdla --help' lists the commands.", words, "FormatError")
    output.say(f"{path}: {KINDS[kind].title}. {KINDS[kind].advice_for(path)}")
    return 0


def usage() -> str:
    """Return the help text of ``nvdla``: an introduction and the commands by group."""
    width = max(map(len, COMMANDS))
    grouped = {group: names.split() for group, names in GROUPS.items()}
    other = [name for name in COMMANDS if not any(name in names for names in grouped.values())]
    groups = [
        f"{group}:\n" + "\n".join(f"  {name:{width}}  {COMMANDS[name][1]}" for name in names)
        for group, names in {**grouped, "Other": other}.items()
        if names
    ]
    return "\n\n".join(
        [f"usage: nvdla COMMAND ...\n\n{nvdla.__doc__.partition(chr(10))[0]}", BEGINNERS, *groups, FOOTER]
    )


def _whole_number(text: str) -> int:
    try:
        return integer(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text[:80]!r}") from None


def _real_number(text: str) -> float:
    try:
        return real(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text[:80]!r}") from None


class _BadUsage(Exception):
    """Words that a parser does not take: the program's name and what is wrong."""


class _Parser(argparse.ArgumentParser):
    """Bad usage is one line, as exit code 2 requires; options may be placed between the other words."""

    _options_first = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.register("type", int, _whole_number)
        self.register("type", float, _real_number)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse by itself refuses ``A --input X B`` where B may be missing. Options are taken first, then the
        rest; commands with sub-commands leave that to those, and after ``--`` nothing is an option."""
        if self._options_first or self._subparsers is not None or "--" in args:
            return super().parse_known_args(args, namespace)
        self._options_first = True
        try:
            return self.parse_known_intermixed_args(self._without_wrong_values(self._one_by_one(args)), namespace)
        finally:
            self._options_first = False

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The help of an option has the unit of its number, so that an error adds it."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type in (int, float) and action.help:
                error.message += f": {action.help.partition(' (')[0]}"
            raise

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """argparse by itself takes ``--option=--`` for an option without its value, and gives an empty list."""
        if action.option_strings and "--" in arg_strings:
            raise argparse.ArgumentError(action, "'--' is not a value")
        return super()._get_values(action, arg_strings)

    def _one_by_one(self, words: Sequence[str]) -> list[str]:
        """``--input A.png B.png`` as ``--input=A.png --input=B.png``: no other argument has the suffix of an input."""
        from nvdla.tensors.files import INPUT_ENDINGS

        options = self._option_string_actions.items()
        names = [name for name, option in options if option.dest in ("input", "other_input")]
        result: list[str] = []
        for word in words:
            before = result[-1] if result else ""
            name = before.partition("=")[0]
            if name in names and word[:1] != "-" and (before == name or word.lower().endswith(INPUT_ENDINGS)):
                word = f"{name}={word}"
                del result[len(result) - (before == name) :]
            result.append(word)
        return result

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
        unknown = re.match(r"unrecognized arguments: --([\w-]+)", message)
        known = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
        near = difflib.get_close_matches(unknown[1], known, 1) if unknown else []
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise _BadUsage(self.prog, f"{shortened}{hint} (see '{self.prog} --help')")


class _HelpFormatter(argparse.HelpFormatter):
    """Help in the width of the terminal: paragraphs are filled, and examples, which are indented, keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width) for paragraph in re.split(r"\n\s*\n", text.strip()))


def _filled(paragraph: str, width: int) -> str:
    """A paragraph, or the lines of examples: where one is too long, comments move closer and long lines are wrapped."""
    fill = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    if not paragraph.startswith("  "):
        return fill(" ".join(paragraph.split()))
    lines = paragraph.splitlines()
    if max(map(len, lines)) <= width:
        return paragraph
    return "\n".join(fill(re.sub(r"(?<=\S) {4,}", " " * 3, line), subsequent_indent=" " * 6) for line in lines)


def parser_of(name: str, prog: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    module = importlib.import_module(COMMANDS[name][0])
    parser = _Parser(prog=prog or f"nvdla {name}", description=module.HELP, formatter_class=_HelpFormatter)
    module.configure(parser)
    return parser


class _Screen(io.StringIO):
    """A stream for which tables are laid out as on a terminal."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """Return what was written, without colors and without line breaks at its end."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()).rstrip("\n")


def document_of(name: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> Document:
    """Run a command for a caller in Python, without printing; return its document. Raises NvdlaError."""
    args = _called(name, parser, words, "--json")
    with output.collected() as documents:
        _run(importlib.import_module(COMMANDS[name][0]).run, args)
    return dict(documents[-1])


def text_of(name: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Run a command for a caller in Python; return what it prints on a terminal. Raises NvdlaError."""
    args = _called(name, parser, words)
    silent, screen = contextlib.redirect_stderr(io.StringIO()), _Screen()
    with silent, contextlib.redirect_stdout(screen), output.tables_as(args):
        _run(importlib.import_module(COMMANDS[name][0]).run, args)
    return screen.text()


def _called(name: str, parser: argparse.ArgumentParser, words: Sequence[str], *more: str) -> argparse.Namespace:
    """The arguments of a command that Python calls. Raises FormatError."""
    _open_libraries()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            args = parser.parse_args([*words, *more])
    except _BadUsage as error:
        raise FormatError(f"{name}: {error.args[1]}") from None
    except SystemExit:  # an option that prints a list
        command = shlex.join(["nvdla", name, *words[1:]])
        raise FormatError(
            f"{name}: must be options for a result, got one that prints a list. Run '{command}'."
        ) from None
    given = vars(args) | {"settings_used": None, "command_name": name, "command_words": list(words)}
    return argparse.Namespace(**given, commands=COMMANDS)


def run_command(name: str, words: Sequence[str], prog: str | None = None) -> int:
    """Run one sub-command and return its exit code. Every failure is one line on standard error."""
    prog, used = prog or f"nvdla {name}", settings.UsedSettings()
    with noted(prog) as heard:
        try:
            _prepare_streams()
            _open_libraries()
            module, parser = importlib.import_module(COMMANDS[name][0]), parser_of(name, prog)
            file = settings.apply(parser)
            args = parser.parse_args(words)
            _refuse_streams(prog, args)
            values, used = settings.taken(args, file)
            if used:
                output.say(f"{prog}: {used}", sys.stderr)
            args = argparse.Namespace(
                **values, settings_used=used, command_name=name, command_words=list(words), commands=COMMANDS
            )
            with line_of_work(prog), output.tables_as(args):
                code = _run(module.run, args)
            sys.stdout.flush()
            return code if code or not heard or name in ENDED_BY_CTRL_C else say(prog)
        except _BadUsage as error:
            where, message = error.args
            return _fail(where, message, words, "UsageError")
        except NvdlaError as error:
            if heard:
                return say(prog)
            return _fail(prog, used.explained(error), words, type(error).__name__, used, getattr(error, "layer", ""))
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
            reason = f"{type(error).__name__}: {error}"
            text = f"internal error, please report it (NVDLA_TRACEBACK=1 shows where): {reason}"
            return _fail(prog, text, words, type(error).__name__)


def _run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command, with ``-`` as standard output; returns the exit code."""

    with output.to_standard_output(args) as with_files:
        return _run_on(command, with_files)


def _run_on(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; on a package as :mod:`nvdla.cli.packages` does."""
    from nvdla.util.files import is_zip_file

    path = getattr(args, "loadable", None) or getattr(args, "network", None)
    if not isinstance(path, str) or not is_zip_file(path):
        return command(args)
    from nvdla.util.recognition import kind_of

    if kind_of(path) != "package":
        return command(args)
    from nvdla.cli import packages

    return packages.run(command, args, path)


def _open_libraries() -> None:
    """Let commands open loadables in model libraries; their reader is imported for the first one."""
    from nvdla.loadable.reader import EXTRACTORS

    def extract(data: memoryview, name: str) -> bytes:
        importlib.import_module("nvdla.interop.containers")  # replaces this entry
        return EXTRACTORS["tar"](data, name)

    EXTRACTORS.setdefault("tar", extract)


def _refuse_streams(prog: str, args: argparse.Namespace) -> None:
    """A ``-`` is not a file name, except for options that write a file. Raises _BadUsage."""
    for key, value in vars(args).items():
        given = value if isinstance(value, list) else [value]
        if any(type(item) is str and item == "-" for item in given):
            hint = "give a file (./- for a file named -, /dev/stdin for standard input)"
            raise _BadUsage(prog, f"{key.replace('_', '-')} is '-': must be a file or directory: {hint}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: IO[str] | None = None,
    line: str | None = None,
) -> None:
    """A warning of Python code, in place of :func:`warnings.showwarning`: one line, without a line of source."""
    output.say(f"nvdla: warning: {' '.join(str(message).split())}", sys.stderr)


def _prepare_streams() -> None:
    """Names from files may hold characters that the terminal's encoding lacks; a caller may have closed a stream.
    Warnings of Python code are one line."""
    warnings.showwarning = _show_warning
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the life of the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence_output() -> None:
    """Drop unwritten output, which would be an error at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(
    prog: str,
    message: str,
    words: Sequence[str],
    error: str,
    used: settings.UsedSettings | None = None,
    layer: str = "",
) -> int:
    """One line: no line breaks, and nothing from a file that would steer a terminal; with ``--json`` a document too."""
    message = on_one_line(message)
    try:
        if "--json" in words:
            command = prog.replace("-", " ").split(" ")[1] if prog != "nvdla" else ""
            output.print_error(command, error, message, used, layer)
        sys.stdout.flush()
    except (OSError, ValueError):  # output to a full disk, or to a closed pipe
        _silence_output()
    output.say(f"{prog}: {message}", sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
