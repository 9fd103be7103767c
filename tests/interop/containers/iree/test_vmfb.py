"""IREE modules: every real file of fifteen versions lists, disassembles, runs and re-wraps as recorded."""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.iree_corpus import FORMATS, vmfb_records

from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.interop.containers.registry import Severity
from nvdla.interop.containers.vmfb import device, wrapping
from nvdla.interop.containers.vmfb import module as modules
from nvdla.interop.containers.vmfb.disassembler import disassemble
from nvdla.interop.containers.vmfb.module import Location, SourceMap, source_lines
from nvdla.interop.containers.vmfb.wrapping import GENERATIONS
from nvdla.tensors.parameters import Parameter

FOLDER = FORMATS / "vmfb"
RECORDS = {record["name"]: record for record in vmfb_records() if record.get("listing")}
RUNS = [(name, run) for name, record in RECORDS.items() for run in record.get("runs", [])]
#: IREE's tools before 2024 cut 64-bit inputs to 32 bits on the command line.
CUT_INPUT = {"1234567890123": "1912276171"}


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_real_module_lists_as_recorded(name):
    container = registry.open(read(name))
    info = container.info()
    listing = RECORDS[name]["listing"]
    assert {key: info[key] for key in listing} == listing
    assert container.verify(strict=True) == []
    container.rows()
    assert "2021-08-09" not in info["candidates"][0]


def test_modules_with_a_version_fit_one_generation_only():
    for name, record in RECORDS.items():
        module = modules.read(read(name))
        if record["listing"]["bytecode_version"] is not None:
            assert module.candidates == [record["listing"]["generation"]], name
        else:
            assert record["listing"]["generation"] in module.candidates


@pytest.mark.parametrize(
    "name",
    [
        "bad_ident",
        "empty",
        "flip_one_byte",
        "ok_nozip",
        "ok_zip",
        "prefix_stripped",
        "root_oob",
        "size_small",
        "size_too_big",
        "trailing_garbage",
        "trunc_4",
        "trunc_half",
        "zip_namelen_big",
        "zip_no_central_dir",
        "zip_trunc_rodata",
    ],
)
def test_damaged_modules_are_refused_where_iree_refuses_them(formats, name):
    record = json.loads((FOLDER / "malformed" / "results.json").read_text())[f"{name}.vmfb"]
    data = read(f"malformed/{name}.vmfb")
    if record["dump_rc"] == 0:
        registry.open(data)
        return
    with pytest.raises(FormatError) as refusal:
        registry.open(data, format="vmfb")
    assert "\n" not in str(refusal.value)


def test_what_iree_forgives_strict_verification_names(formats):
    for name, words in {
        "zip_no_central_dir": "must have a directory",
        "trailing_garbage": "must end after the module",
    }.items():
        container = registry.open(read(f"malformed/{name}.vmfb"))
        assert all(f.severity is not Severity.ERROR for f in container.verify())
        assert [f for f in container.verify(strict=True) if words in f.message and f.severity is Severity.ERROR]


def test_a_lost_size_prefix_can_be_restored(formats):
    broken = read("malformed/prefix_stripped.vmfb")
    container = registry.open(broken, {"wrapping": "any"}, "vmfb")
    assert any("size prefix" in f.message for f in container.verify())
    mended = registry.open(container.convert(container.format, {"wrapping": "prefixed"}))
    assert mended.verify(strict=True) == [] and mended.call("abs", ["-5"])["results"][0]["value"] == 5


