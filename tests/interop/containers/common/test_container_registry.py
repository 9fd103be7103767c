"""One interface for all containers: found by content, converted through parameters, written whole."""

from __future__ import annotations

import json
import struct
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nvdla.interop.containers
from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.interop.containers.values import pattern_of, shaped_parameter, transform
from nvdla.tensors.parameters import Parameter

ARRAYS = {
    "weights": np.arange(24, dtype=np.int8).reshape(2, 3, 2, 2),
    "bias": np.array([1.5, -2.5], np.float32),
    "half": np.ones((0, 3), np.float16),
    "scalar": np.array(7, np.int64),
    "flags": np.array([True, False]),
}
WRITERS = ("irpa", "npz", "safetensors", "tvm-params")


def given_parameters() -> list[Parameter]:
    return [Parameter.from_array(name, array) for name, array in ARRAYS.items()]


def as_arrays(parameters) -> dict[str, np.ndarray]:
    return {p.name: p.as_array() for p in parameters}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes() for k in a
    )


def test_the_package_opens_and_lists_its_formats():
    assert {"irpa", "vmfb", "safetensors", "npz", "gguf", "tvm-params"} <= set(nvdla.interop.containers.formats())
    data = registry.format_named("irpa").create(given_parameters())
    assert same(as_arrays(nvdla.interop.containers.open(data).parameters()), ARRAYS)


@pytest.mark.parametrize("source", WRITERS)
@pytest.mark.parametrize("target", WRITERS)
def test_every_writable_format_converts_to_every_other(source, target):
    first = registry.format_named(source).create(given_parameters())
    opened = registry.open(first)
    assert opened.format.name == source
    second = registry.open(opened.convert(registry.format_named(target)))
    assert second.format.name == target
    assert same(as_arrays(second.parameters()), ARRAYS)
    assert second.verify(strict=True) == []


def test_content_decides_and_not_the_name(tmp_path):
    path = tmp_path / "misnamed.irpa"
    path.write_bytes(registry.format_named("safetensors").create(given_parameters()))
    assert registry.open(path).format.name == "safetensors"


@pytest.mark.parametrize("data", [b"", b"x", b"IREE", bytes(100), b"\x7fELF" + bytes(60), b"PK\x03\x04" + bytes(100)])
def test_unknown_content_is_one_error(data):
    with pytest.raises(FormatError) as refusal:
        registry.open(data)
    assert "\n" not in str(refusal.value)


