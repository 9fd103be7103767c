"""Kernels that are loaded without numba, compiled by another process, or shared by all users."""

from __future__ import annotations

import fcntl
import os
import platform
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nvdla.compiler.builder import Network, build, calibrate
from nvdla.kernels.jit import cache_folder as folders
from nvdla.kernels.jit import object_code as objects

pytestmark = pytest.mark.skipif(
    not hasattr(os, "posix_spawn"), reason="this system has no compilation in the background"
)
KERNEL = "jit.thread_pool_code:pause_for", 1
SWITCH = """
import sys, time
import nvdla
from nvdla.emulator.execution.paths import RunPath
from nvdla.emulator.execution import plan
from nvdla.kernels.jit.kernel_times import kernel_times
plan.SHARE = 0  # one part of the preparation per image
runtime = nvdla.Runtime(sys.argv[1], "nv_large")
image, paths, outputs, loaded = bytes(range(256)) * (runtime.inputs[0].size // 256), [], set(), [0]
run = plan.Plan.run
plan.Plan.run = lambda self, path, *rest: paths.append(path) or run(self, path, *rest)
end = time.monotonic() + float(sys.argv[2])
while len(paths) < 2 or (time.monotonic() < end and paths[-1] is RunPath.FALLBACK):
    outputs.add(runtime.run_raw([image])[0])
    loaded.append(kernel_times.loaded)
    time.sleep(0.05)
from nvdla.kernels.jit.object_code import background
loads, imported = max(after - before for before, after in zip(loaded, loaded[1:])), sys.modules
print(len(outputs), paths[0].name, paths[1].name, paths[-1].name, "numba" in imported, background._process)
print(loads, "llvmlite.binding" in imported, runtime._plan._switch is not None)
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The file of an int8 network of one convolution, large enough to be recorded first."""
    random, net = np.random.default_rng(3), Network("one")
    weights = random.standard_normal((64, 32, 3, 3))
    net.output(net.relu("end", net.convolution("c", net.input("data", (32, 40, 40)), weights, padding=1)))
    path = tmp_path_factory.mktemp("one") / "one.loadable"
    build(net, "nv_large", "int8", calibrate(net, random.standard_normal((1, 32, 40, 40)))).save(path)
    return path


@pytest.fixture
def private(tmp_path, monkeypatch):
    """An empty cache directory."""
    monkeypatch.setenv("NVDLA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NVDLA_SYSTEM_CACHE_DIR", str(tmp_path / "system"))
    cleared = folders.cache_folder, folders.cache_folders
    for each in cleared:
        each.cache_clear()
    yield folders.cache_folder()
    folders._chosen.clear()
    for each in cleared:
        each.cache_clear()


