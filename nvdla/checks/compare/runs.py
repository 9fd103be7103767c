"""References for a comparison: other runs, goldens and float models, aligned by operation.

=============================================  ==================================================================
``task0-op0003-sdp.npy`` (``.bin`` ``.dimg``)  operation 3 of task 0, as ``nvdla run --dump-ops`` writes it
``seq0004_op3_SDP.bin``                        operation 3 (of task 0, or ``seq0004_task1_op3_SDP.bin``)
``NAME.npy`` ``NAME.dimg`` ``NAME.bin``        the output or layer of that name
``out0.bin``, ``NAME.out0.bin``                the raw surface of bound output 0
``o_000000.dimg``, ``output.dimg``             output 0, as NVIDIA's test client and runtime write it
``NAME.ops.json``                              SHA-256 of what every operation wrote
=============================================  ==================================================================
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.checks.compare.comparison import (
    Expected,
    Observation,
    dense,
    observe,
    padding_note,
    surface_note,
    unpacked,
)
from nvdla.errors import FormatError
from nvdla.program.naming import Names, parts
from nvdla.program.operation import Key, last_layer
from nvdla.tensors.files import read_dimg, read_npy
from nvdla.tensors.real import Ends, ModelValue, Units
from nvdla.util.escaping import Document
from nvdla.util.files import parse_json, read_file

if TYPE_CHECKING:
    from nvdla.runtime import Runtime, Tensor


def align(ours: Sequence[Observation], theirs: Sequence[Observation]) -> tuple[dict[Key, Observation], str]:
    """Our operations' keys -> their operations, and how they were found: "position", "layer" or "shape".

    By position where both have the same operations; else by layer names, and parts of the layers' tensors, where both
    have them; else by engine, shape and elements. Only operations that write memory take part.
    """
    ours, theirs = _written(ours), _written(theirs)
    by_key = {observation.key: observation for observation in theirs}
    if len(ours) == len(theirs) and all(_alike(observation, by_key.get(observation.key)) for observation in ours):
        return _exchanged(ours, by_key), "position"
    if _named(ours) and _named(theirs):
        return _by_layer(ours, theirs), "layer"
    return _by_shape(ours, theirs), "shape"


def _exchanged(ours: Sequence[Observation], by_key: Mapping[Key, Observation]) -> dict[Key, Observation]:
    """Pairs by position, but for branches in another order: a tensor is similar to another of its shape than to that at
    its position. One whose partner is taken then has no counterpart."""
    matches, groups = dict(by_key), defaultdict[Hashable, list[tuple[Observation, np.ndarray, np.ndarray]]](list)
    for observation in ours:
        mine, other = _sample(observation.tensor), _sample(by_key[observation.key].tensor)
        if mine @ other < APART:
            groups[_signature(observation)].append((observation, mine, other))
    for members in groups.values():
        score = np.stack([mine for _, mine, _ in members]) @ np.stack([other for *_, other in members]).T
        partners = {place: int(row.argmax()) for place, row in enumerate(score) if row.max() >= ALIKE}
        taken = set(partners.values())
        if len(taken) < len(partners):
            continue
        for place, (observation, *_) in enumerate(members):
            if place in partners:
                matches[observation.key] = by_key[members[partners[place]][0].key]
            elif place in taken:
                del matches[observation.key]
    return matches


def _written(observations: Sequence[Observation]) -> list[Observation]:
    return [observation for observation in observations if observation.surface is not None]


def _signature(observation: Observation) -> tuple[Any, ...]:
    return observation.engine, *observation.tensor.shape


def _alike(ours: Observation, theirs: Observation | None) -> bool:
    if theirs is None or _signature(ours) != _signature(theirs):
        return False
    return ours.place is None or theirs.place is None or _part(ours) == _part(theirs)


def _named(observations: Sequence[Observation]) -> bool:
    return bool(observations) and all(observation.layer for observation in observations)


def _by_layer(ours: Sequence[Observation], theirs: Sequence[Observation]) -> dict[Key, Observation]:
    """Operations of a layer that write the same part of its tensor, one by one where both have as many, else the last
    one of each. What completes a tensor of several parts is paired with what completes the other."""
    groups: dict[Hashable, list[Observation]] = defaultdict(list)
    for observation in theirs:
        for part in dict.fromkeys((_part(observation), _part_seen(observation))):
            groups[last_layer(observation.layer), part].append(observation)
    mine: dict[Hashable, list[Observation]] = defaultdict(list)
    for observation in ours:
        mine[last_layer(observation.layer), _part_seen(observation)].append(observation)
    matches = {}
    for part, members in mine.items():
        others = groups.get(part, [])
        if members[0].is_intermediate and max(len(members), len(others)) > 1:
            continue  # the layer file does not state which of them is which
        if len(others) != len(members):
            members, others = members[-1:], others[-1:]
        for member, other in zip(members, others, strict=False):
            if member.tensor.shape == _as_seen(other, member).shape:
                matches[member.key] = other
    return matches


def _part(observation: Observation) -> Hashable:
    """The image and the part of its layer's tensor that an operation writes: None for all of it, and where it is not
    known; equal for intermediate results of one shape."""
    place = observation.place
    if place is None:
        return 0, None
    if place.tensor is None:
        return "intermediate", *_signature(observation)
    positions = observation.positions
    return place.image, None if positions is None else (positions.shape, positions.tobytes())


def _part_seen(observation: Observation) -> Hashable:
    """The same of :attr:`Observation.tensor`, which is whole once an operation completes it."""
    return (
        (observation.place.image, None) if observation.place and observation.whole is not None else _part(observation)
    )


def _as_seen(theirs: Observation, ours: Observation) -> np.ndarray:
    """The elements of ``theirs`` to compare with the tensor of ``ours``: its own part where that is one."""
    return theirs.part if ours.is_part else theirs.tensor


def _by_shape(ours: Sequence[Observation], theirs: Sequence[Observation]) -> dict[Key, Observation]:
    """Most pairs of similar tensors in the same order. Between two of them, other operations are paired where both
    sides have the same ones: else nothing shows which of them is which. After the last similar pair both differ, and
    operations are paired by shape alone."""
    pairs: list[tuple[int, int]] = []
    begin = 0, 0
    for mine, other in _similar(ours, theirs):
        mine_between = [_signature(observation) for observation in ours[begin[0] : mine]]
        other_between = [_signature(observation) for observation in theirs[begin[1] : other]]
        if mine_between == other_between:
            pairs += zip(range(begin[0], mine), range(begin[1], other), strict=True)
        pairs.append((mine, other))
        begin = mine + 1, other + 1
    rest = [_signature(observation) for observation in ours[begin[0] :]]
    other_rest = [_signature(observation) for observation in theirs[begin[1] :]]
    pairs += [(begin[0] + mine, begin[1] + other) for mine, other in aligned_places(rest, other_rest)]
    return {ours[mine].key: theirs[other] for mine, other in pairs}


def _similar(ours: Sequence[Observation], theirs: Sequence[Observation]) -> list[tuple[int, int]]:
    """Places of similar tensors: most pairs in the same order; of several choices the last."""
    mine, others = ([(_signature(item), _sample(item.tensor)) for item in side] for side in (ours, theirs))
    score = np.zeros((len(mine), len(others)))
    for row, (signature, sample) in enumerate(mine):
        for column, (other_signature, other_sample) in enumerate(others):
            if signature == other_signature:
                score[row, column] = sample @ other_sample
    score[score < NEAR] = 0
    best = np.zeros((len(mine) + 1, len(others) + 1))  # of the first operations of both
    for row in range(len(mine)):
        diagonal = np.maximum(best[row, 1:], best[row, :-1] + score[row])
        best[row + 1, 1:] = np.maximum.accumulate(diagonal)
    pairs, row, column = [], len(mine), len(others)
    while row and column:
        gain = score[row - 1, column - 1]
        if gain and math.isclose(best[row, column], best[row - 1, column - 1] + gain):
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif best[row, column] == best[row - 1, column]:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]


def _sample(tensor: np.ndarray) -> np.ndarray:
    """Elements at random places, which are the same for all tensors of a size, less their mean, of length 1: the
    product of two is their correlation. A constant tensor is all zero but for the last number, which is 1."""
    flat = tensor.reshape(-1)
    if flat.size > SAMPLED:
        flat = flat[np.random.default_rng(0).integers(0, flat.size, SAMPLED)]
    values = np.append(flat.astype(np.float64) - flat.mean(dtype=np.float64), 0.0)
    length = math.sqrt(values @ values)
    if not length or not math.isfinite(length):
        return np.append(np.zeros(len(flat)), 1.0)
    return values / length


def aligned_places(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Align two lists by equal entries in the same order.

    Args:
        ours: one hashable value per operation, equal for operations on tensors of one shape.
        theirs: the same of the other side.

    Returns:
        Pairs of places. Of several operations on one tensor (bias, then ReLU) the last one counts, on either side.
    """
    blocks = SequenceMatcher(None, ours, theirs, False).get_matching_blocks()
    pairs = [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]
    matches, free = [], (len(ours), len(theirs))
    for mine, other in reversed(pairs):
        free = _last_alike(ours, mine, free[0]), _last_alike(theirs, other, free[1])
        matches.append(free)
    return matches


