"""Arguments of the wrong kind at the doors of the Python interface: one sentence, never somebody's AttributeError, and
no file of the process is taken for one of the user's."""

from __future__ import annotations

import os

import pytest

import nvdla
from nvdla.analysis.study import Study
from nvdla.containers import registry
from nvdla.descriptors import abi_named, decode_tasks, detect
from nvdla.diff import diff
from nvdla.evaluation import open_network, open_source
from nvdla.faults import parse
from nvdla.files import read_file, require_file, write_file
from nvdla.lint import lint, lint_file
from nvdla.program import Program
from nvdla.trace import read_trace, replay
from nvdla.vulnerability import draw

OF_A_LOADABLE = {
    "lint": lint,
    "program": Program.of,
    "study": Study.of,
    "detect": detect,
    "decode": lambda value: decode_tasks(value, abi_named("new")),
    "diff": lambda value: diff(value, value),
}
OF_A_PATH = {
    "load": nvdla.load,
    "lint_file": lint_file,
    "open_network": open_network,
    "open_source": open_source,
    "read_trace": lambda path: read_trace(path, Program.of(nvdla.load(SAMPLE)).config),
    "replay": lambda path: replay(path, "nv_small"),
    "container": registry.open,
    "read_file": lambda path: read_file(path, 10),
    "require_file": lambda path: require_file(path, "file"),
    "write_file": lambda path: write_file(path, b""),
}
SAMPLE = os.path.join(os.path.dirname(nvdla.__file__), "..", "samples", "lenet.loadable")
NONSENSE = [None, 5, -1, 1.5, float("nan"), [], {"a": 1}, object(), lambda: None, range(10**12)]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("door", OF_A_LOADABLE)
def test_what_is_no_loadable_is_a_type_error(door, value):
    with pytest.raises(nvdla.ArgumentTypeError, match="loadable must be a Loadable, not "):
        OF_A_LOADABLE[door](value)


@pytest.mark.parametrize("value", [True, 1, 2, 2.5, None, [], object()], ids=repr)
@pytest.mark.parametrize("door", OF_A_PATH)
def test_a_number_is_no_path(door, value):
    """open() would take it for a file that is open, read it and close it: standard output, for instance."""
    with pytest.raises((nvdla.NvdlaError, TypeError)):
        OF_A_PATH[door](value)
    os.fstat(1), os.fstat(2)


@pytest.mark.parametrize("value", [{1}, "x", 5, [1]], ids=repr)
def test_limits_are_limits(value):
    with pytest.raises(nvdla.ArgumentTypeError, match="limits must be a Limits, not "):
        nvdla.load(SAMPLE, limits=value)


def test_other_doors_say_a_sentence():
    with pytest.raises(nvdla.ArgumentTypeError, match="config must be a Configuration, not int 5"):
        read_trace("x.cfg", 5)
    with pytest.raises(nvdla.ArgumentTypeError, match="a fault's text must be a name, a str"):
        parse(3)
    with pytest.raises(nvdla.FormatError, match="too long"):
        open_source("x" * 100_000)
    with pytest.raises(nvdla.FormatError, match="there is none of them"):
        next(draw([], ["flip"], [], False, 1))
    with pytest.raises(nvdla.ArgumentTypeError, match="network must be a Network"):
        from nvdla.builder import build

        build({"a": 1}, "nv_small", "int8", None)