def first_runs(network, seconds):
    """Outputs, first, second and last path, whether numba was imported, process that compiles; most kernels that an
    image loaded, whether LLVM was imported, whether the switch was prepared."""
    done = subprocess.run(
        [sys.executable, "-c", SWITCH, str(network), str(seconds)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def ends(process: int, seconds: float = 120) -> bool:
    """Whether a process that is not ours ends within some time."""
    for _ in range(int(seconds * 10)):
        state = Path(f"/proc/{process}/stat")
        if not state.exists() or state.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_cold_start_switches_to_compiled_kernels(private, network):
    """The process itself never compiles, and all outputs are equal."""
    outputs, first, second, last, numba, _, loads, llvm, prepared = first_runs(network, 300)
    assert (outputs, first, second, numba) == ("1", "FALLBACK", "FALLBACK", "False")
    assert last == "POOL"
    assert (loads, prepared) == ("1", "True"), "no image waits for more than one kernel"
    assert llvm == str(platform.machine() != "x86_64"), "kernels are linked in advance"
    assert first_runs(network, 5)[1:3] == ["POOL", "POOL"], "the next process finds them"


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_a_short_process_does_not_wait_and_leaves_nothing_running(private, network):
    began = time.process_time()
    process = int(first_runs(network, 0.2)[5])
    assert process and time.process_time() - began < 1
    assert ends(process)
    with (private / objects.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not list(private.glob("*.part"))


def test_modules_of_the_current_directory_are_not_imported(private, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("open('planted', 'w')")
    monkeypatch.chdir(tmp_path)
    code, background = objects.ObjectCode(*KERNEL), objects.Background()
    for _ in range(1200):
        if not background.awaits([code]):
            break
        time.sleep(0.1)
    assert code.is_cached()
    assert not (tmp_path / "planted").exists()


def test_one_process_compiles_for_a_directory(private):
    code, background = objects.ObjectCode(*KERNEL), objects.Background()
    with (private / objects.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(600):
            assert background.awaits([code])
            if not background._process:
                break
            time.sleep(0.05)
        assert not background._process and not code.is_cached()
        assert background.awaits([code]) and not background._process, "it tries again later"


def test_a_process_that_fails_is_not_awaited(private, monkeypatch):
    monkeypatch.setattr(objects, "CHILD", "raise SystemExit(3)")
    code, background = objects.ObjectCode(*KERNEL), objects.Background()
    for _ in range(600):
        if not background.awaits([code]):
            break
        time.sleep(0.05)
    assert not background.is_possible()


def test_without_a_directory_nothing_is_awaited(monkeypatch):
    monkeypatch.setattr(objects, "cache_folder", lambda: None)
    monkeypatch.setattr(objects, "cache_folders", lambda: ())
    assert not objects.Background().awaits([objects.ObjectCode(*KERNEL)])


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_object_is_compiled_again(private, damage):
    objects.ObjectCode(*KERNEL).compile()
    (file,) = private.glob("*.object")
    whole = file.read_bytes()
    file.write_bytes({"truncated": whole[:-9], "flipped": whole[:-1] + bytes([whole[-1] ^ 1]), "empty": b""}[damage])
    assert objects._read(file) is None
    assert objects.ObjectCode(*KERNEL).address
    assert file.read_bytes()[: len(objects.MAGIC)] == objects.MAGIC and objects._read(file)


@pytest.mark.parametrize("linked", [True, False])
def test_a_kernel_that_needs_an_unknown_function_is_not_loaded(private, monkeypatch, linked):
    """Linked in advance, or by LLVM."""
    if not linked:
        monkeypatch.setattr("nvdla.kernels.jit.linked_code.image_of", lambda data, symbol: None)
    code = objects.ObjectCode("jit.thread_pool_code:serve", 3)
    data = objects._compiled(code)
    assert (b'"inside"' in data[:1000]) == (linked and platform.machine() == "x86_64")
    assert not code._load(objects._parted(data.replace(b'"pthread_mutex_init"', b'"no_such_function"')))
    assert code._load(objects._parted(data))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 is linked in advance")
def test_objects_that_are_not_linked_in_advance(private):
    from nvdla.kernels.jit.linked_code import emitted, image_of

    symbol, _, data = emitted(objects.ObjectCode(*KERNEL).find(), 1, objects.RUNTIME)
    assert image_of(data, symbol) is not None
    assert image_of(data, "another") is None
    assert image_of(data[:18] + b"\xb7\0" + data[20:], symbol) is None, "AArch64"
    assert image_of(b"MZ" + data, symbol) is None


def test_the_object_of_earlier_sources_is_removed(private):
    old = private / f"jit.thread_pool_code.pause_for.{'0' * 16}.{'1' * 32}.object"
    other = private / f"jit.thread_pool_code.pause.{'0' * 16}.{'1' * 32}.object"
    for file in (old, other):
        file.write_bytes(b"")
    objects.ObjectCode(*KERNEL).compile()
    assert not old.exists() and other.exists()


def test_a_setting_of_numba_changes_the_name(private, monkeypatch):
    path = objects.ObjectCode(*KERNEL)._path(private)
    objects._settings.cache_clear()
    monkeypatch.setenv("NUMBA_OPT", "1")
    try:
        assert objects.ObjectCode(*KERNEL)._path(private) != path
    finally:
        objects._settings.cache_clear()


READ = """
import sys
from nvdla.kernels.jit import cache_folder as folders, object_code as objects
code = objects.ObjectCode(sys.argv[1], 1)
print(folders.cache_folder(), code.is_cached(), bool(code.load()))
"""


def test_other_users_load_the_kernels_of_the_system(private, tmp_path):
    """Also where they can write to no directory, as in a read-only container."""
    assert folders.use_system_folder() == ""
    objects.ObjectCode(*KERNEL).compile()
    system = folders.system_folder()
    (file,) = system.glob("*.object")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (system, file)] == [0o755, 0o644]
    (tmp_path / "file").write_bytes(b"")
    environment = {**os.environ, "NVDLA_CACHE_DIR": str(tmp_path / "file")}
    words = [sys.executable, "-W", "ignore", "-c", READ, KERNEL[0]]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "True", "True"]
    system.chmod(0o777)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False", "False"], "others could put code there"


@pytest.mark.parametrize(
    ("action", "message"),
    [("warm-up", "the directory of all users must be writable by you alone"), ("info", "must be used with warm-up")],
)
def test_the_directory_of_the_system_must_be_writable(private, tmp_path, action, message):
    (tmp_path / "system").write_bytes(b"")
    words = [sys.executable, "-m", "nvdla", "cache", action, "--system"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr


def test_a_run_that_needs_kernels_without_compilation_is_refused(private, tmp_path):
    samples = Path(__file__).parents[2] / "samples"
    words = [
        sys.executable,
        "-m",
        "nvdla",
        "run",
        "lenet_nv_full_fp16.loadable",
        "--input",
        "digit7.pgm",
        "--profile",
        "1",
    ]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "NVDLA_CACHE_DIR": str(tmp_path / "empty")}
    done = subprocess.run(words, capture_output=True, text=True, cwd=samples, env=environment)
    assert done.returncode == 2
    assert "NUMBA_DISABLE_JIT: must be unset" in done.stderr
