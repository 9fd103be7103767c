"""Arguments of the wrong kind at the doors of the Python interface: one sentence, never somebody's AttributeError, and
no file of the process is taken for one of the user's."""

from __future__ import annotations

import collections
import importlib
import inspect
import itertools
import os
import pathlib
import pkgutil
import random
from enum import Enum

import numpy as np
import pytest

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.diff import diff
from nvdla.checks.lint import lint, lint_file
from nvdla.emulator.faults import parse
from nvdla.emulator.trace import read_trace, replay
from nvdla.experiments.evaluation import open_network, open_source
from nvdla.experiments.vulnerability import draw
from nvdla.interop.containers import registry
from nvdla.loadable.descriptors import abi_named, decode_tasks, detect
from nvdla.program import Program
from nvdla.util.files import read_file, require_file, write_file


def name_of(value):
    """The name of a value in test ids: equal in every process, so that tests can run in parallel."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


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
#: Python refuses to write it in decimal
LARGE = 1 << 20_000
OTHER_NONSENSE = [
    LARGE, 1 << 70, -(1 << 63), float("inf"), True, "", "x", "nv_small", "x" * 100_000, "a\nb\x1b[31m", "\0", b"",
    b"xyz", memoryview(b"abcdef")[::2], [None], [[]], ["x"], [{}], [{"key": "x"}], (), {}, {1: 2}, {"a": float("nan")},
    {1}, int, print, ..., 1 + 2j, np.zeros(0), np.full((2, 2), np.nan), np.zeros((1, 1, 28, 28), np.int8),
    np.array("x"), np.array(None), np.int64(3),
]  # fmt: skip


@pytest.mark.parametrize("value", NONSENSE, ids=name_of)
@pytest.mark.parametrize("door", OF_A_LOADABLE)
def test_what_is_no_loadable_is_a_type_error(door, value):
    with pytest.raises(nvdla.ArgumentTypeError, match=r"must be a Loadable(?: or a Program)?, got "):
        OF_A_LOADABLE[door](value)


@pytest.mark.parametrize("value", [True, 1, 2, 2.5, None, [], object()], ids=name_of)
@pytest.mark.parametrize("door", OF_A_PATH)
def test_a_number_is_no_path(door, value):
    """open() would take it for a file that is open, read it and close it: standard output, for instance."""
    with pytest.raises((nvdla.NvdlaError, TypeError)):
        OF_A_PATH[door](value)
    os.fstat(1), os.fstat(2)


@pytest.mark.parametrize("value", [{1}, "x", 5, [1]], ids=name_of)
def test_limits_are_limits(value):
    with pytest.raises(nvdla.ArgumentTypeError, match="limits must be a Limits, got "):
        nvdla.load(SAMPLE, limits=value)


def test_other_doors_say_a_sentence():
    with pytest.raises(nvdla.ArgumentTypeError, match="config must be a Configuration, got int 5"):
        read_trace("x.cfg", 5)
    with pytest.raises(nvdla.ArgumentTypeError, match="text must be a str, got int 3"):
        parse(3)
    with pytest.raises(nvdla.FormatError, match="too long"):
        open_source("x" * 100_000)
    with pytest.raises(nvdla.FormatError, match="no faults to choose from"):
        next(draw([], ["flip"], [], False, 1))
    with pytest.raises(nvdla.ArgumentTypeError, match="network must be a Network"):
        from nvdla.compiler.builder import build

        build({"a": 1}, "nv_small", "int8", None)


def public_callables():
    """Functions and classes, by name, that the packages name in __all__, and the methods of what people hold."""
    found = {}
    for package in ["nvdla", *(each.name for each in pkgutil.walk_packages(nvdla.__path__, "nvdla.") if each.ispkg)]:
        if any(part in package for part in (".cli", ".generated", ".kernels", ".sample_files")):
            continue
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            each = getattr(module, name, None)
            is_class = inspect.isclass(each) and not issubclass(each, (BaseException, Enum))
            if inspect.isfunction(each) or is_class:
                found.setdefault(each, f"{package}.{name}")
    for each in held_objects():
        for name, method in inspect.getmembers(each, inspect.ismethod):
            if not name.startswith("_") and name not in ("machine", "forget"):
                found.setdefault(method, f"{type(each).__name__}.{name}")
    return found


def held_objects():
    loadable = nvdla.load(SAMPLE)
    runtime = nvdla.Runtime(loadable)
    return loadable, runtime, runtime.program(), Study.of(loadable), runtime.config


def calls(function, values, drawn=12):
    """Keywords of calls: everything that must be given one value; and ``drawn`` times other values for everything."""
    named = [each for each in inspect.signature(function).parameters.values() if each.kind not in (2, 4)]
    must = [each.name for each in named if each.default is each.empty]
    for value in values if must else ():
        yield dict.fromkeys(must, value)
    rng = random.Random(repr(must))
    for _ in range(drawn if named else 0):
        yield {each.name: rng.choice(values) for each in named if each.name in must or rng.random() < 0.5}


def test_every_public_callable_refuses_nonsense_with_one_sentence(tmp_path, monkeypatch):
    """Functions, constructors and methods: an error of the family (or Python's own TypeError), on one line."""
    monkeypatch.chdir(tmp_path)
    values = [*NONSENSE, *OTHER_NONSENSE, *held_objects(), *made_anew()]
    wrong = collections.Counter()
    for function, name in public_callables().items():
        for named in calls(function, values):
            try:
                made = function(**named)
                collections.deque(itertools.islice(made, 100), 0) if inspect.isgenerator(made) else None
            except nvdla.NvdlaError as error:
                if not str(error).isprintable() or len(str(error)) > 2000:
                    wrong[f"{name}: message"] += 1
            except TypeError:
                pass
            except Exception as error:
                shown = {key: repr(value)[:40] for key, value in named.items() if value is not LARGE}
                wrong[f"{name}({shown}): {type(error).__name__}: {error}"[:300]] += 1
    assert not wrong


def made_anew():
    return iter([1, 2]), (each for each in ("x",)), Exception("x"), pathlib.Path("a\0b")
