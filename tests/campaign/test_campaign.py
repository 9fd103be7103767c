"""Campaigns: every task is done once, whoever dies, and the results do not depend on who did what when."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from support.campaign_tables import Squares, count_lines

from nvdla.campaign import Journal, Workers, run
from nvdla.campaign.forking import may_fork
from nvdla.campaign.journal import read
from nvdla.errors import FormatError

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Workers are new processes: they find the tables of the tests, too."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def finished(path: Path, table: Squares, workers: Workers | None = None, resume: bool = False) -> bytes:
    run(table, Journal(path, table, resume), workers or Workers(2))
    return path.read_bytes()


def squares(path: Path) -> dict[int, int]:
    return {int(each["key"]): each["square"] for each in read(path) if "square" in each}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    os.environ["PYTHONPATH"] = str(TESTS)
    return finished(tmp_path_factory.mktemp("r") / "r.jsonl", Squares(100), Workers(1))


def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path, reference):
    assert finished(tmp_path / "a.jsonl", Squares(100, shard=3), Workers(2)) == reference
    assert squares(tmp_path / "a.jsonl") == {number: number**2 for number in range(100)}


def test_a_run_that_was_interrupted_goes_on_and_counts_nothing_twice(tmp_path, reference):
    lines = reference.splitlines(keepends=True)
    shuffled = [lines[0], *random.Random(1).sample(lines[1:], 40)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(shuffled) + lines[5][:7])  # the last line was cut off
    with pytest.raises(FormatError, match="holds 40 results"):
        Journal(path, Squares(100))
    assert finished(path, Squares(100), resume=True) == reference
    assert finished(path, Squares(100), resume=True) == reference  # nothing is left to do


def test_results_of_another_run_are_refused_with_what_differs(tmp_path, reference):
    path = tmp_path / "a.jsonl"
    path.write_bytes(reference)
    with pytest.raises(FormatError, match="count was '100', is '50'"):
        Journal(path, Squares(50), resume=True)
    path.write_text("hello\n")
    with pytest.raises(FormatError, match="no journal"):
        Journal(path, Squares(50), resume=True)


def test_a_task_that_kills_its_workers_is_named_and_the_others_are_done(tmp_path):
    path = tmp_path / "a.jsonl"
    finished(path, Squares(30, poison=11, shard=4))
    records = {int(each["key"]): each for each in read(path)}
    assert records[11]["error"] == "3 workers died of it"
    assert {number: each["square"] for number, each in records.items() if number != 11} == {
        number: number**2 for number in range(30) if number != 11
    }


def test_what_the_table_raises_ends_the_campaign_and_keeps_the_results(tmp_path):
    path = tmp_path / "a.jsonl"
    table = Squares(60, fails=50, shard=4)
    journal = Journal(path, table)
    with pytest.raises(ValueError, match="the table itself"):
        run(table, journal, Workers(1))
    journal.close()
    kept = squares(path)
    assert kept and all(kept[number] == number**2 for number in kept)
    assert finished(path, Squares(60), resume=True)
    assert len(squares(path)) == 60


CLIENT = """
import sys
from support.campaign_tables import Squares
from nvdla.campaign import Journal, Workers, run
if __name__ == "__main__":
    table = Squares(400, slow=0.02, shard=4)
    run(table, Journal(sys.argv[1], table, True), Workers(2, sys.argv[2] or None))
