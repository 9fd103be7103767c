"""Every fast form says which rule it stands for, within which bound, and which test holds both together."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.pages import page_module

from nvdla.kernels.fast.forms import forms

ROOT = Path(__file__).resolve().parents[2]
#: what fast forms are made of; each serves one or more of them
PARTS = {"__init__", "forms", "dot_tile", "dot_layout", "fp16_layout"}


def _function(name):
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"nvdla.kernels.{module}"), function)


@pytest.mark.parametrize("form", forms(), ids=lambda form: form.form)
def test_a_fast_form_its_rules_and_its_test_are_there(form):
    assert callable(_function(f"fast.{form.form}"))
    assert form.rules and all(callable(_function(rule)) for rule in form.rules)
    assert form.bound
    text = (ROOT / form.test).read_text(encoding="utf-8")
    assert form.form.partition(".")[0] in text


def test_every_module_of_fast_forms_declares_one():
    modules = {path.stem for path in (ROOT / "kernels" / "fast").glob("*.py") if not path.stem.endswith("_code")}
    assert modules - PARTS == {form.form.partition(".")[0] for form in forms()}


def test_the_page_of_rules_lists_the_fast_forms():
    page = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert page == page_module("numerics").with_forms(page), "python tools/pages/numerics.py"
    assert all(f"`kernels.fast.{form.form}`" in page for form in forms())
