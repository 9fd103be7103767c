"""Campaigns: every task is done once, whoever dies, and the results do not depend on who did what when."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from support.campaign_clients import client, finished, killed_at_random, squares, workers_of
from support.campaign_tables import Squares, count_lines

from nvdla.errors import FormatError
from nvdla.experiments.campaign import Journal, Workers, run
from nvdla.experiments.campaign.journal import read
from nvdla.experiments.campaign.pool import LocalPool
from nvdla.util.processes import may_fork


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("r") / "r.jsonl", Squares(100), Workers(1))


def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path, reference):
    assert finished(tmp_path / "a.jsonl", Squares(100, shard=3), Workers(2)) == reference
    assert squares(tmp_path / "a.jsonl") == {number: number**2 for number in range(100)}


def test_a_run_that_was_interrupted_goes_on_and_counts_nothing_twice(tmp_path, reference):
    lines = reference.splitlines(keepends=True)
    shuffled = [lines[0], *random.Random(1).sample(lines[1:], 40)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(shuffled) + lines[5][:7])  # the last line was cut off
    with pytest.raises(FormatError, match="contains 40 results"):
        Journal(path, Squares(100))
    assert finished(path, Squares(100), resume=True) == reference
    assert finished(path, Squares(100), resume=True) == reference  # nothing is left to do


def test_results_of_another_run_are_refused_with_what_differs(tmp_path, reference):
    path = tmp_path / "a.jsonl"
    path.write_bytes(reference)
    with pytest.raises(FormatError, match="count was '100', is '50'"):
        Journal(path, Squares(50), resume=True)
    path.write_text("hello\n")
    with pytest.raises(FormatError, match="not a journal"):
        Journal(path, Squares(50), resume=True)


def test_a_task_that_kills_its_workers_is_named_and_the_others_are_done(tmp_path):
    path = tmp_path / "a.jsonl"
    finished(path, Squares(30, poison=11, shard=4))
    records = {int(each["key"]): each for each in read(path)}
    assert records[11]["error"] == "3 workers crashed"
    assert {number: each["square"] for number, each in records.items() if number != 11} == {
        number: number**2 for number in range(30) if number != 11
    }


def test_after_a_death_the_others_are_done_side_by_side_again(tmp_path):
    """Each in a process of its own only until the guilty one is found."""
    finished(tmp_path / "a.jsonl", Squares(400, poison=5, shard=4, pids=str(tmp_path / "pids")))
    processes = (tmp_path / "pids").read_text().split()
    assert len(processes) >= 100
    assert len(set(processes)) < 30


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


def test_a_client_that_is_killed_loses_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    killed_at_random(tmp_path, path, kills=3)
    assert squares(path) == {number: number**2 for number in range(400)}
    assert count_lines(path) == 401


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
    """What such a thread holds would be held indefinitely in a copy."""
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
    with pytest.raises(FormatError, match=r"No space left on device; 1 result kept. Continue with --resume."):
        journal.append([{"key": "000001", "square": 1}])
    stream.close()
    assert Journal(tmp_path / "a.jsonl", table, resume=True).done == {"000000"}


def test_a_number_of_workers_that_cannot_be_is_refused(tmp_path):
    table = Squares(4)
    with pytest.raises(FormatError, match="0 workers: must be 1"):
        run(table, Journal(tmp_path / "a.jsonl", table), Workers(0))


def test_no_more_processes_begin_than_there_are_shards_of_work(tmp_path, monkeypatch):
    """A thousand workers for one shard would take a minute to begin."""
    from nvdla.experiments.campaign import runner

    sizes = []
    monkeypatch.setattr(runner, "LocalPool", lambda table, count: sizes.append(count) or LocalPool(table, count))
    table = Squares(4)
    run(table, Journal(tmp_path / "a.jsonl", table), Workers(1000))
    assert sizes == [-(-4 // table.shard)]


def test_a_lines_text_is_plain_json(reference):
    head, first, *_ = reference.decode().splitlines()
    assert json.loads(head)["campaign"] == "squares"
    assert json.loads(first) == {"key": "000000", "square": 0}
