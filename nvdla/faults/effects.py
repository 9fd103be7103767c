"""What a fault does to the word that it strikes: a bit that flips or is stuck, another value, a random one."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.errors import FormatError

EFFECTS = ("flip=BIT", "stuck0=BIT", "stuck1=BIT", "set=VALUE", "random=SEED")
_WORDS = {"flip", "stuck0", "stuck1", "set", "random"}


@by_annotations
@dataclass(frozen=True)
class Effect:
    """``kind``: "flip", "stuck0" or "stuck1" of bit ``value``; "set" to ``value`` (two's complement); "random": a word
    drawn from the seed ``value``. Raises FormatError for other kinds."""

    kind: str
    value: int

    def __post_init__(self) -> None:
        if self.kind not in _WORDS:
            raise FormatError(f"a fault does {self.kind!r}; known are {', '.join(EFFECTS)}")

    def __str__(self) -> str:
        return f"{self.kind}={self.value}"

    @property
    def bit(self) -> int | None:
        """The bit that it strikes, None where it is the whole word."""
        return None if self.kind in ("set", "random") else self.value

    @property
    def settles(self) -> bool:
        """True where doing it twice is doing it once."""
        return self.kind != "flip"

    def check(self, bits: int, what: str) -> None:
        """Raise FormatError for a bit or value that a word of ``bits`` bits does not have."""
        if self.bit is not None and not 0 <= self.bit < bits:
            raise FormatError(f"{what}: bit {self.bit} of a word of {bits} bits; must be 0 .. {bits - 1}")
        if self.kind == "set" and not -(1 << bits - 1) <= self.value < 1 << bits:
            raise FormatError(f"{what}: {self.value} does not fit a word of {bits} bits")

    def on(self, words: np.ndarray, bits: int) -> np.ndarray:
        """The words (any integers) after the fault, as signed numbers of ``bits`` bits, int64."""
        mask = (1 << bits) - 1
        values = words.astype(np.int64) & mask
        if self.kind == "flip":
            values = values ^ (1 << self.value)
        elif self.kind == "stuck0":
            values = values & ~(1 << self.value)
        elif self.kind == "stuck1":
            values = values | (1 << self.value)
        else:
            word = self.value if self.kind == "set" else random.Random(self.value).getrandbits(bits)
            values = np.full_like(values, word & mask)
        return values - ((values >> bits - 1 & 1) << bits)

    def on_word(self, word: int, bits: int) -> int:
        """One word after the fault, unsigned."""
        return int(self.on(np.array([word], np.int64), bits)[0]) & (1 << bits) - 1