def test_a_file_that_cannot_be_read_is_one_error(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        registry.open(tmp_path / "absent.irpa")


def test_a_new_format_is_one_class():
    class Lines(registry.Container):
        def __init__(self, format, source):
            self.format, self.source = format, source

        def rows(self):
            return [{"line": line} for line in bytes(self.source.data).decode().splitlines()]

        def verify(self, strict=False):
            return []

    class LinesFormat(registry.Format):
        name, title = "lines-for-test", "lines"

        def sniff(self, header, path):
            return header.startswith(b"LINES")

        def open(self, source, options=None):
            return Lines(self, source)

    try:
        registry.register(LinesFormat)
        opened = registry.open(b"LINES\nabc")
        assert opened.rows() == [{"line": "LINES"}, {"line": "abc"}]
        for call in (
            opened.parameters,
            opened.disassemble,
            lambda: opened.call("f", []),
            lambda: opened.format.create([]),
        ):
            with pytest.raises(FormatError):
                call()
    finally:
        registry._FORMATS.pop("lines-for-test", None)


def test_reading_containers_imports_no_numba():
    import subprocess

    script = (
        "import sys, nvdla.interop.containers; nvdla.interop.containers.formats(); import nvdla.cli.container; "
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_data_are_views_on_the_file():
    data = registry.format_named("irpa").create(given_parameters())
    view = registry.open(data).parameters()[0].as_array()
    assert not view.flags.owndata and not view.flags.writeable


def test_extraction_stays_below_its_folder(tmp_path):
    names = ["../../evil", "/etc/passwd", "a/../../b", "..", "C:\\x", "plain"]
    data = registry.format_named("irpa").create([Parameter.from_bytes(n, n.encode()) for n in names])
    written = registry.open(data).extract(tmp_path / "out")
    assert len(written) == len(names)
    for path in written:
        assert (tmp_path / "out").resolve() in path.resolve().parents
    assert not (tmp_path / "evil.bin").exists()


def test_extraction_takes_names_and_refuses_unknown_ones(tmp_path):
    container = registry.open(registry.format_named("npz").create(given_parameters()))
    (path,) = container.extract(tmp_path, ["bias"])
    assert path.read_bytes() == ARRAYS["bias"].tobytes()
    with pytest.raises(FormatError, match="nothing is named 'absent'"):
        container.extract(tmp_path, ["absent"])


def test_names_that_would_share_a_file_are_refused(tmp_path):
    data = registry.format_named("irpa").create([Parameter.from_bytes("a:b", b"1"), Parameter.from_bytes("a*b", b"2")])
    with pytest.raises(FormatError, match="must have different file names"):
        registry.open(data).extract(tmp_path)


# -- transformation ----------------------------------------------------------------------------------------------------


def test_exclude_rename_strip_and_splat():
    changed = transform(given_parameters(), ["half"], {"bias": "b"}, strip=True, splat=["weights=5", "scalar=ui16=258"])
    assert [p.name for p in changed] == ["weights", "b", "scalar", "flags"]
    assert [p.pattern for p in changed] == [b"\5", b"\0", b"\2\1", b"\0"]
    assert bytes(changed[0].as_bytes()) == b"\5" * 24 and changed[0].shape == (2, 3, 2, 2)
    for wrong in (
        {"exclude": ["x"]},
        {"rename": {"x": "y"}},
        {"splat": ["x=1"]},
        {"splat": ["weights=f32=a"]},
        {"splat": ["bias=f99=1"]},
        {"splat": ["weights=4096"]},
    ):
        with pytest.raises(FormatError):
            transform(given_parameters(), **wrong)


@pytest.mark.parametrize(
    ("dtype", "text", "expected"),
    [
        ("int8", "-1", "ff"),
        ("uint8", "255", "ff"),
        ("int16", "0x102", "0201"),
        ("float16", "1", "003c"),
        ("bfloat16", "1", "803f"),
        ("float32", "100.1", "3333c842"),
        ("float64", "0.125", "000000000000c03f"),
        ("bool", "1", "01"),
        ("float8_e4m3fn", "0", "00"),
        ("bfloat16", "nan", "ff7f"),
    ],
)
def test_values_become_little_endian_patterns(dtype, text, expected):
    assert pattern_of(dtype, text).hex() == expected


@pytest.mark.parametrize(
    "text",
    [
        "w",
        "w=",
        "w=4x",
        "w=x4xf32",
        "w=4xf99",
        "w=4xi8=256",
        "w=4xi8=-129",
        "w=i8=1.5",
        "w=4xf32=abc",
        "w=99999999999x99999999999xf64",
        "w=4xf8E5M2=one",
        "w=2xi1=2",
    ],
)
def test_values_that_make_no_sense_are_refused(text):
    with pytest.raises(FormatError):
        shaped_parameter(text, as_splat=True)


def test_a_splat_is_written_out_only_up_to_a_limit():
    huge = shaped_parameter("w=1000000x1000000xf32=1", as_splat=True)
    assert huge.length == 4 * 10**12
    with pytest.raises(FormatError, match="when written out"):
        huge.as_bytes()
    archive = registry.open(registry.format_named("irpa").create([huge]))
    assert len(archive.source.data) == 4096


def test_many_small_splats_are_limited_together(tmp_path):
    splats = [shaped_parameter(f"w{n}=10000000xi8=1", as_splat=True) for n in range(100)]
    archive = registry.open(registry.format_named("irpa").create(splats))
    for target in ("npz", "safetensors", "tvm-params"):
        with pytest.raises(FormatError, match="when written out"):
            archive.convert(registry.format_named(target))
    with pytest.raises(FormatError, match="when written out"):
        archive.extract(tmp_path)


# -- plain tensor files ------------------------------------------------------------------------------------------------


def safetensors(header: dict | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"a":1}', "must be a JSON object, got int"),
        (b'{"a":{},"a":{}}', "keys: must be unique"),
        ({"a": {"dtype": "F99", "shape": [], "data_offsets": [0, 4]}}, "dtype"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "must be 8 bytes, got 4"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "must be within the 4 data bytes"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, r"must be \[begin, end\]"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "shape"),
        ({"__metadata__": {"x": 1}}, "strings"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_broken_safetensors_headers_are_refused(header, why):
    with pytest.raises(FormatError, match=why):
        registry.open(safetensors(header, bytes(4)), format="safetensors")


def test_safetensors_gaps_and_overlaps_are_found():
    def one(begin: int) -> dict:
        return {"dtype": "U8", "shape": [2], "data_offsets": [begin, begin + 2]}

    assert registry.open(safetensors({"a": one(0), "b": one(2)}, bytes(4))).verify() == []
    for header, size in (({"a": one(0), "b": one(1)}, 3), ({"a": one(1)}, 3), ({"a": one(0)}, 3)):
        assert registry.open(safetensors(header, bytes(size))).verify()


def test_npz_files_with_pickles_or_bombs_are_refused(tmp_path):
    path = tmp_path / "object.npz"
    np.savez(path, a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(FormatError, match="must be a number type"):
        registry.open(path)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY" + bytes(1 << 20))
    data = bytearray(bomb.read_bytes())
    at = data.rfind(b"PK\1\2")
    struct.pack_into("<I", data, at + 24, 1 << 31)
    with pytest.raises(FormatError):
        registry.open(bytes(data))


def test_npz_written_by_numpy_is_read_and_the_other_way_round(tmp_path):
    path = tmp_path / "numpy.npz"
    np.savez_compressed(path, **ARRAYS)
    assert same(as_arrays(registry.open(path).parameters()), ARRAYS)
    path.write_bytes(registry.format_named("npz").create(given_parameters(), {"compress": "yes"}))
    with np.load(path, allow_pickle=False) as loaded:
        assert same(dict(loaded), ARRAYS)


def gguf(tensors=(("w", (3, 2), 0, 0),), pairs=(), data: bytes = bytes(64), alignment: int = 32) -> bytes:
    def text(value: str) -> bytes:
        return len(value).to_bytes(8, "little") + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(text(key) + raw for key, raw in pairs)
    for name, sizes, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + bytes(-len(head) % alignment) + data


def test_gguf_shapes_are_reversed_and_blocks_are_bytes():
    parameters = registry.open(gguf([("w", (3, 2), 0, 0), ("q", (32,), 2, 32)])).parameters()
    assert (parameters[0].dtype, parameters[0].shape) == ("float32", (2, 3))
    assert (parameters[1].dtype, parameters[1].length) == (None, 18)
    assert parameters[1].metadata["gguf_type"] == "Q4_0"


@pytest.mark.parametrize(
    "data",
    [
        b"GGUF",
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        gguf([("w", (3,), 99, 0)]),
        gguf([("w", (1 << 40,), 0, 0)]),
        gguf([("w", (33,), 2, 0)]),
        gguf([("w", (1,) * 9, 0, 0)]),
        gguf([("w", (3,), 0, 1 << 63)]),
        gguf(pairs=[("general.alignment", struct.pack("<II", 4, 3))]),
        gguf(pairs=[("x", struct.pack("<IIQ", 9, 9, 1) * 30)]),
        gguf(pairs=[("x", struct.pack("<I", 77))]),
    ],
)
def test_broken_gguf_files_are_refused(data):
    with pytest.raises(FormatError):
        registry.open(data)


def test_the_real_safetensors_and_gguf_files_are_read():
    from pathlib import Path

    folder = Path(__file__).parents[4] / ".." / "shared" / "corpus" / "formats" / "irpa"
    if not folder.exists():
        pytest.skip("the corpus of real files is not here")
    arrays = as_arrays(registry.open(folder / "in.safetensors").parameters())
    assert arrays["st.w"].tolist() == np.arange(12, dtype=np.float32).reshape(3, 4).tolist()
    arrays = as_arrays(registry.open(folder / "in.gguf").parameters())
    assert arrays["gg.h"].dtype == np.float16 and arrays["gg.w"].size == 8


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["irpa", "npz", "safetensors", "gguf", "vmfb"]), st.binary(max_size=300), st.integers(0, 2))
def test_any_bytes_open_or_raise_one_error(name, tail, kind):
    starts = {
        "irpa": b"IRPA" + bytes(4) + b"\x58" + bytes(7),
        "npz": b"PK\x03\x04",
        "gguf": b"GGUF\3\0\0\0",
        "safetensors": b"\x10" + bytes(7) + b"{",
        "vmfb": b"\x20\0\0\0\x08\0\0\0IREE",
    }
    data = (starts[name] if kind else b"") + tail
    try:
        container = registry.open(data, format=name)
        container.rows()
        container.verify(strict=True)
    except FormatError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", WRITERS)
def test_what_no_file_could_hold_is_refused_before_it_is_written(name):
    """Each used to give a file that its own reader refuses, another name, or an error of Python's."""
    handler = registry.formats()[name]
    short = Parameter.from_bytes("w", bytes(11), "float32", (3,))
    with pytest.raises(FormatError, match=r"parameter 'w': float32 of shape 3 must have 12 bytes, got 11"):
        handler.create([short])
    half = Parameter.from_array("\ud800", np.zeros(3, np.float32))
    with pytest.raises(FormatError, match="half of a surrogate pair"):
        handler.create([half])


def test_an_archive_keeps_names_or_refuses_them():
    """A name that was read from bytes that are no UTF-8 became another one, with a question mark."""
    with pytest.raises(FormatError, match="cannot be written as UTF-8"):
        registry.formats()["npz"].create([Parameter.from_array("\udcff", np.zeros(3, np.float32))])


def test_types_that_other_packages_register_with_numpy_change_no_file():
    """onnx loads ml_dtypes, with which bfloat16 became a type of an archive that nobody reads."""
    pytest.importorskip("ml_dtypes")
    parameter = Parameter.from_bytes("w", bytes(6), "bfloat16", (3,))
    data = registry.formats()["npz"].create([parameter])
    (found,) = registry.open(registry.Source.of(data)).parameters()
    assert (found.dtype, found.shape, bytes(found.as_bytes())) == ("uint16", (3,), bytes(6))
