"""Fixtures of several test packages: samples, the corpus, the command line, planted faults, documented JSON."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The first call of a kernel compiles it, and machines are shared: a time limit on examples would fail at random.
# For the same reason a run takes the same examples each time: it judges the change, not the dice. The profile
# "search" throws them anew (CONTRIBUTING.md).
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("project")

# Output is laid out as on a terminal of this width; what a pipe gets has tests of its own (tests/cli).
os.environ["COLUMNS"] = "160"

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "samples"
CORPUS = ROOT / ".." / "shared" / "corpus"


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Kernels are compiled from the first call on: their plain forms are tested by themselves, and in new processes."""
    from nvdla.kernels.jit.compilation import fallback_work

    fallback_work.left, fallback_work.waits = 0, False


@pytest.fixture(scope="session")
def samples() -> Path:
    return SAMPLES


@pytest.fixture(scope="session")
def lenet_loadable():
    import nvdla

    return nvdla.load(SAMPLES / "lenet.loadable")


@pytest.fixture(scope="session")
def corpus() -> Path:
    if not CORPUS.is_dir():
        pytest.skip("the corpus ../shared/corpus is not there")
    return CORPUS


@pytest.fixture(scope="session")
def cases(corpus) -> list[dict[str, Any]]:
    """The manifest of the compiled networks; ``file`` is added."""
    found = json.loads((corpus / "loadables" / "manifest.json").read_text())["cases"]
    return [{**case, "file": corpus / "loadables" / case["path"]} for case in found]


@pytest.fixture
def nvdla_command(capsys):
    """Runs ``nvdla WORDS``; returns (exit code, standard output, standard error)."""
    from nvdla.cli.main import main

    def call(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def plant():
    """``plant(loadable, change)``: a copy whose DLA tasks ``change(task)`` has edited in place (ctypes structures)."""
    from nvdla.loadable.descriptors import DlaTask, detect
    from nvdla.loadable.enums import Interface

    def edited(loadable, change: Callable[[DlaTask], None]):
        abi, _ = detect(loadable)
        data: dict[str, bytearray] = {}
        for task in loadable.tasks:
            if task.interface != Interface.DLA1:
                continue
            decoded = DlaTask.overlay(loadable, task, abi)
            change(decoded)
            network = decoded.network
            for index, entries in (
                (0, [network]),
                (network.operation_desc_index, decoded.containers),
                (network.surface_desc_index, decoded.surface_containers),
                (network.dependency_graph_index, decoded.dependencies),
                (network.lut_data_index, decoded.luts),
            ):
                if len(entries):
                    write(loadable, data, task, index, b"".join(map(raw, entries)))
        return replaced(loadable, data)

    return edited


@pytest.fixture(scope="session")
def plant_cpu():
    """``plant_cpu(loadable, change)``: a copy whose CPU operations ``change(operation)`` has edited in place."""
    from nvdla.loadable.descriptors import EmuTask, detect
    from nvdla.loadable.enums import Interface

    def edited(loadable, change: Callable[[Any], None]):
        data: dict[str, bytearray] = {}
        for task in loadable.tasks:
            if task.interface == Interface.EMU1:
                decoded = EmuTask.overlay(loadable, task, detect(loadable)[0])
                for operation in decoded.operations():
                    change(operation)
                network = decoded.network
                write(loadable, data, task, network.operation_desc_index, b"".join(map(raw, decoded.containers)))
                write(loadable, data, task, network.operation_buffer_desc_index, b"".join(map(raw, decoded.buffers)))
        return replaced(loadable, data)

    return edited


@pytest.fixture(scope="session")
def plant_bytes():
    """``plant_bytes(loadable, operation, name, change)``: a copy in which ``change(bytearray)`` has edited the constant
    bytes behind the cube ``name`` of an operation of task 0."""
    from nvdla.loadable.descriptors import DlaTask, detect

    def edited(loadable, operation: int, name: str, change: Callable[[bytearray], None]):
        task = loadable.tasks[0]
        decoded = DlaTask.overlay(loadable, task, detect(loadable)[0])
        cube = getattr(decoded.operation(operation).surface, name)
        entry = loadable.address(task.address_list[cube.address])
        start = entry.offset + cube.offset
        for begin, blob in loadable.contents(loadable.memory(entry.mem_id)):
            if begin <= start < begin + len(blob.data):
                content = bytearray(blob.data)
                piece = content[start - begin : start - begin + cube.size]
                change(piece)
                content[start - begin : start - begin + len(piece)] = piece
                return replaced(loadable, {blob.name: content})
        raise AssertionError(f"operation {operation} has no constant {name}")

    return edited


def raw(structure: ctypes.Structure) -> bytes:
    return ctypes.string_at(ctypes.addressof(structure), ctypes.sizeof(structure))


def write(loadable, data: dict[str, bytearray], task, index: int, content: bytes) -> None:
    """Put bytes over the blob behind an address index."""
    entry = loadable.address(task.address_list[index])
    for begin, blob in loadable.contents(loadable.memory(entry.mem_id)):
        if begin == entry.offset:
            found = data.setdefault(blob.name, bytearray(blob.data))
            found[: len(content)] = content


def replaced(loadable, data: dict[str, bytearray]):
    """The loadable with other bytes in some blobs."""
    blobs = tuple(
        dataclasses.replace(blob, data=memoryview(bytes(data[blob.name])), size=len(data[blob.name]))
        if blob.name in data
        else blob
        for blob in loadable.blobs
    )
    return dataclasses.replace(loadable, blobs=blobs)


@pytest.fixture(scope="session")
def as_documented():
    """``as_documented(document)``: asserts that a command's JSON is what the schema of its format in docs/json says."""
    jsonschema = pytest.importorskip("jsonschema", reason="the extra nvdla[test] is not installed")

    def check(document: dict[str, Any]) -> None:
        name = document["format"].removeprefix("nvdla-")
        for each in ("frame", name):
            schema = json.loads((ROOT / "docs" / "json" / f"{each}.schema.json").read_text(encoding="utf-8"))
            jsonschema.Draft202012Validator(schema).validate(document)

    return check


@pytest.fixture(scope="module")
def chromium_browser():
    """A browser of playwright; the test is skipped where there is none."""
    from support.browser import started

    driver, browser = started()
    yield browser
    browser.close()
    driver.stop()
