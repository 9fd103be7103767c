"""No file is touched outside the paths that the user named: Python's audit events of every command say which were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.attack_files import ATTACKS, FILES

WATCHED = """
import contextlib, io, json, os, sys
events = []
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod",
           "os.chown")
ELSEWHERE = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.bind",
             "urllib.Request", "shutil.rmtree")
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if mode is None else any(c in mode for c in "wax+")
        events.append(["write" if writes else "read", os.path.realpath(os.fsdecode(path))])
    elif event in CHANGES:
        events.append(["write", os.path.realpath(os.fsdecode(arguments[0]))])
        if event in ("os.rename", "os.symlink", "os.link"):
            events.append(["write", os.path.realpath(os.fsdecode(arguments[1]))])
    elif event in ELSEWHERE:
        events.append([event, str(arguments[0])])
from nvdla.cli.main import main
sys.addaudithook(watch)
found = []
for words in json.load(sys.stdin):
    del events[:]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(words)
    found.append([code, list(events)])
print(json.dumps(found))
"""


def touched(commands: list[list[str]], folder: Path) -> list[tuple[int, list[tuple[str, Path]]]]:
    """Exit code and events of each command; the kernels are cached in ``folder/kernels``, which is left out."""
    cache = folder / "kernels"
    cache.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "NVDLA_CACHE_DIR": str(cache), "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=environment,
    )
    results = []
    for code, events in json.loads(done.stdout):
        seen = [(kind, Path(path)) for kind, path in events]
        results.append((code, [(kind, path) for kind, path in seen if not path.is_relative_to(cache)]))
    return results


def assert_only(events, folder: Path, readable: set[Path], written: Path | None) -> None:
    """Below ``folder`` only these are read; nowhere anything but ``written`` (and its temporary file) is written."""
    for kind, path in events:
        if kind == "subprocess.Popen" and path.name == "dot":  # draws what it gets on its standard input
            continue
        if kind == "os.posix_spawn" and path == Path(sys.executable):  # compiles kernels
            continue
        assert kind in ("read", "write"), (kind, path)
        if kind == "read":
            assert not path.is_relative_to(folder) or path in readable, path
            assert not path.is_relative_to("/etc") or path.name in ("localtime", "nsswitch.conf", "passwd"), path
        elif path != Path(os.devnull):
            assert written is not None, path
            temporary = path.name.startswith(f".{written.name}.") and path.name.endswith(".part")
            assert path == written or (path.parent == written.parent and temporary), path


LOADABLE_COMMANDS = {
    "run": (["-i", "digit.pgm", "-o", "out.npy"], "out.npy"),
    "inspect": (["--all"], None),
    "hexdump": (["task-0-op_list"], None),
    "extract": (["task-0-op_list", "-o", "out.bin"], "out.bin"),
    "compare": (["x.nvdla", "--random-input"], None),
    "doctor": (["--converters"], None),
    "lint": ([], None),
    "diff": (["x.nvdla"], None),
    "memory": (["--svg", "out.svg"], "out.svg"),
    "graph": (["-o", "out.dot"], "out.dot"),
    "cycles": ([], None),
    "timeline": (["-o", "out.json"], "out.json"),
    "report": (["-o", "out.html"], "out.html"),
}


@pytest.mark.parametrize("is_sound", [True, False])
def test_commands_read_and_write_only_named_files(is_sound, tmp_path, samples):
    folder = tmp_path.resolve()
    source = samples / "lenet.loadable" if is_sound else FILES / "consumer_outside.nvdla"
    (folder / "x.nvdla").write_bytes(source.read_bytes())
    (folder / "digit.pgm").write_bytes((samples / "digit0.pgm").read_bytes())
    for name in ("secret.txt", "x.yaml", "x.json", "labels.txt", "calibration.json", "x.nvdla.json"):
        (folder / name).write_text("{}")
    words = [[name, "x.nvdla", *rest] for name, (rest, _) in LOADABLE_COMMANDS.items()]
    readable = {folder / each for each in ("x.nvdla", "digit.pgm", "x.nvdla.layers.json")}
    results = touched(words, folder)
    assert not is_sound or sum(code == 0 for code, _ in results) > 9
    for (name, (_, out)), (code, events) in zip(LOADABLE_COMMANDS.items(), results, strict=True):
        assert any(path == folder / "x.nvdla" for _, path in events), name  # the events are seen
        assert_only(events, folder, readable | ({folder / out} if out else set()), folder / out if out else None)
        assert out is None or code or (folder / out).exists(), name


def test_hostile_files_reach_no_others(tmp_path):
    """Every attack with a command that reads it, in a folder with files that its names point to."""
    folder = tmp_path.resolve() / "inner"
    folder.mkdir()
    for place in (folder, folder.parent):
        for name in ("outside.dat", "secret.txt"):
            (place / name).write_text("{offset:0, size:1, payload:0x00}")
    commands, named = [], []
    for name, (way, make, _) in ATTACKS.items():
        (folder / name).write_bytes(make())
        config = way.partition(":")[2] or "nv_small"
        words = {
            "load": ["inspect", name],
            "run": ["lint", name],
            "trace": ["trace", "replay", name, "--config", config],
            "tensor": ["tensor", "info", name],
            "container": ["container", "list", name],
        }.get(way.partition(":")[0])
        if words:
            commands.append(words)
            named.append({folder / name, folder / f"{name}.layers.json", folder / "huge_packet.dat"})
    for (_, events), readable, words in zip(touched(commands, folder), named, commands, strict=True):
        assert_only(events, folder.parent, readable, None)
        assert ("read", folder / words[2 if words[1] in ("replay", "info", "list") else 1]) in events, words
