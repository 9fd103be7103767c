"""Rounding half away from zero and saturating are spelt once: every kernel that is not a fast form calls the rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
#: where the rules are spelt: integers, and the same in floats
RULES = {"integers.py": {"saturate", "round_half_away", "int_shift_left", "int_signed_shift_right_truncate", "wrap"}}
# the CPU's softmax in floats, whose rule is numpy's (nvdla/cpu/softmax.py)
RULES |= {"softmax_int8.py": {"_half", "_softmax"}}
RULES |= {"sdp.py": {"rounding", "clamp"}, "cdp.py": {"double_round_half_away"}}


def _is_half(node: ast.expr) -> bool:
    """``1 << (shift - 1)``: half of what a shift cuts off; or 0.5."""
    if isinstance(node, ast.Constant):
        return node.value == 0.5
    shifted = isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift)
    if not shifted or not isinstance(node.left, ast.Constant) or node.left.value != 1:
        return False
    return isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Sub)


def _is_sign(node: ast.expr) -> bool:
    """``x >> 63``: -1 for what is negative."""
    shifted = isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift)
    return shifted and isinstance(node.right, ast.Constant) and node.right.value == 63


def _is_clamp(node: ast.AST) -> bool:
    """``min(max(x, low), high)``, or the other way round; sizes of blocks (with ``//``) are no numbers of a tensor."""
    if any(isinstance(each, ast.FloorDiv) for each in ast.walk(node)):
        return False
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in ("min", "max"):
        return False
    inner = [each.func for each in node.args if isinstance(each, ast.Call)]
    return any(isinstance(each, ast.Name) and {each.id, node.func.id} == {"min", "max"} for each in inner)


def respelt(source: str, rules: Set[str] = frozenset()) -> Iterator[str]:
    """Where a half or the sign of a number is added to it, or it is clamped, outside the functions that are rules."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or function.name in rules:
            continue
        for node in ast.walk(function):
            added = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
            sides = [node.left, node.right] if added else []
            if _is_clamp(node) or any(_is_half(side) or _is_sign(side) for side in sides):
                yield f"{function.name}: {ast.unparse(node)}"


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
    ],
)
def test_the_guard_sees_what_it_is_for(line):
    assert list(respelt(f"def requantise(x, shift):\n    return {line}\n"))
