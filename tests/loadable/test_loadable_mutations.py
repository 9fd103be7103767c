"""Broken files: whatever is cut, flipped or overwritten, a file loads or raises one NvdlaError, quickly."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import pytest

from nvdla.errors import DescriptorError, LoadableError
from nvdla.loadable import Loadable, load, to_bytes
from nvdla.loadable.descriptors import DlaTask, EmuTask, detect
from nvdla.loadable.enums import Interface

NETWORKS = ("lenet", "ip_softmax", "cifar_quick", "conv_relu_lrn", "concat2", "deconv_k2s2", "multi_in", "relu")
NETWORKS += ("slice2", "NN_L0_0_fbuf")
VALUES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def take_apart(data: bytes) -> str:
    """Load and decode everything; the outcome. Any other exception than the family's escapes and fails the test."""
    try:
        loadable = load(data)
    except LoadableError as error:
        assert "\n" not in str(error)
        return "refused"
    assert load(to_bytes(loadable)) == loadable
    try:
        abi, reason = detect(loadable)
        assert reason
        for task in loadable.tasks:
            kind = DlaTask if task.interface == Interface.DLA1 else EmuTask
            kind.decode(loadable, task, abi).operations()
    except DescriptorError as error:
        assert "\n" not in str(error)
        return "refused descriptors"
    return "loaded"


def mutations(data: bytes, seed: int, count: int) -> list[bytes]:
    """Deterministic: cuts, flipped bits, and words overwritten with numbers that break naive checks."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        # The tables of a FlatBuffer made by its builder lie at the beginning, blobs behind or between them.
        position = rng.randrange(min(len(data), 6000) if number % 3 else len(data))
        changed = bytearray(data)
        kind = number % 4
        if kind == 0:
            made.append(data[:position])
            continue
        if kind == 1:
            changed[position] ^= 1 << rng.randrange(8)
        elif kind == 2:
            struct.pack_into("<I", changed, min(position & ~3, len(data) - 4), rng.choice(VALUES))
        else:
            struct.pack_into("<H", changed, min(position & ~1, len(data) - 2), rng.choice(VALUES) & 0xFFFF)
        made.append(bytes(changed))
    return made


def test_every_changed_byte_of_a_small_file(small: Loadable) -> None:
    data = to_bytes(small)
    outcomes = set()
    for position in range(len(data)):
        for value in (0x00, 0x01, 0x80, 0xFF):
            outcomes.add(take_apart(data[:position] + bytes([value]) + data[position + 1 :]))
    assert outcomes >= {"refused", "refused descriptors"}


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    assert take_apart(rng.randbytes(rng.randrange(4096))) == "refused"


@pytest.mark.parametrize("name", NETWORKS)
def test_mutated_real_files(corpus: list[Path], name: str) -> None:
    path = min((path for path in corpus if name in (path.parent.name, path.name)), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    assert take_apart(data) == "loaded"
    began = time.perf_counter()
    outcomes = [take_apart(changed) for changed in mutations(data, seed=len(data), count=120)]
    assert outcomes.count("refused") > 20
    assert time.perf_counter() - began < 20


def test_a_sample_is_written_with_the_bytes_of_its_file(samples):
    """A reader of the file finds tables and lists where it found them before."""
    for path in samples.glob("*.loadable"):
        assert to_bytes(load(path)) == path.read_bytes(), path.name
