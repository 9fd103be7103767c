"""A precision is its text in interfaces, and its number in descriptors and registers."""

from __future__ import annotations

import ast
import copy
import ctypes
import json
import pickle
from pathlib import Path

import pytest

import nvdla
from nvdla.emulator.hardware.configuration import configurations
from nvdla.loadable.enums import Interface
from nvdla.util.precision import PRECISIONS, Precision

NVDLA = Path(nvdla.__file__).parent


@pytest.mark.parametrize("number, text", [(0, "int8"), (1, "int16"), (2, "fp16")])
def test_text_and_number_name_the_same_precision(number: int, text: str):
    precision = Precision(text)
    assert precision is Precision(number) is PRECISIONS[number]
    assert precision == text and precision == number and number == precision
    assert precision != (number + 1) % 3 and precision != "bf16"
    assert f"{precision} {precision:>5}" == f"{text} {text:>5}"
    assert json.loads(json.dumps({precision: precision})) == {text: text}


def test_tables_by_text_serve_precisions():
    assert {"fp16": 1}[Precision.FP16] == {Precision.FP16: 1}["fp16"] == 1


def test_descriptors_store_the_number():
    class Fields(ctypes.Structure):
        _fields_ = [("precision", ctypes.c_uint8)]

    fields = Fields(Precision.FP16)
    assert fields.precision == 2 and int(Precision.FP16) == 2


def test_unknown_numbers_are_kept_and_named():
    unknown = Precision(7)
    assert not unknown.known and unknown == 7 and str(unknown) == unknown.name == "UNKNOWN_7"
    assert unknown.bytes == 1 and unknown.dtype == "uint8"


@pytest.mark.parametrize("number", [0, 2, 7])
def test_copies_and_pickles_are_the_same_precision(number: int):
    precision = Precision(number)
    assert copy.deepcopy(precision) == pickle.loads(pickle.dumps(precision)) == precision
    assert pickle.loads(pickle.dumps(precision)).known == precision.known


@pytest.mark.parametrize("number", [0, 7])
def test_copies_and_pickles_of_loadable_enums_keep_unknown_numbers(number: int):
    interface = Interface(number)
    assert copy.deepcopy(interface) == pickle.loads(pickle.dumps(interface)) == interface


def test_an_unknown_text_is_refused():
    with pytest.raises(ValueError, match="bf16"):
        Precision("bf16")


def test_no_decision_compares_a_precision_with_a_text():
    """Kernels are the exception: they import nothing of the project."""
    texts, compared = {str(each) for each in PRECISIONS}, []
    for path in NVDLA.glob("**/*.py"):
        if path.is_relative_to(NVDLA / "kernels"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                sides = [*node.comparators, node.left]
                sides += [
                    each for side in sides if isinstance(side, (ast.Tuple, ast.List, ast.Set)) for each in side.elts
                ]
                if texts & {side.value for side in sides if isinstance(side, ast.Constant)}:
                    compared.append(f"{path.relative_to(NVDLA)}:{node.lineno}: {ast.unparse(node)}")
    assert not compared


@pytest.mark.parametrize("config", configurations().values(), ids=str)
def test_a_configuration_has_precisions_not_texts(config):
    assert config.precisions and all(type(each) is Precision and each.known for each in config.precisions)
