"""What a small file may ask for when it is listed, converted or extracted: time, memory, disk in proportion."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.interop.containers import irpa, registry
from nvdla.interop.containers.irpa import EntrySpec
from nvdla.tensors.npz import read_npz
from nvdla.tensors.parameters import Parameter

SAMPLES = Path(__file__).resolve().parents[4] / "samples"


def calibration(path):
    """Calibration data of a model whose one input is called ``a``."""
    from nvdla.compiler.frontend.data import samples

    types = {"a": np.dtype(np.float32)}
    return list(samples(SimpleNamespace(inputs=["a"], shapes={"a": (1,)}, types=types), path))


READERS = {
    "container": lambda path: registry.open(path).parameters(), "compare --float": read_npz, "--calibrate": calibration,
}  # fmt: skip


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def packed(path, method: int, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.npy", content)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_reader_of_npz_takes_stored_and_deflated_members_only(tmp_path, reader, method):
    path = tmp_path / "bomb.npz"
    packed(path, method, npy(np.zeros(1 << 20, np.uint8)))
    with pytest.raises(FormatError, match="must be none or deflate"):
        READERS[reader](path)
    for fine in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed(path, fine, npy(np.arange(9, dtype=np.int16)))
        READERS[reader](path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packages_of_compile_hold_stored_and_deflated_members_only(method):
    from nvdla.compiler.frontend.package import unpack

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("manifest.json", bytes(1 << 20))
    with pytest.raises(FormatError, match="must be none or deflate"):
        unpack(stream.getvalue())


def test_no_module_reads_archives_with_numpy():
    """numpy unpacks whatever it is told to, and raises what it likes for headers that cannot be."""
    root = SAMPLES.parent / "nvdla"
    assert not [path for path in root.rglob("*.py") if "np.load(" in path.read_text("utf-8")]


@pytest.mark.parametrize("reader", READERS)
def test_a_member_is_unpacked_up_to_the_size_of_its_header(tmp_path, reader):
    """The directory and the array's header agree on 8 bytes; what deflate brings out of it is 100 MB."""
    path = tmp_path / "bomb.npz"
    packed(path, zipfile.ZIP_DEFLATED, npy(np.zeros(8, np.uint8)) + bytes(100 << 20))
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\1\2")
    struct.pack_into("<I", data, at + 24, len(npy(np.zeros(8, np.uint8))))
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(FormatError, match="checksum"):
        READERS[reader](path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_list_and_verify_of_npz_read_headers_only(tmp_path):
    """Damage in the data is seen where they are read: by convert, and by the strict check."""
    path = tmp_path / "a.npz"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed(path, method, npy(np.random.default_rng(1).integers(0, 255, 4000, np.uint8)))
        data = bytearray(path.read_bytes())
        data[3000] ^= 0xFF
        path.write_bytes(data)
        container = registry.open(path)
        assert container.rows()[0]["shape"] == [4000] and not container.verify()
        assert container.verify(strict=True)
        with pytest.raises(FormatError, match=r"checksum|unpacked"):
            container.parameters()


def test_sizes_of_thousands_of_digits_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    for shape in ("9" * 4000 + ",", ("9" * 4000 + ",") * 3, "0x" + "f" * 9000 + ",", "-1,", "1" + "0" * 19 + ","):
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape})}}".encode()
        packed(path, zipfile.ZIP_STORED, b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
        with pytest.raises(FormatError, match=r"shape|header"):
            registry.open(path)


# -- tensors that share bytes ----------------------------------------------------------------------------------------


def shared_gguf(tensors: int, size: int) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, 0)
    for number in range(tensors):
        name = f"{number}".encode()
        head += len(name).to_bytes(8, "little") + name + struct.pack("<IQIQ", 1, size, 24, 0)
    return head + bytes(-len(head) % 32) + bytes(size)


