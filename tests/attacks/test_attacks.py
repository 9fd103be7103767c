"""Every class of attack is refused, with a message that names what is wrong, at once and without much memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
from support.attack_files import ATTACKS, FILES

import nvdla

SECONDS = 20  # of the processor; a kernel may have to be compiled first


def of(way: str) -> list[str]:
    return [name for name, (how, *_) in ATTACKS.items() if how.partition(":")[0] == way]


def refused(path: Path, attempt) -> None:
    """The expected message, on one line, within seconds and 256 MiB."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(nvdla.NvdlaError, match=ATTACKS[path.name][2]) as caught:
        attempt(path)
    assert "\n" not in str(caught.value)
    assert time.process_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_the_files_are_those_that_the_script_makes():
    assert {path.name for path in FILES.iterdir()} == set(ATTACKS)
    for name, (_, make, _) in ATTACKS.items():
        assert FILES.joinpath(name).read_bytes() == make(), name


@pytest.mark.parametrize("name", of("load"))
def test_a_file_that_does_not_hold_together_is_refused(name):
    refused(FILES / name, nvdla.load)


@pytest.mark.parametrize("name", of("run"))
def test_a_loadable_that_holds_together_but_cannot_run_is_refused(name):
    loadable = nvdla.load(FILES / name)

    def attempt(path: Path) -> None:
        runtime = nvdla.Runtime(loadable, config="nv_small", abi="new", threads=1)
        runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])

    refused(FILES / name, attempt)


@pytest.mark.parametrize("name", of("trace"))
def test_a_trace_that_reaches_too_far_is_refused(name):
    from nvdla.emulator.trace import replay

    config = ATTACKS[name][0].partition(":")[2] or "nv_small"
    refused(FILES / name, lambda path: replay(path, config, threads=1))


@pytest.mark.parametrize("name", of("tensor"))
def test_a_tensor_file_with_false_sizes_is_refused(name):
    import numpy as np
    from support.tensor_files import read_tensor

    refused(FILES / name, lambda path: read_tensor(path, (1, 3, 4, 5), np.int8))


@pytest.mark.parametrize("name", of("container"))
def test_a_container_with_false_sizes_is_refused(name):
    from nvdla.interop.containers import registry

    refused(FILES / name, lambda path: registry.open(path))


@pytest.mark.parametrize("name", of("caffe"))
def test_a_contradictory_caffe_network_is_refused(name):
    from nvdla.compiler.caffe import read_network, read_weights
    from nvdla.compiler.caffe.conversion import convert

    def attempt(path: Path) -> None:
        if path.suffix == ".caffemodel":
            read_weights(path)
        else:
            onnx = pytest.importorskip("onnx", reason="needs the extra nvdla[onnx]")
            network = read_network(path)
            convert(onnx, network, network.inputs)

    refused(FILES / name, attempt)


def test_a_link_does_not_lead_a_trace_out_of_its_folder(tmp_path):
    from nvdla.emulator.trace import replay

    folder = tmp_path / "trace"
    folder.mkdir()
    (tmp_path / "outside.dat").write_bytes(b"{offset:0, size:1, payload:0x00}")
    (folder / "image.dat").symlink_to(tmp_path / "outside.dat")
    (folder / "trace.cfg").write_text('mem_load(pri_mem, 0x80000000, "image.dat");\n')
    with pytest.raises(nvdla.TraceError, match="must be in the directory of the trace"):
        replay(folder / "trace.cfg", "nv_small")
