"""Which ABI a loadable uses is found from its surfaces, and said with a reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from nvdla.errors import DescriptorError
from nvdla.loadable import Blob, Loadable, Version, load
from nvdla.loadable.descriptors import NEW, OLD, Abi, detect
from nvdla.loadable.descriptors.detect import score


def test_the_abi_of_every_corpus_loadable_is_detected(corpus: list[Path]) -> None:
    for path in corpus:
        abi, reason = detect(load(path))
        assert abi is (OLD if path.name.endswith("_fbuf") else NEW), (path, reason)
        assert reason.startswith(f"{abi.name} ABI, ")


def test_the_margin_on_real_files_is_wide(corpus: list[Path]) -> None:
    for path in corpus:
        right, wrong = (OLD, NEW) if path.name.endswith("_fbuf") else (NEW, OLD)
        loadable = load(path)
        if score(loadable, right).asked:
            assert score(loadable, right).share > 0.98, path
            assert score(loadable, wrong).share < 0.9, path


@pytest.mark.parametrize("abi", [OLD, NEW], ids=str)
def test_the_abi_of_hand_made_tasks_is_detected(parts_of: Callable, abi: Abi) -> None:
    chosen, reason = detect(parts_of(abi).loadable())
    assert chosen is abi
    assert "fields are consistent" in reason


def test_the_caller_may_override(parts_of: Callable) -> None:
    loadable = parts_of(NEW).loadable()
    assert detect(loadable, "old") == (OLD, "old ABI, 28-byte data cube (before April 2019): chosen by the caller")
    assert detect(loadable, NEW)[0] is NEW
    with pytest.raises(DescriptorError, match="descriptor ABI: must be 'old', 'new' or 'auto', got 'newest'"):
        detect(loadable, "newest")


def test_without_surfaces_the_interface_version_decides() -> None:
    for version, abi in ((Version(0, 11, 0), OLD), (Version(0, 12, 3), NEW), (Version(1, 0, 0), NEW)):
        chosen, reason = detect(Loadable(blobs=(Blob("net", b"", version=version),)))
        assert chosen is abi and f"blob 'net' states firmware interface {version}" in reason


def test_without_any_hint_the_usual_abi_is_taken() -> None:
    chosen, reason = detect(Loadable())
    assert chosen is NEW and "this is the usual one" in reason


def test_lists_that_fit_neither_abi_are_refused(parts_of: Callable) -> None:
    loadable = parts_of(NEW).loadable()
    short = tuple(Blob(b.name, bytes(b.data)[:100]) if b.name == "surfs" else b for b in loadable.blobs)
    with pytest.raises(DescriptorError, match=r"descriptors fit neither ABI: task 0, .*blob 'surfs'"):
        detect(dataclasses.replace(loadable, blobs=short))