def _last_alike(values: Sequence[Hashable], place: int, end: int) -> int:
    while place + 1 < end and values[place + 1] == values[place]:
        place += 1
    return place


#: cosine (of two runs: correlation) from which on a tensor is treated as the right one
NEAR = 0.98
#: correlations below and from which on tensors at one position, and of branches in another order, are paired otherwise
APART, ALIKE = 0.5, 0.9
#: elements that decide about it, where a run is compared
SAMPLED = 4096


class FloatReference:
    """Float tensors by name.

    Operations find theirs by layer name. Where no operation has a name, it is guessed: the tensor of the same shape
    with the smallest angle; if none comes near, only those count that no operation has come near to yet, from the one
    that was matched last onwards. A tensor of integers without a scale gets the scale that fits best (least squares),
    and a note says so. ``outputs``: what bound outputs are compared with, where that is not the tensor of their name.
    ``ends``: the outputs of the model in the order of the bound ones; an output without a tensor of its name, or of its
    value's name, is compared with one of its value's shape. ``inputs``: names of tensors that no operation makes, but
    some copy. ``in_place``: a tensor keeps its name through the layers that follow it, as in Caffe; else the tensor of
    "ip1+relu1" is that of relu1, never that of ip1. Integers of the model have the units of the layer file.
    ``runs_in``: what computed the tensors, where that is known.
    """

    kind, sees = "float", "tensors"
    runs_in: str | None = None

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        names: Names,
        guess: bool | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
        ends: Sequence[str] = (),
        inputs: Collection[str] = (),
        in_place: bool = True,
    ) -> None:
        self._in_place = in_place
        self.tensors = {name: np.asarray(array) for name, array in tensors.items() if array.dtype.kind in "iuf"}
        self._outputs, self._ends = outputs or {}, ends
        self._order = list(self.tensors)
        self._names = names
        self._guess = not names.layers if guess is None else guess
        self._last = 0
        self._settled = set(inputs)
        self._seen: dict[str, int] = {}

    def operation(self, observation: Observation) -> Expected | None:
        """The real numbers expected of an operation, None where the model has no such tensor."""
        if observation.is_intermediate:
            return None
        ours, place, note = observation.tensor, observation.place, None
        tensor = None if place is None else place.tensor
        name = self._name(tensor, observation.layer)
        if name is None and self._guess and observation.engine != "bdma":
            name, note = self._guessed(ours), "name guessed from shape and values"
        if name is None:
            return None
        units = observation.units(self._names)
        if units is None and place is None:
            units = self._names.units(name, ours.dtype)
        value, cube = self._value(tensor, name), ours.shape[1:] if place is None else place.shape
        stacked = value.cubes(self.tensors[name], cube)
        if stacked is None:
            return None
        images, known = stacked
        number = place.image if place is not None and place.image else self._seen.get(name, 0)
        positions = observation.positions if observation.is_part else None
        if positions is None:
            self._seen[name] = self._seen.get(name, 0) + 1
        golden = images[number % len(images)]
        if positions is not None:
            inside = positions >= 0 if known is None else (positions >= 0) & known.reshape(-1)[positions]
            golden = golden.reshape(-1)[positions]
            known = None if inside.all() else inside
        if known is not None and not known.any():
            return None
        return self._expected(name, golden[None], ours, units, note, known)

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """The real numbers expected of a bound output."""
        layer = self._names.outputs.get(tensor.name)  # of another name: not the layer of this one
        name = self._name(tensor.name, tensor.name) if layer is None else self._name(None, layer)
        name = name or self._end(index, tensor.name) or tensor.name
        golden = self._outputs.get(tensor.name, self.tensors.get(name))
        stacked = None if golden is None else self._value(tensor.name, name).cubes(golden, array.shape[1:])
        if stacked is None or len(stacked[0]) != len(array):
            return None
        units = self._names.units_of_output(tensor.name, array.dtype)
        return self._expected(name, stacked[0], array, units, None, stacked[1])

    def _name(self, tensor: str | None, layer: str | None) -> str | None:
        """The model's tensor: as the layer file states it, else by name."""
        if tensor in self._names.values:
            value = self._names.values[tensor]
            if value is None:
                return None
            # Another kind of the network (int8, float32) has the value under the name that it has before quantization.
            known = [name for name in (value.name, tensor) if name in self.tensors]
            unknown = bool(known) and value.units is None and self.tensors[known[0]].dtype.kind in "iu"
            return known[0] if known and not unknown else None
        known = parts(layer) if self._in_place else parts(layer)[:2]
        return next((part for part in (tensor, *known) if part in self.tensors), None)

    def _end(self, index: int, tensor: str) -> str | None:
        """The model's output at the place of a bound one, if it has real numbers and the shape of the same value."""
        value = self._names.values.get(tensor)
        end = self.tensors.get(self._ends[index]) if value is not None and index < len(self._ends) else None
        if value is None or end is None or end.dtype.kind != "f":
            return None
        return self._ends[index] if _sizes(end) == [size for size in value.shape if size != 1] else None

    def _value(self, tensor: str | None, name: str) -> ModelValue:
        """The element order of the model's tensor called ``name``, and its units where it has integers."""
        value = self._names.values.get(tensor or "") or ModelValue(name)
        is_real = name not in self.tensors or self.tensors[name].dtype.kind == "f"
        return replace(value, units=None) if is_real else value

    def _expected(
        self,
        name: str,
        golden: np.ndarray,
        ours: np.ndarray,
        units: Units | None,
        note: str | None,
        known: np.ndarray | None,
    ) -> Expected:
        if units is None:
            inside = slice(None) if known is None else np.broadcast_to(known, ours.shape)
            units = Units(fitted(golden[inside], ours[inside]))
            note = ", ".join(filter(None, (note, fitted_note(self._names))))
        theirs = self.tensors.get(name, golden)
        if known is None and theirs.size == ours.size and _sizes(theirs) != _sizes(ours):
            note = ", ".join(filter(None, (note, f"the model's is {'x'.join(map(str, theirs.shape))}")))
        return Expected(name, golden, units=units, note=note, known=known)

    def _guessed(self, ours: np.ndarray) -> str | None:
        """Return the name of the most similar tensor of this shape.

        A close one is taken in any order of the branches of the network, else the best of the later ones. None means a
        value inside a layer.
        """
        likely = [
            (_cosine(golden, ours), -place)
            for place, golden in enumerate(self.tensors.values())
            if golden.size == ours.size and _sizes(golden) == _sizes(ours)
        ]
        near = [candidate for candidate in likely if candidate[0] >= NEAR]
        later = [
            candidate
            for candidate in likely
            if -candidate[1] >= self._last and self._order[-candidate[1]] not in self._settled
        ]
        if not (near or later):
            return None
        place = -max(near or later)[1]
        if near:
            self._settled.add(self._order[place])
        self._last = max(self._last, place)
        return self._order[place]


