"""Real numbers as the reference: the float tensors of a network, by name, against quantised ones times their scale."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compare.comparison import Expected
from nvdla.compare.naming import Names, parts
from nvdla.compare.observation import Observation
from nvdla.errors import FormatError
from nvdla.files import read_file

if TYPE_CHECKING:
    from nvdla.runtime import Tensor

MAX_FILE = 1 << 30
MAX_BYTES = 4 << 30


class FloatReference:
    """Float tensors by name.

    Operations find theirs by layer name. Where no operation has a name, it is guessed: of the tensors of the same
    shape, from the one that was matched last onwards, the one with the smallest angle. A tensor of integers without a
    scale gets the scale that fits best (least squares), and a note says so.
    """

    kind = "float"

    def __init__(self, tensors: Mapping[str, np.ndarray], names: Names, guess: bool | None = None) -> None:
        self.tensors = {name: np.asarray(each) for name, each in tensors.items() if each.dtype.kind in "iuf"}
        self._order = list(self.tensors)
        self._names = names
        self._guess = not names.layers if guess is None else guess
        self._last = 0
        self._seen: dict[str, int] = {}

    def operation(self, observation: Observation) -> Expected | None:
        name = next((part for part in parts(observation.layer) if part in self.tensors), None)
        note = None
        if name is None and self._guess and observation.engine != "bdma":
            name, note = self._guessed(observation.tensor), "name guessed from shape and values"
        if name is None:
            return None
        image = self._image(name, observation.tensor)
        return None if image is None else self._expected(name, image, observation.tensor, note)

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        golden = self.tensors.get(tensor.name)
        if golden is None or golden.size != array.size:
            return None
        return self._expected(tensor.name, golden, array, None)

    def _image(self, name: str, ours: np.ndarray) -> np.ndarray | None:
        """The image of a batch that this operation works on: the layer's operations come image by image."""
        golden = self.tensors[name]
        images = golden.shape[0] if golden.ndim == 4 else 1
        number = self._seen.get(name, 0)
        self._seen[name] = number + 1
        if golden.size == ours.size:
            return golden
        return golden[number % images] if golden.size == ours.size * images else None

    def _expected(self, name: str, golden: np.ndarray, ours: np.ndarray, note: str | None) -> Expected:
        scale = 1.0 if ours.dtype.kind == "f" else self._names.scale(name)
        if scale is None:
            scale = fitted(golden, ours)
            note = ", ".join(filter(None, (note, "scale fitted")))
        return Expected(name, golden, scale=scale, note=note)

    def _guessed(self, ours: np.ndarray) -> str | None:
        """The likeliest tensor of this shape that does not come before the one matched last."""
        wanted = [n for n in ours.shape if n != 1]
        best, best_cosine, best_place = None, -np.inf, self._last
        for place, name in enumerate(self._order[self._last :], self._last):
            golden = self.tensors[name]
            if golden.size == ours.size and [n for n in golden.shape if n != 1] == wanted:
                cosine = _cosine(golden, ours)
                if cosine > best_cosine:
                    best, best_cosine, best_place = name, cosine, place
        self._last = best_place
        return best


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name. Raises FormatError for what is none, or unpacks to more than 4 GiB."""
    import zipfile

    data = read_file(path, MAX_FILE, ".npz file")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(each.file_size for each in archive.infolist())
        if size > MAX_BYTES:
            raise FormatError(f"{os.fspath(path)}: unpacks to {size} bytes, the limit is {MAX_BYTES}")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FormatError:
        raise
    except Exception as error:  # zipfile and numpy raise many kinds for broken archives
        raise FormatError(f"{os.fspath(path)}: not an .npz file that can be read: {error}") from None


def fitted(golden: np.ndarray, ours: np.ndarray) -> float:
    """The factor that brings ours closest to the golden; 1 when ours are all zero."""
    wide = ours.astype(np.float64).reshape(-1)
    power = float(wide @ wide)
    return float(wide @ golden.astype(np.float64).reshape(-1)) / power if power else 1.0


def _cosine(golden: np.ndarray, ours: np.ndarray) -> float:
    one, other = golden.astype(np.float64).reshape(-1), ours.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norm if norm and np.isfinite(norm) else 0.0
