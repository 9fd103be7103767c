"""An option name means the same in every command: destination, type, number of values, choices and help."""

import argparse
import importlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.cli.main import COMMANDS, _Parser
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
    kind = getattr(action.type, "__qualname__", None)
    text = None if name in WRITES else re.sub(r" \(default: [^)]*\)", "", action.help or "")
    values = None if name in WRITES else action.metavar
    choices = tuple(action.choices) if action.choices else None
    return type(action), tuple(action.option_strings), action.dest, action.nargs, kind, choices, values, text


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
