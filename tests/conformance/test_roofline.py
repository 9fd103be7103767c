"""No total of a network of the corpus is below what the memory's bandwidth and the MAC array allow."""

import gzip
from pathlib import Path

import pytest
from support.queued import SHARED
from support.roofline import MEMORIES, assert_above_the_roofline

import nvdla
from nvdla.errors import NvdlaError

CORPUS = SHARED / "corpus"
ENDINGS = (".nvdla", ".loadable", ".nvdla.gz", ".loadable.gz")


def loadables(folder: Path):
    """(path, loadable) of everything in a folder that is one; each content once."""
    seen = set()
    for path in sorted(each for each in folder.rglob("*") if each.name.endswith(ENDINGS)):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if data in seen:
            continue
        seen.add(data)
        try:
            yield path, nvdla.load(data)
        except NvdlaError:  # some cases of the corpus are broken on purpose
            continue


@pytest.mark.parametrize(
    ("folder", "least"),
    [
        ("cycles/compiled/loadables", 100),
        pytest.param("", 850, marks=pytest.mark.slow),  # about 70 more hang in the hardware: they have no total
    ],
)
def test_networks_on_eight_bandwidths(folder, least):
    ended = 0
    for path, loadable in loadables(CORPUS / folder):
        for memory in MEMORIES:
            try:
                ended += assert_above_the_roofline(loadable, memory, path.relative_to(CORPUS))
            except NvdlaError:  # no configuration runs it
                break
    assert ended > least * len(MEMORIES)