def test_the_text_of_the_disassembler_is_that_of_iree(formats):
    expected = json.loads((FOLDER / "disassembly_3.13.0.json").read_text())
    compared = 0
    for name, text in expected.items():
        if (FOLDER / name).exists():
            assert disassemble(modules.read(read(name))) == text, name
            compared += 1
    assert compared >= 9


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_function_of_every_version_disassembles(name):
    text = registry.open(read(name)).disassemble()
    assert text.count("vm.func @") >= RECORDS[name]["listing"]["descriptors"]


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[f"{n}-{r['function']}" for n, r in RUNS])
def test_functions_answer_what_iree_answered_or_say_what_they_lack(name, run, monkeypatch):
    monkeypatch.setattr(device, "is_installed", lambda: False)
    container = registry.open(read(name))
    cut = name.startswith(("2022", "2023")) and run["function"] == "mix64"
    inputs = [CUT_INPUT.get(text, text) if cut else text for text in run["args"]]
    if run["rc"] or "hal.buffer_view" in run["stdout"]:
        with pytest.raises(FormatError, match=r"device|not provided|must be one of"):
            container.call(run["function"], inputs)
        return
    printed = [line.split(": ")[1].split("=") for line in run["stdout"].splitlines() if line.startswith("result[")]
    results = container.call(run["function"], inputs)["results"]
    assert [(r["type"], f"{r['value']:g}" if r["type"][0] == "f" else str(r["value"])) for r in results] == [
        (kind, value) for kind, value in printed
    ]


def test_an_import_can_be_provided(formats):
    from nvdla.interop.containers.vmfb.interpreter import VirtualMachine

    module = modules.read(read("3.13.0/imports.vmfb"))
    assert VirtualMachine(module, {"custom.ext_add": lambda a, b: a + b}).call("call_ext", [1]) == [8]


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_rewrapping_keeps_the_module_and_restores_the_bytes(name):
    data = read(name)
    container = registry.open(data)
    form = container.format
    assert container.convert(form) == data
    if RECORDS[name]["listing"]["container"] == "bare":
        with pytest.raises(FormatError, match="wrapping: must be keep"):
            container.convert(form, {"wrapping": "zip"})
        return
    plain, zipped = (container.convert(form, {"wrapping": mode}) for mode in ("prefixed", "zip"))
    for other in (plain, zipped):
        module = modules.read(other)
        assert rodata(module) == rodata(container.module)
        assert bytes(module.bytecode) == bytes(container.module.bytecode)
    assert modules.read(plain).wrapping.kind == "size-prefixed" and zipped[:4] == b"PK\3\4"
    external = any(segment.is_external for segment in container.module.rodata)
    if data[:4] != b"PK\3\4" and external and name < "2024":
        return  # that time's compiler did not pad, which an archive hides
    if data[:4] != b"PK\3\4":
        assert registry.open(zipped).convert(form, {"wrapping": "prefixed"}) == data
    else:
        members = zipfile.ZipFile(io.BytesIO(data)).namelist()
        names = {"names": ",".join(members[1:])} if members[1:] else {}
        assert registry.open(plain).convert(form, {"wrapping": "zip"} | names) == data


def rodata(module):
    """What the segments hold; the code of a module among them, since its wrapping changes with that around it."""
    nested = {index: bytes(inner.bytecode) for index, inner in module.nested()}
    return [nested.get(segment.index, bytes(segment.data)) for segment in module.rodata]


def test_the_zip_writer_gives_the_bytes_of_irees_compiler(formats):
    """Members taken from a real archive with an executable go back to the same file."""
    import struct

    data = read("3.13.0/simple_abs_cpu.vmfb")
    directory = data.rfind(b"PK\6\6")
    count, at = struct.unpack_from("<Q8xQ", data, directory + 32)
    members = []
    for _ in range(count):
        name_length, extra_length = struct.unpack_from("<HH", data, at + 28)
        name = data[at + 46 : at + 46 + name_length].decode()
        size, _, header = struct.unpack_from("<QQQ", data, at + 46 + name_length + 4)
        start = wrapping.local_member(memoryview(data), header).data_offset
        members.append((name, data[start : start + size + (0 if members else 4)]))
        at += 46 + name_length + extra_length
    assert wrapping.zip_members(members) == data


def test_extraction_writes_flatbuffer_code_and_rodata(formats, tmp_path):
    container = registry.open(FOLDER / "3.13.0" / "simple_abs_vmvx.vmfb")
    written = {path.relative_to(tmp_path).as_posix() for path in container.extract(tmp_path)}
    assert {"module.fb", "functions/1_abs.bc", "rodata/0.bin", "rodata/4.vmfb"} <= written
    assert registry.open(tmp_path / "rodata" / "4.vmfb").module.exports[0].name == "abs_dispatch_0_elementwise"


