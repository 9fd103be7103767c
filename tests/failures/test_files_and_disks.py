"""Disks that are full, folders that cannot be written, files that cannot be read: one line, exit code 2, and what was
there before is still there."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest
from support.fault_commands import DIGITS, LENET, NVDLA, RUN, finish, one_line, start

from nvdla.errors import FormatError
from nvdla.util.files import read_file, whole_file, write_file

linux = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full and /proc")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    old = tmp_path / "out.npy"  # 138 bytes
    old.write_bytes(b"old")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    code, _, error = finish(start(RUN, LENET, "-i", DIGITS[0], "-o", old, preexec_fn=limit))
    assert code == 2
    assert one_line(error)
    assert "File too large" in error
    assert old.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.npy"]


@linux
def test_a_full_device_is_one_line(tmp_path):
    code, _, error = finish(start(RUN, LENET, "-i", DIGITS[0], "-o", "out.bin=/dev/full"))
    assert code == 2
    assert one_line(error)
    with open("/dev/full", "wb") as full:
        code, _, error = finish(start(NVDLA, "inspect", LENET, "--all", stdout=full))
    assert code == 2
    assert error == "nvdla inspect: No space left on device\n"


@linux
def test_a_folder_that_takes_no_files_is_one_line():
    code, _, error = finish(start(NVDLA, "extract", LENET, "task-0-op_list", "-o", "/proc/nvdla.bin"))
    assert code == 2
    assert one_line(error)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FormatError, match="cannot be written: Permission denied"):
            write_file(tmp_path / "out.bin", b"x")
    finally:
        tmp_path.chmod(0o700)


def test_what_cannot_be_read_is_named(tmp_path, nvdla_command):
    for path in (tmp_path, tmp_path / "missing.loadable", tmp_path / ("x" * 300)):
        code, _, error = nvdla_command("inspect", path)
        assert code == 2
        assert one_line(error)
    code, _, error = nvdla_command("run", LENET, "-i", tmp_path / "missing.pgm")
    assert code == 2
    assert "missing.pgm" in error


def test_a_name_with_a_nul_or_in_a_circle_is_an_error_of_ours(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name in ("x\0y", str(tmp_path / "a")):
        with pytest.raises(FormatError, match="cannot be"):
            read_file(name, 100)
        with pytest.raises(FormatError, match="cannot be"):
            write_file(name, b"x")


def test_a_file_that_grows_while_it_is_read_stops_at_the_limit(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def feed() -> None:
        with open(tmp_path / "pipe", "wb") as pipe:
            try:
                while True:
                    pipe.write(bytes(1 << 16))
            except BrokenPipeError:
                return

    feeder = threading.Thread(target=feed)
    feeder.start()
    with pytest.raises(FormatError, match="must have at most 1000000 bytes, got more"):
        read_file(tmp_path / "pipe", 1_000_000)
    feeder.join()


def test_a_trace_image_that_vanishes_is_a_trace_error(tmp_path):
    from nvdla import TraceError
    from nvdla.emulator.trace import replay

    (tmp_path / "t.cfg").write_text('mem_load(pri_mem, 0x80000000, "gone.dat");\n')
    with pytest.raises(TraceError, match=r"t\.cfg:1: file 'gone\.dat': must be a regular file"):
        replay(tmp_path / "t.cfg", "nv_small")


def test_an_error_in_the_middle_of_writing_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), whole_file(tmp_path / "out") as stream:
        stream.write(b"half")
        raise RuntimeError
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("moment", ["open", "fdopen", "fsync", "chmod", "replace"])
def test_ctrl_c_within_any_step_of_writing_leaves_no_files(tmp_path, monkeypatch, moment):
    """The step itself is done when the interrupt is seen: the interpreter looks for it between two calls."""
    (tmp_path / "out").write_bytes(b"old")
    real = getattr(os, moment)

    def interrupted(*words, **named):
        real(*words, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "out", b"new")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == (b"new" if moment == "replace" else b"old")


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_file(tmp_path / "out", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode


def test_an_existing_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


@linux
def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    process = start(NVDLA, "inspect", LENET, "--all", stdout=writing)
    os.close(writing)
    code, _, error = finish(process)
    assert (code, error) == (0, "")


def test_closed_streams_are_no_error(tmp_path):
    out = tmp_path / "out.bin"
    command = ["sh", "-c", '"$@" >&- 2>&-', "sh", *RUN]
    code, _, _ = finish(start(command, LENET, "-i", DIGITS[0], "-o", out))
    assert code == 0
    assert out.stat().st_size
