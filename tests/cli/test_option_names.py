"""An option name means the same in every command: destination, type, number of values, choices and help."""

import argparse
import ast
import contextlib
import importlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvdla
from nvdla.cli.main import COMMANDS, _Parser
from nvdla.cli.output import StandardOutput
from nvdla.errors import FormatError
from nvdla.tensors.images import PixelConversion, load_image
from nvdla.tensors.inputs import Preprocessing

#: Options of single commands that differ, with the reason.
EXCEPTIONS = {
    **{("explore", name): "a list of values spans the design space" for name in ("bandwidth", "config", "latency")},
    ("explore", "precision"): "a list of values spans the design space",
    ("datasheet", "precision"): "a datasheet states one precision, auto mixes several",
    ("container run", "input"): "arguments of a bytecode function have no names and are no files",
    ("container create", "splat"): "adds a parameter; in convert the parameter exists, and has its shape",
    **{(f"tensor {name}", "layout"): "files of tensors have the layouts of the hardware" for name in
       ("convert", "info", "layout")},
    **{(f"tensor {name}", "shape"): "a file contains one tensor without a name" for name in
       ("convert", "info", "layout")},
    ("program", "board"): "a project for a board; in cycles a preset of its speed",
    ("run", "output"): "a run has several outputs: NAME=FILE",
}  # fmt: skip
#: The help of these options states what the command writes.
WRITES = {"output"}
BRITISH = re.compile(r"colour|normalis|quantis|optimis|initialis|neighbour|centre|grey|behaviour")


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands and sub-commands with their parsers."""
    for name, (module, _) in COMMANDS.items():
        parser = _Parser(prog=name)
        importlib.import_module(module).configure(parser)
        children = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        yield name, parser
        for child in children:
            yield from ((f"{name} {word}", sub) for word, sub in child.choices.items())


def options() -> dict[str, dict[str, argparse.Action]]:
    """Every option, and its declaration in each command."""
    found: dict[str, dict[str, argparse.Action]] = defaultdict(dict)
    for command, parser in parsers():
        for action in parser._actions:
            for word in action.option_strings:
                found[word.lstrip("-")][command] = action
    return found


def meaning(name: str, action: argparse.Action) -> tuple[object, ...]:
    """What must be equal; defaults belong to commands."""
    kind = None if name in WRITES else getattr(action.type, "__qualname__", None)
    text = None if name in WRITES else re.sub(r" \(default: [^)]*\)", "", action.help or "")
    values = None if name in WRITES else action.metavar
    choices = tuple(action.choices) if action.choices else None
    return type(action), tuple(action.option_strings), action.dest, action.nargs, kind, choices, values, text


#: Options of other programs, and of the program itself.
FOREIGN = {"alignment", "extensions", "help", "rawdump", "version"}


def test_options_in_texts_exist() -> None:
    """No message or help text names an option that no command has."""
    known = options().keys() | FOREIGN
    root = Path(nvdla.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if "{ --" not in text and "var(--" not in text:  # custom properties of style sheets
                for name in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text):
                    assert name in known, f"{path.relative_to(root)}:{node.lineno}: --{name}"


def test_an_option_means_the_same_in_every_command() -> None:
    declared = options()
    assert sum(len(each) for each in declared.values()) > 500, "the parsers were not found"
    used = set()
    for name, commands in declared.items():
        long = commands[next(iter(commands))].option_strings[0].lstrip("-")
        usual = {
            command: meaning(long, action) for command, action in commands.items() if (command, long) not in EXCEPTIONS
        }
        used |= {(command, long) for command in commands if (command, long) in EXCEPTIONS}
        assert len(set(usual.values())) <= 1, f"--{name} differs: {usual}"
        for command in commands.keys() - usual.keys():
            assert meaning(long, commands[command]) not in usual.values(), f"{command} --{name}: no exception any more"
    assert used == set(EXCEPTIONS), "an exception for an option that does not exist"


def test_options_are_spelled_as_in_american_english() -> None:
    assert not [name for name in options() if BRITISH.search(name)]


def test_samples_are_spelled_as_in_american_english(samples: Path) -> None:
    assert not [path.name for path in samples.rglob("*") if BRITISH.search(path.name)]


#: Options whose help says "write" and that do not write one file: directories, journals, flags.
NO_STREAMS = {"node-data", "dump-ops", "dump-memory", "samples"}


def test_a_dash_is_standard_output_for_every_option_that_writes_a_file() -> None:
    declared = {
        (command, action.option_strings[0] if action.option_strings else action.dest): action
        for command, parser in parsers()
        for action in parser._actions
        if action.nargs != 0 and "DIR" not in str(action.metavar)
    }
    writing = {key for key, action in declared.items() if re.match(r"(also )?(write|draw)\b", action.help or "")}
    writing |= {key for key in declared if key[1] in ("--output", "--report", "output")}
    writing -= {key for key in writing if key[1].lstrip("-") in NO_STREAMS}
    assert len(writing) > 20
    for key in writing:
        convert: Any = declared[key].type
        assert isinstance(convert and convert("-"), StandardOutput), key
        with contextlib.suppress(FormatError):  # without the suffix that the option wants
            assert type(convert("./-")) is str, key


#: Words after the loadable, and how the bytes begin; NAME=- writes one output of several.
STREAMS = {
    "run --input DIGIT --output -": b"\x93NUMPY",
    "run --input DIGIT --output prob=-": b"\x93NUMPY",
    "run --input DIGIT --csb-log -": b"# task 0",
    "graph -o -": b"digraph",
    "timeline -o -": b"{",
    "memory --svg -": b"<svg",
    "explain 0/0 --svg -": b"<svg",
    "report -o -": b"<!doctype html>",
    "export -o -": b"\x08",
    "evaluate DIGITS --limit 2 -o -": b"{",
    "evaluate DIGITS --limit 2 --report -": b"<!doctype html>",
    "faults DIGITS --count 1 --limit 1 --table -": b"fault,kind",
    "explore --config nv_small --table -": b"config,",
}


@pytest.mark.parametrize("words", STREAMS)
def test_files_go_to_standard_output_and_messages_to_standard_error(
    words: str, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *others = words.split()
    paths = {"DIGIT": samples / "digit7.pgm", "DIGITS": samples / "digits.npz"}
    given = [str(paths.get(word, word)) for word in (command, samples / "lenet.loadable", *others)]
    done = subprocess.run([sys.executable, "-m", "nvdla", *given], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout[:20].lower().startswith(STREAMS[words].lower()), done.stdout[:40]
    assert b"nvdla-output-" not in done.stderr + done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("memory --svg - --json", "svg -: standard output contains the file alone: omit --json"),
        ("evaluate DIGITS --limit 2 -o - --report -", "must be given once, got 2 times (report, output)"),
        ("evaluate DIGITS --shard 1/2 -o -", "journal: must be given. Add --samples FILE.jsonl"),
    ],
)
def test_standard_output_contains_one_file(words: str, message: str, nvdla_command: Any, samples: Path) -> None:
    command, *others = words.split()
    given = [samples / "digits.npz" if word == "DIGITS" else word for word in others]
    code, _, error = nvdla_command(command, samples / "lenet.loadable", *given)
    assert code == 2
    assert message in error


def test_images_have_one_set_of_options() -> None:
    declared = options()
    takers = set(declared["mean"])
    assert {"compile", "run", "compare", "evaluate", "faults", "program", "report", "view"} <= takers
    for name in ("std", "scale", "color", "resize", "crop", "interpolation"):
        assert set(declared[name]) == takers, name


def test_std_divides_and_scale_multiplies_per_channel() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    conversion = PixelConversion(mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0), scale=(3.0,), color="rgb")
    found = load_image(image, (1, 3, 2, 2), np.float16, conversion)
    expected = (image.transpose(2, 0, 1) - np.array([1, 2, 3]).reshape(3, 1, 1)) / np.array([2, 4, 8]).reshape(3, 1, 1)
    assert np.array_equal(found[0], (expected * 3).astype(np.float16))
    model = Preprocessing(mean=(1.0, 2.0, 3.0), scale=(3.0,)).divided((2.0, 4.0, 8.0))
    assert np.allclose(model.image(image, (1, 3, 2, 2))[0], expected * 3)
    with pytest.raises(FormatError, match="std: must be one number or one per channel"):
        Preprocessing(scale=(1.0, 1.0, 1.0)).divided((1.0, 2.0))
    with pytest.raises(nvdla.NvdlaError, match="std: must be finite and not 0"):
        load_image(image, (1, 3, 2, 2), np.float16, PixelConversion(std=(0.0,)))


@pytest.mark.parametrize(("calibration", "is_valid"), [({"method": "given"}, True), ({"samples": 3}, False)])
def test_the_schema_of_compile_takes_scales_that_were_given(calibration: dict[str, object], is_valid: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    path = Path(__file__).resolve().parents[2] / "docs" / "json" / "compile.schema.json"
    rule = json.loads(path.read_text(encoding="utf-8"))["properties"]["calibration"]
    assert jsonschema.Draft202012Validator(rule).is_valid(calibration) == is_valid
