"""Merge two loadables of one configuration: both networks in one file, the second after the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nvdla.errors import BuildError
from nvdla.loadable.model import Loadable
from nvdla.program.program import Program

MAX_ID = 0xFFFF


def merge(first: Loadable, second: Loadable) -> Loadable:
    """One loadable that binds the inputs and outputs of both (those of ``first`` first) and runs both.

    Names of the second that the first has too get a suffix ("data" -> "data-2"). Raises BuildError when the two have
    different descriptor ABIs, or surfaces of different configurations.
    """
    _check_alike(first, second)
    shift = {
        table: _next(getattr(first, table))
        for table in ("memories", "addresses", "tasks", "events", "tensors", "submits")
    }
    for table, start in shift.items():
        highest = start + max((each.id for each in getattr(second, table)), default=0)
        if highest > MAX_ID:
            raise BuildError(f"merged {table} would have id {highest}, at most {MAX_ID}")
    return _joined(first, second, shift)


def _joined(first: Loadable, second: Loadable, shift: Mapping[str, int]) -> Loadable:
    """All tables of the first, then those of the second with its ids shifted."""
    names = _new_names(first.blobs, second.blobs)
    tensors = _new_names(first.tensors, second.tensors)
    binds = len(first.inputs), len(first.outputs)
    targets = max((event.target for event in first.events), default=-1) + 1

    def memory(each: Any) -> Any:
        bound = each.is_input or each.is_output
        return replace(
            each,
            id=each.id + shift["memories"],
            contents=tuple(names.get(name, name) for name in each.contents),
            bind_id=each.bind_id + (binds[0] if each.is_input else binds[1] if each.is_output else 0),
            tensor_desc_id=each.tensor_desc_id + (shift["tensors"] if bound else 0),
        )

    def task(each: Any) -> Any:
        return replace(
            each,
            id=each.id + shift["tasks"],
            address_list=tuple(entry + shift["addresses"] for entry in each.address_list),
            pre_actions=tuple(entry + shift["events"] for entry in each.pre_actions),
            post_actions=tuple(entry + shift["events"] for entry in each.post_actions),
        )

    return replace(
        first,
        tasks=first.tasks + tuple(task(each) for each in second.tasks),
        memories=first.memories + tuple(memory(each) for each in second.memories),
        addresses=first.addresses
        + tuple(
            replace(each, id=each.id + shift["addresses"], mem_id=each.mem_id + shift["memories"])
            for each in second.addresses
        ),
        events=first.events
        + tuple(replace(each, id=each.id + shift["events"], target=each.target + targets) for each in second.events),
        blobs=first.blobs + tuple(replace(each, name=names[each.name]) for each in second.blobs),
        tensors=first.tensors
        + tuple(
            replace(
                each, id=each.id + shift["tensors"], mem_id=each.mem_id + shift["memories"], name=tensors[each.name]
            )
            for each in second.tensors
        ),
        relocs=first.relocs
        + tuple(
            replace(each, address_id=each.address_id + shift["addresses"], write_id=each.write_id + shift["memories"])
            for each in second.relocs
        ),
        submits=first.submits
        + tuple(
            replace(
                each, id=each.id + shift["submits"], task_ids=tuple(number + shift["tasks"] for number in each.task_ids)
            )
            for each in second.submits
        ),
    )


def _check_alike(first: Loadable, second: Loadable) -> None:
    abis = [Program.of(each, checked=False).abi.name for each in (first, second)]
    if abis[0] != abis[1]:
        raise BuildError(
            f"descriptor ABIs {abis[0]} and {abis[1]} differ; convert one (nvdla.builder.convert) before merging"
        )
    kinds = [{tensor.pixel_format for tensor in each.tensors if tensor.pixel_format >= 36} for each in (first, second)]
    if kinds[0] and kinds[1] and kinds[0] != kinds[1]:
        found = [", ".join(kind.name for kind in each) for each in kinds]
        raise BuildError(f"surfaces of {found[0]} and {found[1]}: the loadables are for different configurations")


def _next(table: Iterable[Any]) -> int:
    return max((each.id for each in table), default=-1) + 1


def _new_names(first: Iterable[Any], second: Iterable[Any]) -> dict[str, str]:
    """New names for the second's entries such that none appears twice."""
    taken = {each.name for each in first}
    taken_later = {each.name for each in second}
    names: dict[str, str] = {}
    for each in second:
        name, number = each.name, 2
        while name in taken or (name != each.name and name in taken_later):
            name, number = f"{each.name}-{number}", number + 1
        names[each.name] = name
        taken.add(name)
    return names