def fitted_note(names: Names) -> str:
    """The reason for a fitted scale: only the layer file has scales and zero points."""
    return f"scale fitted, zero point unknown{'' if names.layers else ' (no layer file)'}"


def fitted(golden: np.ndarray, ours: np.ndarray) -> float:
    """The factor that brings ours closest to the golden; 1 when ours are all zero."""
    wide = ours.astype(np.float64).reshape(-1)
    power = float(wide @ wide)
    return float(wide @ golden.astype(np.float64).reshape(-1)) / power if power else 1.0


def _sizes(array: np.ndarray) -> list[int]:
    """The shape without dimensions of 1."""
    return [size for size in array.shape if size != 1]


def _cosine(golden: np.ndarray, ours: np.ndarray) -> float:
    first, other = golden.astype(np.float64).reshape(-1), ours.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(first) * np.linalg.norm(other))
    return float(first @ other) / norm if norm and np.isfinite(norm) else 0.0


class RunReference:
    """The tensors of a run that is made here. ``aligned``: how operations were matched ("position", ...)."""

    kind, sees = "run", "operations"

    def __init__(
        self,
        runtime: Runtime,
        surfaces: Sequence[bytes],
        names: Names,
        ours: Runtime,
        our_surfaces: Sequence[bytes],
        our_names: Names,
    ) -> None:
        self.runtime = runtime
        self._names, self._our_names = names, our_names
        observations, self._outputs = observe(runtime, surfaces, names)
        self._tensors = runtime.unpack(self._outputs)
        self._match, self.aligned = self._aligned(observations, ours, our_surfaces, our_names)

    def _aligned(
        self, theirs: list[Observation], ours: Runtime, surfaces: Sequence[bytes], names: Names
    ) -> tuple[dict[Key, Observation], str]:
        """Match the operations of both runs. Run our loadable here only if the loadables differ."""
        if ours.loadable == self.runtime.loadable:
            return {
                observation.key: observation for observation in theirs if observation.surface is not None
            }, "position"
        return align(observe(ours, surfaces, names)[0], theirs)

    def operation(self, observation: Observation) -> Expected | None:
        """Return the output of the other run's operation."""
        other = self._match.get(observation.key)
        if other is None or (theirs := _as_seen(other, observation)).shape != observation.tensor.shape:
            return None
        if observation.is_part and other.place is not None and _part(observation) != _part(other):
            return None  # both complete the tensor, with other parts
        of_theirs = other.units_of_part if observation.is_part else other.units
        units = observation.units(self._our_names), of_theirs(self._names)
        if observation.is_intermediate and (
            other.dtype.kind != observation.dtype.kind or not self._names.agree(self._our_names)
        ):
            return None  # nothing states the scale of an intermediate result
        note = padding_note(observation, other.written, other.dense) if other.dtype == observation.dtype else None
        ends = Ends.of(units[1], other.at_limits(self._names, observation.is_part, True), theirs)
        return replace(_expected(str(other), observation.tensor, theirs, *units, note), ends=ends)

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """The output of the same name, else the one in the same place."""
        names = list(self._tensors)
        name = tensor.name if tensor.name in names else names[index] if index < len(names) else None
        if name is None or self._tensors[name].size != array.size:
            return None
        theirs = self._tensors[name]
        other = names.index(name)
        same = self.runtime.outputs[other].layout == tensor.layout
        note = surface_note(tensor.layout, raw, self._outputs[other]) if same else None
        ours = self._our_names.units_of_output(tensor.name, array.dtype)
        units = ours, self._names.units_of_output(name, theirs.dtype)
        return _expected(f"output {name}", array, theirs, *units, note)