"""


def client(folder: Path, path: Path, scheduler: str = "") -> subprocess.Popen[bytes]:
    script = folder / "client.py"
    script.write_text(CLIENT)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, str(script), str(path), scheduler]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def killed_at_random(folder: Path, path: Path, kills: int, scheduler: str = "") -> None:
    """Start the client and kill it with -9 again and again; at the end let it finish."""
    chance = random.Random(5)
    for _ in range(kills):
        process = client(folder, path, scheduler)
        before = count_lines(path)
        end = time.monotonic() + 30
        while process.poll() is None and count_lines(path) <= before + chance.randrange(40) and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
        process.wait()
    process = client(folder, path, scheduler)
    assert process.wait(120) == 0


def test_a_client_that_is_killed_loses_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    killed_at_random(tmp_path, path, kills=3)
    assert squares(path) == {number: number**2 for number in range(400)}
    assert count_lines(path) == 401


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    killed_at_random(tmp_path, path, kills=100)
    assert squares(path) == {number: number**2 for number in range(400)}
    assert count_lines(path) == 401


def workers_of(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="workers begin as copies on Linux alone")
def test_workers_end_with_a_client_that_is_killed(tmp_path):
    process = client(tmp_path, tmp_path / "a.jsonl")
    end = time.monotonic() + 60
    while count_lines(tmp_path / "a.jsonl") < 10 and time.monotonic() < end:
        time.sleep(0.02)
    workers = workers_of(process.pid)
    process.kill()
    process.wait()
    assert len(workers) >= 2
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(alive, workers))


def test_workers_are_no_copies_of_a_process_that_has_other_threads(tmp_path, reference):
    """What such a thread holds would be held for ever in a copy."""
    enough = threading.Event()
    other = threading.Thread(target=enough.wait)
    other.start()
    try:
        assert not may_fork()
        assert finished(tmp_path / "a.jsonl", Squares(100), Workers(2)) == reference
    finally:
        enough.set()
        other.join()


def shard(start: int, count: int, step: int = 1) -> list[dict]:
    return [{"key": f"{number:06}", "square": number**2} for number in range(start, start + count * step, step)]


@pytest.mark.parametrize(
    "shards",
    [
        [shard(8, 8), shard(0, 8), shard(16, 4)],  # whole shards, in another order
        [shard(1, 10, step=2), shard(0, 10, step=2)],  # one between the other
        [shard(0, 4), shard(4, 16)],
    ],
)
def test_a_finished_journal_is_in_the_order_of_the_tasks(tmp_path, shards):
    table, straight = Squares(20), tmp_path / "straight.jsonl"
    journal = Journal(straight, table)
    journal.append(shard(0, 20))
    journal.finish()
    journal = Journal(tmp_path / "a.jsonl", table)
    for each in shards:
        journal.append(each)
    journal.finish()
    assert (tmp_path / "a.jsonl").read_bytes() == straight.read_bytes()


def test_a_journal_keeps_no_records_in_memory(tmp_path):
    """Of 100,000 records it keeps where the shards are."""
    journal = Journal(tmp_path / "a.jsonl", Squares(100_000))
    journal.append(shard(0, 500))
    tracemalloc.start()
    for start in range(500, 100_000, 500):
        journal.append(shard(start, 500))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    journal.close()
    assert journal.count == 100_000
    assert held < 500_000


def test_a_full_disk_keeps_what_was_written(tmp_path, monkeypatch):
    table = Squares(4)
    journal = Journal(tmp_path / "a.jsonl", table)
    journal.append([{"key": "000000", "square": 0}])

    def full(data: bytes) -> int:
        raise OSError(28, "No space left on device")

    class Full:
        closed = False
        write = staticmethod(full)

    stream, journal._stream = journal._stream, Full()
    with pytest.raises(FormatError, match=r"No space left on device; 1 results are kept, --resume goes on"):
        journal.append([{"key": "000001", "square": 1}])
    stream.close()
    assert Journal(tmp_path / "a.jsonl", table, resume=True).done == {"000000"}


def test_a_number_of_workers_that_cannot_be_is_refused(tmp_path):
    table = Squares(4)
    with pytest.raises(FormatError, match="0 workers: must be 1"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(0))


def test_a_lines_text_is_plain_json(reference):
    head, first, *_ = reference.decode().splitlines()
    assert json.loads(head)["campaign"] == "squares"
    assert json.loads(first) == {"key": "000000", "square": 0}


# ---- a real Dask cluster on loopback


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two worker processes; ``cluster.start_worker`` makes more."""
    pytest.importorskip("distributed")
    made = Cluster(tmp_path)
    yield made
    made.stop()


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start_scheduler()

    def start_scheduler(self) -> None:
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        command = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"]
        self.scheduler = self._start([*command, "--scheduler-file", str(file)])
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]
        self.workers = [self.start_worker(), self.start_worker()]

    def start_worker(self) -> subprocess.Popen[bytes]:
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self.folder)]
        return self._start(["worker", self.address, *options])

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        module = "distributed.cli.dask_scheduler" if words[0] == "scheduler" else "distributed.cli.dask_worker"
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words[1:]],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def test_a_cluster_gives_the_same_bytes(cluster, tmp_path, reference):
    assert finished(tmp_path / "a.jsonl", Squares(100), Workers(scheduler=cluster.address)) == reference


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
    assert squares(path) == {number: number**2 for number in range(400)}


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
    cluster.start_scheduler()
    assert client(tmp_path, path, cluster.address).wait(120) == 0
    assert squares(path) == {number: number**2 for number in range(400)}


def test_a_scheduler_that_does_not_answer_is_an_error_that_says_what_to_do(tmp_path):
    pytest.importorskip("distributed")
    table = Squares(4)
    with pytest.raises(FormatError, match="'dask scheduler' starts one"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(scheduler="tcp://127.0.0.1:9"))
