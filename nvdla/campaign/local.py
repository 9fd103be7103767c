"""Processes of this machine as a pool (concurrent.futures)."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from nvdla.campaign import worker
from nvdla.campaign.forking import end_with_parent, may_fork
from nvdla.campaign.pool import Shard, WorkerDied, WorkerPool
from nvdla.campaign.table import Record, Table
from nvdla.kernels.jit.cores import usable_cores
from nvdla.threads import interrupts_kept


class LocalPool(WorkerPool):
    """Processes of this machine, each with its share of the cores.

    When a process dies, its pool is broken and does not say whose fault it was: the shards that were under way are
    then done one at a time, each in a process of its own, until all of them are through.

    Processes begin as copies of this one where that is safe, with all that the table has loaded in it (:meth:`Table.
    prepare`): that takes a hundredth of a second, a new interpreter with numba and its kernels more than one.
    """

    def __init__(self, table: Table, count: int) -> None:
        super().__init__()
        self.size = count
        self._identity = table.identity()
        self._table = table
        self._futures: dict[Future[list[Record]], Shard] = {}
        if may_fork():
            worker.threads = max(1, usable_cores() // count)
            table.prepare()
        self._executor = self._processes(count)

    def _sent(self) -> int:
        return len(self._futures)

    def _send(self, shard: Shard) -> None:
        try:
            with interrupts_kept():  # the first shard starts the processes
                self._futures[self._executor.submit(worker.do, self._identity, shard.tasks)] = shard
        except BrokenProcessPool:
            self._broken(shard)

    def _come(self) -> tuple[Shard, list[Record] | WorkerDied] | None:
        if not self._futures:  # sending broke the pool
            return None
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        future = done.pop()
        shard = self._futures.pop(future)
        try:
            return shard, future.result()
        except BrokenProcessPool:
            self._broken(shard)
            return None

    def close(self) -> None:
        """End the worker processes."""
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=not self._futures, cancel_futures=True)
        if self._futures:  # interrupted: what is under way is not waited for
            for process in processes:
                process.terminate()

    def _broken(self, shard: Shard) -> None:
        self.suspects.append(shard)
        self.suspects.extend(self._futures.values())
        self._futures.clear()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = self._processes(self.size)

    def _alone(self, shard: Shard) -> tuple[Shard, list[Record] | WorkerDied]:
        with self._processes(1) as executor:
            try:
                with interrupts_kept():
                    future = executor.submit(worker.do, self._identity, shard.tasks)
                return shard, future.result()
            except BrokenProcessPool:
                return shard, WorkerDied()

    def _processes(self, count: int) -> ProcessPoolExecutor:
        forks = may_fork()
        context = multiprocessing.get_context("fork" if forks else "spawn")
        share = max(1, usable_cores() // count)
        return ProcessPoolExecutor(
            count, context, _begin, (self._identity, self._table, share, os.getpid() if forks else None)
        )


def _begin(identity: str, table: Table, share: int, parent: int | None) -> None:
    """In a new process: its share of the cores, and the table. Ctrl-C is the parent's, and so is the pipe that tells of
    signals; every process ends with its parent."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if parent is not None:
        end_with_parent(parent)
    else:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    worker.threads = share
    worker.receive(identity, table)


def _end_with_parent() -> None:
    """A parent that was ended at once has not ended its processes: they would wait for shards for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
