"""Every command that runs a network says where an access leaves its region of memory, and refuses it with --strict."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.faults import Fault, WeightByte

COMMANDS = {
    "run": ["--random-input"],
    "compare": ["--random-input", "--other-threads", 1],
    "program": ["--random-input", "--format", "cfg", "-o", "{folder}/program"],
    "evaluate": ["{folder}/data.npz", "--workers", 1],
    "faults": ["{folder}/data.npz", "--count", 2, "--images", 1, "--workers", 1],
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
def test_a_command_that_runs_a_network_tells_and_refuses(command, overrun, tmp_path, nvdla_command):
    options = [str(word).format(folder=tmp_path) for word in COMMANDS[command]]
    code, _, error = nvdla_command(command, overrun, *options)
    assert code == 0, error
    assert f"{overrun}: warning: operation 0/5 (PDP)" in error and "hardware goes on in" in error
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


def test_an_evaluation_that_fails_does_not_say_first_how_few_its_samples_are(lenet, tmp_path, nvdla_command):
    np.savez(tmp_path / "odd.npz", images=np.zeros((4, 5, 5), np.uint8), labels=np.zeros(4, np.int64))
    code, _, error = nvdla_command("evaluate", lenet, tmp_path / "odd.npz", "--limit", 2, "--workers", 1)
    assert code == 2 and len(error.splitlines()) == 1 and "no sample could be judged" in error
