"""Campaigns on a real Dask cluster on loopback: a scheduler and worker processes, some of which are killed."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from support.campaign_clients import client, finished, squares
from support.campaign_tables import Squares, count_lines
from support.cluster import TESTS, Cluster

import nvdla
from nvdla.campaign import Journal, Workers, run
from nvdla.campaign.journal import read
from nvdla.errors import FormatError

pytest.importorskip("distributed")
ALL = {number: number**2 for number in range(400)}


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two worker processes; ``cluster.start_worker`` makes more."""
    made = Cluster(tmp_path)
    yield made
    made.stop()


def test_a_cluster_gives_the_same_bytes(cluster, tmp_path):
    here = finished(tmp_path / "here.jsonl", Squares(100), Workers(1))
    assert finished(tmp_path / "a.jsonl", Squares(100), Workers(scheduler=cluster.address)) == here


def test_workers_of_a_cluster_that_are_killed_are_replaced(cluster, tmp_path):
    path = tmp_path / "a.jsonl"
    process = client(tmp_path, path, cluster.address)
    for worker in list(cluster.workers):
        start = count_lines(path)
        end = time.monotonic() + 60
        while count_lines(path) < start + 20 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        cluster.workers.append(cluster.start_worker())
        worker.send_signal(signal.SIGKILL)
    assert process.wait(120) == 0
    assert squares(path) == ALL


@pytest.mark.slow
def test_a_scheduler_that_is_lost_ends_the_run_and_resume_finishes_it(cluster, tmp_path):
    path = tmp_path / "a.jsonl"
    process = client(tmp_path, path, cluster.address)
    while count_lines(path) < 40:
        time.sleep(0.02)
    cluster.stop()
    assert process.wait(120) != 0
    kept = count_lines(path)
    assert kept >= 40
    cluster.start()
    assert client(tmp_path, path, cluster.address).wait(120) == 0
    assert squares(path) == ALL


@pytest.mark.slow
def test_a_task_that_kills_workers_of_a_cluster_is_named_and_its_neighbours_are_not(tmp_path):
    """Dask gives up what waits behind the guilty task, too: those tasks are done in the end."""
    cluster = Cluster(tmp_path, nanny=True)
    try:
        finished(tmp_path / "a.jsonl", Squares(30, poison=11, shard=4), Workers(scheduler=cluster.address))
    finally:
        cluster.stop()
    assert [each for each in read(tmp_path / "a.jsonl") if "error" in each] == [
        {"key": "000011", "error": "3 workers died of it"}
    ]
    assert squares(tmp_path / "a.jsonl") == {number: number**2 for number in range(30) if number != 11}


def test_a_scheduler_that_does_not_answer_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("nvdla.campaign.cluster.CONNECT_SECONDS", 1)
    table = Squares(4)
    with pytest.raises(FormatError, match="'dask scheduler' starts one"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(scheduler="tcp://127.0.0.1:9"))


def test_workers_with_another_version_are_refused(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(nvdla, "__version__", "9.9.9")
    table = Squares(4)
    with pytest.raises(FormatError, match=r"worker tcp:.* has nvdla .*, .* with 9\.9\.9: install the same"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(scheduler=cluster.address))


@pytest.mark.slow
def test_a_worker_that_comes_later_with_another_version_ends_the_run(tmp_path, cluster):
    """It gives no records: a result file is of one version."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import nvdla\nnvdla.__version__ = '0.0.9'\n")
    path = tmp_path / "a.jsonl"
    process = client(tmp_path, path, cluster.address, stderr=subprocess.PIPE, tasks=8000)
    while count_lines(path) < 20:
        time.sleep(0.02)
    cluster._path = f"{other}:{TESTS}"
    cluster.start_worker()
    assert process.wait(120) != 0
    assert b"has nvdla 0.0.9, the campaign was started with" in process.stderr.read()
    assert 0 < len(squares(path)) == count_lines(path) - 1 < 8000
