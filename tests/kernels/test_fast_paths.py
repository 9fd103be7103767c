"""Every fast path declares the rules that it implements, its condition, and the test that compares them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.pages import page_module

from nvdla.kernels.fast.fast_paths import fast_paths

ROOT = Path(__file__).resolve().parents[2]
#: parts of the fast paths
PARTS = {"__init__", "fast_paths", "dot_tile", "dot_layout", "fp16_layout"}


def _function(name):
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"nvdla.kernels.{module}"), function)


@pytest.mark.parametrize("path", fast_paths(), ids=lambda path: path.function)
def test_a_fast_path_its_rules_and_its_test_are_there(path):
    assert callable(_function(f"fast.{path.function}"))
    assert path.rules and all(callable(_function(rule)) for rule in path.rules)
    assert path.bound
    text = (ROOT / path.test).read_text(encoding="utf-8")
    assert path.function.partition(".")[0] in text


def test_every_module_of_fast_paths_declares_one():
    modules = {path.stem for path in (ROOT / "kernels" / "fast").glob("*.py") if not path.stem.endswith("_code")}
    assert modules - PARTS == {path.function.partition(".")[0] for path in fast_paths()}


def test_the_page_of_rules_lists_the_fast_paths():
    page = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert page == page_module("numerics").with_fast_paths(page), "python tools/pages/numerics.py"
    assert all(f"`kernels.fast.{path.function}`" in page for path in fast_paths())
