"""A command that compares nothing never passes: exit code 0 and words of success need a comparison."""

from __future__ import annotations

import json
import shlex
import zlib
from pathlib import Path

import numpy as np
import pytest

from nvdla.checks.compare.comparison import Comparison
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import TraceError
from nvdla.registers.logs import read_log
from nvdla.registers.replay import replay_log

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
ENABLED = "reg_write(NVDLA_SDP.S_POINTER_0, 0x0);\n"
LOAD = 'mem_load(pri_mem, 0xc0000000, "in.dat");\n'
GOLDEN = f"check_crc(done, 1, 0xc0000000, 4, 0x{zlib.crc32(bytes([1, 2, 3, 4])):x});\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.dat").write_text("{offset:0x0, size:4, payload:0x01 0x02 0x03 0x04}\n")
    (tmp_path / "empty.dat").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "checks",
    [
        "",
        "check_nothing(done);\n",
        "reg_read(NVDLA_SDP.S_POINTER_0, value);\n",
        "check_crc(done, 1, 0xc0000000, 0, 0x0);\n",
        'check_file(done, pri_mem, 0xc0000000, 0, "in.dat");\n',
        'check_file(done, pri_mem, 0xc0000000, 0x4, "empty.dat");\n',
    ],
    ids=["none", "nothing", "read", "crc-of-0", "file-of-0", "empty-file"],
)
def test_a_trace_without_a_comparison_fails(folder, nvdla_command, checks):
    (folder / "t.cfg").write_text(LOAD + ENABLED + "sync_notify(NVDLA_SDP, done);\n" + checks)
    code, out, err = nvdla_command("trace", "replay", folder / "t.cfg", "--config", "nv_small")
    assert (code, err) == (1, "")
    assert "FAIL" in out
    code, out, _ = nvdla_command("trace", "replay", folder / "t.cfg", "--config", "nv_small", "--json")
    assert (code, json.loads(out)["passed"]) == (1, False)


def test_a_transaction_that_compares_no_bit_is_no_check(folder, nvdla_command):
    (folder / "t.txn").write_text("write_reg 0xffff2401 0x0\nread_reg 0xffff2401 0x0 == 0x0\n")
    code, out, _ = nvdla_command("trace", "replay", folder / "t.txn", "--config", "nv_full")
    assert code == 1
    assert "FAILED: the trace checks nothing" in out


def test_a_trace_with_a_comparison_passes(folder, nvdla_command):
    (folder / "t.cfg").write_text(LOAD + ENABLED + "sync_notify(NVDLA_SDP, done);\n" + GOLDEN)
    code, out, _ = nvdla_command("trace", "replay", folder / "t.cfg", "--config", "nv_small")
    assert code == 0
    assert "1 check passed, 0 failed" in out


def test_csb_replay_refuses_a_trace_and_names_the_command_that_runs_it(folder, nvdla_command):
    """It would leave out the memory and the checks, compute zeros, and pass."""
    path = folder / "a trace.cfg"
    path.write_text(LOAD + ENABLED + "sync_notify(NVDLA_SDP, done);\n" + GOLDEN)
    code, out, err = nvdla_command("csb", "replay", path, "--config", "nv_small")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "got a trace with mem_load, sync_notify, check_crc" in err
    suggested = shlex.split(err.partition("Run: nvdla ")[2])
    assert suggested == ["trace", "replay", str(path), "--config", "nv_small"]
    assert nvdla_command(*suggested)[0] == 0
    with pytest.raises(TraceError, match="must be a log of register accesses"):
        replay_log(read_log(path), configuration("nv_small"))
    assert nvdla_command("csb", path)[0] == 0  # to be read it is a log


@pytest.mark.parametrize("text", ["W 0x09004 0x00000000\n", "reg_write(SDP_S_POINTER_0, 0x0);\n", "0x9004 0x0\n"])
def test_csb_replay_of_a_log_without_memory_fails(folder, nvdla_command, text):
    (folder / "a.log").write_text(text)
    code, out, _ = nvdla_command("csb", "replay", folder / "a.log", "--config", "nv_small")
    assert code == 1
    assert "FAILED: the log has no written memory to compare with" in out and "--format riscv-txn" in out
    code, out, _ = nvdla_command("csb", "replay", folder / "a.log", "--config", "nv_small", "--json")
    assert (code, json.loads(out)["passed"]) == (1, False)