def test_a_schema_generation_declares_what_the_schema_of_that_day_had(formats):
    expected = json.loads((FOLDER / "schema_generations.json").read_text())
    renamed = {"ReflectionAttrDef": "AttrDef"}
    assert [g.name for g in GENERATIONS] == list(expected)
    for generation in GENERATIONS:
        for table, fields in expected[generation.name].items():
            ours = generation.schema.get(renamed.get(table, table))
            if ours is not None:
                theirs = tuple(field.split(":")[0] for field in fields)
                aliases = {"reflection_attrs": "attrs"}
                theirs = tuple(
                    aliases.get(f, "embedded_data" if (table, f) == ("RodataSegmentDef", "data") else f) for f in theirs
                )
                assert ours == theirs, (generation.name, table)
        size = 20 if len(expected[generation.name]["FunctionDescriptor"]) == 7 else 12
        assert generation.descriptor_size == size


def test_instruction_numbers_are_those_of_each_version(formats):
    from nvdla.interop.containers.vmfb.instructions import numbers

    tables = json.loads((FOLDER / "opcodes_by_version.json").read_text())
    majors = {"20220415": None, "20220523": 1, "20220714": 5, "20230228": 13, "3.10.0": 16, "HEAD(2026-08)": 17}
    for day, major in majors.items():
        theirs = sorted(tables[day].values())
        ours = sorted(number for table in numbers(major).values() for number in table)
        assert ours == theirs, day


@pytest.mark.parametrize("name", ["3.13.0/simple_abs_vmvx.vmfb", "3.13.0/simple_abs_cpu.vmfb"])
def test_functions_that_need_a_device_run_on_irees_runtime(name):
    pytest.importorskip("iree.runtime")
    container = registry.open(read(name))
    outcome = container.call("abs", ["f32=-3.5"])
    assert outcome["results"] == [{"type": "f32", "value": 3.5}]
    assert outcome["ran_on"].startswith("iree-base-runtime")
    for inputs in ([], ["2xf32=1 2 3"], ["f99=1"], ["@none.npy"], ["100000x100000xf32=1"], ["f32=x"]):
        with pytest.raises(FormatError):
            container.call("abs", inputs)


SCALED = """
module @net {
  util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
  util.global private @b = #flow.parameter.named<"b"> : tensor<4xf32>
  func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
    %w = util.global.load @w : tensor<4xf32>
    %b = util.global.load @b : tensor<4xf32>
    %m = arith.mulf %a, %w : tensor<4xf32>
    %s = arith.addf %m, %b : tensor<4xf32>
    return %s : tensor<4xf32>
  }
}
"""


@pytest.mark.parametrize("ending", ["irpa", "safetensors", "gguf"])
def test_a_module_runs_with_parameters_of_any_format(ending, tmp_path, monkeypatch, nvdla_command):
    """Data and splats, with and without a scope; weights replaced with splats run as well."""
    pytest.importorskip("iree.runtime")
    compiler = pytest.importorskip("iree.compiler", reason="needs iree-base-compiler")
    monkeypatch.chdir(tmp_path)
    Path("m.mlir").write_text(SCALED)
    tool = next(iter(Path(compiler.__file__).parent.rglob("iree-compile")))
    subprocess.run([tool, *BACKENDS["vmvx"], "m.mlir", "-o", "m.vmfb"], check=True)
    weights = np.array([2, 3, 4, 5], np.float32)
    if ending == "gguf":
        Path("w.gguf").write_bytes(gguf_file("w", weights))
    else:
        data = registry.format_named(ending).create([Parameter.from_array("w", weights)])
        Path(f"w.{ending}").write_bytes(data)
    nvdla_command("container", "create", "b.irpa", "--splat", "b=4xf32=0.5")
    run = ("container", "run", "m.vmfb", "--function", "f", "--input", "4xf32=1 2 3 4", "--parameters", "b.irpa")
    code, out, _ = nvdla_command(*run, "--parameters", f"model=w.{ending}")
    assert (code, out) == (0, "result[0]: 4xf32=[2.5, 6.5, 12.5, 20.5]\n")
    nvdla_command("container", "convert", f"w.{ending}", "fake.irpa", "--splat", "w=7")
    code, out, _ = nvdla_command(*run, "--parameters", "model=fake.irpa")
    assert (code, out) == (0, "result[0]: 4xf32=[7.5, 14.5, 21.5, 28.5]\n")
    code, _, error = nvdla_command(*run)
    assert code == 2 and "no provider registered that handles scopes like 'model'" in error
    code, _, error = nvdla_command(*run[:-2])
    assert code == 2 and "the module loads parameters. Add --parameters [SCOPE=]FILE." in error


