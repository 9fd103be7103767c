"""Golden files as the reference: tensors, raw surfaces and lists of hashes, told apart by their names.

=============================================  ==================================================================
``task0-op0003-sdp.bin`` (``.npy`` ``.dimg``)  operation 3 of task 0, as ``nvdla run --dump-ops`` writes it
``seq0004_op3_SDP.bin``                        operation 3 (of task 0, or ``seq0004_task1_op3_SDP.bin``)
``NAME.npy`` ``NAME.dimg`` ``NAME.bin``        the output or layer of that name
``out0.bin``, ``NAME.out0.bin``                the raw surface of bound output 0
``o_000000.dimg``, ``output.dimg``             output 0, as NVIDIA's test client and runtime write it
``NAME.ops.json``                              SHA-256 of what every operation wrote
=============================================  ==================================================================
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compare.comparison import Expected, padding_note
from nvdla.compare.observation import Observation, dense
from nvdla.errors import FormatError
from nvdla.files import read_file
from nvdla.program.naming import parts
from nvdla.tensors.dimg import read_dimg
from nvdla.tensors.files import read_npy

if TYPE_CHECKING:
    from nvdla.runtime import Tensor

ENDINGS = (".bin", ".npy", ".dimg")
MAX_FILE = 1 << 30
MAX_FILES = 100_000
DUMPED = re.compile(r"task(\d{1,9})-op(\d{1,9})-([a-z]+)\Z")
SEQUENCE = re.compile(r"seq\d+_(?:task(\d{1,9})_)?op(\d{1,9})_([A-Z]+)\Z")
BOUND = re.compile(r"(?:.*\.)?out(\d{1,6})\Z|o_(\d{1,9})\Z")


class GoldenReference:
    """Goldens of a file or a folder. ``stem``: the loadable's name without ending, to choose among several sets."""

    kind = "goldens"

    def __init__(self, path: str | os.PathLike[str], stem: str = "") -> None:
        self.path = Path(path)
        self._operations: dict[tuple[int, int], tuple[Path, str]] = {}
        self._outputs: dict[int, Path] = {}
        self._named: dict[str, Path] = {}
        self._hashes: dict[tuple[int, int], tuple[str, tuple[str, str | None]]] = {}
        self._stem = stem
        self.used: set[Path] = set()
        files = _files(self.path)
        for file in files:
            self._sort_in(file)
        self._read_hashes([file for file in files if file.name.endswith(".ops.json")])
        if not (self._operations or self._outputs or self._named or self._hashes):
            raise FormatError(f"{path}: no golden: a golden ends in {' '.join(ENDINGS)} or .ops.json")

    @property
    def unused(self) -> list[str]:
        """Names of golden files that nothing asked for."""
        known = [path for path, _ in self._operations.values()] + [*self._outputs.values(), *self._named.values()]
        return sorted(path.name for path in known if path not in self.used)

    def operation(self, observation: Observation) -> Expected | None:
        """The golden of an operation, None where there is none."""
        where = observation.task, observation.index
        if observation.roi:
            return None
        if where in self._operations:
            path, engine = self._operations[where]
            _same_engine(path, engine, observation)
            return self._surface(path, observation)
        if where in self._hashes:
            engine, digests = self._hashes[where]
            _same_engine(self.path, engine, observation)
            return Expected(f"hash of {observation}", digests=digests)
        named = next((self._named[name] for name in parts(observation.layer) if name in self._named), None)
        return None if named is None else self._surface(named, observation)

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """The golden of a bound output, None where there is none."""
        path = self._named.get(tensor.name) or self._outputs.get(index)
        if path is None:
            return None
        self.used.add(path)
        if path.suffix == ".bin":
            data = np.frombuffer(read_file(path, MAX_FILE, "golden"), np.uint8)
            if data.size != len(raw):
                raise FormatError(f"{path}: {data.size} bytes, but the surface of output {tensor.name} has {len(raw)}")
            return Expected(path.name, tensor.layout.unpack(data))
        golden = _tensor(path)
        if golden.dtype == np.int16 and array.dtype == np.float16:
            golden = golden.view(np.float16)  # NVIDIA's runtime marks a CPU task's halves as integers
        return Expected(path.name, golden)

    def _surface(self, path: Path, observation: Observation) -> Expected:
        """The golden of an operation: the surface with its padding channels (.bin), or the tensor."""
        self.used.add(path)
        if path.suffix != ".bin":
            return Expected(path.name, _tensor(path))
        data = np.frombuffer(read_file(path, MAX_FILE, "golden"), np.uint8)
        written = observation.written
        if data.size != written.size:
            raise FormatError(f"{path}: {data.size} bytes, but {observation} wrote {written.size}")
        surface = data.reshape(written.shape)
        golden = dense(surface, observation.dtype, observation.channels)
        return Expected(path.name, golden, note=padding_note(observation, surface, golden))

    def _sort_in(self, file: Path) -> None:
        """Note what the file is a golden of."""
        if file.suffix not in ENDINGS:
            return
        name = file.stem
        if match := DUMPED.match(name):
            self._operations[int(match[1]), int(match[2])] = (file, match[3])
        elif match := SEQUENCE.match(name):
            self._operations[int(match[1] or 0), int(match[2])] = (file, match[3].lower())
        elif name == "output":
            self._outputs.setdefault(0, file)
        elif match := BOUND.match(name):
            number = int(match[1] or match[2] or 0)
            prefix = name.rpartition(".")[0]
            if not prefix or prefix == self._stem or self.path.is_file():
                self._outputs[number] = file
        else:
            self._named[name] = file

    def _read_hashes(self, lists: list[Path]) -> None:
        """One list of hashes: the loadable's own, or the only one."""
        own = [file for file in lists if file.name == f"{self._stem}.ops.json"] or lists
        if len(own) > 1:
            names = ", ".join(file.name for file in own[:4])
            raise FormatError(f"{self.path}: several lists of hashes ({names} ...); give the file itself")
        for file in own:
            for entry in _entries(file):
                if isinstance(entry.get("sha256"), str):
                    where = int(entry["task"]), int(entry["op"])
                    valid = entry.get("sha256_valid")
                    self._hashes[where] = (str(entry["type"]).lower(), (entry["sha256"], valid))


def _tensor(path: Path) -> np.ndarray:
    return read_npy(path) if path.suffix == ".npy" else read_dimg(path)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.is_file())
        if len(found) > MAX_FILES:
            raise FormatError(f"{path}: {len(found)} files, at most {MAX_FILES} are looked at")
        return found
    if not path.is_file():
        raise FormatError(f"{path}: there is no such golden file or folder")
    return [path]


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(read_file(file, MAX_FILE, "list of hashes"))
        entries = [dict(entry) for entry in document]
        for entry in entries:
            int(entry["task"]), int(entry["op"]), str(entry["type"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise FormatError(f"{file}: not a list of operations with task, op, type and sha256: {error!r}") from None
    return entries


def _same_engine(path: Path, engine: str, observation: Observation) -> None:
    if engine != observation.engine:
        raise FormatError(f"{path}: says that {engine.upper()} did it, but it is {observation}")
