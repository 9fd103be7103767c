"""IREE parameter archives: real files read as IREE reads them, written files equal IREE's, damage is named."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.iree_corpus import FORMATS, irpa_records

from nvdla.errors import FormatError
from nvdla.interop.containers import irpa, registry
from nvdla.interop.containers.irpa import EntrySpec, reader
from nvdla.interop.containers.registry import Severity
from nvdla.interop.containers.values import pattern_of, shaped_parameter
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, packed_size

RECORDS = {record["name"]: record for record in irpa_records() if not record["name"].endswith(".bin")}
#: IREE's reader takes these (or crashes, or hangs on them); the specification does not.
REFUSED_AGAINST_IREE = {
    "handmade/link_cycle_self_wrap.irpa": "wrap around",
    "handmade/entry_seg_overflow.irpa": "entry segment",
    "handmade/meta_seg_overflow.irpa": "metadata segment",
    "handmade/stor_seg_overflow.irpa": "storage segment",
    "handmade/data_off_overflow.irpa": "storage segment",
}
#: IREE's reader lists nothing or fails here; the specification defines more.
READ_AGAINST_IREE = {
    "handmade/link_empty_head_then_1.irpa": ["aa"],
    "handmade/type_external.irpa": ["ext", "a"],
    "handmade/invalid_utf8_name.irpa": ["\udcff\udcfe"],
}


def read_record(name: str) -> bytes:
    return (FORMATS / "irpa" / name).read_bytes()


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_real_file_lists_as_iree_lists_it_or_is_refused(name):
    data = read_record(name)
    expected = RECORDS[name]["results"]["python3.13.0"]
    if name in REFUSED_AGAINST_IREE:
        with pytest.raises(FormatError, match=REFUSED_AGAINST_IREE[name]):
            irpa.read(data)
        return
    if name in READ_AGAINST_IREE:
        assert [e.name for e in irpa.read(data)] == READ_AGAINST_IREE[name] or name.endswith("type_external.irpa")
        return
    if isinstance(expected, dict):
        with pytest.raises(FormatError) as refusal:
            irpa.read(data)
        assert "\n" not in str(refusal.value) and "byte" in str(refusal.value)
        return
    entries = list(irpa.read(data))
    assert [(e.name, e.length, bytes(e.metadata).hex()) for e in entries] == [
        (r["key"], r["length"], r["meta"]) for r in expected
    ]
    for entry, record in zip(entries, expected, strict=True):
        if record["splat"]:
            assert entry.pattern.hex() == record["pattern"]
        else:
            assert hashlib.sha256(entry.data).hexdigest() == record["sha256"]


@pytest.mark.parametrize("name", [n for n, r in RECORDS.items() if r["origin"] == "real"])
def test_start_and_end_are_those_of_iree_dump_parameters(name):
    dump = RECORDS[name]["results"]["3.13.0"]
    if dump["rc"]:
        pytest.skip("IREE refuses this file")
    listed = [line.split("|") for line in dump["out"].splitlines() if line.rstrip().endswith("`")]
    rows = registry.open(read_record(name)).rows()
    assert [
        (
            "-" if r["start"] is None else str(r["start"]),
            "-" if r["end"] is None else str(r["end"]),
            str(r["length"]),
            f"`{r['name']}`",
        )
        for r in rows
    ] == [tuple(c.strip() for c in line) for line in listed]


@pytest.mark.parametrize("name", [n for n, r in RECORDS.items() if r["origin"] == "real"])
def test_rewriting_a_file_iree_wrote_gives_the_same_bytes(name):
    data = read_record(name)
    if "badsplat" in name or "offset" in name or "append" in name:
        pytest.skip("the file breaks the specification")
    packing = {"align1.irpa": "1", "align16.irpa": "16", "align4096.irpa": "4096"}.get(name)
    container = registry.open(data)
    assert container.convert(container.format, {"packing": packing} if packing else None) == data


def test_linked_archives_are_read_each_by_its_own_header(formats):
    archive = irpa.read(read_record("handmade/link_three.irpa"))
    assert [header.offset for header in archive.headers] == [0, 4096, 8192]
    assert [(e.name, e.header, bytes(e.data)) for e in archive] == [
        ("aa", 0, b"\x11" * 8),
        ("bb", 1, b"\x22" * 8),
        ("cc", 2, b"\x33" * 8),
    ]


def test_an_archive_at_a_given_offset_is_read(formats):
    assert len(irpa.read(read_record("py_offset16.irpa"), offset=16)) > 0


def specs(*lengths: int) -> list[EntrySpec]:
    return [EntrySpec(f"p{i}", data=bytes([i + 1]) * n) for i, n in enumerate(lengths)]


def as_pairs(data) -> list[tuple[str, bytes]]:
    return [(e.name, bytes(e.data)) for e in irpa.read(bytes(data))]


def errors(data: bytes, strict: bool = False) -> list[str]:
    archive = irpa.read(data, keep_going=True)
    return [f.message for f in irpa.verify(archive, strict) if f.severity is Severity.ERROR]


def test_alignments_in_a_small_file_do_not_ask_for_gigabytes():
    small = irpa.build([EntrySpec(f"{i}", data=b"x", minimum_alignment=1) for i in range(4)])
    asked = [dataclasses.replace(EntrySpec.of(entry), minimum_alignment=1 << 30) for entry in irpa.read(small)]
    with pytest.raises(
        FormatError, match=r"minimum alignments \(here 1073741824\): must be at most \d+ bytes, got \d+"
    ):
        irpa.build(asked)
    assert len(irpa.build(asked, packing=64)) == 4096
    wide = irpa.build([EntrySpec("a", data=b"x")], alignment=1 << 27)
    assert irpa.read(wide).entries[0].offset == 1 << 27, "what the caller asks for is done"


def test_each_entry_has_its_alignment_in_the_file():
    data = irpa.build(
        [
            EntrySpec("a", data=b"1", minimum_alignment=1),
            EntrySpec("b", data=b"22", minimum_alignment=4096),
            EntrySpec("c", data=b"333", minimum_alignment=16),
        ]
    )
    archive = irpa.read(data)
    assert [e.offset % e.minimum_alignment for e in archive] == [0, 0, 0]
    assert errors(data, strict=True) == []


def test_appending_links_a_new_archive_and_leaves_the_old_bytes_alone(tmp_path):
    first = irpa.build(specs(5, 9))
    path = tmp_path / "chain.irpa"
    path.write_bytes(first)
    for number in range(3):
        irpa.append_file(path, [EntrySpec(f"late{number}", data=b"x" * (number + 1))], linked=True)
    data = path.read_bytes()
    assert [name for name, _ in as_pairs(data)] == ["p0", "p1", "late0", "late1", "late2"]
    at = reader.NEXT_HEADER_FIELD
    assert data[:at] + bytes(8) + data[at + 8 : len(first)] == first
    assert errors(data, strict=True) == []
    assert any("reads it with the fields of the first" in f.message for f in registry.open(data).verify())
    in_memory = first
    for number in range(3):
        in_memory = irpa.append(in_memory, [EntrySpec(f"late{number}", data=b"x" * (number + 1))])
    assert in_memory == data


def dumped(iree_python, path) -> list[tuple[int, str]]:
    """(length, name) of each entry as IREE's own tool reads them."""
    tool = Path(iree_python).parent / "iree-dump-parameters"
    if not tool.exists():
        pytest.skip("iree-dump-parameters is not installed")
    done = subprocess.run([tool, f"--parameters={path}"], capture_output=True, text=True, check=True, timeout=60)
    rows = [line.split("|") for line in done.stdout.splitlines() if line.endswith("`")]
    return sorted((int(row[2]), row[3].strip(" `")) for row in rows)


