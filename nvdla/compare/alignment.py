"""Which operation of one run corresponds to which of another, where the loadables may differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from nvdla.compare.observation import Observation
from nvdla.program.operation import Key


def align(ours: Sequence[Observation], theirs: Sequence[Observation]) -> tuple[dict[Key, Observation], str]:
    """Our operations' keys -> their operations, and how they were found: "position", "layer" or "shape".

    By position where both have the same operations; else by layer names where both have them; else the longest common
    runs of tensors of equal engine and shape. Only operations that write memory take part.
    """
    ours, theirs = _written(ours), _written(theirs)
    by_key = {each.key: each for each in theirs}
    if len(ours) == len(theirs) and all(_alike(each, by_key.get(each.key)) for each in ours):
        return by_key, "position"
    if _named(ours) and _named(theirs):
        return _by_layer(ours, theirs), "layer"
    return _by_shape(ours, theirs), "shape"


def _written(observations: Sequence[Observation]) -> list[Observation]:
    return [each for each in observations if each.surface is not None]


def _signature(observation: Observation) -> tuple[Any, ...]:
    return observation.engine, *observation.tensor.shape


def _alike(ours: Observation, theirs: Observation | None) -> bool:
    return theirs is not None and _signature(ours) == _signature(theirs)


def _named(observations: Sequence[Observation]) -> bool:
    return bool(observations) and all(each.layer for each in observations)


def _by_layer(ours: Sequence[Observation], theirs: Sequence[Observation]) -> dict[Key, Observation]:
    """Operations of a layer one by one where both have as many, else the last one of each."""
    groups: dict[str, list[Observation]] = defaultdict(list)
    for each in theirs:
        groups[str(each.layer)].append(each)
    mine: dict[str, list[Observation]] = defaultdict(list)
    for each in ours:
        mine[str(each.layer)].append(each)
    found = {}
    for layer, members in mine.items():
        others = groups.get(layer, [])
        if len(others) != len(members):
            members, others = members[-1:], others[-1:]
        for member, other in zip(members, others, strict=False):
            if member.tensor.shape == other.tensor.shape:
                found[member.key] = other
    return found


def _by_shape(ours: Sequence[Observation], theirs: Sequence[Observation]) -> dict[Key, Observation]:
    signatures = [_signature(each) for each in theirs]
    matcher = SequenceMatcher(None, [_signature(each) for each in ours], signatures, False)
    pairs = [
        (block.a + offset, block.b + offset) for block in matcher.get_matching_blocks() for offset in range(block.size)
    ]
    found, free = {}, len(theirs)
    for mine, other in reversed(pairs):
        # Of several operations on one tensor (bias, then ReLU) the last is what one that does all of them writes.
        while other + 1 < free and signatures[other + 1] == signatures[other]:
            other += 1
        found[ours[mine].key], free = theirs[other], other
    return found
