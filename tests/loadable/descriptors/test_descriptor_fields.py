"""The field walker: every byte of a structure is named once, with its value and its meaning."""

from __future__ import annotations

import ctypes
import json

import pytest

from nvdla.loadable.descriptors import NEW, OLD, Abi, fields, member, structures, to_dict
from nvdla.loadable.descriptors.enums import OpType

UNIONS = ("LutOffset", "Slope")


def walkable(abi: Abi) -> list[type]:
    """All structures of an ABI but the containers, whose member must be chosen first."""
    found = [vars(abi).get(name, getattr(abi, name)) for name in dir(abi) if name[0].isupper()]
    return [each for each in found if issubclass(each, ctypes.Structure)]


@pytest.mark.parametrize("abi", [OLD, NEW], ids=str)
def test_every_byte_of_every_structure_is_named(abi: Abi) -> None:
    for structure in walkable(abi):
        data = bytes(i % 251 for i in range(ctypes.sizeof(structure)))
        named: dict[int, bytes] = {}
        for each in fields(structure.from_buffer_copy(data)):
            assert each.offset + each.size <= len(data)
            named.update(dict.fromkeys(range(each.offset, each.offset + each.size)))
        gaps = set(range(len(data))) - set(named)
        # The last byte of a slope belongs to one member of its union only; nothing else may be missing.
        assert not gaps, (structure, gaps)


def test_values_are_those_of_the_bytes() -> None:
    cube = NEW.DataCube(type=1, address=-1, width=7, line_stride=224)
    found = {each.name: (each.offset, each.size, each.type, each.value, each.meaning) for each in fields(cube)}
    assert found["type"] == (0, 2, "uint16", 1, "CV")
    assert found["address"] == (2, 2, "int16", -1, "none")
    assert found["width"] == (12, 2, "uint16", 7, None)
    assert found["line_stride"] == (20, 4, "uint32", 224, None)


def test_nested_fields_and_arrays_have_paths() -> None:
    node = structures.CommonOpDesc()
    node.consumers[2].event = 1
    found = {each.name: each for each in fields(node, base=100)}
    assert found["consumers[2].event"].offset == 100 + 8 + 2 * 4 + 2
    assert found["consumers[2].event"].meaning == "OP_COMPLETED"
    assert found["reserved0"].reserved and found["reserved0"].type == "uint8[3]"
    surface = NEW.SdpSurface()
    surface.dst_data.height = 9
    assert next(each for each in fields(surface) if each.name == "dst_data.height").value == 9


def test_tables_are_one_field() -> None:
    lut = structures.LutParam()
    lut.linear_only_table[256] = -5
    table = next(each for each in fields(lut) if each.name == "linear_only_table")
    assert (table.offset, table.size, table.type, table.value[256]) == (130, 514, "int16[257]", -5)


@pytest.mark.parametrize("op_type", OpType)
def test_containers_open_by_operation_type(op_type: OpType) -> None:
    container, surface = NEW.OperationContainer(), NEW.SurfaceContainer()
    name = op_type.name.capitalize()
    assert type(member(container, op_type)).__name__ == f"{name}Op"
    assert type(member(surface, op_type)).__name__ == f"{name}Surface"


@pytest.mark.parametrize("op_type", [-1, 6, 255])
def test_unknown_operation_types_open_nothing(op_type: int) -> None:
    assert member(NEW.OperationContainer(), op_type) is None


def test_numbers_without_a_name_are_described_as_such() -> None:
    assert next(fields(NEW.DataCube(type=9))).meaning == "UNKNOWN_9"


def test_pool_sizes_are_stored_minus_one() -> None:
    found = {each.name: each.meaning for each in fields(structures.PdpOp(pool_width=2, pool_mode=1))}
    assert (found["pool_width"], found["pool_mode"]) == ("3 elements", "MAX")


def test_a_structure_becomes_plain_data() -> None:
    node = structures.CommonOpDesc(op_type=2)
    plain = json.loads(json.dumps(to_dict(node)))
    assert plain["op_type"] == 2 and plain["fused_parent"] == {"index": 0, "event": 0}
    assert "reserved0" not in plain and len(plain["consumers"]) == 6
