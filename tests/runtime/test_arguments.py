"""Arguments of the Python interface: what is not meant is refused in one sentence, what can be meant is taken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.errors import ArgumentTypeError, NvdlaError, OutOfMemoryError

LENET = Path(__file__).resolve().parents[2] / "samples" / "lenet.loadable"


@pytest.fixture(scope="module")
def lenet():
    return nvdla.load(LENET)


@pytest.fixture(scope="module")
def runtime(lenet):
    return nvdla.Runtime(lenet)


@pytest.fixture(scope="module")
def surface(runtime):
    return runtime.pack(0, np.arange(784).reshape(1, 1, 28, 28) % 128)


@pytest.mark.parametrize("given", [str(LENET), LENET, LENET.read_bytes()], ids=["str", "path", "bytes"])
def test_a_runtime_is_made_of_what_load_takes(given, runtime, surface):
    assert nvdla.Runtime(given).run_raw([surface]) == runtime.run_raw([surface])


WRONG = {
    "threads_text": ({"threads": "2"}, "threads must be a whole number, got str '2'"),
    "threads_float": ({"threads": 2.5}, "threads must be a whole number, got float 2.5"),
    "config_number": ({"config": 3}, "config must be a str"),
    "config_none": ({"config": None}, "config must be a str"),
    "abi_number": ({"abi": 1}, "abi must be a str"),
    "memory_limit": ({"memory_limit": "4G"}, "memory_limit must be a whole number"),
    "limits": ({"limits": 7}, "limits must be a Limits, got int 7"),
    "strides_text": ({"strides": "abc"}, "strides must be a mapping"),
    "strides_of_text": ({"strides": {"data": "123"}}, "strides of data must be whole numbers"),
    "strides_of_words": ({"strides": {"data": ("1", "2", "3")}}, "strides of data must be a whole number, got str '1'"),
    "strides_of_a_number": ({"strides": {"data": 5}}, "strides of data must be whole numbers"),
    "strides_of_no_name": ({"strides": {5: (1, 2, 3)}}, "strides must be a mapping of str"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_the_wrong_type_is_a_type_error_of_the_family(name, lenet):
    arguments, message = WRONG[name]
    with pytest.raises(ArgumentTypeError, match=message) as caught:
        nvdla.Runtime(lenet, **arguments)
    assert isinstance(caught.value, NvdlaError) and isinstance(caught.value, TypeError)


@pytest.mark.parametrize("strides", [(), (1, 2), (1,) * 9])
def test_strides_are_three_numbers_or_more(strides, lenet):
    with pytest.raises(NvdlaError, match=r"must be three numbers in bytes \(element, line, surface\)"):
        nvdla.Runtime(lenet, strides={"data": strides})


@pytest.mark.parametrize("value", [3, None, [], {}, object()], ids=["number", "none", "list", "mapping", "object"])
def test_what_is_neither_path_nor_bytes_is_no_loadable(value):
    with pytest.raises(NvdlaError, match="source of a loadable: must be a path"):
        nvdla.Runtime(value)


def test_a_numpy_integer_is_a_whole_number(lenet):
    assert nvdla.Runtime(lenet, threads=np.int64(1)).threads == 1


def strided(surface, as_array):
    """The same bytes, every other one of a larger buffer."""
    wide = np.zeros(2 * len(surface), np.uint8)
    wide[::2] = np.frombuffer(surface, np.uint8)
    return wide[::2] if as_array else memoryview(wide)[::2]


@pytest.mark.parametrize("as_array", [True, False])
def test_buffers_need_not_be_contiguous(as_array, runtime, surface):
    expected = runtime.run_raw([surface])
    assert runtime.run_raw([strided(surface, as_array)]) == expected
    assert runtime.run_many([[strided(surface, as_array)]] * 3) == [expected] * 3
    assert runtime.surfaces(strided(surface, as_array=False)) == [surface]


def test_a_batch_may_be_a_generator(runtime, surface):
    other = bytes(len(surface))
    expected = [runtime.run_raw([each]) for each in (surface, other, surface)]
    assert runtime.run_many([each] for each in (surface, other, surface)) == expected
    assert runtime.run_many(iter(())) == []


NO_RAW = {"number": 3, "bytes": b"abc", "none": None, "words": ["abc"], "objects": [np.array([None])]}


@pytest.mark.parametrize("name", NO_RAW)
def test_raw_inputs_that_are_none_are_refused(name, runtime):
    for attempt in (runtime.run_raw, lambda given: runtime.run_many([given])):
        with pytest.raises(ArgumentTypeError, match=r"raw inputs|must be bytes|Python objects"):
            attempt(NO_RAW[name])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "raw outputs: must be a list"),
        ([b"1"], "must have .* bytes, got 1"),
        ([], "outputs: must be 1 .*, got 0"),
        (["x"], "must be bytes"),
    ],
)
def test_only_whole_surfaces_are_unpacked(given, message, runtime):
    with pytest.raises(nvdla.NvdlaError, match=message):
        runtime.unpack(given)


def test_what_is_called_back_is_a_function(runtime, surface):
    for name in ("on_operation", "on_step"):
        with pytest.raises(TypeError, match=f"{name} must be a function"):
            runtime.run_raw([surface], **{name: 3})


@pytest.mark.parametrize("given", ["abc", b"abc", 3, None, {"a": 1}])
def test_a_batch_that_is_none_is_refused(given, runtime):
    with pytest.raises(ArgumentTypeError, match="images: must be an iterable of images"):
        runtime.run_many(given)


@pytest.mark.parametrize("value", [[[[1, 2], [3]]], {1, 2}, object(), [None]], ids=["ragged", "set", "object", "none"])
def test_what_is_no_array_is_refused(value, runtime):
    with pytest.raises(NvdlaError):
        runtime.run([value])


OUT_OF_MEMORY = """
import dataclasses, resource, sys
import nvdla
from nvdla.loadable import MemoryEntry
model = nvdla.load(sys.argv[1])
nvdla.Runtime(model)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
large = MemoryEntry(1000, 3 << 30, flags=1)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
try:
    nvdla.Runtime(dataclasses.replace(model, memories=(*model.memories, large)))
except nvdla.NvdlaError as error:
    assert isinstance(error, MemoryError)
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits its own address space, as Linux lets it")
def test_more_memory_than_the_system_has_is_an_error_of_the_family():
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY, str(LENET)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(OutOfMemoryError.__name__), done.stderr
    assert "out of memory" in done.stdout


@pytest.mark.parametrize(
    ("given", "said"), [({"csb_log": 5}, "csb_log must be a list, got int 5"), ({"faults": 5}, "faults must be a list")]
)
def test_observers_and_faults_of_the_wrong_kind(runtime, surface, given, said):
    with pytest.raises(ArgumentTypeError, match=said):
        runtime.run_raw([surface], **given)


def test_one_function_checks_the_types_of_arguments():
    """``checked`` and ``by_annotations`` refuse the same values in the same words."""
    from nvdla.util.arguments import by_annotations, checked

    def function(value):
        return value

    function.__annotations__["value"] = Sequence[int] | None
    function = by_annotations(function)
    for value in ("text", [1.5], 3, {1: 2}):
        with pytest.raises(nvdla.ArgumentTypeError) as first:
            function(value)
        with pytest.raises(nvdla.ArgumentTypeError) as second:
            checked(value, Sequence[int] | None, "value")
        assert str(first.value) == str(second.value)
    assert checked([1], Sequence[int] | None, "value") == [1]
