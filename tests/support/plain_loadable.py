"""A loadable of one operation, to make model libraries of."""

from __future__ import annotations

from nvdla.loadable.model import Blob, Loadable, MemoryEntry, SubmitEntry, TensorDesc


def plain_loadable(name: str = "in") -> Loadable:
    """No task at all: input and output are one memory, so running it copies, and two blobs lie in another."""
    tensor = {"size": 16, "n": 1, "c": 1, "h": 2, "w": 8, "strides": (1, 8, 16, 0, 0, 0, 0, 0)}
    return Loadable(
        memories=(MemoryEntry(0, 64, flags=3, contents=("weights", "task-0-dep_graph"), offsets=(0, 32)),
                  MemoryEntry(1, 16, flags=13, bind_id=0, tensor_desc_id=0), MemoryEntry(2, 100)),
        blobs=(Blob("weights", bytes(range(32))), Blob("task-0-dep_graph", b"\x07" * 8)),
        tensors=(TensorDesc(name, 0, 1, **tensor),), submits=(SubmitEntry(0, ()), SubmitEntry(5, ())),
    )  # fmt: skip
