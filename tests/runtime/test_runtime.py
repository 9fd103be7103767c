"""The runtime: tensors in, tensors out, again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvdla

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.fixture(scope="module")
def lenet():
    return nvdla.load(SAMPLES / "lenet.loadable")


@pytest.fixture
def runtime(lenet):
    return nvdla.Runtime(lenet)


def digits():
    return sorted(SAMPLES.glob("digit*.pgm"))


def random_input(runtime, seed):
    return np.random.default_rng(seed).integers(0, 127, runtime.inputs[0].shape, np.int8)


def test_the_chosen_configuration_is_reported(runtime):
    assert runtime.config.name in runtime.config.name
    assert "atoms of" in runtime.config_reason
    assert runtime.abi in ("old", "new")
    assert runtime.abi in runtime.abi_reason


def test_tensors_are_described(runtime):
    tensor = runtime.inputs[0]
    assert tensor.shape == (1, 1, 28, 28)
    assert tensor.dtype == np.int8
    assert tensor.size == len(runtime.pack(0, np.zeros(tensor.shape, np.int8)))
    assert tensor.line_stride == tensor.strides[1] == tensor.layout.line_stride
    assert runtime.outputs[0].shape == (1, 10, 1, 1)


def test_an_image_an_array_a_name_and_raw_bytes_give_the_same(runtime):
    path = digits()[0]
    by_path = runtime.run(path)
    name = runtime.inputs[0].name
    from nvdla.tensors.images import load_image

    array = load_image(path, runtime.inputs[0].shape, runtime.inputs[0].dtype)
    raw = runtime.run_raw([runtime.pack(0, array)])
    for other in (runtime.run(array), runtime.run({name: path}), runtime.run([array]), runtime.unpack(raw)):
        assert all(np.array_equal(by_path[key], other[key]) for key in by_path)


def test_each_run_is_independent_of_the_one_before(lenet, runtime):
    first, second = random_input(runtime, 1), random_input(runtime, 2)
    expected = [nvdla.Runtime(lenet).run(array) for array in (first, second)]
    for index in (0, 1, 1, 0):
        got = runtime.run((first, second)[index])
        assert all(np.array_equal(got[name], expected[index][name]) for name in got)


def test_observers_see_the_same_in_first_and_later_runs(runtime):
    array = random_input(runtime, 3)

    def observe():
        seen = []

        def note(event):
            destination = None if event.destination is None else event.destination.tobytes()
            seen.append((event.task, event.index, event.engine, event.group, destination))

        runtime.run(array, on_operation=note)
        return seen

    first, later = observe(), observe()
    assert first == later
    assert {engine for _, _, engine, _, _ in first} == {"conv", "sdp", "pdp"}
    assert all(destination is None for _, _, engine, _, destination in first if engine == "conv")


def test_the_number_of_threads_changes_nothing(lenet, runtime):
    array = random_input(runtime, 4)
    single = nvdla.Runtime(lenet, threads=1).run(array)
    many = runtime.run(array)
    assert all(np.array_equal(single[name], many[name]) for name in many)


def test_an_exception_of_the_observer_leaves_the_runtime_usable(runtime):
    array = random_input(runtime, 5)
    expected = runtime.run(array)

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runtime.run(array, on_operation=stop)
    got = runtime.run(array)
    assert all(np.array_equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "is missing"),
        ({"nonsense": b""}, "got unknown nonsense"),
        ([], "inputs: must be 1 .*, got 0"),
        ([b"", b""], "inputs: must be 1 .*, got 2"),
        (None, "inputs: must be 1 .*, got 0"),
        (b"123", "got 3"),
        (np.zeros((1, 2, 3, 4), np.int8), "1"),
        ("missing.pgm", "missing.pgm"),
    ],
)
def test_wrong_inputs_are_refused(runtime, inputs, said):
    with pytest.raises(nvdla.NvdlaError, match=said):
        runtime.run(inputs)


def test_run_raw_needs_every_input(runtime):
    with pytest.raises(nvdla.FormatError, match=r"inputs: must be 1"):
        runtime.run_raw([])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"config": "nv_smal"}, nvdla.ConfigError, "did you mean nv_small"),
        ({"abi": "newer"}, nvdla.DescriptorError, "must be 'old', 'new' or 'auto', got 'newer'"),
        ({"threads": 0}, nvdla.FormatError, "threads: must be at least 1, got 0"),
        ({"memory_limit": 1000}, nvdla.LinkError, "must have at most 1000 bytes"),
    ],
)
def test_wrong_options_are_refused(lenet, options, error, said):
    with pytest.raises(error, match=said):
        nvdla.Runtime(lenet, **options)


def test_a_run_with_a_log_goes_through_the_firmware(runtime):
    array = random_input(runtime, 6)
    surface = runtime.pack(0, array)
    plain, log = runtime.run_raw([surface]), []
    assert runtime.run_raw([surface], csb_log=log) == plain
    assert sum(line[0] == "W" for line in log) > 100
    assert [line[0] for line in log if line[0] in ("program", "enable", "complete")][:1] == ["program"]


def test_what_only_reads_a_file_does_not_import_numba():
    code = (
        "import sys, nvdla.loadable, nvdla.loadable.descriptors, nvdla.emulator.memory.linker, "
        "nvdla.emulator.memory.surfaces, "
        "nvdla.program.program, nvdla.emulator.firmware.scheduler, nvdla.emulator.cpu, nvdla.runtime; "
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_strides_of_the_input_give_the_same_answer(lenet, runtime):
    array = random_input(runtime, 7)
    tensor = runtime.inputs[0]
    line = tensor.line_stride + 64
    wide = nvdla.Runtime(lenet, strides={tensor.name: (tensor.strides[0], line, line * 28)})
    assert wide.inputs[0].line_stride == line
    assert wide.inputs[0].size > tensor.size
    expected, got = runtime.run(array), wide.run(array)
    assert all(np.array_equal(expected[name], got[name]) for name in expected)


def test_memory_does_not_grow_from_run_to_run(runtime):
    resource = pytest.importorskip("resource")
    surface = runtime.pack(0, random_input(runtime, 8))
    for _ in range(20):
        runtime.run_raw([surface])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        runtime.run_raw([surface])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB


def test_layers_with_the_same_weights_keep_one_copy_of_them():
    """A plain global average of 13 x 13 is a convolution for every 24 channels on nv_small, with the same kernels."""
    from nvdla.compiler.builder import Network, build, calibrate
    from nvdla.emulator.execution.fused_convolution import FusedConvolution
    from nvdla.kernels.fast.conv_int8_dot import available

    if not available():
        pytest.skip("this processor has no instructions for it: convolutions are not fused")
    net = Network("averages")
    net.output(net.global_average_pool("average", net.input("in", (72, 13, 13))))
    image = np.random.default_rng(1).standard_normal((1, 72, 13, 13))
    runtime = nvdla.Runtime(build(net, "nv_small", "int8", calibrate(net, image), level=0).loadable)
    elements = np.random.default_rng(2).integers(-128, 128, (1, 72, 13, 13)).astype(np.int8)
    surface = runtime.pack(0, elements)
    through_firmware = runtime.run_raw([surface])
    assert runtime.run_raw([surface]) == through_firmware
    jobs = [step.jobs[0] for step in runtime._plan.fused if isinstance(step.jobs[0], FusedConvolution)]
    assert len(jobs) == 3
    assert len({id(job._packed) for job in jobs}) == 1
