"""Campaigns on a real Dask cluster on loopback: a scheduler and worker processes, some of which are killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.campaign_clients import client, finished, squares
from support.campaign_tables import DeadlyOnce, Squares, count_lines
from support.cluster import TESTS, Cluster, import_path

import nvdla
from nvdla.errors import FormatError
from nvdla.experiments.campaign import Journal, Tls, Workers, run
from nvdla.experiments.campaign.journal import read

pytest.importorskip("distributed")
SAMPLES = Path(__file__).resolve().parents[3] / "samples"
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
        {"key": "000011", "error": "3 workers crashed"}
    ]
    assert squares(tmp_path / "a.jsonl") == {number: number**2 for number in range(30) if number != 11}


def test_a_scheduler_that_does_not_answer_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("nvdla.experiments.campaign.cluster.CONNECT_SECONDS", 1)
    table = Squares(4)
    with pytest.raises(FormatError, match="start one with 'dask scheduler'"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(scheduler="tcp://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "missing port"),
        ("foo://127.0.0.1:99", "unknown address scheme 'foo'"),
        ("127.0.0.1", "missing port number"),
        ("tcp://127.0.0.1:x", "ValueError"),
    ],
)
def test_an_address_that_cannot_be_is_one_line(tmp_path, address, words):
    """A client that has failed cannot be closed, and would print a traceback when Python ends."""
    here = {**os.environ, "PYTHONPATH": import_path(TESTS)}
    files = [str(SAMPLES / "lenet.loadable"), str(SAMPLES / "digits.npz")]
    command = [sys.executable, "-m", "nvdla", "evaluate", *files, f"--scheduler={address}"]
    done = subprocess.run(command, capture_output=True, text=True, env=here, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"no Dask scheduler answers at {address!r}" in done.stderr and words in done.stderr


@pytest.fixture
def silent():
    """The address of something that accepts connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def test_a_silent_scheduler_does_not_block(tmp_path, silent, monkeypatch):
    monkeypatch.setattr("nvdla.experiments.campaign.cluster.CONNECT_SECONDS", 1)
    table, start = Squares(4), time.monotonic()
    with pytest.raises(FormatError, match=r"no Dask scheduler answers .*Timeout"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(scheduler=silent))
    assert time.monotonic() - start < 20


def test_a_scheduler_that_falls_silent_is_lost(cluster, tmp_path, monkeypatch):
    """It is stopped, so that its connections stay open."""
    monkeypatch.setattr("nvdla.experiments.campaign.cluster.SILENT_SECONDS", 1)
    monkeypatch.setattr("nvdla.experiments.campaign.cluster.CONNECT_SECONDS", 3)
    path, table = tmp_path / "a.jsonl", Squares(100_000, slow=0.02, shard=4)

    def progress(done: int, failed: int) -> None:
        if done > 40:
            cluster.processes[0].send_signal(signal.SIGSTOP)

    journal = Journal(path, table)
    with pytest.raises(FormatError, match=r"scheduler at .* is gone .*Continue with --resume"):
        run(table, journal, Workers(scheduler=cluster.address), progress)
    journal.close()
    assert count_lines(path) > 40


def test_a_worker_that_dies_while_it_takes_the_table_is_replaced(tmp_path):
    cluster = Cluster(tmp_path, nanny=True)
    mark = tmp_path / "mark"
    try:
        table = DeadlyOnce(30, mark=str(mark))
        finished(tmp_path / "a.jsonl", table, Workers(scheduler=cluster.address))
    finally:
        cluster.stop()
    assert mark.exists() and squares(tmp_path / "a.jsonl") == {number: number**2 for number in range(30)}


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_a_cluster_with_tls_needs_its_certificates(tmp_path):
    """With the files a cluster is used; without them, or with others, it is one line."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    files = ["--tls-ca-file", str(cert), "--tls-cert", str(cert), "--tls-key", str(key)]
    cluster = Cluster(tmp_path, tls=files)
    try:
        assert cluster.address.startswith("tls://")
        workers = Workers(scheduler=cluster.address, tls=Tls(str(cert), str(cert), str(key)))
        finished(tmp_path / "a.jsonl", Squares(30), workers)
        table = Squares(30)
        with pytest.raises(FormatError, match="no Dask scheduler answers"):
            run(table, Journal(tmp_path / "b.jsonl", table), Workers(scheduler=cluster.address))
    finally:
        cluster.stop()
    assert squares(tmp_path / "a.jsonl") == {number: number**2 for number in range(30)}


def test_tls_files_that_cannot_be_are_refused(tmp_path):
    table = Squares(4)
    with pytest.raises(FormatError, match=r"TLS file .*no such file"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(scheduler="tls://127.0.0.1:9", tls=Tls("missing.pem")))
    with pytest.raises(FormatError, match="TLS files are for the connection to a Dask scheduler"):
        run(table, Journal(tmp_path / "b.jsonl", table), Workers(1, tls=Tls("missing.pem")))


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
    process = client(tmp_path, path, cluster.address, stderr=subprocess.PIPE, tasks=40000)
    while count_lines(path) < 20:
        time.sleep(0.02)
    cluster._path = f"{other}:{TESTS}"
    cluster.start_worker()
    assert process.wait(120) != 0
    assert b"has nvdla 0.0.9, the campaign was started with" in process.stderr.read()
    assert 0 < len(squares(path)) == count_lines(path) - 1 < 40000
