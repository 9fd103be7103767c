"""Large blobs of a file may be forgotten: they come from the file again, and a file that has changed is an error."""

from __future__ import annotations

import gc
import os
import pickle
from dataclasses import replace

import flatbuffers
import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.loadable.model import CAN_STAY_OPEN, Blob, Loadable

pytestmark = pytest.mark.skipif(not CAN_STAY_OPEN, reason="this system keeps what it has read")


def large_loadable():
    """A layer with 1.2 MB of weights."""
    weights = np.random.default_rng(0).standard_normal((128, 1024, 3, 3))
    net = Network("large")
    net.output(net.convolution("conv", net.input("data", (1024, 3, 3)), weights))
    return build(net, "nv_large", "int8", calibrate(net, np.ones((1, 1024, 3, 3)))).loadable


@pytest.fixture(scope="module")
def written():
    return large_loadable().to_bytes()


@pytest.fixture
def path(written, tmp_path):
    path = tmp_path / "large.loadable"
    path.write_bytes(written)
    return path


def weights_of(loadable):
    return max(loadable.blobs, key=lambda blob: blob.length)


def test_what_was_forgotten_is_read_again(path, written):
    loadable = nvdla.load(path)
    loadable.forget()
    assert loadable == nvdla.load(written)
    assert loadable.to_bytes() == nvdla.load(written).to_bytes()
    loadable.forget()
    assert pickle.loads(pickle.dumps(loadable)) == loadable


def test_who_has_a_view_keeps_it(path):
    loadable = nvdla.load(path)
    view = weights_of(loadable).data
    before = bytes(view)
    loadable.forget()
    path.write_bytes(bytes(path.stat().st_size))
    assert bytes(view) == before


@pytest.mark.parametrize("size", [0, 4096, 1 << 20])
def test_a_file_that_was_shortened_is_an_error_and_no_crash(path, size):
    loadable = nvdla.load(path)
    loadable.forget()
    os.truncate(path, size)
    with pytest.raises(
        nvdla.LoadableError, match=r"large.loadable: bytes \d+ to \d+ have changed since .* load it again"
    ):
        bytes(weights_of(loadable).data)


def test_a_byte_that_was_changed_in_place_is_an_error_though_the_times_are_those_of_before(path):
    loadable = nvdla.load(path)
    loadable.forget()
    times, data = path.stat(), bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(nvdla.LoadableError, match="have changed"):
        bytes(weights_of(loadable).data)


def test_a_file_that_was_replaced_or_removed_is_still_there(path, written):
    loadable = nvdla.load(path)
    loadable.forget()
    replace(loadable, identifier="").save(path)  # whole_file: another file of that name
    assert weights_of(loadable).data == weights_of(nvdla.load(written)).data
    loadable.forget()
    path.unlink()
    assert weights_of(loadable).data == weights_of(nvdla.load(written)).data


def test_lengths_need_no_reading(path):
    loadable = nvdla.load(path)
    loadable.forget()
    os.truncate(path, 0)
    assert sum(blob.length for blob in loadable.blobs) == sum(blob.size for blob in loadable.blobs)
    assert "size=" in repr(weights_of(loadable))
    assert "bytes" in repr(loadable)


def test_a_runtime_gives_the_file_back_and_refuses_one_that_has_changed(path, written):
    loadable = nvdla.load(path)
    expected = nvdla.Runtime(written).run_raw([bytes(1024 * 9)])
    runtime = nvdla.Runtime(loadable)
    assert weights_of(loadable).__dict__["_data"]._held is None
    assert runtime.run_raw([bytes(1024 * 9)]) == expected
    data = bytearray(written)
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    assert runtime.run_raw([bytes(1024 * 9)]) == expected, "it has what it needs"
    with pytest.raises(nvdla.LoadableError, match="have changed"):
        nvdla.Runtime(loadable)


def test_constants_that_were_given_back_come_from_the_file_or_not_at_all(path):
    runtime = nvdla.Runtime(path)
    surface = [bytes(1024 * 9)]
    expected, *_ = (runtime.run_raw(surface) for _ in range(3))
    events = []
    assert runtime.run_raw(surface, on_operation=events.append) == expected
    runtime.run_raw(surface)
    os.truncate(path, 1 << 20)
    runtime._linked.constants._released = True
    with pytest.raises(nvdla.LoadableError, match="have changed"):
        runtime.run_raw(surface, on_operation=events.append)
    assert runtime.run_raw(surface) == expected


def test_the_file_is_closed_with_the_loadable(path):
    def opened():
        return sum(os.path.realpath(f"/proc/self/fd/{each}") == str(path) for each in os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no list of open files here")
    loadable = nvdla.load(path)
    assert opened() == 1
    del loadable
    gc.collect()
    assert opened() == 0


def test_small_files_are_held(tmp_path):
    small = tmp_path / "small.loadable"
    net = Network("small")
    net.output(net.convolution("conv", net.input("data", (4, 3, 3)), np.ones((4, 4, 1, 1))))
    build(net, "nv_large", "int8", calibrate(net, np.ones((1, 4, 3, 3)))).loadable.save(small)
    loadable = nvdla.load(small)
    loadable.forget()
    small.write_bytes(b"")
    assert all(len(blob.data) == blob.length for blob in loadable.blobs)


def test_a_file_whose_blobs_share_their_bytes_takes_no_more_memory_than_it_has(tmp_path, monkeypatch):
    vectors, create = {}, flatbuffers.Builder.CreateByteVector
    monkeypatch.setattr(
        flatbuffers.Builder,
        "CreateByteVector",
        lambda builder, data: vectors[data] if data in vectors else vectors.setdefault(data, create(builder, data)),
    )
    small, large = bytes(range(256)) * 60, bytes(1 << 20)
    blobs = [Blob(f"b{number}", small) for number in range(200)] + [Blob("large", large)]
    path = tmp_path / "shared.loadable"
    path.write_bytes(Loadable(blobs=tuple(blobs)).to_bytes())
    assert path.stat().st_size < 1_200_000
    loadable = nvdla.load(path, checked=False)
    loadable.forget()
    path.write_bytes(b"")
    assert all(blob.data.obj is loadable.blobs[0].data.obj for blob in loadable.blobs)


def test_blobs_made_by_hand_take_bytes():
    assert Blob("a", b"12").data == memoryview(b"12")
    assert Blob("a", b"").size == 0
    assert repr(Blob("a", b"12")).startswith("Blob(name='a', size=2")
