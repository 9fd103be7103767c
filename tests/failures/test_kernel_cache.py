"""The cache of compiled kernels: machine code that the next process runs, so nobody else may put something into it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from nvdla.kernels.jit import cache_folder as folders
from nvdla.kernels.jit import compilation, kernel_cache

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has access lists instead of modes")


@pytest.fixture
def choose(monkeypatch):
    """``choose()``: the folder that a new process would take."""
    for variable in ("NVDLA_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def call():
        folders.cache_folder.cache_clear()
        folders.cache_folders.cache_clear()
        return folders.cache_folder()

    yield call
    folders.cache_folder.cache_clear()
    folders.cache_folders.cache_clear()


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A folder of its own, chosen by the environment."""
    monkeypatch.setenv("NVDLA_CACHE_DIR", str(tmp_path / "cache"))
    folders.cache_folder.cache_clear()
    folders.cache_folders.cache_clear()
    yield folders.cache_folder()
    folders.cache_folder.cache_clear()
    folders.cache_folders.cache_clear()


def add_one(values):
    return values + 1


def compiled(private):
    """A new dispatcher of the same function, as in a new process; (dispatcher, files of the cache)."""
    dispatcher = compilation.njit(cache=True)(add_one)
    assert dispatcher(np.arange(3))[2] == 3
    return dispatcher, sorted(private.glob("*.kernel"))


def hits(dispatcher):
    return sum(dispatcher.compiled.stats.cache_hits.values())


# ---- which folder


def test_the_folder_that_the_user_names_is_made_private(choose, monkeypatch, tmp_path):
    monkeypatch.setenv("NVDLA_CACHE_DIR", str(tmp_path / "a" / "b"))
    chosen = choose()
    assert chosen.parent == tmp_path / "a" / "b"
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_that_others_may_write_to_is_refused(choose, monkeypatch, tmp_path, mode):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shared"))
    chosen = choose()
    chosen.chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"NUMBA_CACHE_DIR: .*can be written by others.*{mode:04o}"):
        assert choose() is None


@posix
def test_a_folder_below_one_that_others_may_write_to_is_refused(choose, monkeypatch, tmp_path):
    """They could put another folder in its place. In a sticky folder such as /tmp they cannot."""
    (tmp_path / "open").mkdir()
    monkeypatch.setenv("NVDLA_CACHE_DIR", str(tmp_path / "open" / "cache"))
    (tmp_path / "open").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        assert choose() is None
    (tmp_path / "open").chmod(0o1777)
    assert choose() is not None


@posix
def test_a_folder_of_another_user_is_refused(choose, monkeypatch, tmp_path):
    monkeypatch.setenv("NVDLA_CACHE_DIR", str(tmp_path / "cache"))
    assert choose() is not None
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        assert choose() is None