def shared_safetensors(tensors: int, size: int) -> bytes:
    one = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    text = json.dumps({f"{number}": one for number in range(tensors)}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


def shared_irpa(tensors: int, size: int) -> bytes:
    data = bytearray(irpa.build([EntrySpec(f"{n}", data=bytes(size if n == 0 else 0)) for n in range(tensors)]))
    first, *others = irpa.read(bytes(data)).entries
    at = irpa.layout.DataEntry.storage.offset if hasattr(irpa, "layout") else 60
    for entry in others:
        data[entry.record + at : entry.record + at + 16] = data[first.record + at : first.record + at + 16]
    return bytes(data)


@pytest.mark.parametrize("make", [shared_gguf, shared_safetensors, shared_irpa])
def test_tensors_may_share_bytes_but_not_without_end(tmp_path, make):
    few = registry.open(make(40, 50_000))
    assert len(few.parameters()) == 40
    many = registry.open(make(500, 50_000))
    assert len(many.rows()) == 500
    with pytest.raises(FormatError, match="share the same bytes"):
        many.convert(registry.format_named("npz"))
    with pytest.raises(FormatError, match="share the same bytes"):
        many.extract(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_external_entries_may_share_a_file_but_not_without_end(tmp_path):
    (tmp_path / "data.bin").write_bytes(bytes(10_000))
    for count, fails in ((10, False), (100, True)):
        data = irpa.build([EntrySpec(f"{n}", path="data.bin", length=10_000) for n in range(count)])
        container = registry.open(data, {"external": str(tmp_path)})
        if fails:
            with pytest.raises(FormatError, match="share the same bytes"):
                container.parameters()
        else:
            assert len(container.parameters()) == count


# -- large files and pipes -------------------------------------------------------------------------------------------

_PEAK = """
import sys
from nvdla.cli.main import main
code = main(sys.argv[1:])
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1], file=sys.stderr)
sys.exit(code)
"""


def peak_mib(*words: object) -> float:
    done = subprocess.run([sys.executable, "-c", _PEAK, *map(str, words)], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) / 1024


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Archives of 200 MiB (sparse where the file system can)."""
    folder = tmp_path_factory.mktemp("large")
    size = 200 << 20
    half = size // 2
    spans = {"w0": [0, half], "w1": [half, size]}
    header = json.dumps({n: {"dtype": "U8", "shape": [half], "data_offsets": span} for n, span in spans.items()})
    path = folder / "a.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + size)
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="pages of a mapping are let go of on Linux")
def test_conversions_stream(large):
    """Peaks stay near what Python and numpy take, far below the file's 200 MiB."""
    assert peak_mib("container", "convert", large, large.with_suffix(".irpa")) < 100
    assert peak_mib("container", "convert", large.with_suffix(".irpa"), large.with_suffix(".npz")) < 100
    assert peak_mib("container", "list", large.with_suffix(".npz")) < 100
    assert peak_mib("container", "convert", large.with_suffix(".npz"), large.with_suffix(".params")) < 100
    assert peak_mib("container", "extract", large.with_suffix(".params"), "-o", large.parent / "parts") < 100
    assert (large.parent / "parts" / "w1.bin").stat().st_size == 100 << 20


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_to_its_end_and_once(tmp_path, capsys):
    """Longer than what is mapped, and opened by options of its own: neither cuts it short nor reads it again."""
    whole = registry.format_named("irpa").create([Parameter.from_bytes("w", bytes(70 << 20))])
    pipe, out = tmp_path / "pipe.irpa", tmp_path / "out.irpa"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(whole,))
    writer.start()
    code = main(["container", "convert", str(pipe), str(out), "--option", "metadata=tensor"])
    writer.join()
    assert code == 0 and out.read_bytes() == whole


# -- names -----------------------------------------------------------------------------------------------------------


def test_names_of_many_parts_are_refused_and_can_be_extracted_to_a_file(tmp_path):
    name = "/".join("d" * 1500)
    container = registry.open(registry.format_named("irpa").create([Parameter.from_bytes(name, b"abc")]))
    with pytest.raises(FormatError, match=r"at most 64 parts .*, got 1500"):
        container.extract(tmp_path / "out")
    assert container.extract_to(name, tmp_path / "w.bin").read_bytes() == b"abc"


def test_names_become_files_that_a_file_system_takes(tmp_path):
    """Parts are cut by bytes, not by letters, and two that become one are refused."""
    irpa = registry.format_named("irpa")
    array = np.arange(4, dtype=np.int8)
    (written,) = registry.open(irpa.create([Parameter.from_array("é" * 300, array)])).extract(tmp_path)
    assert written.read_bytes() == array.tobytes() and len(written.name.encode()) <= 255
    alike = [Parameter.from_array("é" * 300 + end, array) for end in "ab"]
    with pytest.raises(FormatError, match="must have different file names"):
        registry.open(irpa.create(alike)).extract(tmp_path)


def test_an_npz_whose_first_name_is_long_is_known_by_its_content():
    """Longer than the beginning of the file that formats look at."""
    npz = registry.format_named("npz")
    name = "/".join(f"c{number}" for number in range(1500))
    container = registry.open(npz.create([Parameter.from_array(name, np.arange(4, dtype=np.int8))]))
    assert [row["name"] for row in container.rows()] == [name]