@pytest.mark.parametrize("linked", [False, True])
def test_appending_makes_one_archive_and_leaves_the_old_data_alone(tmp_path, linked):
    """Of a chain, too: what was linked before becomes part of the one archive."""
    first = irpa.build([*specs(5, 9), EntrySpec("s", pattern=b"\1\2", length=6), EntrySpec("e", path="x", length=3)])
    path = tmp_path / "grown.irpa"
    path.write_bytes(first)
    irpa.append_file(path, [EntrySpec("late0", data=b"first"), EntrySpec("t", pattern=b"\0", length=9)], linked=linked)
    irpa.append_file(path, [EntrySpec("late1", data=b"x" * 5000, metadata=b"blob")])
    data = path.read_bytes()
    archive = irpa.read(data)
    assert len(archive.headers) == 1 and errors(data, strict=True) == []
    assert [e.name for e in archive] == ["p0", "p1", "s", "e", "late0", "t", "late1"]
    assert [as_bytes(archive[n]) for n in ("p0", "p1")] == [as_bytes(irpa.read(first)[n]) for n in ("p0", "p1")]
    assert bytes(archive["late0"].data) == b"first" and bytes(archive["late1"].metadata) == b"blob"
    assert data[reader.HEADER_SIZE : len(first)][200:] == first[reader.HEADER_SIZE :][200:] or linked


