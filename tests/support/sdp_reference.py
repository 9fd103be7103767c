"""SDP's integer arithmetic on single numbers, in plain Python: the specification that the kernels are held against."""

from __future__ import annotations

from fractions import Fraction

MAX, MIN, SUM, EQL = 0, 1, 2, 3


def clamp(x: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, x))


def shifted(x: int, shift: int) -> int:
    """x / 2**shift to the nearest integer, ties away from zero."""
    magnitude = int(Fraction(abs(x)) / Fraction(2) ** shift + Fraction(1, 2))
    return magnitude if x >= 0 else -magnitude


def x_block(
    x: int, alu: int | None, algorithm: int, alu_shift: int, mul: int | None, prelu: bool, shift: int, relu: bool
):
    """ALU, multiplier, shift, ReLU; an operand of None bypasses its part."""
    if alu is not None:
        alu = clamp(alu << alu_shift, 32)
        x = {MAX: max(x, alu), MIN: min(x, alu), SUM: x + alu}[algorithm]
    if mul is not None and prelu and x >= 0:
        x = (x + (1 << 31)) % (1 << 32) - (1 << 31)
    else:
        x = clamp(shifted(x if mul is None else x * mul, shift), 32)
    return max(x, 0) if relu else x


def y_core(x: int, mul: int | None, prelu: bool, truncate: int, alu: int | None, algorithm: int) -> int:
    """Multiplier, then ALU."""
    if mul is not None and not (prelu and x >= 0):
        x = clamp(shifted(x * mul, truncate), 32)
    if alu is None:
        return x
    return clamp({MAX: max(x, alu), MIN: min(x, alu), SUM: x + alu, EQL: int(x != alu)}[algorithm], 32)


def converted(x: int, offset: int, scale: int, shift: int, bits: int) -> int:
    """Output converter to int8 or int16."""
    return clamp(clamp(shifted((x - offset) * scale, shift), 17), bits)


def saturated(x: int, offset: int, scale: int, shift: int) -> bool:
    """The converter's status bit: more than one away from the 17-bit result."""
    product = (x - offset) * scale
    return abs((product >> shift) - clamp(shifted(product, shift), 17)) > 1


def exponential(x: int, start: int, offset: int):
    """(state, index, fraction) in LE: 'hit', 'under', 'over'."""
    if x <= start:
        return "under", 0, Fraction(0)
    exponent = (x - start).bit_length() - 1
    if exponent < offset:
        return "under", 0, Fraction(0)
    if exponent - offset >= 64:
        return "over", 64, Fraction(0)
    return "hit", exponent - offset, Fraction(x - start, 1 << exponent) - 1


def linear(x: int, start: int, select: int, last: int):
    """(state, index, fraction) in a linear table."""
    if x <= start:
        return "under", 0, Fraction(0)
    position = (x - start) / Fraction(2) ** select
    if int(position) >= last:
        return "over", last, Fraction(0)
    return "hit", int(position), position - int(position)


def lookup(x: int, tables: dict, choice: dict) -> tuple[int, str, str, str]:
    """(result, state of the table used, LE state, LO state). tables: 'le', 'lo' -> dict with entries and range."""
    if choice["exponential"]:
        le = exponential(x, tables["le"]["start"], choice["index_offset"])
    else:
        le = linear(x, tables["le"]["start"], tables["le"]["select"], 64)
    lo = linear(x, tables["lo"]["start"], tables["lo"]["select"], 256)
    states = (le[0], lo[0])
    if states == ("under", "under"):
        use_lo = choice["underflow"]
    elif states == ("over", "over"):
        use_lo = choice["overflow"]
    elif states.count("hit") == 1:
        use_lo = states[1] == "hit"
    else:
        use_lo = choice["hybrid"]
    table = tables["lo" if use_lo else "le"]
    state, index, fraction = lo if use_lo else le
    entries = table["entries"]
    if state == "hit":
        value = entries[index] * (1 - fraction) + entries[index + 1] * fraction
        magnitude = int(abs(value) + Fraction(1, 2))
        return clamp(magnitude if value >= 0 else -magnitude, 32), state, *states
    side = "underflow" if state == "under" else "overflow"
    origin = table["start"] + table["bias"] if state == "under" else table["end"]
    rise = (x - origin) * table[f"{side}_scale"] / Fraction(2) ** table[f"{side}_shift"]
    magnitude = int(abs(rise) + Fraction(1, 2))
    return clamp(entries[index] + clamp(magnitude if rise >= 0 else -magnitude, 32), 32), state, *states
