"""Everything about one operation, on one screen: what it computes, on what, when, for how long, and its descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvdla.analysis.graph.document import tensor_name
from nvdla.analysis.study import Study
from nvdla.descriptors.fields import fields
from nvdla.errors import DescriptorError, shape_text
from nvdla.program.operation import Operation

Row = dict[str, Any]


def chosen(study: Study, name: str) -> list[Operation]:
    """Operations that are called so: "TASK/OPERATION", "OPERATION" of the first task, or a layer. Raises
    DescriptorError where none is."""
    found = [node for node in study.operations if name in (node.label, node.layer) or f"0/{name}" == node.label]
    if not found:
        known = ", ".join(node.label for node in study.operations[:8]) + (" ..." if len(study.operations) > 8 else "")
        raise DescriptorError(f"no operation or layer is called {name}; operations are {known or 'none'}")
    return found


def operation_document(study: Study, node: Operation) -> Row:
    """One operation as plain data. ``fields``: those of its descriptors that are not 0, with their meanings."""
    estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
    chain = next(chain for chain in study.chains if node in chain)
    before = [each for each in study.operations if any(to.target == node.key for to in each.dependencies)]
    return {
        "operation": node.label,
        "engine": node.engine.upper(),
        "layer": node.layer,
        "what": node.what,
        "input": list(node.input) if node.input else None,
        "output": list(node.output) if node.output else None,
        "precision": node.precision,
        "on_the_fly_with": [each.label for each in chain if each is not node],
        "waits_for": [each.label for each in before],
        "lets_go_on": [study.by_key[each.target].label for each in node.dependencies if each.target in study.by_key],
        "cycles": estimate.cycles,
        "share": estimate.cycles / study.schedule.cycles if estimate.cycles and study.schedule.cycles else None,
        "bound": estimate.bound,
        "macs": estimate.macs,
        "mac_use": estimate.mac_share,
        "read_bytes": estimate.read_bytes,
        "written_bytes": estimate.written_bytes,
        "start": span.start,
        "end": span.end,
        "group": span.group,
        "values": [*_values(study, node)],
        "fields": [*_fields(node)],
    }


def _values(study: Study, node: Operation) -> Iterator[Row]:
    for value in study.values:
        roles = [role for key, role in value.readers if key == node.key]
        if value.writer == node.key:
            roles.append("writes")
        for role in dict.fromkeys(roles):
            yield {
                "role": role,
                "name": tensor_name(study, value),
                "shape": list(value.shape) if value.shape else None,
                "bytes": value.bytes,
                "memory": value.memory,
                "offset": value.offset,
            }


def _fields(node: Operation) -> Iterator[Row]:
    structures = [node.op] if node.type is None else [node.op, node.surface]
    for each in (each for structure in structures for each in fields(structure)):
        plain = each.value in (0, -1) or (isinstance(each.value, list) and not any(each.value))
        if not each.reserved and not plain:
            yield {"field": each.name, "value": each.value, "meaning": each.meaning, "explanation": each.explanation}


def lines(row: Row, width: int) -> Iterator[str]:
    """A document as lines no wider than ``width``, fields side by side where there is room."""
    layer = f" {row['layer']}" if row["layer"] else ""
    yield f"{row['operation']} {row['engine']}{layer}: {row['what']}"
    shape = " to ".join(shape_text(row[side]) for side in ("input", "output") if row[side])
    yield f"    {', '.join(filter(None, (shape, row['precision'])))}"
    if row["on_the_fly_with"]:
        yield f"    on the fly with {', '.join(row['on_the_fly_with'])}"
    if row["waits_for"] or row["lets_go_on"]:
        before, behind = (", ".join(row[side]) or "nothing" for side in ("waits_for", "lets_go_on"))
        yield f"    waits for {before}; lets {behind} go on"
    if row["cycles"] is not None:
        share = f" ({row['share']:.1%} of the whole)" if row["share"] else ""
        ends = row["start"] is not None and row["end"] is not None
        when = f"{row['start']:,} to {row['end']:,}" if ends else "which it never begins or ends"
        yield f"    {row['cycles']:,} cycles{share}, {when}, bound by {row['bound']}"
    if row["macs"]:
        use = f", {row['mac_use']:.1%} of the MAC array" if row["mac_use"] is not None else ""
        yield f"    {row['macs']:,} MACs{use}"
    yield f"    reads {row['read_bytes']:,} bytes, writes {row['written_bytes']:,}"
    for value in row["values"]:
        dimensions = f" {'x'.join(map(str, value['shape']))}," if value["shape"] else ""
        place = f"memory {value['memory']}+{value['offset']}"
        yield f"    {value['role']}: {value['name']},{dimensions} {value['bytes']:,} bytes at {place}"
    cells = [f"{each['field']} {each['meaning'] or _short(each['value'])}" for each in row["fields"]]
    wide = max(map(len, cells), default=0) + 3
    columns = max((width - 4) // max(wide, 1), 1)
    for at in range(0, len(cells), columns):
        yield "    " + "".join(f"{cell:{wide}}" for cell in cells[at : at + columns]).rstrip()


def _short(value: Any) -> str:
    return f"[{', '.join(map(str, value[:4]))}, ...]" if isinstance(value, list) and len(value) > 4 else str(value)
