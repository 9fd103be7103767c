"""The most likely classes of a result, and the names of classes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from nvdla.errors import FormatError
from nvdla.files import read_file

MAX_LABELS_FILE = 16 << 20


@dataclass(frozen=True)
class Rank:
    """One class of a result: its index among the values of the image, its value, its label if known."""

    index: int
    value: float
    label: str | None


def top(tensor: np.ndarray, count: int, labels: list[str] | None = None) -> list[Rank]:
    """The ``count`` greatest values of one image (C, H, W), greatest first; of equal values the first index leads.

    NaN ranks last.
    """
    flat = np.nan_to_num(tensor.reshape(-1).astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(-flat, kind="stable")[: max(count, 0)]
    return [Rank(int(i), float(flat[i]), labels[i] if labels and i < len(labels) else None) for i in order]


def read_labels(path: str | os.PathLike[str]) -> list[str]:
    """Class names, one a line. Raises FormatError for a file that is not UTF-8 text."""
    try:
        text = read_file(path, MAX_LABELS_FILE, "labels file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{os.fspath(path)}: labels must be UTF-8 text, one a line: {error}") from error
    return [_printable(line.strip()) for line in text.splitlines()]


def _printable(text: str) -> str:
    """Without what would steer a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