def _expected(
    name: str,
    ours: np.ndarray,
    theirs: np.ndarray,
    our_units: Units | None,
    their_units: Units | None,
    note: str | None = None,
) -> Expected:
    """Elements of one kind in equal (or unknown) units as they are; others as real numbers, where a scale that is not
    known is fitted."""
    same_kind = ours.dtype.kind == theirs.dtype.kind
    if same_kind and (our_units is None or their_units is None or our_units.is_same(their_units)):
        return Expected(name, theirs, note=note)
    if same_kind and np.array_equal(ours, theirs):  # the same hardware, such as that of an exported QDQ model
        return Expected(name, theirs, note="equal elements, but their scales differ")
    note = "scales differ" if same_kind else f"{ours.dtype} against {theirs.dtype}"
    if our_units is None or their_units is None:
        note += ", scale fitted, zero point unknown"
    if their_units is None:
        real = ours if our_units is None else our_units.real(ours)
        their_units = Units(fitted(real, theirs))
    real = their_units.real(theirs).astype(np.float32)
    return Expected(name, real, units=our_units or Units(fitted(real, ours)), note=note)


ENDINGS = (".bin", ".npy", ".dimg")
MAX_FILE = 1 << 30
MAX_FILES = 100_000
DUMPED = re.compile(r"task([0-9]{1,9})-op([0-9]{1,9})-([a-z]+)\Z")
SEQUENCE = re.compile(r"seq[0-9]+_(?:task([0-9]{1,9})_)?op([0-9]{1,9})_([A-Z]+)\Z")
BOUND = re.compile(r"(?:.*\.)?out([0-9]{1,6})\Z|o_([0-9]{1,9})\Z")