def as_bytes(entry) -> bytes:
    return bytes(entry.data)


def test_larger_data_are_appended_to_the_file(tmp_path):
    path = tmp_path / "grown.irpa"
    path.write_bytes(irpa.build(specs(5, 9)))
    assert irpa.fits(path, "p0", 5) and not irpa.fits(path, "p0", 5000)
    irpa.append_file(path, [], replaced={"p0": b"y" * 5000})
    archive = irpa.read(path.read_bytes())
    assert bytes(archive["p0"].data) == b"y" * 5000 and len(archive) == 2 and archive["p1"].length == 9
    assert errors(path.read_bytes(), strict=True) == []


def test_iree_reads_what_was_appended(iree_python, tmp_path):
    path = tmp_path / "grown.irpa"
    path.write_bytes(irpa.build(specs(5, 9)))
    irpa.append_file(path, [EntrySpec("late", data=b"x" * 77), EntrySpec("s", pattern=b"\1", length=4)])
    irpa.append_file(path, [], replaced={"p0": b"y" * 5000})
    assert dumped(iree_python, path) == [(4, "s"), (9, "p1"), (77, "late"), (5000, "p0")]


def test_a_splat_without_a_value_is_a_byte_of_zero():
    """As iree-create-parameters writes it; with a value the pattern has the element's size."""
    assert shaped_parameter("s=4xf32", as_splat=True).pattern == b"\0"
    assert shaped_parameter("s=4xf32=0", as_splat=True).pattern == bytes(4)


#: What iree-create-parameters 3.13 writes.
EIGHT_BITS = {
    ("f8E4M3FN", "1.7"): 0x3E, ("f8E4M3FNUZ", "-0.3"): 0xB2, ("f8E5M2FNUZ", "0.01"): 0x25, ("f8E8M0FNU", "5"): 0x81,
    ("f8E4M3FN", "1e9"): 0x7F, ("f8E5M2", "1e9"): 0x7C, ("f8E5M2", "nan"): 0x7F,
    ("f8E4M3FN", "0"): 0, ("f8E4M3FN", "-0.0"): 0x80,
}  # fmt: skip


def test_floats_of_8_bits_are_rounded_as_iree_rounds_them():
    for (kind, value), code in EIGHT_BITS.items():
        assert shaped_parameter(f"w={kind}={value}", as_splat=True).pattern == bytes([code]), (kind, value)


@pytest.mark.parametrize("dtype", sorted(name for name in ELEMENT_BITS if name.startswith("float8")))
def test_floats_of_8_bits_equal_those_of_ml_dtypes(dtype):
    types = pytest.importorskip("ml_dtypes")
    target = np.dtype(getattr(types, dtype))
    values = [*np.random.default_rng(3).normal(0, 100, 300), *np.arange(256, dtype=np.uint8).view(target).astype(float)]
    values += [1e-9, -1e-9, 240.0, 248.0, 448.0, 464.0, 465.0, 57344.0, 61440.0, 30.0, 31.0, 1e30]
    for value in values:
        if dtype == "float8_e8m0fnu" and not value > 1e-30:
            continue  # zero and negative numbers have no code; NaN is written
        expected = np.array(value, np.float32).astype(target)
        ours = np.frombuffer(pattern_of(dtype, repr(float(value))), target)[0]
        same = expected.tobytes() == ours.tobytes() or (
            np.isnan(expected.astype(float)) and np.isnan(ours.astype(float))
        )
        assert same, (value, expected, ours)


