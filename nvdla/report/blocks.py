"""Blocks of operations by the beginning of their layers' names: "res2a" of res2a_branch1 and res2a_branch2a."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_PARTS = re.compile(r"[/._:]+")


def blocks(layers: Sequence[str | None]) -> list[str | None]:
    """The block of each operation, None where it is in none.

    Names are cut at / . _ : after what all of them begin with. Of several layers the first name counts. A block has at
    least two layers, and is not everything; tiles of one layer are a block of their own.
    """
    firsts = [layer.split("+")[0] if layer else None for layer in layers]
    words = [_PARTS.split(first) if first else [] for first in firsts]
    named = [each for each in words if each]
    if not named:
        return [None] * len(layers)
    common = _common(named)
    heads = ["/".join(each[: common + 1]) if len(each) > common else None for each in words]
    sizes = Counter(head for head, first in {(head, first) for head, first in zip(heads, firsts, strict=True)} if head)
    tiles = Counter(first for first in firsts if first)
    found: list[str | None] = []
    for head, first in zip(heads, firsts, strict=True):
        if head and 2 <= sizes[head] < len(set(firsts)):
            found.append(head)
        else:
            found.append(first if first and tiles[first] > 3 else None)
    return found


def _common(named: Sequence[Sequence[str]]) -> int:
    """How many words all names begin with; those of a single layer have none in common with others."""
    if len({tuple(each) for each in named}) < 2:
        return 0
    shortest = min(map(len, named))
    return next((at for at in range(shortest) if len({each[at] for each in named}) > 1), shortest)
