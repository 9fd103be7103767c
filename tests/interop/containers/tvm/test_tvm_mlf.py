"""TVM model libraries: every version opens as one model, contradictions are found, and nothing leaves its folder."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tvm_corpus import FORMATS, manifest
from support.tvm_library import SOURCE, graph, library, metadata

from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.interop.containers.tvm import mlf, mlf_verify, params, tar
from nvdla.interop.containers.tvm.tar import TarMember
from nvdla.tensors.parameters import Parameter

ENTRIES = [pytest.param(entry, id=entry["name"]) for entry in manifest("mlf")]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_library_lists_as_recorded_and_verifies_clean(formats, entry):
    container = registry.open(formats / "mlf" / entry["name"])
    rows = [{key: row[key] for key in ("path", "type", "size", "sha256")} for row in container.rows()]
    assert sorted(rows, key=lambda row: row["path"]) == sorted(entry["members"], key=lambda row: row["path"])
    assert container.library.version == entry["metadata"]["version"]
    assert [f for f in container.verify(strict=True) if f.severity != registry.Severity.NOTE] == []


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_library_is_packed_again_byte_for_byte(formats, entry):
    container = registry.open(formats / "mlf" / entry["name"])
    assert container.convert(container.format) == container.source.data


def test_all_versions_of_one_model_are_the_same_model(formats):
    """The dense model, exported by the exporters of versions 1 to 7."""
    seen = []
    for path in sorted((formats / "mlf").glob("*dense_graph_c.tar")):
        library = mlf.read(memoryview(path.read_bytes()))
        (module,) = library.modules
        seen.append(library.version)
        assert (module.name, module.style, module.executors) == ("default", "full-model", ("graph",))
        assert [(s.size, s.binding) for s in module.storage] == [(32, "x"), (48, "p0"), (12, "p1"), (24, None)]
        assert sorted(m.name.rpartition("_")[2] for m in library.sources(module)) in (
            ["lib0.c", "lib1.c"],
            ["codegen/host/src/lib0.c", "codegen/host/src/lib1.c"],
        )
        if library.version > 1:
            (main,) = module.main
            assert (main.workspace, main.constants, main.io) == (80, 60, 56)
            assert library.memory_rows()[1] == {
                "module": "default",
                "function": "tvmgen_default_fused_nn_dense_add_nn_relu",
                "device": 1,
                "workspace_bytes": 80,
                "constants_bytes": None,
                "io_bytes": None,
            }
    assert sorted(seen) == [1, 2, 3, 4, 5, 7]


def test_an_operator_library_has_buffers(formats):
    library = mlf.read(memoryview((formats / "mlf" / "v0.8.0_mlf5_operator_add.tar").read_bytes()))
    (module,) = library.modules
    assert module.style == "operator"
    assert [(b.function, b.name, b.size, b.shape, b.dtype) for b in module.buffers] == [
        ("add", name, 4, (4,), "int8") for name in ("A_1", "B_1", "C_1")
    ]


def test_a_library_of_two_models_names_their_parameters_apart(formats):
    container = registry.open(formats / "mlf" / "exporter_mlf7_multi_graph_c.tar")
    assert [p.name for p in container.parameters()] == ["conv_int8/p0", "default/p0", "default/p1"]


def problems(data: bytes, strict: bool = False) -> list[str]:
    found = mlf_verify.verify(mlf.read(memoryview(data)), strict)
    return [
        f"{f.where}: {f.message}"
        for f in found
        if f.severity == registry.Severity.ERROR or (strict is False and f.severity == registry.Severity.WARNING)
    ]


def test_a_correct_library_has_no_findings():
    assert problems(library()) == []
    assert problems(library(), strict=True) == []


@pytest.mark.parametrize(("files", "word"), [
    ({"graph": None}, "'executor-config/graph/net.graph' is missing"),
    ({"params": None}, "'parameters/net.params' is missing"),
    ({"relay": None}, "'src/net.relay' is missing"),
    ({"source": None}, "missing generated code"),
    ({"params": b"junk"}, "cut off"),
    ({"params": params.write([Parameter.from_array("v", np.arange(6, dtype=np.int8))])}, "not an argument"),
    ({"params": params.write([Parameter.from_array("w", np.arange(6, dtype=np.uint8))])}, "the graph expects int8"),
    ({"params": params.write([Parameter.from_array("w", np.arange(7, dtype=np.int8))])}, "must be 7 (parameter file)"),
    ({"graph": b"{"}, "must be JSON"),
    ({"graph": json.dumps(graph(heads=[[9, 0, 0]])).encode()}, "must be an output of a node, got output 0 of node 9"),
    ({"graph": json.dumps(graph(node_row_ptr=[0, 1, 2])).encode()}, "node_row_ptr"),
    ({"source": SOURCE.replace(b"f\\0", b"g\\0")}, "calls 'f', which is not in the function registry"),
    ({"source": SOURCE.replace(b"001", b"003")}, "must be the number of names"),
    ({"metadata": json.dumps(metadata(model_name="other")).encode()}, "another name"),
    ({"metadata": json.dumps(metadata(executors=["magic"])).encode()}, "got 'magic'"),
    ({"metadata": json.dumps(metadata(target=[])).encode()}, "must name a target"),
])  # fmt: skip
def test_what_contradicts_itself_is_found(files, word):
    assert any(word in problem for problem in problems(library(**files))), problems(library(**files))


@pytest.mark.parametrize(("change", "word"), [
    (lambda m: m["memory"]["sids"].pop(), "storage id 2 of the graph is missing"),
    (lambda m: m["memory"]["sids"][1].update(size_bytes=7), "size: must be 6 (graph), got 7"),
    (lambda m: m["memory"]["sids"][1].update(input_binding="v"), "bound to 'v'"),
    (lambda m: m["memory"]["sids"].append({"storage_id": 9, "size_bytes": 1}), "not in the graph"),
    (lambda m: m["memory"]["functions"]["main"][0].update(io_size_bytes=11), "must be 10 (graph), got 11"),
])  # fmt: skip
def test_memory_that_does_not_add_up_is_found(change, word):
    document = metadata()
    change(document["modules"]["net"])
    found = problems(library(metadata=json.dumps(document).encode()))
    assert any(word in problem for problem in found), found


@pytest.mark.parametrize(("document", "word"), [
    (b"[]", "must be an object"), (b"{}", "'version': must be given"), (b'{"version": 8}', "got 8"),
    (b'{"version": true}', "must be int, got bool"), (b'{"version": 7, "modules": []}', "must be dict, got list"),
    (b"\xff", "UTF-8"),
    (b"[" * 100_000, "nested too deeply"), (b'{"version": 1' + b"0" * 5000 + b"}", "must be JSON"),
    (json.dumps(metadata(memory={"functions": {"main": [{"device": -1}]}})).encode(), "'device': must be .*, got -1"),
    (json.dumps(metadata(target=[1])).encode(), "target"),
])  # fmt: skip
def test_metadata_that_cannot_be_understood_is_refused(document, word):
    with pytest.raises(FormatError, match=word):
        mlf.read(memoryview(library(metadata=document)))


def test_a_tar_without_metadata_is_no_library():
    with pytest.raises(FormatError, match=r"without metadata\.json"):
        mlf.read(memoryview(tar.write([TarMember("./x", "file", memoryview(b"1"))])))


@pytest.mark.parametrize("path", ["../escape", "/etc/escape", "a/../../escape", "..\\escape", "C:escape"])
def test_a_path_that_leads_out_is_never_extracted(tmp_path, path):
    data = tar.write([*tar.read(memoryview(library())).members, TarMember(path, "file", memoryview(b"evil"))])
    with pytest.raises(FormatError, match="Nothing is extracted"):
        registry.open(data).extract(tmp_path / "inside")
    assert list(tmp_path.rglob("*escape*")) == []
    assert any("never extracted" in problem for problem in problems(data))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_never_extracted(tmp_path, kind):
    stream = io.BytesIO(library())
    with tarfile.open(fileobj=stream, mode="a") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(FormatError, match="Nothing is extracted"):
        registry.open(stream.getvalue()).extract(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_extracted_library_opens_as_a_folder_and_is_the_same(tmp_path):
    packed = registry.open(library())
    packed.extract(tmp_path / "unpacked")
    unpacked = registry.open(tmp_path / "unpacked")
    assert unpacked.library.modules == packed.library.modules
    assert {p: bytes(m.data) for p, m in unpacked.library.files.items()} == {
        p: bytes(m.data) for p, m in packed.library.files.items()
    }
    assert [f for f in unpacked.verify() if f.severity == registry.Severity.ERROR] == []


def test_one_file_is_replaced_and_the_others_keep_their_bytes():
    before = mlf.read(memoryview(library()))
    after = mlf.read(
        memoryview(
            before.repack(
                {
                    "src/net.relay": b"new",
                    "runtime/x.h": b"h",
                    "./metadata.json": None,
                    "metadata.json": bytes(before.files["metadata.json"].data),
                }
            )
        )
    )
    assert bytes(after.files["src/net.relay"].data) == b"new"
    assert bytes(after.files["runtime/x.h"].data) == b"h"
    for path in set(before.files) - {"src/net.relay"}:
        assert after.files[path].data == before.files[path].data
    with tarfile.open(fileobj=io.BytesIO(after.repack())) as archive:
        assert len(archive.getnames()) == 6


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_every_kind_read_as_the_standard_library_reads_them(format):
    stream = io.BytesIO()
    names = ["a" * 90, "d/" * 60 + "f", "ü"] + ([] if format == tarfile.USTAR_FORMAT else ["y" * 180])
    with tarfile.open(fileobj=stream, mode="w", format=format) as archive:
        for index, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = index * 300, 1_700_000_000 + index
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    found = tar.read(memoryview(stream.getvalue()))
    assert [(m.path, m.size, m.mtime) for m in found.members] == [
        (name, index * 300, 1_700_000_000 + index) for index, name in enumerate(names)
    ]
    assert tar.write(found.members, found.tail) == stream.getvalue()


def test_what_we_write_the_standard_library_reads():
    members = [
        TarMember("./d", "dir", memoryview(b""), 0o755, 5),
        TarMember("./" + "e/" * 70 + "f" * 60, "file", memoryview(b"data"), mtime=7),
    ]
    data = tar.write(members)
    assert len(data) % tar.RECORD == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        one, two = archive.getmembers()
        assert (one.isdir(), one.mode, two.mtime, archive.extractfile(two).read()) == (True, 0o755, 7, b"data")


@pytest.mark.parametrize("damage", [
    lambda d: d[:300], lambda d: d[:600], lambda d: b"\x01" + d[1:], lambda d: d[:124] + b"7" * 11 + d[135:],
    lambda d: b"", lambda d: b"\0" * 512,
])  # fmt: skip
def test_a_damaged_archive_is_refused(damage):
    with pytest.raises(FormatError):
        mlf.read(memoryview(damage(library())))


def samples() -> list[bytes]:
    corpus = sorted((FORMATS / "mlf").glob("*dense*.tar"))
    return [library(), *(path.read_bytes() for path in corpus[:3])]


SAMPLES = samples()


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_damage_either_opens_or_raises_one_error(data):
    raw = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # repair the checksums, so that what lies behind them is reached too
        for at in range(0, len(raw) - 511, 512):
            if raw[at + 257 : at + 262] == b"ustar":
                raw[at + 148 : at + 156] = b"%06o\0 " % tar._checksum(bytes(raw[at : at + 512]))
    try:
        container = registry.open(bytes(raw))
        container.info(), container.rows(), container.verify()
        assert container.convert(container.format) == raw
    except FormatError:
        return


def test_many_models_take_time_linear_in_the_file():
    module = metadata()["modules"]["net"]
    document = {"version": 7, "modules": {str(i): module | {"model_name": f"n{i}"} for i in range(3000)}}
    data = library(metadata=json.dumps(document).encode())
    start = time.process_time()
    mlf_verify.verify(mlf.read(memoryview(data)))
    assert time.process_time() - start < 3


def test_rows_carry_the_hash_of_each_file():
    rows = registry.open(library()).rows()
    assert (
        next(r for r in rows if r["path"] == "./codegen/host/src/net_lib0.c")["sha256"]
        == hashlib.sha256(SOURCE).hexdigest()
    )


@pytest.mark.parametrize(("literal", "expected"), [
    (rb'"\002a\000b\000"', b"\x02a\0b\0"), (rb'"\x02" "a\0"' + b'\n  "b\\0"', b"\x02a\0b\0"), (rb'"\"\\\n"', b'"\\\n'),
])  # fmt: skip
def test_c_strings_are_read_as_a_compiler_reads_them(literal, expected):
    assert mlf_verify.c_string(literal) == expected