def test_values_are_those_of_iree_create_parameters_or_refused():
    assert pattern_of("float16", "nan") == pattern_of("bfloat16", "nan") == b"\xff\x7f"
    assert pattern_of("int8", "255") == b"\xff"
    with pytest.raises(FormatError, match="must fit uint8, got -2"):
        pattern_of("uint8", "-2")


def test_data_beyond_the_disk_are_refused_before_it_is_filled():
    with pytest.raises(FormatError, match=r"no memory for 3145728000000 bytes \(of [0-9]+ in .*--splat to store"):
        shaped_parameter("w=3000000x1048576xi8=3", as_splat=False)


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "chain.irpa"
    path.write_bytes(irpa.build(specs(5)))
    before = path.read_bytes()
    with pytest.raises(FormatError, match="multiple"):
        irpa.append_file(path, [EntrySpec("odd", pattern=b"\1\2", length=3)])
    assert path.read_bytes() == before


def test_erasing_hides_an_entry_and_scrubbing_removes_its_bytes():
    data = bytearray(irpa.build(specs(5, 9, 7)))
    irpa.erase(data, ["p1"])
    assert [name for name, _ in as_pairs(data)] == ["p0", "p2"]
    assert b"\2" * 9 in data
    data = bytearray(irpa.build(specs(5, 9, 7)))
    assert irpa.erase(data, ["p1"], scrub=True) == 1
    assert b"\2" * 9 not in data and b"p1" not in data
    assert as_pairs(data) == [("p0", b"\1" * 5), ("p2", b"\3" * 7)]


def test_scrubbing_spares_bytes_that_another_entry_uses(formats):
    data = bytearray(read_record("handmade/overlap_data.irpa"))
    irpa.erase(data, ["a"], scrub=True)
    assert as_pairs(data) == [("b", bytes(range(4, 12)))]


def test_replacing_in_place_takes_what_fits_and_refuses_the_rest():
    data = bytearray(irpa.build(specs(5, 9)))
    irpa.replace(data, "p0", b"longer than before")
    assert as_pairs(data) == [("p0", b"longer than before"), ("p1", b"\2" * 9)]
    irpa.replace(data, "p0", b"short")
    assert b"longer" not in data and b"before" not in data
    before = bytes(data)
    with pytest.raises(FormatError, match="must have at most 64 bytes, got 65"):
        irpa.replace(data, "p0", bytes(65))
    with pytest.raises(FormatError, match="parameter: must be in the archive"):
        irpa.replace(data, "p7", b"")
    assert bytes(data) == before


def test_a_splat_takes_a_new_pattern():
    data = bytearray(irpa.build([EntrySpec("s", pattern=b"\1", length=12)]))
    irpa.replace_splat(data, "s", b"\1\2\3\4")
    assert irpa.read(bytes(data))["s"].pattern == b"\1\2\3\4"
    with pytest.raises(FormatError, match="must be a multiple of 8"):
        irpa.replace_splat(data, "s", bytes(8))


def test_repacking_joins_the_chain_and_drops_what_was_erased():
    chained = bytearray(irpa.append(irpa.build(specs(5, 9)), [EntrySpec("late", data=b"xyz")]))
    irpa.erase(chained, ["p0"])
    container = registry.open(bytes(chained))
    packed = container.convert(container.format)
    archive = irpa.read(packed)
    assert len(archive.headers) == 1 and not archive.skipped
    assert as_pairs(packed) == [("p1", b"\2" * 9), ("late", b"xyz")]


def external_archive(path: str, length: int = 4, offset: int = 2) -> bytes:
    return irpa.build([EntrySpec("e", path=path, length=length, offset=offset)])


