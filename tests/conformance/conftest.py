"""The corpus of golden cases beside the repository; without it these tests are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

CORPUS = (Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus").resolve()


def pytest_collection_modifyitems(items):
    if not CORPUS.is_dir():
        skip = pytest.mark.skip(reason="the corpus ../shared/corpus is not there")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)
