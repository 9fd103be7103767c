"""Every command that runs a network says where an access leaves its region of memory, and refuses it with --strict."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from support.rpc_client import RemoteError, RpcClient

import nvdla
from nvdla.emulator.faults import Fault, WeightByte
from nvdla.interop.containers.tvm import rpc_worker
from nvdla.limits import Limits
from nvdla.program import Program

COMMANDS = {
    "run": ["--random-input"],
    "compare": ["--random-input", "--other-threads", 1],
    "program": ["--random-input", "--format", "cfg", "-o", "{folder}/program"],
    "evaluate": ["{folder}/data.npz", "--workers", 1],
    "faults": ["{folder}/data.npz", "--count", 2, "--limit", 1, "--workers", 1],
    "explore": ["--data", "{folder}/data.npz", "--workers", 1],
}


@pytest.fixture
def overrun(lenet_loadable, plant, tmp_path):
    """LeNet whose ip1 writes 120 channels with a surface stride of a page, as a file with data for it."""

    def change(task):
        task.operation(9).surface.dst_data.width = task.operation(9).surface.src_data.width = 1
        task.operation(5).surface.dst_data.surf_stride = 4096

    path = tmp_path / "overrun.nvdla"
    plant(lenet_loadable, change).save(path)
    np.savez(tmp_path / "data.npz", images=np.zeros((2, 28, 28), np.uint8), labels=np.zeros(2, np.int64))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_runs_a_network_warns_and_strict_refuses(command, overrun, tmp_path, nvdla_command):
    options = [str(word).format(folder=tmp_path) for word in COMMANDS[command]]
    code, _, error = nvdla_command(command, overrun, *options)
    assert code == 0, error
    assert f"{overrun}: warning: operation 0/5 (PDP)" in error and "hardware continues in" in error
    code, _, error = nvdla_command(command, overrun, *options, "--strict")
    assert code == 2 and "outside region" in error.splitlines()[-1], error


def test_the_doctor_has_it_as_a_finding(overrun, nvdla_command):
    code, out, _ = nvdla_command("doctor", overrun)
    assert code == 1 and "surface outside its memory" in out


def test_a_strict_run_with_faults_refuses_it_too(overrun):
    surface = bytes(nvdla.Runtime(overrun).inputs[0].size)
    fault = Fault(WeightByte("0/0", 17), "flip=6")
    assert len(nvdla.Runtime(overrun).run_raw([surface], faults=[fault])[0])
    with pytest.raises(nvdla.LinkError, match="outside region"):
        nvdla.Runtime(overrun, strict=True).run_raw([surface], faults=[fault])


def test_a_failed_evaluation_does_not_report_its_number_of_samples(lenet, tmp_path, nvdla_command):
    np.savez(tmp_path / "odd.npz", images=np.zeros((4, 5, 5), np.uint8), labels=np.zeros(4, np.int64))
    code, _, error = nvdla_command("evaluate", lenet, tmp_path / "odd.npz", "--limit", 2, "--workers", 1)
    assert code == 2 and len(error.splitlines()) == 1 and "no sample could be evaluated" in error
    np.savez(tmp_path / "good.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.zeros(4, np.int64))
    code, _, error = nvdla_command(
        "evaluate", lenet, tmp_path / "good.npz", "--limit", 2, "--workers", 1, "-o", tmp_path
    )
    assert code == 2 and len(error.splitlines()) == 1 and "cannot be written" in error


@pytest.fixture
def overrun_package(plant, tmp_path):
    """A package whose accelerator part has a pooling that writes its second line behind its region."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend import models

    made = nvdla.compile(models.classifier(np.random.default_rng(3)), "nv_full", "fp16")
    part = next(each for each in made.parts if each.kind == "accelerator")
    pooling = next(each for each in Program.of(part.loadable).operations if each.surface.dst_data.height == 2)

    def change(task):
        task.operation(pooling.index).surface.dst_data.line_stride = 8192

    path = tmp_path / "overrun.zip"
    with zipfile.ZipFile(io.BytesIO(made.package)) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            changed = plant(part.loadable, change).to_bytes() if name.endswith(".loadable") else source.read(name)
            target.writestr(name, changed)
    np.save(tmp_path / "in.npy", np.zeros((1, 3, 12, 12), np.float32))
    return path


def test_a_package_warns_and_strict_refuses(overrun_package, tmp_path, nvdla_command):
    options = ["--input", tmp_path / "in.npy"]
    code, _, error = nvdla_command("run", overrun_package, *options)
    assert code == 0, error
    assert "warning: operation 0/3 (PDP)" in error and "hardware continues in" in error
    code, _, error = nvdla_command("run", overrun_package, *options, "--strict")
    assert code == 2 and "outside region" in error and error.count("\n") == 1, error


def test_a_served_network_behaves_like_hardware_and_the_server_warns_once(overrun, capsys):
    networks = rpc_worker._Networks(1, Limits())
    number = networks.load(overrun.read_bytes(), "auto", "auto", 1 << 30)["number"]
    runtime = nvdla.Runtime(overrun)
    surface = bytes(runtime.inputs[0].size)
    for _ in range(2):
        assert networks.run_raw(number, [surface]) == runtime.run_raw([surface])
    error = capsys.readouterr().err
    assert error.count("warning: operation 0/5 (PDP)") == 1 and "hardware continues in" in error


def served(loadable, surface, *options):
    """What a caller of the command gets over a socket, run twice, and the log of the server."""
    command = [sys.executable, "-m", "nvdla", "serve", "--tvm-rpc", "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        where = json.loads(process.stdout.readline())
        caller = RpcClient(where["host"], where["port"])
        network, found = caller.load(loadable.read_bytes()), []
        tensor = caller.tensor(np.frombuffer(surface, np.uint8))
        for _ in range(2):
            try:
                caller.call("nvdla.run_raw", network, tensor)
                found.append("it has run")
            except RemoteError as error:
                found.append(str(error))
        described = json.loads(caller.call("nvdla.describe", network))
        caller.close()
        process.terminate()
        return found, described["warnings"], process.communicate(timeout=30)[1]
    finally:
        process.kill()


def test_a_caller_over_a_socket_finds_the_warning_and_strict_refuses_the_run(overrun):
    surface = bytes(nvdla.Runtime(overrun).inputs[0].size)
    found, warnings, log = served(overrun, surface)
    assert found == ["it has run"] * 2
    assert len(warnings) == 1 and "operation 0/5 (PDP)" in warnings[0] and "hardware continues in" in warnings[0]
    assert log.count("warning: operation 0/5 (PDP)") == 1
    found, warnings, log = served(overrun, surface, "--strict")
    assert all("operation 0/5 (PDP)" in each and "outside region" in each for each in found)
    assert (warnings, log) == ([], "")