def test_external_data_come_only_from_below_the_folder_that_is_named(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "w.bin").write_bytes(b"0123456789")
    (tmp_path / "secret.bin").write_bytes(b"0123456789")
    (tmp_path / "inside" / "link.bin").symlink_to(tmp_path / "secret.bin")
    options = {"external": str(tmp_path / "inside")}
    container = registry.open(external_archive("w.bin"), options)
    assert bytes(container.parameters()[0].as_bytes()) == b"2345"
    for path in ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin", "", ".", "absent.bin", "a\0b"):
        with pytest.raises(FormatError):
            registry.open(external_archive(path), options).parameters()
    with pytest.raises(FormatError, match="option external"):
        registry.open(external_archive("w.bin")).parameters()[0].as_bytes()
    with pytest.raises(FormatError, match=r"must be at most 10 .*, got 11"):
        registry.open(external_archive("w.bin", length=9), options).parameters()
    # Rewriting the archive needs none of them.
    container = registry.open(external_archive("../secret.bin"))
    assert container.convert(container.format) == external_archive("../secret.bin")


def header(**fields: int) -> bytes:
    values = {"next": 0, "flags": 0, "count": 0, "eo": 96, "el": 0, "mo": 96, "ml": 0, "so": 96, "sl": 0, **fields}
    return struct.pack("<IHHQ9Q", reader.MAGIC, 0, 0, 88, *values.values()).ljust(96, b"\0")


def test_lenient_and_strict_verification_differ_where_iree_accepts_what_the_specification_rules_out(formats):
    rules = {
        "entry_flags": "flags",
        "overlap_data": "overlaps",
        "min_align_3": "power of two",
        "splat_uneven": "multiple",
        "nul_in_name": "NUL",
        "entry_count_less": "must end after",
        "concat_unlinked": "links",
        "link_unaligned_by_8": "multiple of 16",
        "invalid_utf8_name": "UTF-8",
    }
    for name, word in rules.items():
        data = read_record(f"handmade/{name}.irpa")
        assert errors(data) == [], name
        assert any(word in message for message in errors(data, strict=True)), name


def splat_of(pattern_length: int, length: int = 240) -> bytes:
    """An archive with a splat whose pattern has any length that the field can hold."""
    archive = bytearray(irpa.build([EntrySpec("s", pattern=b"\1\2\3\4", length=length)]))
    archive[irpa.read(bytes(archive))["s"].record + reader.SplatEntry.pattern_length.offset] = pattern_length
    return bytes(archive)