def gguf_file(name: str, array: np.ndarray) -> bytes:
    """A GGUF file (version 3) with one float32 tensor."""
    key = name.encode()
    about = struct.pack("<Q", len(key)) + key + struct.pack("<IQIQ", 1, array.size, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + about
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + array.tobytes()


def test_a_module_without_parameters_refuses_them(formats):
    container = registry.open(read("3.13.0/arith_polyglot.vmfb"))
    with pytest.raises(FormatError, match="the module loads no parameters"):
        container.call("mix64", ["1"], parameters={"": [Parameter.from_bytes("w", b"1")]})


def test_listings_say_in_words_what_the_module_holds(formats):
    container = registry.open(read("3.13.0/simple_abs_vmvx.vmfb"))
    rows = {(row["kind"], row["name"]): row for row in container.rows()}
    create = rows["import", "hal.buffer_view.create"]
    assert create["call"] == "(!vm.ref<?>, i64, i64, i32, i32, tuple<i64>...) -> (!vm.ref<?>)"
    assert rows["export", "__init"]["call"] == "() -> ()"
    assert rows["rodata", "rodata[3]"]["text"] == "vmvx-bytecode-fb" and rows["rodata", "rodata[4]"]["text"] is None
    assert rows["function", "abs"]["blocks"] == 4
    info = container.info()
    assert info["dependencies"] == ["hal >= 7, required"] and info["blocks"] == 15
    assert (info["flatbuffer_bytes"], info["rodata_bytes"], info["external_rodata_bytes"]) == (4540, 1171, 1077)


def test_one_function_is_disassembled_with_its_source_lines(formats):
    container = registry.open(read("3.13.0/arith_polyglot.vmfb"))
    text = container.disassemble("mix64", source=True)
    assert text.count("vm.func") == 1 and "// _in_arith.mlir:19:8 < _in_arith.mlir:18:1" in text
    assert container.disassemble("3") == container.disassemble("mix64")
    assert "//" not in container.disassemble("mix64")
    with pytest.raises(FormatError, match="got 'absent'"):
        container.disassemble("absent")


def test_locations_that_lead_in_circles_end(formats):
    """A call site whose caller is itself, a name of itself, a location that is not there."""
    module = modules.read(read("3.13.0/arith_polyglot.vmfb"))
    module.locations[:] = [
        Location("callsite", children=(0, 0)), Location("name", "n", children=(1,)), Location("fused", children=(9,))
    ]  # fmt: skip
    module.source_maps[:] = [SourceMap("mix64", ((0, 0), (1, 1), (2, 2), (3, 99)))]
    lines = source_lines(module, next(f for f in module.functions if f.name == "mix64"))
    assert set(lines) == {0, 1, 2, 3} and all(len(line) < 400 for line in lines.values())


MODULES = {
    "code": (
        "vm.export @f vm.func @f(%a: i32) -> i32 "
        "{ %c = vm.const.i32 SIZE %0 = vm.add.i32 %a, %c : i32 vm.return %0 : i32 }"
    ),
    "rodata": (
        "vm.rodata private @r dense<7> : tensor<SIZExi8> vm.export @g vm.func @g() -> !vm.buffer "
        "{ %r = vm.const.ref.rodata @r : !vm.buffer vm.return %r : !vm.buffer }"
    ),
    "several": (
        "vm.rodata private @r dense<7> : tensor<SIZExi8> vm.rodata private @s dense<[1, 2]> : tensor<2xi32> "
        "vm.rodata private @t_t dense<5> : tensor<4SIZExi8> vm.export @g "
        "vm.func @g() -> (!vm.buffer, !vm.buffer, !vm.buffer) { %r = vm.const.ref.rodata @r : !vm.buffer "
        "%s = vm.const.ref.rodata @s : !vm.buffer %t = vm.const.ref.rodata @t_t : !vm.buffer "
        "vm.return %r, %s, %t : !vm.buffer, !vm.buffer, !vm.buffer }"
    ),
}
#: Two functions with weights: ``w`` stands for random numbers that are too many for the FlatBuffer.
NETWORK = """
module @net {
  func.func @f(%a: tensor<4x64xf32>) -> tensor<4x64xf32> {
    %c = arith.constant dense_resource<w> : tensor<64x64xf32>
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x64xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
    %m = linalg.matmul ins(%a, %c : tensor<4x64xf32>, tensor<64x64xf32>)
      outs(%i : tensor<4x64xf32>) -> tensor<4x64xf32>
    return %m : tensor<4x64xf32>
  }
  func.func @g(%a: tensor<8xi32>) -> tensor<8xi32> {
    %c = arith.constant dense<[1, 2, 3, 4, 5, 6, 7, 8]> : tensor<8xi32>
    %s = arith.addi %a, %c : tensor<8xi32>
    return %s : tensor<8xi32>
  }
}
{-# dialect_resources: { builtin: { w: "0xWEIGHTS" } } #-}
"""
LOCAL = ("--iree-hal-target-device=local",)
BACKENDS = {
    "vmvx": (*LOCAL, "--iree-hal-local-target-device-backends=vmvx"),
    "cpu": (*LOCAL, "--iree-hal-local-target-device-backends=llvm-cpu"),
    "cpu, an executable each": (
        *LOCAL, "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-hal-link-executables=false",
        "--iree-vm-bytecode-module-strip-source-map",
    ),
    "constants apart": (
        *LOCAL, "--iree-hal-local-target-device-backends=vmvx", "--iree-stream-resource-max-allocation-size=20",
    ),
    "vulkan": ("--iree-hal-target-device=vulkan",),
}  # fmt: skip


def compiled_both_ways(text, words, folder):
    """What IREE's compiler writes of a text with and without a ZIP archive."""
    compiler = pytest.importorskip("iree.compiler", reason="needs iree-base-compiler")
    tool = next(iter(Path(compiler.__file__).parent.rglob("iree-compile")))
    (folder / "m.mlir").write_text(text)
    made = {}
    for mode, zipped in (("zip", "true"), ("prefixed", "false")):
        command = [tool, *words, f"--iree-vm-emit-polyglot-zip={zipped}", folder / "m.mlir", "-o", folder / mode]
        subprocess.run(command, check=True, capture_output=True)
        made[mode] = (folder / mode).read_bytes()
    return made


def check_each_way(made, names):
    """Each of the two becomes each of the two, and stays itself."""
    for data in made.values():
        container = registry.open(data)
        for mode, wanted in made.items():
            assert container.convert(container.format, {"wrapping": mode} | names) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 17, 30, 3000, 5000, 7777])
@pytest.mark.parametrize("kind", MODULES)
def test_rewrapping_gives_the_bytes_of_irees_compiler(kind, size, tmp_path):
    """Up to 4 KiB of rodata lie in the FlatBuffer, more of it behind."""
    text = f"vm.module @m {{ {MODULES[kind].replace('SIZE', str(size))} }}"
    made = compiled_both_ways(text, ["--compile-mode=vm"], tmp_path)
    members = zipfile.ZipFile(io.BytesIO(made["zip"])).namelist()[1:]
    check_each_way(made, {"names": ",".join(members)} if members else {})


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_networks_are_rewrapped_with_weights_executables_and_the_modules_in_them(backend, tmp_path):
    """Names of members, which a module without an archive does not have, are those that the compiler gives."""
    weights = b"\4\0\0\0" + random.Random(1).randbytes(4 * 64 * 64)
    made = compiled_both_ways(NETWORK.replace("WEIGHTS", weights.hex()), BACKENDS[backend], tmp_path)
    assert len(zipfile.ZipFile(io.BytesIO(made["zip"])).namelist()) > 2
    check_each_way(made, {})
