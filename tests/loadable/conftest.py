"""Loadables to test with: the corpus where it lies beside the repository, and one made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdla.loadable import (
    AddressEntry,
    Blob,
    EventEntry,
    Loadable,
    MemoryEntry,
    RelocEntry,
    SubmitEntry,
    TaskEntry,
    TensorDesc,
    Version,
)
from nvdla.loadable.enums import (
    DataCategory,
    DataFormat,
    DataType,
    EventOp,
    Interface,
    MemoryDomain,
    MemoryFlags,
    PixelFormat,
    RelocType,
    SubInterface,
)

CORPUS = Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus"


def corpus_files() -> list[Path]:
    """Every loadable of the corpus: compiled networks and the driver's regression."""
    return sorted(CORPUS.glob("loadables/*/*.nvdla")) + sorted(CORPUS.glob("kmd-regression/*_fbuf"))


@pytest.fixture(scope="session")
def corpus() -> list[Path]:
    files = corpus_files()
    if not files:
        pytest.skip("the corpus ../shared/corpus is not there")
    return files


@pytest.fixture
def small() -> Loadable:
    """One DLA task between an input and an output; every table has an entry, every rule holds."""
    flags = MemoryFlags.ALLOC | MemoryFlags.SET
    dla = Version(0, 12, 3)
    return Loadable(
        tasks=(TaskEntry(0, Interface.DLA1, (2, 0, 1, 3), -1, (), (0,)),),
        memories=(
            MemoryEntry(0, 64, flags=MemoryFlags.ALLOC | MemoryFlags.INPUT, alignment=4096, tensor_desc_id=0),
            MemoryEntry(1, 64, flags=MemoryFlags.ALLOC | MemoryFlags.OUTPUT, alignment=4096, tensor_desc_id=1),
            MemoryEntry(2, 40, flags=flags, contents=("network",), offsets=(0,)),
            MemoryEntry(3, 700, MemoryDomain.SRAM, flags, 32, ("surfaces", "weights"), (0, 644)),
        ),
        addresses=(AddressEntry(0, 0, 0, 64), AddressEntry(1, 1, 32), AddressEntry(2, 2, 0, 40), AddressEntry(3, 3)),
        events=(EventEntry(0, val=1, op=EventOp.SIGNAL),),
        blobs=(
            Blob("network", bytes(range(40)), 40, Interface.DLA1, SubInterface.ADDR0, dla),
            Blob("surfaces", bytes(644), 644, Interface.DLA1, SubInterface.SURFS, dla),
            Blob("weights", b"\x01\x02\x03"),
        ),
        tensors=(_tensor("data", 0), _tensor("prob", 1)),
        relocs=(RelocEntry(0, 3, 116, Interface.DLA1, SubInterface.SURFS, RelocType.LINE),),
        submits=(SubmitEntry(0, (0,)),),
    )


def _tensor(name: str, number: int) -> TensorDesc:
    return TensorDesc(
        name,
        number,
        mem_id=number,
        size=64,
        n=1,
        c=8,
        h=2,
        w=4,
        data_format=DataFormat.NCxHWx,
        data_type=DataType.INT8,
        data_category=DataCategory.FEATURE,
        pixel_format=PixelFormat.FEATURE_X8,
        strides=(1, 32, 64, 0, 0, 0, 0, 0),
    )
