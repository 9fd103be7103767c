"""TVM parameter files: what TVM wrote is read, what we write TVM reads, and what TVM lets pass is reported."""

from __future__ import annotations

import hashlib
import json
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tvm_corpus import manifest

from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.interop.containers.tvm import params
from nvdla.interop.containers.tvm.params import DIALECTS, TvmDataType, parse
from nvdla.tensors.parameters import Parameter

#: What the corpus holds that TVM refuses, and the word our message must contain.
REFUSED = {
    "count_mismatch": "tensor count",
    "names_huge": "name count",
    "t_magic": "magic: must be",
    "ndim_neg": "rank: must be .*, got -1",
    "ndim_huge": "rank",
    "size_bad": "must be stored in",
}


def entries(with_listing: bool) -> list:
    return [pytest.param(e, id=e["name"]) for e in manifest("params") if ("entries" in e) == with_listing]


@pytest.mark.parametrize("entry", entries(True))
def test_what_tvm_wrote_lists_as_recorded(formats, entry):
    container = registry.open(formats / "params" / entry["name"])
    found = [
        {"name": p.name, "dtype": p.dtype, "shape": list(p.shape), "sha256": hashlib.sha256(p.as_bytes()).hexdigest()}
        for p in container.parameters()
    ]
    assert found == entry["entries"]
    assert [f for f in container.verify() if f.severity != registry.Severity.NOTE] == []


@pytest.mark.parametrize("entry", entries(False))
def test_a_file_that_tvm_refuses_is_refused_with_a_reason(formats, entry):
    data = (formats / "params" / entry["name"]).read_bytes()
    stem = entry["name"].removeprefix("handmade/").removesuffix(".params")
    if stem in REFUSED:
        with pytest.raises(FormatError, match=REFUSED[stem]):
            params.read(data)
    elif not data:
        with pytest.raises(FormatError, match="cut off"):
            params.read(data)
    else:
        file = params.read(data)
        assert file.pack() == data
        if entry.get("rc") == 0:
            kept = {t.name: (t.name, t.type_name, list(t.shape)) for t in file.tensors}
            assert str(list(kept.values())) == entry["out"]


@pytest.mark.parametrize(
    ("stem", "word"),
    [
        ("dup_names", "name: must be unique"),
        ("dev_id5", "device id: must be 0, got 5"),
        ("reserved_nz", "reserved"),
        ("lanes4", "drops the rest"),
    ],
)
def test_what_tvm_accepts_silently_is_reported(formats, stem, word):
    file = params.read((formats / "params" / "handmade" / f"{stem}.params").read_bytes())
    assert any(word in finding.message or word in finding.where for finding in file.verify())


def test_a_tensor_tvm_cannot_read_back_is_read_and_reported(formats):
    file = params.read((formats / "params" / "zero_len_inner.params").read_bytes())
    assert [(t.name, t.shape) for t in file.tensors] == [("t", (3, 0)), ("u", (1,))]
    assert [f.severity.value for f in file.verify(strict=True)] == ["error"]


def test_every_file_round_trips_byte_for_byte(formats):
    paths = sorted((formats / "params").glob("*.params")) + sorted((formats / "mlf").glob("*.params"))
    assert len(paths) > 8
    for path in paths:
        data = path.read_bytes()
        assert params.read(data).pack() == data, path.name


def sample() -> bytes:
    return params.write(
        [
            Parameter.from_array("w", np.arange(12, dtype=np.float32).reshape(3, 4)),
            Parameter.from_array("b", np.array([True, False])),
            Parameter.from_bytes("h", bytes(range(6)), "bfloat16", (3,)),
        ]
    )


def test_a_file_cut_short_by_one_byte_is_refused():
    with pytest.raises(FormatError, match=r"parameter file: data of tensor 'w' .* .cut off"):
        params.read(sample()[:-1])


def test_bytes_after_the_end_are_an_error():
    file = params.read(sample() + b"junk")
    errors = [f.message for f in file.verify() if f.severity == "error"]
    assert errors == ["must be the end of the last tensor, got 4 more bytes. Cut them off."]


def test_the_canonical_order_is_by_name_so_equal_contents_give_equal_files():
    one, two = Parameter.from_bytes("b", b"1"), Parameter.from_bytes("a", b"2")
    assert params.write([one, two]) == params.write([two, one])
    assert [t.name for t in params.read(params.write([one, two], order="given")).tensors] == ["b", "a"]


def test_a_bool_is_code_6_today_and_a_one_bit_integer_in_old_tvm():
    flags = [Parameter.from_array("f", np.array([True, False, True]))]
    today, old = params.read(params.write(flags)), params.read(params.write(flags, dialect="0.8"), dialect="0.8")
    assert (today.tensors[0].dtype, old.tensors[0].dtype) == (TvmDataType(6, 8), TvmDataType(1, 1))
    for file in (today, old):
        assert file.tensors[0].array().tolist() == [True, False, True]


def test_code_6_is_float8_between_0_14_and_0_20():
    assert (
        params.read(params.write([Parameter.from_bytes("f", b"\x38", "float8_e4m3fn", (1,))], "0.14"), "0.14")
        .tensors[0]
        .type_name
        == "float8_e4m3fn"
    )
    with pytest.raises(FormatError, match=r"must be one of TVM dialect 0\.8, got 'float8_e4m3fn'"):
        params.write([Parameter.from_bytes("f", b"\x38", "float8_e4m3fn", (1,))], "0.8")


