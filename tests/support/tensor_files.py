"""An input tensor out of a file, without a network."""

from __future__ import annotations

import os

import numpy as np

from nvdla.tensors.inputs import InputForm


def read_tensor(path, shape, dtype, pixels=None):
    """An array (N, C, H, W) of ``dtype``, or the bytes of a raw surface (.bin)."""
    return InputForm(os.fspath(path), shape, np.dtype(dtype), pixels=pixels).elements(path)