@posix
def test_a_command_without_a_cache_warns_in_one_line(tmp_path):
    """Not as Python prints warnings, with a line of source."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    here = {**os.environ, "NVDLA_CACHE_DIR": str(shared)}
    command = [sys.executable, "-m", "nvdla", "cache", "info"]
    done = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
    assert "compiled kernels are not kept" in done.stderr and done.stderr.startswith("nvdla: warning: NVDLA_CACHE_DIR")
    assert done.stderr.count("\n") == 1 and "RuntimeWarning" not in done.stderr


def test_the_directory_of_the_kernels_comes_before_that_of_the_user(choose, monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "HERE", tmp_path / "kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert choose() == tmp_path / "kernels" / "__pycache__"


@posix
@pytest.mark.parametrize("library", ["site-packages", "dist-packages"])
def test_an_installed_package_gets_no_files_that_pip_would_leave_behind(choose, monkeypatch, tmp_path, library):
    """A directory nvdla without code, left by 'pip uninstall', hides the code of an editable installation."""
    if sys.platform == "darwin":
        pytest.skip("the user's folder does not depend on the environment")
    kernels = tmp_path / library / "nvdla" / "kernels"
    monkeypatch.setattr(folders, "HERE", kernels)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert choose().parent == tmp_path / "home" / "nvdla" / "kernels"
    assert not kernels.exists()
    (tmp_path / "home" / "nvdla" / "kernels").chmod(0o777)
    folders.cache_folder.cache_clear()
    assert folders.cache_folder() == kernels / "__pycache__"


@posix
def test_an_installation_of_somebody_else_leaves_the_users_own_folder(choose, monkeypatch, tmp_path):
    if sys.platform == "darwin":
        pytest.skip("the user's folder does not depend on the environment")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__pycache__").mkdir()
    (tmp_path / "kernels" / "__pycache__").chmod(0o777)
    monkeypatch.setattr(folders, "HERE", tmp_path / "kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert choose().parent == tmp_path / "home" / "nvdla" / "kernels"


def test_without_any_folder_kernels_are_compiled_all_the_same(choose, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NVDLA_CACHE_DIR", str(tmp_path / "file"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert choose() is None
        assert compilation.njit(cache=True)(add_one)(np.arange(2))[1] == 2


# ---- what lies in it


def test_a_second_process_finds_what_the_first_compiled(private):
    first, files = compiled(private)
    assert (hits(first), len(files)) == (0, 1)
    second, again = compiled(private)
    assert (hits(second), again) == (1, files)
    assert not list(private.glob(".*.part"))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign"])
def test_a_damaged_file_is_compiled_again_and_replaced(private, damage):
    _, (file,) = compiled(private)
    whole = file.read_bytes()
    broken = {"truncated": whole[:-100], "flipped": whole[:-1] + bytes([whole[-1] ^ 1]), "empty": b"",
              "foreign": b"\x80\x04cos\nsystem\n(S'false'\ntR."}[damage]  # fmt: skip
    file.write_bytes(broken)
    dispatcher, files = compiled(private)
    assert hits(dispatcher) == 0
    assert files == [file]
    assert file.read_bytes()[: len(kernel_cache.MAGIC)] == kernel_cache.MAGIC
    assert hits(compiled(private)[0]) == 1


def test_a_file_of_other_argument_types_is_not_run(private):
    """Whole and well, but in the wrong place: the types that it was made for are compared."""
    _, (integers,) = compiled(private)
    dispatcher = compilation.njit(cache=True)(add_one)
    dispatcher(np.arange(3.0))
    (floats,) = set(private.glob("*.kernel")) - {integers}
    integers.write_bytes(floats.read_bytes())
    again, _ = compiled(private)
    assert hits(again) == 0


def test_a_folder_that_vanishes_or_fills_up_does_not_stop_a_run(private):
    compiled(private)
    for file in private.glob("*"):
        file.unlink()
    private.rmdir()
    dispatcher, files = compiled(private)
    assert (hits(dispatcher), files) == (0, [])


def test_a_change_in_a_kernel_that_is_compiled_in_counts(tmp_path, monkeypatch):
    """numba looks only at the file of the function itself."""
    monkeypatch.setattr(folders, "HERE", tmp_path)
    (tmp_path / "outer.py").write_text("from nvdla.kernels.inner import f\n")
    (tmp_path / "inner.py").write_text("# one\n")

    def digest():
        folders.of_source.cache_clear()
        folders.source_digest.cache_clear()
        return folders.source_digest("outer")

    try:
        before = digest()
        assert digest() == before
        (tmp_path / "inner.py").write_text("# two\n")
        assert digest() != before
    finally:
        folders.of_source.cache_clear()
        folders.source_digest.cache_clear()


def test_code_that_is_imported_late_counts_too(monkeypatch):
    """The tile's instructions are emitted by a module that kernels import only when they are compiled."""
    seen, source = [], folders.of_source
    monkeypatch.setattr(folders, "of_source", lambda name: seen.append(name) or source(name))
    folders.source_digest.__wrapped__("fast.conv_sdp_int8")
    assert "fast.dot_code" in seen


def test_every_kernel_goes_through_this_cache():
    """And no kernel's module imports numba before something is compiled."""
    for path in Path(compilation.__file__).parents[1].rglob("*.py"):
        if path.name != "kernel_cache.py" and not path.stem.endswith("_code"):
            assert "\nfrom numba" not in path.read_text(), path.name
            assert "\nimport numba" not in path.read_text(), path.name


SCRIPT = """
import sys, numpy as np
from nvdla.kernels.sdp_float import integers_to_fp16
from nvdla.kernels.jit.compilation import fallback_work
fallback_work.end()
bits = np.empty(48, np.uint16)
integers_to_fp16(np.arange(48, dtype=np.int32), bits)
print(bits.sum())
"""


def test_processes_that_compile_at_once_agree(tmp_path):
    environment = {**os.environ, "NVDLA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, **streams) for _ in range(3)]
    results = [process.communicate(timeout=120) for process in running]
    assert len({out for out, _ in results}) == 1
    assert all(not error for _, error in results)
    (folder,) = (tmp_path / "cache").iterdir()
    assert list(folder.glob("*.kernel"))
    assert not list(folder.glob(".*.part"))
