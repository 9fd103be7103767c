"""Runs the tasks of a table on workers: bounded memory, every result kept as it comes, lost workers replaced.

A shard whose worker dies is done again; after three deaths it is split into its tasks, and a task that takes three
workers with it is named in its record and left. What an ordinary exception of a shard means is up to the table: it
ends the campaign, results so far are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nvdla.errors import FormatError
from nvdla.experiments.campaign.journal import Journal, Record, Table
from nvdla.experiments.campaign.pool import TRIES, LocalPool, Shard, Tls, WorkerDied, WorkerPool
from nvdla.kernels.jit.processor import usable_cores
from nvdla.util.arguments import by_annotations

MOST_WORKERS = 1024
AHEAD = 2
"""Shards under way for each worker: one at work, one that waits."""

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Workers:
    """Worker processes of a campaign: on this machine, or on a Dask cluster.

    ``count``: processes on this machine (None: one per core); ``scheduler``: address of the cluster; ``tls``: files for
    an encrypted connection.
    """

    count: int | None = None
    scheduler: str | None = None
    tls: Tls | None = None

    def processes(self) -> int:
        """Return the largest number of processes.

        Raises:
            FormatError: The count is not valid.
        """
        if self.count is not None and not 1 <= self.count <= MOST_WORKERS:
            raise FormatError(f"{self.count} workers: must be 1 .. {MOST_WORKERS}")
        return self.count or usable_cores()


@contextmanager
def _pool_for(table: Table, workers: Workers, shards: int) -> Iterator[WorkerPool]:
    """The pool that ``workers`` asks for; no more processes than there are ``shards`` of work. Raises FormatError."""
    if workers.tls is not None and workers.scheduler is None:
        raise FormatError("TLS files are for the connection to a Dask scheduler: give its address, or leave them out")
    if workers.scheduler is not None:
        from nvdla.experiments.campaign.cluster import ClusterPool

        pool: WorkerPool = ClusterPool(table, workers.scheduler, workers.tls)
    else:
        pool = LocalPool(table, min(workers.processes(), shards))
    try:
        yield pool
    finally:
        pool.close()


@by_annotations
def run(table: Table, journal: Journal, workers: Workers | None = None, progress: OnProgress | None = None) -> None:
    """Perform all tasks that are not in the journal, then put the journal in order.

    Args:
        table: The campaign.
        journal: Receives the records.
        workers: Worker processes (default: one per core).
        progress: Called as ``progress(done, failed)`` when records arrive.

    Raises:
        NvdlaError: A worker or the journal failed. The journal contains the finished tasks.
    """
    shards = _shards(table, journal.known())
    asked = workers or Workers()
    first = list(itertools.islice(shards, asked.processes()))
    if first:
        with _pool_for(table, asked, len(first)) as pool:
            _drive(pool, itertools.chain(first, shards), journal, progress or (lambda done, failed: None))
    journal.finish()


def _shards(table: Table, done: set[str]) -> Iterator[Shard]:
    """Return the remaining tasks, in shards; tasks are taken from the table as they are needed."""
    left = (task for task in table.tasks() if task.key not in done)
    while tasks := list(itertools.islice(left, table.shard)):
        yield Shard(tasks)


def _drive(pool: WorkerPool, shards: Iterable[Shard], journal: Journal, progress: OnProgress) -> None:
    waiting = iter(shards)
    again: list[Shard] = []
    failed = 0
    while True:
        while pool.under_way < AHEAD * pool.size and (shard := again.pop() if again else next(waiting, None)):
            pool.submit(shard)
        if not pool.under_way:
            return
        shard, outcome = pool.next()
        if isinstance(outcome, WorkerDied):
            retried, given_up = _after_death(shard, outcome.deaths)
            again += retried
            records: Sequence[Record] = given_up
        else:
            records = _checked(outcome, shard)
        journal.append(records)
        failed += sum("error" in record for record in records)
        progress(journal.count, failed)


def _checked(records: object, shard: Shard) -> list[Record]:
    """Return the records of a worker (maybe on another machine). Raises FormatError unless they are one per task."""
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise FormatError(f"a worker returned {type(records).__name__}: must be a list with one mapping per task")
    keys = [record.get("key") for record in records]
    wanted = [task.key for task in shard.tasks]
    if not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(wanted):
        raise FormatError(
            f"a worker returned records of {str(keys)[:80]}: must be one per task, of {str(wanted)[:80]}. Check the "
            "table's function, or the cluster."
        )
    return records


def _after_death(shard: Shard, deaths: int) -> tuple[list[Shard], list[Record]]:
    """Return the tasks to repeat after a worker died of a shard, and those to give up."""
    shard.deaths += deaths
    if shard.deaths < TRIES:
        return [shard], []
    if len(shard.tasks) > 1:
        return [Shard([task]) for task in shard.tasks], []
    return [], [{"key": shard.tasks[0].key, "error": f"{TRIES} workers crashed"}]
