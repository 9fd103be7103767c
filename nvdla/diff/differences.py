"""The structural difference of two loadables."""

from __future__ import annotations

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors.abi import Abi
from nvdla.diff.changes import Diff
from nvdla.diff.descriptors import descriptor_changes, task_pairs
from nvdla.diff.operands import operand_changes
from nvdla.diff.tables import table_changes
from nvdla.loadable.model import Loadable
from nvdla.program.program import Program


@by_annotations
def diff(a: Loadable, b: Loadable, abi: str | Abi = "auto") -> Diff:
    """Compare two loadables. Raises DescriptorError when the descriptors of one cannot be read."""
    ours, theirs = Program.of(a, abi=abi), Program.of(b, abi=abi)
    pairs = task_pairs(ours, theirs)
    matched = {each.id: each.matched_by for each in pairs}
    found = Diff(a.name, b.name, ours.abi.name, theirs.abi.name, matched_by=matched)
    found.changes.extend(table_changes(a, b))
    for pair in pairs:
        found.changes.extend(descriptor_changes(pair))
    found.operands.extend(operand_changes(a, b, pairs))
    return found