def test_four_bit_data_is_packed_first_and_padded_to_a_byte_an_element():
    packed = Parameter.from_bytes("q", b"\x21\x03", "int4", (3,))
    (tensor,) = params.read(params.write([packed])).tensors
    assert bytes(tensor.stored) == b"\x21\x03\x00"
    assert bytes(tensor.data) == b"\x21\x03"


def test_duplicate_names_are_not_written():
    with pytest.raises(FormatError, match="must be unique for TVM, got 'a' twice"):
        params.write([Parameter.from_bytes("a", b"1"), Parameter.from_bytes("a", b"2")])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_type_names_and_codes_are_inverse(dialect):
    for code in DIALECTS[dialect]:
        for bits in (1, 4, 6, 8, 16, 32, 64):
            for lanes in (1, 4):
                name = TvmDataType(code, bits, lanes).name(dialect)
                if not name.startswith("code") and name != "boolx4":
                    assert parse(name, dialect).name(dialect) == name


@pytest.mark.parametrize("name", ["", "float", "int0", "int999", "float32x0", "float8_e4m3fn16", "quux8", "int8x99999"])
def test_what_is_no_type_is_refused(name):
    with pytest.raises(FormatError, match="must be one of TVM dialect"):
        parse(name)


TYPES = ["int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]


@given(
    st.dictionaries(
        st.text(max_size=8), st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=5
    )
)
@settings(max_examples=60, deadline=None)
def test_any_parameters_survive_writing_and_reading(described):
    arrays = {
        name: np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        for name, (dtype, shape) in described.items()
        if name.isprintable() or name == ""
    }
    data = params.write([Parameter.from_array(name, array) for name, array in arrays.items()])
    file = params.read(data)
    assert file.pack() == data
    assert [t.name for t in file.tensors] == sorted(arrays, key=str.encode)
    for name, array in arrays.items():
        back = file[name].array()
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert np.array_equal(back, array)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_either_opens_or_raises_one_error(data):
    raw = bytearray(sample())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        file = params.read(bytes(raw))
    except FormatError:
        return
    assert file.pack() == bytes(raw)
    file.verify()
    for tensor in file.tensors:
        tensor.parameter()


def test_a_shape_of_many_huge_extents_takes_no_time():
    rank = 100_000
    header = struct.pack("<3Q", params.LIST_MAGIC, 0, 1) + struct.pack("<Q", 0) + struct.pack("<Q", 1)
    tensor = struct.pack("<2Q3i2BH", params.TENSOR_MAGIC, 0, 1, 0, rank, 2, 32, 1)
    shape = struct.pack("<q", 1 << 62) * (rank - 1) + struct.pack("<q", 0)
    start = time.perf_counter()
    file = params.read(header + tensor + shape + struct.pack("<q", 0))
    file.verify()
    file.tensors[0].parameter().as_array()
    assert time.perf_counter() - start < 2


LIST = """
import json, sys, tvm
from tvm.runtime import load_param_dict
loaded = load_param_dict(open(sys.argv[1], 'rb').read())
print(json.dumps({k: [str(v.dtype), list(v.shape), v.numpy().tobytes().hex()] for k, v in loaded.items()}))
"""

SAVE = """
import sys, tvm, numpy
from tvm.runtime import save_param_dict
values = {n: tvm.runtime.tensor(numpy.arange(-3, 3).astype(n).reshape(2, 3)) for n in sys.argv[2:]}
open(sys.argv[1], 'wb').write(save_param_dict(values))
"""


def test_tvm_reads_what_we_write(tmp_path, run_tvm):
    arrays = {name: np.arange(-3, 3).astype(name).reshape(2, 3) for name in TYPES}
    (tmp_path / "ours.params").write_bytes(params.write([Parameter.from_array(n, a) for n, a in arrays.items()]))
    loaded = json.loads(run_tvm(LIST, tmp_path / "ours.params"))
    assert loaded == {n: [n, [2, 3], a.tobytes().hex()] for n, a in arrays.items()}


def test_we_read_what_tvm_writes(tmp_path, run_tvm):
    run_tvm(SAVE, tmp_path / "theirs.params", *TYPES)
    data = (tmp_path / "theirs.params").read_bytes()
    file = params.read(data)
    assert file.pack() == data
    for name in TYPES:
        assert np.array_equal(file[name].array(), np.arange(-3, 3).astype(name).reshape(2, 3)), name


def test_verify_refuses_type_codes_that_tvm_does_not_know():
    """It reads as bytes here; TVM refuses the file, and so does verification, strict or not."""
    parameter = Parameter.from_array("w", np.arange(4, dtype=np.int8))
    data = bytearray(registry.format_named("tvm-params").create([parameter]))
    at = data.index(params.TENSOR_MAGIC.to_bytes(8, "little")) + 8 + 8 + 12
    assert data[at] == 0
    data[at] = 77
    found = registry.open(bytes(data)).verify()
    assert [f.severity for f in found if "type code: must be known" in f.message] == [registry.Severity.ERROR]
