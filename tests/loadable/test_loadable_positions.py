"""What is said of a file whose numbers make no sense: table, entry, field, value, limit, and where it lies."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from support.attack_files import ATTACKS, chain, changed, good, network

import nvdla
from nvdla.loadable import schema
from nvdla.loadable.reader import position_of

TABLES = [field.name for field in schema.LOADABLE.fields]
#: a limit: what the value must be, or with what it does not agree
LIMITS = (
    r"must (be|begin) |is in memory|no blob is named|"
    r"which is no "
)
SAID = re.compile(rf"(Loadable|{'|'.join(TABLES)})\b.*?: .*({LIMITS})", re.DOTALL)


def said(data: bytes) -> str | None:
    try:
        nvdla.load(data)
    except nvdla.LoadableError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "table, index, values, width",
    [
        ("memories", 1, {"tensor_desc_id": 77}, 2),
        ("memories", 2, {"alignment": 12345}, 4),
        ("addresses", 2, {"mem_id": 999}, 2),
        ("addresses", 2, {"offset": (1 << 64) - 1}, 8),
        ("tasks", 0, {"address_list": (3, 77)}, 2),
        ("submits", 0, {"task_ids": (0, 9)}, 2),
        ("tensors", 0, {"h": -5}, 4),
        ("blobs", 1, {"size": 1 << 40}, 8),
    ],
)
def test_the_byte_that_is_named_holds_the_value_that_is_named(table, index, values, width):
    data = changed(table, index, **values)
    message = said(data)
    position = int(re.search(r"\(byte (\d+) of the file\)$", message)[1])
    value = next(iter(values.values()))
    wanted = value[-1] if isinstance(value, tuple) else value
    assert data[position : position + width] == (wanted & (1 << 8 * width) - 1).to_bytes(width, "little")


def test_every_refusal_names_table_field_byte_and_limit(monkeypatch):
    """Bytes and numbers changed at random, and all attacks on the container."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "fuzz")
    import fuzz_mutator

    rng, data = random.Random(3), good()
    files = [make() for way, make, _ in ATTACKS.values() if way == "load"]
    for _ in range(1500):
        changed_bytes = bytearray(data)
        changed_bytes[rng.randrange(8, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        files += [bytes(changed_bytes), fuzz_mutator.mutate_loadable(data, rng) or data]
    messages = [(said(each), len(each)) for each in files]
    refused = [(message, size) for message, size in messages if message]
    assert len(refused) > 300
    for message, size in refused:
        if "got a text file" in message or (size < 8 and re.search(r"got a damaged file|got an empty file", message)):
            continue
        assert SAID.match(message), message
        position = re.search(r"at byte (\d+)|\(byte (\d+) of the file\)", message)
        assert position, message
        assert 0 <= int(position[1] or position[2]) <= size, message


@pytest.mark.parametrize(
    "path", ["nothing", "nothing[3].size", "memory_list", "memory_list[999].size", "Loadable", "", "memory_list[x]"]
)
def test_a_path_that_leads_nowhere_has_no_position_or_that_of_its_table(path):
    from nvdla.loadable import to_bytes

    data = to_bytes(network(chain(2)))
    position = position_of(memoryview(data), path)
    assert position is None or 0 <= position < len(data)