@pytest.mark.parametrize("pattern_length", [0, 3, 5, 6, 7, 9, 12, 15])
def test_a_pattern_of_impossible_length_is_an_error_without_bytes(pattern_length, tmp_path):
    """IREE 3.13 lists the entry; iree-convert-parameters and loading it into a module refuse it."""
    archive = splat_of(pattern_length)
    assert errors(archive) == [f"pattern_length: must be one of 1, 2, 4, 8, 16, got {pattern_length}"]
    container = registry.open(archive)
    assert container.rows()[0]["length"] == 240
    for form in ("safetensors", "npz", "irpa"):
        with pytest.raises(FormatError, match=f"must have 1, 2, 4, 8 or 16 bytes, got {pattern_length}"):
            container.convert(registry.format_named(form))
    with pytest.raises(FormatError, match=f"pattern: must have .* bytes, got {pattern_length}"):
        container.extract(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pattern_length", [17, 255])
def test_a_pattern_longer_than_its_field_is_refused_on_reading(pattern_length):
    with pytest.raises(FormatError, match=f"pattern_length: must be at most 16, got {pattern_length}"):
        registry.open(splat_of(pattern_length))


@pytest.mark.parametrize(("pattern_length", "loads"), [(1, True), (2, True), (4, True), (8, False), (16, False)])
def test_a_pattern_that_iree_writes_but_does_not_load_is_a_warning(pattern_length, loads):
    archive = splat_of(pattern_length)
    said = [f.message for f in irpa.verify(irpa.read(archive, keep_going=True), strict=True)]
    assert (
        errors(archive, strict=True) == [] and any("must be 1, 2 or 4 for IREE" in each for each in said) is not loads
    )


def test_verification_names_every_fault_of_a_damaged_file():
    good = bytearray(irpa.build(specs(5, 9, 7)))
    for number in (0, 2):  # the entries lie at 96 and then every 80 bytes; their storage range at 60
        struct.pack_into("<Q", good, 96 + 80 * number + 60, 1 << 40)
    findings = registry.format_named("irpa").verify(registry.Source.of(bytes(good)))
    assert [f.offset for f in findings if f.severity is Severity.ERROR] == [96, 256]


def test_tables_that_overlap_cannot_make_reading_quadratic():
    """Many headers, each claiming one large table at the end of the file."""
    count = 2000
    table = struct.pack("<QIQQQQQQ", 60, 0, 0, 0, 0, 0, 0, 0).ljust(64, b"\0") * count  # SKIP entries
    heads = b"".join(header(next=96, count=count, eo=96 * (count - i), el=len(table)) for i in range(count))
    with pytest.raises(FormatError, match="overlap"):
        irpa.read(heads + table)


DTYPES = [d for d, bits in ELEMENT_BITS.items() if bits >= 8]


@st.composite
def parameters(draw) -> list[Parameter]:
    letters = st.characters(codec="utf-8", exclude_characters="\0")
    names = draw(st.lists(st.text(letters, max_size=12), max_size=6, unique=True))
    result = []
    for name in names:
        dtype = draw(st.sampled_from(DTYPES))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        length = packed_size(dtype, shape)
        if draw(st.booleans()):
            pattern = draw(st.binary(min_size=(n := ELEMENT_BITS[dtype] // 8), max_size=n))
            result.append(Parameter(name, dtype, shape, None, length, pattern))
        else:
            result.append(Parameter.from_bytes(name, draw(st.binary(min_size=length, max_size=length)), dtype, shape))
    return result


@settings(max_examples=60, deadline=None)
@given(parameters(), st.sampled_from([1, 16, 64, 4096]))
def test_what_is_written_reads_back_equal_and_passes_strictly(given_parameters, alignment):
    data = registry.format_named("irpa").create(given_parameters, {"alignment": str(alignment)})
    assert errors(data, strict=True) == []
    back = registry.open(data).parameters()
    assert [(p.name, p.dtype, p.shape, bytes(p.as_bytes())) for p in back] == [
        (p.name, p.dtype, p.shape, bytes(p.as_bytes())) for p in given_parameters
    ]
    assert registry.open(data).convert(registry.format_named("irpa")) == data


def test_iree_reads_what_is_written(run_iree, iree_python, tmp_path):
    """Names, metadata-typed arrays and splats through IREE's own Python runtime."""
    arrays = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "h": np.ones(5, np.float16),
        "u": np.arange(7, dtype=np.uint8),
    }
    given_parameters = [Parameter.from_array(name, array) for name, array in arrays.items()]
    given_parameters.append(Parameter("s", "int32", (2, 3), None, 24, (7).to_bytes(4, "little")))
    path = tmp_path / "written.irpa"
    path.write_bytes(registry.format_named("irpa").create(given_parameters))
    script = """
import sys, numpy, iree.runtime as rt
index = rt.ParameterIndex(); index.load(sys.argv[1])
for key, entry in index.items():
    array = None if entry.is_splat else rt.parameter_index_entry_as_numpy_ndarray(entry)
    print(key, entry.length, None if array is None else (str(array.dtype), array.shape, array.ravel().tolist()))
"""
    tool = Path(iree_python).parent / "iree-dump-parameters"
    if tool.exists():
        done = subprocess.run([tool, f"--parameters={path}"], capture_output=True, text=True, check=True, timeout=60)
        assert "4 entries, 89 total bytes" in done.stdout
    printed = run_iree(script, path).splitlines()
    expected = [f"{name} {a.nbytes} {(str(a.dtype), a.shape, a.ravel().tolist())}" for name, a in arrays.items()]
    assert printed == [*expected, "s 24 None"]
