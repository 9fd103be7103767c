"""Several images in one loadable: every operation once for each image, weights shared.

Operations of one layer follow one another, image by image, so that an image's data are fetched while those of another
are multiplied, and weights that fit the convolution buffer are fetched once.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from nvdla.builder.ir import (
    Contract,
    Convolve,
    LoweredProgram,
    Normalize,
    Operation,
    Pool,
    Process,
    Root,
    Softmax,
    Stage,
    Surface,
    reads,
    writes,
)

_PARTS = (Convolve, Process, Pool, Normalize, Contract, Softmax, Stage)


def batched(program: LoweredProgram, images: int) -> LoweredProgram:
    """The program for so many images, which lie one after the other in every bound tensor."""
    if images == 1:
        return program
    copies = [_Copy(number) for number in range(images)]
    operations = [
        operation
        for unit in _units(program.operations)
        for copy in copies
        for operation in (unit if not copy.image else [copy.of(each) for each in unit])
    ]
    return replace(program, operations=operations, images=images)


def _units(operations: list[Operation]) -> list[list[Operation]]:
    """Operations, a pool together with what it may take on the fly."""
    units: list[list[Operation]] = []
    for operation in operations:
        before = units[-1][-1] if units else None
        follows = isinstance(before, Convolve | Process) and isinstance(operation, Pool)
        if follows and before is not None and writes(before).root in [each.root for each in reads(operation)]:
            units[-1].append(operation)
        else:
            units.append([operation])
    return units


class _Copy:
    """Operations for another image: the same constants, other cubes."""

    def __init__(self, image: int) -> None:
        self.image = image
        self._roots: dict[int, Root] = {}

    def of(self, part: Any) -> Any:
        """An operation, a part of one or a surface for this image; anything else stays what it is."""
        if isinstance(part, Surface):
            return replace(part, root=self._root(part.root))
        if isinstance(part, _PARTS):
            return replace(part, **{field.name: self.of(getattr(part, field.name)) for field in fields(part)})
        return part

    def _root(self, root: Root) -> Root:
        if root.role == "constant":
            return root
        if id(root) not in self._roots:
            self._roots[id(root)] = replace(root, image=self.image)
        return self._roots[id(root)]