class GoldenReference:
    """Goldens of files and folders. ``stem``: the loadable's name without ending, to choose among several sets."""

    kind, sees = "goldens", "memory"

    def __init__(self, *paths: str | os.PathLike[str], stem: str = "") -> None:
        self._paths = [Path(path) for path in paths]
        self.path = self._paths[0]
        self._operations: dict[tuple[int, int], tuple[Path, str]] = {}
        self._outputs: dict[int, Path] = {}
        self._named: dict[str, Path] = {}
        self._hashes: dict[tuple[int, int], tuple[str, tuple[str, str | None]]] = {}
        self._stem = stem
        self.used: set[Path] = set()
        files = [file for path in self._paths for file in _files(path)]
        for file in files:
            self._sort_in(file)
        self._read_hashes([file for file in files if file.name.endswith(".ops.json")])
        if not (self._operations or self._outputs or self._named or self._hashes):
            raise FormatError(f"{self.path}: not a golden file: must end in {' '.join(ENDINGS)} or .ops.json")

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
        golden, note = golden_of_output(path, tensor, array, raw)
        return Expected(path.name, golden, note=note)

    def _surface(self, path: Path, observation: Observation) -> Expected:
        """The golden of an operation: the surface with its padding channels (.bin), or the tensor."""
        self.used.add(path)
        if path.suffix != ".bin":
            return Expected(path.name, _tensor(path))
        data = np.frombuffer(read_file(path, MAX_FILE, "golden"), np.uint8)
        written = observation.written
        if data.size != written.size:
            raise FormatError(f"{path}: size: must be {written.size} bytes (written by {observation}), got {data.size}")
        surface = data.reshape(written.shape)
        golden = dense(surface, observation.dtype, observation.channels)
        return Expected(path.name, golden, note=padding_note(observation, surface, golden))

    def _sort_in(self, file: Path) -> None:
        """Record the tensor that the golden file belongs to."""
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
            if not prefix or prefix == self._stem or file in self._paths:
                self._outputs[number] = file
        else:
            self._named[name] = file

    def _read_hashes(self, lists: list[Path]) -> None:
        """One list of hashes: the loadable's own, or the only one."""
        own = [file for file in lists if file.name == f"{self._stem}.ops.json"] or lists
        if len(own) > 1:
            names = ", ".join(file.name for file in own[:4])
            raise FormatError(
                f"{self.path}: must contain one list of hashes, got several ({names} ...). Give the file of one list."
            )
        for file in own:
            for entry in _entries(file):
                if isinstance(entry.get("sha256"), str):
                    where = int(entry["task"]), int(entry["op"])
                    valid = entry.get("sha256_valid")
                    self._hashes[where] = (str(entry["type"]).lower(), (entry["sha256"], valid))


