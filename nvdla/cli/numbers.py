"""Numbers on the command line, for ``type=`` of arguments: each with its range, refused in one short sentence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def real(low: float = -math.inf, high: float = math.inf) -> Callable[[str], float]:
    """A finite number from ``low`` to ``high``; who compares with NaN lets everything pass."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or math.isinf(value):
            limits = "" if low == -math.inf else f" from {low:g}" + ("" if high == math.inf else f" to {high:g}")
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a finite number{limits}")
        return value

    return number


def whole(least: int = 0, base: int = 10) -> Callable[[str], int]:
    """A whole number of at least ``least``; base 0 takes 0x too."""

    def number(text: str) -> int:
        try:
            value = int(text, base)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{text[:40]}: must be at least {least}")
        return value

    return number


def reals(text: str) -> tuple[float, ...]:
    """Finite numbers, separated by commas."""
    return tuple(map(real(), text.split(",")))
