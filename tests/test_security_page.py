"""SECURITY.md names the tests that keep its promise: they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))))


@pytest.mark.parametrize("file, name", NAMED)
def test_a_test_that_the_promise_names_exists(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_sentence_of_the_promise_names_a_test():
    rows = [line for line in (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row.startswith(("| **", "| ... **"))]
    assert len(promises) == 8
    assert all("::test_" in row for row in promises)


def test_the_limits_of_the_page_are_those_of_the_code():
    from nvdla.limits import Limits

    limits = Limits()
    assert (limits.tables, limits.depth, limits.string_bytes, limits.sharing) == (131072, 16, 4096, 8)
    assert (limits.operations, limits.luts, limits.all_operations) == (65536, 4096, 262144)
    assert (limits.operations, limits.multiplications, limits.elements, limits.cube) == (65536, 10**13, 10**12, 1 << 28)
    assert limits.memory == 4 << 30
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for figure in ("131072, 16, 4096", "8 times the file", "65536, 4096, 262144", "4 GiB", "10^13", "10^12", "2^28"):
        assert figure in text
