"""Rounding half away from zero, saturating and requantizing are spelt once: every kernel that is not a fast path calls
the rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np
import pytest

from nvdla.kernels import integers

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
#: where the rules are spelt
RULES = {
    "integers.py": {
        *("saturate", "clamp", "all_saturated", "all_clamped", "wrap"),
        *("round_half_away", "rounding", "nearest", "all_nearest", "all_converted", "all_requantized"),
        *("convert", "requantize", "int_shift_left", "int_signed_shift_right_truncate"),
    },
    # the converter before it is rounded, whose status bit looks at that
    "sdp.py": {"_converted"},
    "cdp.py": {"double_round_half_away", "_convert_out"},
    # the CPU's softmax in floats, whose rule is numpy's (nvdla/emulator/cpu/softmax.py)
    "softmax_int8.py": {"_half", "_softmax"},
}


def _is_half(node: ast.expr) -> bool:
    """``1 << (shift - 1)``: half of what a shift cuts off."""
    shifted = isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift)
    if not shifted or not isinstance(node.left, ast.Constant) or node.left.value != 1:
        return False
    return isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Sub)


def _has_half(node: ast.expr) -> bool:
    """0.5, also where its sign is chosen."""
    return any(isinstance(each, ast.Constant) and each.value == 0.5 for each in ast.walk(node))


def _is_sign(node: ast.expr) -> bool:
    """``x >> 63``: -1 for what is negative."""
    shifted = isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift)
    return shifted and isinstance(node.right, ast.Constant) and node.right.value == 63


def _is_clamp(node: ast.AST) -> bool:
    """``min(max(x, low), high)``, or the other way round, or numpy's clip; sizes of blocks (with ``//``) do not
    count."""
    if any(isinstance(each, ast.FloorDiv) for each in ast.walk(node)) or not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == "clip"
    if not isinstance(node.func, ast.Name) or node.func.id not in ("min", "max"):
        return False
    inner = [each.func for each in node.args if isinstance(each, ast.Call)]
    return any(isinstance(each, ast.Name) and {each.id, node.func.id} == {"min", "max"} for each in inner)


def _is_conversion(node: ast.AST) -> bool:
    """``(x - offset) * scale``: what a converter does first."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    differences = [each for each in (node.left, node.right) if isinstance(each, ast.BinOp)]
    return any(isinstance(each.op, ast.Sub) and "offset" in ast.unparse(each.right) for each in differences)


def _is_rounded(node: ast.AST) -> bool:
    """``y + rounding(y)``, whose rules are ``nearest`` and ``requantize``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "rounding"


def respelt(source: str, rules: Set[str] = frozenset()) -> Iterator[str]:
    """Yield each addition of a half or a sign, each clamp and each conversion outside of the rules."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or function.name in rules:
            continue
        for node in ast.walk(function):
            added = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
            taken = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
            sides = [node.left, node.right] if added or taken else []
            rounded = added and any(_is_half(side) or _is_sign(side) for side in sides)
            if rounded or any(map(_has_half, sides)) or _is_clamp(node) or _is_conversion(node) or _is_rounded(node):
                yield f"{function.name}: {ast.unparse(node)}"


def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.stem)
def test_no_kernel_spells_rounding_again(path):
    assert not list(respelt(path.read_text(encoding="utf-8"), RULES.get(path.name, set())))


@pytest.mark.parametrize(
    "line",
    [
        "(x + (1 << (shift - 1))) >> shift",
        "(x + (x >> 63)) >> 4",
        "int(np.floor(x + 0.5))",
        "0.5 + x",
        "min(max(x, -128), 127)",
        "int(x + (0.5 if x >= 0 else -0.5))",
        "(x + np.where(x >= 0, 0.5, -0.5)).astype(int)",
        "int(x - 0.5)",
        "np.clip(x, -128, 127)",
        "(x - offset) * scale >> shift",
        "scale * (x - converter.offset)",
        "int(x + rounding(x))",
    ],
)
def test_the_guard_sees_what_it_is_for(line):
    assert list(respelt(f"def requantize(x, shift):\n    return {line}\n"))


def test_rules_that_are_named_are_there():
    assert all(names <= _functions(KERNELS / file) for file, names in RULES.items())


@pytest.mark.parametrize(
    "file, rules",
    {
        "conv.py": {"all_converted", "int_shift_right"},  # CDMA, CACC's delivery
        "winograd.py": {"int_shift_right"},  # the truncation of the data transform
        "sdp.py": {"requantize", "convert", "int_shift_right"},  # X1, X2, output converter; Y's operands, products
        "sdp_lut.py": {"int_shift_right"},
        "pdp.py": {"nearest"},  # averages
        "cdp.py": {"convert"},  # both converters
    }.items(),
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_every_engine_of_integers_calls_the_rule(file, rules):
    """Its own converters use nothing else to come to fewer bits."""
    tree = ast.parse((KERNELS / file).read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    taken = {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "nvdla.kernels.integers"
        for name in node.names
    }
    assert rules <= called & taken


@pytest.mark.parametrize("shift", [0, 1, 7, 15, 31])
def test_the_rule_on_floats_and_on_arrays_is_that_on_integers(shift):
    numbers = np.random.default_rng(shift).integers(-(1 << 46), 1 << 46, 2000)
    ties = (np.arange(-999, 1000, 2) << max(shift - 1, 0)).astype(np.int64)
    values = np.concatenate([numbers, ties, [0, 1, -1, (1 << 46) - 1, -(1 << 46)]])
    expected = [integers.round_half_away(int(x), shift) for x in values]
    scaled = values * 2.0**-shift
    assert [integers.nearest(x) for x in scaled] == expected
    assert integers.all_nearest(scaled).tolist() == expected
    narrow = [integers.saturate(x, 16) for x in expected]
    assert [integers.requantize(x, -32768.0, 32767.0) for x in scaled] == narrow
    assert integers.all_saturated(np.array(expected), 16).tolist() == narrow
    assert [integers.convert(int(x) + 5, 5, 1, shift, 16) for x in values] == narrow
