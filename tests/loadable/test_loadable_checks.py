"""Semantic checks: each rule is broken once, and the message names the entry, the value and the limit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nvdla.errors import LoadableError
from nvdla.loadable import Loadable, Version, load, to_bytes
from nvdla.loadable.checks import CHECKS, problems

BIG = (1 << 64) - 1

#: list, entry, changed fields, expected message
BROKEN: list[tuple[str, int, dict[str, Any], str]] = [
    ("tasks", 0, {"interface": 0}, r"task_list\[0\].interface \(task 0\): must be 1 DLA1 or 2 EMU1.*, got 0"),
    ("tasks", 0, {"instance": -2}, r"task_list\[0\].instance \(task 0\): must be at least -1.*, got -2"),
    (
        "tasks",
        0,
        {"address_list": ()},
        r"task_list\[0\].address_list \(task 0\): must begin with the network descriptor, got an empty list",
    ),
    (
        "tasks",
        0,
        {"address_list": (2, 9)},
        r"task_list\[0\].address_list\[1\]: must be the id of an existing address, got 9",
    ),
    ("tasks", 0, {"pre_actions": (7,)}, r"task_list\[0\].pre_actions\[0\]: must be the id of an existing event, got 7"),
    (
        "tasks",
        0,
        {"post_actions": (7,)},
        r"task_list\[0\].post_actions\[0\]: must be the id of an existing event, got 7",
    ),
    ("memories", 0, {"size": 0}, r"memory_list\[0\].size \(memory 0\): must be at least 1.*, got 0"),
    ("memories", 0, {"domain": 2}, r"memory_list\[0\].domain \(memory 0\): must be 0 SYSTEM or 1 SRAM.*, got 2"),
    ("memories", 0, {"flags": 0x15}, r"memory_list\[0\].flags \(memory 0\): must be within 0xf.*, got 0x15"),
    (
        "memories",
        0,
        {"alignment": 24},
        r"memory_list\[0\].alignment \(memory 0\): must be 0 or a power of two.*, got 24",
    ),
    ("memories", 0, {"alignment": 1 << 31}, r"memory_list\[0\].alignment"),
    (
        "memories",
        3,
        {"offsets": (0,)},
        r"memory_list\[3\].offsets \(memory 3\): must be 2 \(one per blob\), got 1",
    ),
    ("memories", 3, {"offsets": (0, 698)}, r"memory_list\[3\].offsets\[1\].*must be at most 700 .*, got 701"),
    ("memories", 3, {"offsets": (BIG, 0)}, r"memory_list\[3\].offsets\[0\].*got 18446744073709552259"),
    ("memories", 3, {"offsets": (0, 643)}, r"memory_list\[3\].offsets .*'surfaces': must be at most 643 .*, got 644"),
    ("memories", 3, {"contents": ("x", "weights")}, r"memory_list\[3\].contents\[0\] .*no blob is named 'x'"),
    ("memories", 0, {"bind_id": 1}, r"memory_list\[\d+\].bind_id \(memory 0, input\): must be 0.*, got 1"),
    (
        "memories",
        0,
        {"tensor_desc_id": 9},
        r"memory_list\[\d+\].tensor_desc_id \(memory 0, input\): must be the id of an existing tensor, got 9",
    ),
    ("memories", 0, {"tensor_desc_id": 1}, r"tensor 1 is in memory 1, not 0"),
    ("memories", 1, {"id": 0}, r"memory_list\[1\].id: must be unique, got 0 as in memory_list\[0\]"),
    (
        "addresses",
        0,
        {"mem_id": 9},
        r"address_list\[0\].mem_id \(address 0\): must be the id of an existing memory, got 9",
    ),
    ("addresses", 0, {"offset": 65}, r"address_list\[0\].offset \(address 0\): must be at most 64.*, got 65"),
    ("addresses", 0, {"offset": BIG}, r"address_list\[0\].offset"),
    ("addresses", 1, {"id": 0}, r"address_list\[1\].id: must be unique, got 0"),
    ("blobs", 0, {"size": 41}, r"blobs\[0\].size \(network\): must be 40 \(size of its data\), got 41"),
    ("blobs", 0, {"interface": 3}, r"blobs\[0\].interface \(network\): must be.*, got 3"),
    ("blobs", 0, {"sub_interface": 6}, r"blobs\[0\].sub_interface \(network\): must be 0 .. 5.*, got 6"),
    ("blobs", 0, {"name": "a\0b"}, r"blobs\[0\].name: must be printable and not empty, got 'a\\x00b'"),
    ("blobs", 0, {"name": ""}, r"blobs\[0\].name: must be printable and not empty, got ''"),
    ("blobs", 1, {"name": "network"}, r"blobs\[1\].name: must be unique, got 'network' as in blobs\[0\]"),
    (
        "tensors",
        0,
        {"mem_id": 9},
        r"tensor_desc_list\[0\].mem_id \(data\): must be the id of an existing memory, got 9",
    ),
    (
        "tensors",
        0,
        {"size": 65},
        r"tensor_desc_list\[0\].size \(data\): end \(0 \+ 65 bytes\): must be at most 64 .*, got 65",
    ),
    ("tensors", 0, {"offset": BIG}, r"tensor_desc_list\[0\].size \(data\)"),
    ("tensors", 0, {"h": 0}, r"tensor_desc_list\[0\].h \(data\): must be at least 1.*, got 0"),
    ("tensors", 0, {"name": "\x1b[2J"}, r"tensor_desc_list\[0\].name: must be printable, got '\\x1b\[2J'"),
    ("relocs", 0, {"address_id": 9}, r"reloc_list\[0\].address_id: must be the id of an existing address, got 9"),
    ("relocs", 0, {"address_id": 2}, r"reloc_list\[0\].address_id: must be in an input or output, got 2 \(memory 2\)"),
    ("relocs", 0, {"write_id": 9}, r"reloc_list\[0\].write_id: must be the id of an existing memory, got 9"),
    ("relocs", 0, {"offset": 697}, r"reloc_list\[0\].offset: must be at most 696.*, got 697"),
    ("relocs", 0, {"offset": BIG}, r"reloc_list\[0\].offset"),
    ("relocs", 0, {"interface": 0}, r"reloc_list\[0\].interface: must be 1 DLA1 or 2 EMU1.*, got 0"),
    ("relocs", 0, {"sub_interface": 2}, r"reloc_list\[0\].sub_interface: must be 3 or 4.*, got 2"),
    ("relocs", 0, {"reloc_type": 0}, r"reloc_list\[0\].reloc_type: must be 1 \(line stride\) or 2.*, got 0"),
    ("submits", 0, {"task_ids": (4,)}, r"submit_list\[0\].task_id\[0\]: must be the id of an existing task, got 4"),
    ("submits", 0, {"task_ids": (0, 0)}, r"submit_list\[0\].task_id\[1\]: must be submitted once, got task 0 again"),
]


@pytest.mark.parametrize(("table", "index", "change", "message"), BROKEN)
def test_a_broken_reference_is_refused(small: Loadable, table: str, index: int, change: dict, message: str) -> None:
    entries = list(getattr(small, table))
    entries[index] = dataclasses.replace(entries[index], **change)
    data = to_bytes(dataclasses.replace(small, **{table: tuple(entries)}))
    with pytest.raises(LoadableError, match=message):
        load(data)
    assert load(data, checked=False)


def test_other_container_versions_are_refused(small: Loadable) -> None:
    with pytest.raises(LoadableError, match=r"Loadable.version: must be 0.7.x, got 0.8.0"):
        load(to_bytes(dataclasses.replace(small, version=Version(0, 8, 0))))


def test_a_sound_loadable_has_no_problems(small: Loadable) -> None:
    assert list(problems(small)) == []


def test_all_problems_are_listed(small: Loadable) -> None:
    blobs = tuple(dataclasses.replace(blob, size=0) for blob in small.blobs)
    assert len(list(problems(dataclasses.replace(small, blobs=blobs, version=Version(1, 0, 0))))) == 4


def test_every_rule_states_itself() -> None:
    assert all(rule.__doc__ for rule in CHECKS)