def test_csb_diff_of_logs_without_an_operation_is_refused(folder, nvdla_command):
    (folder / "a.log").write_text("W 0x09004 0x00000000\n")
    (folder / "b.log").write_text("W 0x09004 0x00000001\n")
    code, out, err = nvdla_command("csb", "diff", folder / "a.log", folder / "b.log")
    assert (code, out) == (2, "")
    assert "nothing to compare: must enable a unit, got no operation" in err


def test_compare_without_a_counterpart_is_refused(folder, nvdla_command, lenet, digit):
    np.savez(folder / "other.npz", unknown=np.zeros((1, 2, 3, 4), np.float32))
    code, out, err = nvdla_command("compare", lenet, "-i", digit, "--float", folder / "other.npz")
    assert (code, out) == (2, "")
    assert "nothing could be compared" in err and err.endswith("Name the layers with --layers.\n")
    assert not Comparison().passed


def test_compare_with_a_golden_file_of_another_name_states_names_that_work(folder, nvdla_command, lenet, digit):
    (folder / "board.bin").write_bytes(bytes(16))
    code, out, err = nvdla_command("compare", lenet, "-i", digit, "--golden", folder / "board.bin")
    assert (code, out) == (2, "")
    assert err.endswith("For a file of any name: nvdla run --compare.\n")
    code, out, _ = nvdla_command("run", lenet, "-i", digit, "--compare", folder / "board.bin")
    assert code == 1 and "of 10 elements differ" in out
    name = err.partition("operation: ")[2].partition(",")[0]
    (folder / "board.bin").rename(folder / name)
    code, out, _ = nvdla_command("compare", lenet, "-i", digit, "--golden", folder / name)
    assert code == 1 and "1 tensor compared" in out


@pytest.mark.parametrize("data", [b"", b"\0"], ids=["empty", "short"])
def test_run_with_a_golden_of_another_size_is_refused(folder, nvdla_command, lenet, digit, data):
    (folder / "golden.bin").write_bytes(data)
    code, _, err = nvdla_command("run", lenet, "-i", digit, "--compare", folder / "golden.bin")
    assert code == 2
    assert "size: must be 16 bytes" in err


@pytest.mark.parametrize("against", [False, True], ids=["predicted", "against"])
def test_evaluate_without_a_sample_is_refused(folder, nvdla_command, lenet, against):
    (folder / "images").mkdir()
    (folder / "images" / "broken.png").write_bytes(b"no picture")
    words = ["evaluate", lenet, folder / "images", "--predict-only"]
    code, out, err = nvdla_command(*words, *(["--against", float_model(folder / "net.onnx")] if against else []))
    assert (code, out) == (2, "")
    assert "no sample could be evaluated" in err


def float_model(path):
    """A model of LeNet's input and output shapes."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = helper.make_tensor("w", kind, (784, 10), np.zeros(7840, np.float32))
    nodes = [helper.make_node("Flatten", ["data"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["prob"])]
    ends = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in (("data", (1, 1, 28, 28)), ("prob", (1, 10)))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.mark.parametrize("name", ["nothing.safetensors", "nothing.gguf", "nothing.npz", "nothing.vmfb", "nothing.tar"])
def test_container_verify_of_an_empty_file_does_not_pass(folder, nvdla_command, name):
    (folder / name).write_bytes(b"")
    code, out, _ = nvdla_command("container", "verify", folder / name)
    assert code != 0
    assert "passed" not in out


@pytest.mark.parametrize("command", ["diff", "lint", "doctor"])
def test_no_verdict_on_an_empty_file(folder, nvdla_command, command):
    (folder / "empty.nvdla").write_bytes(b"")
    code, out, _ = nvdla_command(command, *[folder / "empty.nvdla"] * (2 if command == "diff" else 1))
    assert (code, out) == (2, "")
