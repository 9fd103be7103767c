"""Whole numbers: rounding up, reading from text.

Python's ``int`` and ``float`` also take digits of every script, underscores between digits and thousands of digits. A
file or a command line that contains those is damaged or hostile.
"""

from __future__ import annotations


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor`` rounded up (towards plus infinity)."""
    return -(-value // divisor)


def align(value: int, alignment: int) -> int:
    """The least multiple of ``alignment`` that is not less than ``value``."""
    return -(-value // alignment) * alignment


#: Characters of a number: 2^128 in binary has 131.
LONGEST = 160
#: Characters of a floating-point number: the largest double has 309 digits before the point.
LONGEST_REAL = 400


def integer(text: str, base: int = 10) -> int:
    """Return the whole number that ``text`` states.

    Args:
        text: ASCII digits with an optional sign; blanks around them are ignored.
        base: 2 to 36; 0 reads prefixes (0x, 0o, 0b) too.

    Raises:
        ValueError: ``text`` is not such a number, or is longer than :data:`LONGEST`.
    """
    return int(ascii_number(text, LONGEST), base)


def real(text: str) -> float:
    """Return the floating-point number that ``text`` states in ASCII; "inf" and "nan" too.

    Raises:
        ValueError: ``text`` is not such a number, or is longer than :data:`LONGEST_REAL`.
    """
    return float(ascii_number(text))


def is_digits(text: str) -> bool:
    """Return True if ``text`` consists of one or more ASCII digits."""
    return text.isascii() and text.isdigit()


def ascii_number(text: str, longest: int = LONGEST_REAL) -> str:
    """Return ``text``, which can be a number in ASCII.

    Raises:
        ValueError: ``text`` is longer than ``longest``, or contains other characters or underscores.
    """
    if len(text) > longest or not text.isascii() or "_" in text:
        raise ValueError(f"{text[:40]!r} must be an ASCII number of at most {longest} characters")
    return text