def golden_of_output(path: Path, tensor: Tensor, array: np.ndarray, raw: bytes) -> tuple[np.ndarray, str | None]:
    """Read a golden file of a bound output.

    Args:
        path: .bin (surfaces of one or several runs), .npy or .dimg.
        tensor: The output.
        array: Its elements (N, C, H, W).
        raw: Its surfaces, those of several runs concatenated.

    Returns:
        The elements, and a note if only bytes that hold no element differ from ``raw``.

    Raises:
        FormatError: The file is damaged, or a .bin file has not the size of ``raw``.
    """
    if path.suffix != ".bin":
        golden = _tensor(path)
        if path.suffix == ".dimg" and golden.dtype == np.int16 and array.dtype == np.float16:
            golden = golden.view(np.float16)  # NVIDIA's runtime marks a CPU task's halves as integers
        return golden, None
    data = read_file(path, MAX_FILE, "golden")
    if len(data) != len(raw):
        raise FormatError(f"{path}: size: must be {len(raw)} bytes (surface of output {tensor.name}), got {len(data)}")
    return unpacked(tensor.layout, data), surface_note(tensor.layout, raw, data)


def _tensor(path: Path) -> np.ndarray:
    return read_npy(path) if path.suffix == ".npy" else read_dimg(path)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.is_file())
        if len(files) > MAX_FILES:
            raise FormatError(f"{path}: {len(files)} files: must be at most {MAX_FILES}")
        return files
    if not path.is_file():
        raise FormatError(f"{path}: must be an existing golden file or directory")
    return [path]


def _entries(file: Path) -> list[Document]:
    try:
        document = parse_json(read_file(file, MAX_FILE, "list of hashes"))
        entries = [dict(entry) for entry in document]
        for entry in entries:
            int(entry["task"]), int(entry["op"]), str(entry["type"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise FormatError(f"{file}: must be a list of operations with task, op, type and sha256: {error}") from None
    return entries


def _same_engine(path: Path, engine: str, observation: Observation) -> None:
    if engine != observation.engine:
        raise FormatError(f"{path}: engine in the name: must be that of {observation}, got {engine.upper()}")
