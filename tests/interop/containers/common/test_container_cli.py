"""`nvdla container`: what a user does on the command line, with the exit codes and JSON keys that scripts rely on."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from support.iree_assembler import Code, module

from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.interop.containers import irpa, registry
from nvdla.tensors.parameters import Parameter


def run(capsys, *words: object) -> tuple[int, str, str]:
    code = main(["container", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *words: object) -> dict:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "a.irpa"
    parameters = [
        Parameter.from_array("w", np.arange(6, dtype=np.int8).reshape(2, 3)),
        Parameter("s", "float32", (4,), None, 16, b"\0\0\x80?"),
    ]
    path.write_bytes(registry.format_named("irpa").create(parameters))
    return path


@pytest.fixture
def program(tmp_path) -> Path:
    path = tmp_path / "m.vmfb"
    path.write_bytes(
        module(
            [
                Code("abs", "0i_i", [("block",), ("abs.i32", 0, 0), ("return", (0,))]),
                Code("half", "0f_f", [("block",), ("const.f32", 0.5, 1), ("mul.f32", 0, 1, 0), ("return", (0,))]),
                Code("spin", "0v_v", [("block",), ("call", 2, (), ()), ("return", ())]),
            ]
        )
    )
    return path


def test_list_prints_entries_and_facts(capsys, archive):
    document = run_json(capsys, "list", archive)
    assert document["container"] == "irpa" and document["info"]["entries"] == 2
    assert [(r["name"], r["type"], r["dtype"], r["shape"]) for r in document["rows"]] == [
        ("w", "data", "int8", [2, 3]),
        ("s", "splat", "float32", [4]),
    ]
    code, out, _ = run(capsys, "list", archive)
    assert code == 0 and "IREE parameter archive" in out and "int8" in out


def test_verify_exits_1_for_a_failed_check_and_2_for_bad_input(capsys, archive, tmp_path):
    assert run(capsys, "verify", "--warnings-as-errors", archive)[0] == 0
    columns = "severity,where,offset,message\n"
    assert run(capsys, "verify", archive, "--csv")[1] == columns
    data = bytearray(archive.read_bytes())
    data[96 + 60] = 0xFF  # the data of the first entry now begin past the storage segment
    archive.write_bytes(data)
    code, out, _ = run(capsys, "verify", archive, "--json")
    assert code == 1 and json.loads(out)["passed"] is False and json.loads(out)["findings"][0]["severity"] == "error"
    assert run(capsys, "verify", archive, "--csv")[1].startswith(columns + "error,")
    code, out, err = run(capsys, "list", archive)
    assert code == 2 and out == "" and err.count("\n") == 1
    junk = tmp_path / "junk"
    junk.write_bytes(b"junk")
    assert run(capsys, "verify", junk)[0] == 2


def test_convert_extract_and_back(capsys, archive, tmp_path):
    assert run_json(capsys, "convert", archive, tmp_path / "b.safetensors")["container"] == "safetensors"
    assert run(capsys, "convert", tmp_path / "b.safetensors", tmp_path / "c.npz")[0] == 0
    with np.load(tmp_path / "c.npz") as loaded:
        assert loaded["s"].tolist() == [1, 1, 1, 1] and loaded["w"].shape == (2, 3)
    document = run_json(capsys, "extract", archive, "w", "-o", tmp_path / "out")
    assert document["written"] == [str(tmp_path / "out" / "w.bin")]
    assert (tmp_path / "out" / "w.bin").read_bytes() == bytes(range(6))


def test_convert_renames_excludes_strips_and_merges(capsys, archive, tmp_path):
    other = tmp_path / "o.npz"
    np.savez(other, extra=np.zeros(3, np.float32))
    out = tmp_path / "n.irpa"
    assert run(capsys, "convert", archive, other, out, "--exclude", "s", "--rename", "w=weights", "--strip")[0] == 0
    assert [(e.name, e.pattern) for e in irpa.read(out.read_bytes())] == [("weights", b"\0"), ("extra", b"\0")]


def test_create_from_values_and_files(capsys, archive, tmp_path):
    out = tmp_path / "n.irpa"
    assert (
        run(
            capsys,
            "create",
            out,
            archive,
            "--fill",
            "d=2xi16=258",
            "--splat",
            "p=1000xf32=1",
            "--option",
            "alignment=128",
        )[0]
        == 0
    )
    entries = {e.name: e for e in irpa.read(out.read_bytes())}
    assert bytes(entries["d"].data) == b"\2\1\2\1" and entries["p"].length == 4000
    assert entries["d"].minimum_alignment == 128 and set(entries) == {"d", "p", "w", "s"}
    assert run(capsys, "create", tmp_path / "x.vmfb", archive)[0] == 2
    assert run(capsys, "create", tmp_path / "x.unknown", "--fill", "a=i8")[0] == 2
    assert not (tmp_path / "x.vmfb").exists()


def test_edit_changes_an_archive_in_place(capsys, archive, tmp_path):
    (tmp_path / "new.bin").write_bytes(b"\x09\x09")
    document = run_json(
        capsys, "edit", archive, "--replace", f"w={tmp_path / 'new.bin'}", "--append", archive, "--erase", "s"
    )
    assert document["erased"] == 1 and len(document["appended_at"]) == 1
    entries = list(irpa.read(archive.read_bytes()))
    assert [(e.name, e.header) for e in entries] == [("w", 0), ("w", 0), ("s", 0)]
    assert bytes(entries[0].data) == b"\x09\x09"
    before = archive.read_bytes()
    assert run(capsys, "edit", archive, "--erase", "absent")[0] == 2
    assert run(capsys, "edit", archive, "--replace", f"absent={archive}")[0] == 2
    assert archive.read_bytes() == before
    (tmp_path / "larger.bin").write_bytes(b"l" * 9999)
    run_json(capsys, "edit", archive, "--replace", f"w={tmp_path / 'larger.bin'}")
    assert bytes(irpa.read(archive.read_bytes())["w"].data) == b"l" * 9999


def test_create_writes_data_of_any_size_and_external_entries(capsys, tmp_path):
    path = tmp_path / "a.irpa"
    (tmp_path / "weights.bin").write_bytes(bytes(range(100)))
    sparse = ["create", path, "--fill", "w=300000000xi8"]
    assert run(capsys, *sparse)[0] == 0 and path.stat().st_size > 300_000_000
    path.unlink()
    external = ("--external", "a=weights.bin", "--external", "b=weights.bin:10", "--external", "c=weights.bin:10:5")
    run_json(capsys, "create", path, *external)
    rows = run_json(capsys, "list", path)["rows"]
    assert [(r["path"], r["start"], r["length"]) for r in rows] == [
        ("weights.bin", 0, 100), ("weights.bin", 10, 90), ("weights.bin", 10, 5)
    ]  # fmt: skip
    run_json(capsys, "extract", path, "-o", tmp_path / "out", "--option", f"external={tmp_path}")
    assert (tmp_path / "out" / "c.bin").read_bytes() == bytes(range(10, 15))
    assert run(capsys, "create", path, "--external", "a=none.bin")[0] == 2
    for place in ("", ".", "..", "../other.bin", "/etc/passwd"):  # what its own reader would refuse
        assert run(capsys, "create", path, "--external", f"a={place}")[0] == 2
    assert run(capsys, "create", path, "--external", "a=weights.bin:99:2")[0] == 2
    assert run(capsys, "create", tmp_path / "a.npz", "--external", "a=weights.bin")[0] == 2


def test_run_calls_functions_with_numbers(capsys, program):
    assert run(capsys, "run", program, "--function", "abs", "--input", "-5")[1] == "result[0]: i32=5\n"
    document = run_json(capsys, "run", program, "--function", "half", "--input", "3")
    assert document["results"] == [{"type": "f32", "value": 1.5}] and document["instructions"] > 0
    for words in (
        ["--function", "absent"],
        ["--function", "abs"],
        ["--function", "abs", "--input", "x"],
        ["--function", "spin", "--option", "depth=9"],
        ["--function", "abs", "--input", "1", "--option", "z=1"],
    ):
        code, _, err = run(capsys, "run", program, *words)
        assert code == 2 and err.count("\n") == 1, words


def test_disassemble_prints_text(capsys, program, archive):
    code, out, _ = run(capsys, "disassemble", program)
    assert code == 0 and "vm.func @abs(%i0: i32) -> (i32) {" in out and "%i0 = vm.abs.i32 %i0" in out
    assert "vm.func" in run_json(capsys, "disassemble", program)["text"]
    assert run(capsys, "disassemble", archive)[0] == 2


def test_parts_of_different_scopes_are_extracted_to_separate_files(capsys, archive, tmp_path):
    out = tmp_path / "w.bin"
    assert run_json(capsys, "extract", archive, "--extract", f"w={out}")["written"] == [str(out)]
    assert out.read_bytes() == bytes(range(6))
    scoped = f"model={archive}"
    assert run_json(capsys, "list", scoped)["info"]["scope"] == "model"
    assert run_json(capsys, "list", f"a/b={archive}")["info"]["scope"] == "a/b"
    run_json(capsys, "extract", scoped, "--extract", f"model::s={out}")
    assert out.read_bytes() == b"\0\0\x80?" * 4
    for words in (["--extract", "w"], ["--extract", f"absent={out}"], ["--extract", f"other::w={out}"]):
        assert run(capsys, "extract", scoped, *words)[0] == 2


def test_names_with_escape_codes_are_shown_escaped(capsys, tmp_path):
    path = tmp_path / "a\n\x1b[31m.irpa"
    path.write_bytes(registry.format_named("irpa").create([Parameter.from_bytes("n\x1b[2J", b"1")]))
    calls = (["list", path], ["verify", path], ["extract", path, "-o", tmp_path / "out"])
    for words in (*calls, ["convert", path, tmp_path / "b\x1b.npz"]):
        code, out, err = run(capsys, *words)
        assert code == 0 and "\x1b" not in out + err, words
    path.write_bytes(path.read_bytes()[:90])
    code, out, err = run(capsys, "list", path)
    assert code == 2 and "\x1b" not in err and err.count("\n") == 1 and "cut off?" in err


def test_truncated_files_are_named_and_reported_as_cut_off(tmp_path):
    parameters = [Parameter.from_array("w", np.arange(6, dtype=np.int8))]
    for name in ("irpa", "npz", "safetensors", "tvm-params"):
        data = registry.format_named(name).create(parameters)
        path = tmp_path / f"cut.{name}"
        for length in (len(data) - 3, len(data) // 2):
            path.write_bytes(data[:length] if name != "irpa" else data[: length // 30])
            with pytest.raises(FormatError) as caught:
                registry.open(path, format=name)
            assert str(path) in str(caught.value) and "cut off?" in str(caught.value), (name, str(caught.value))


def test_metadata_of_gguf_is_listed_with_types_and_counts(capsys, tmp_path):
    path = tmp_path / "a.gguf"

    def text(value: str) -> bytes:
        return len(value).to_bytes(8, "little") + value.encode()

    pairs = text("a") + struct.pack("<II", 4, 7) + text("b") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("y")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pairs)
    info = run_json(capsys, "list", path)["info"]
    assert info["metadata"] == {"a": 7, "b": ["x", "y"]} and info["metadata_types"] == {"a": "uint32", "b": "string[2]"}
    out = run(capsys, "list", path)[1]
    assert "string[2]" in out and "x, y" in out


def test_lists_of_modules_do_not_spill(capsys, program):
    """Pairs are `name (number)`, and every kind of row has a table of its own."""
    out = run(capsys, "list", program)[1]
    assert "abs (0), half (1), spin (2)" in out and "(f32) -> (f32)" in out
    assert "further columns" not in out and "exports" in out and "functions" in out


def test_formats_lists_options(capsys):
    code, out, _ = run(capsys, "formats", "--json")
    known = {row["format"]: row for row in json.loads(out)["formats"]}
    assert code == 0 and "alignment" in known["irpa"]["options"]
    code, _, err = run(capsys, "list", "--option", "colour=red", __file__, "--from", "irpa")
    assert code == 2 and "option: must be one of" in err


def test_bad_usage_exits_2(capsys):
    assert main(["container", "dance"]) == 2
