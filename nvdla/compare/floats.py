"""Real numbers as the reference: the float tensors of a network, by name, against quantised ones times their scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compare.comparison import Expected
from nvdla.compare.observation import Observation
from nvdla.program.naming import Names, parts

if TYPE_CHECKING:
    from nvdla.runtime import Tensor

#: cosine from which on a tensor is taken for the right one
NEAR = 0.98


class FloatReference:
    """Float tensors by name.

    Operations find theirs by layer name. Where no operation has a name, it is guessed: the tensor of the same shape
    with the smallest angle; if none comes near, only those count that no operation has come near to yet, from the one
    that was matched last onwards. A tensor of integers without a scale gets the scale that fits best (least squares),
    and a note says so. ``outputs``: what bound outputs are compared with, where that is not the tensor of their name.
    ``inputs``: names of tensors that no operation makes, but some copy.
    """

    kind = "float"

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        names: Names,
        guess: bool | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
        inputs: Collection[str] = (),
    ) -> None:
        self.tensors = {name: np.asarray(each) for name, each in tensors.items() if each.dtype.kind in "iuf"}
        self._outputs = outputs or {}
        self._order = list(self.tensors)
        self._names = names
        self._guess = not names.layers if guess is None else guess
        self._last = 0
        self._settled = set(inputs)
        self._seen: dict[str, int] = {}

    def operation(self, observation: Observation) -> Expected | None:
        """The real numbers expected of an operation, None where the model has no such tensor."""
        name = next((part for part in parts(observation.layer) if part in self.tensors), None)
        note = None
        if name is None and self._guess and observation.engine != "bdma":
            name, note = self._guessed(observation.tensor), "name guessed from shape and values"
        if name is None:
            return None
        image = self._image(name, observation.tensor)
        return None if image is None else self._expected(name, image, observation.tensor, note)

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """The real numbers expected of a bound output."""
        golden = self._outputs.get(tensor.name, self.tensors.get(tensor.name))
        if golden is None or golden.size != array.size:
            return None
        return self._expected(tensor.name, golden, array, None)

    def _image(self, name: str, ours: np.ndarray) -> np.ndarray | None:
        """The image of a batch that this operation works on: the layer's operations come image by image."""
        golden = self.tensors[name]
        images = golden.shape[0] if golden.ndim > 1 else 1
        number = self._seen.get(name, 0)
        self._seen[name] = number + 1
        if golden.size == ours.size:
            return golden
        return golden[number % images] if golden.size == ours.size * images else None

    def _expected(self, name: str, golden: np.ndarray, ours: np.ndarray, note: str | None) -> Expected:
        scale = 1.0 if ours.dtype.kind == "f" else self._names.scale(name)
        zero = 0 if ours.dtype.kind == "f" or scale is None else self._names.zero_point(name)
        if scale is None:
            scale = fitted(golden, ours)
            note = ", ".join(filter(None, (note, "scale fitted")))
        if _sizes(golden) != _sizes(ours):
            note = ", ".join(filter(None, (note, f"the model's is {'x'.join(map(str, golden.shape))}")))
        return Expected(name, golden, scale=scale, note=note, zero=zero)

    def _guessed(self, ours: np.ndarray) -> str | None:
        """The likeliest tensor of this shape: one that is near, whatever the order in which branches of the network
        run, else the best of those that are still to come. What is left is a value inside a layer."""
        likely = [
            (_cosine(golden, ours), -place)
            for place, golden in enumerate(self.tensors.values())
            if golden.size == ours.size and _sizes(golden) == _sizes(ours)
        ]
        near = [each for each in likely if each[0] >= NEAR]
        later = [each for each in likely if -each[1] >= self._last and self._order[-each[1]] not in self._settled]
        if not (near or later):
            return None
        place = -max(near or later)[1]
        if near:
            self._settled.add(self._order[place])
        self._last = max(self._last, place)
        return self._order[place]


def fitted(golden: np.ndarray, ours: np.ndarray) -> float:
    """The factor that brings ours closest to the golden; 1 when ours are all zero."""
    wide = ours.astype(np.float64).reshape(-1)
    power = float(wide @ wide)
    return float(wide @ golden.astype(np.float64).reshape(-1)) / power if power else 1.0


def _sizes(array: np.ndarray) -> list[int]:
    """The shape without dimensions of 1."""
    return [size for size in array.shape if size != 1]


def _cosine(golden: np.ndarray, ours: np.ndarray) -> float:
    one, other = golden.astype(np.float64).reshape(-1), ours.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norm if norm and np.isfinite(norm) else 0.0
