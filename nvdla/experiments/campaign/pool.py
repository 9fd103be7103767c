"""Pools of worker processes: their common base, and the pool of this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from types import ModuleType
from typing import Protocol

from nvdla.errors import FormatError
from nvdla.experiments.campaign import worker
from nvdla.experiments.campaign.journal import Record, Table, Task
from nvdla.kernels.jit.processor import usable_cores
from nvdla.kernels.threads import end_with_parent, interrupts_kept
from nvdla.util.processes import may_fork, pool

TRIES = 3
"""Number of workers that a task may crash."""


@dataclass
class Shard:
    """Tasks that go to a worker together, and how many workers died of them."""

    tasks: list[Task]
    deaths: int = field(default=0)


class Security(Protocol):
    """Dask's object with the TLS files of a connection."""

    def get_connection_args(self, role: str) -> dict[str, object]:
        """Return the arguments of a connection."""
        ...


@dataclass(frozen=True)
class Tls:
    """Files (PEM) for an encrypted connection.

    Attributes:
        ca_file: Certificate of the authority that signed the cluster's certificates.
        cert: Certificate of the client.
        key: Private key of the client.
    """

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None

    def security(self, distributed: ModuleType) -> Security:
        """Return Dask's security object for these files.

        Args:
            distributed: The module ``distributed`` of Dask.

        Raises:
            FormatError: A file does not exist.
        """
        for name in filter(None, (self.ca_file, self.cert, self.key)):
            if not os.path.isfile(name):
                raise FormatError(f"TLS file {name}: no such file: must be a PEM file.")
        return distributed.Security(
            require_encryption=True, tls_ca_file=self.ca_file, tls_client_cert=self.cert, tls_client_key=self.key
        )


class WorkerDied(Exception):
    """The worker that had the shard is gone; ``deaths``: how many of the shard's tries that counts for."""

    def __init__(self, deaths: int = 1) -> None:
        self.deaths = deaths


class WorkerPool(ABC):
    """Takes shards, gives their records in the order in which they come.

    When workers die it is not known whose fault it was. The shards that may have done it, ``suspects``, are done one at
    a time, with nothing next to them; those that come meanwhile wait until all of them are through.
    """

    size: int

    def __init__(self) -> None:
        self.suspects: deque[Shard] = deque()
        self._waiting: deque[Shard] = deque()

    @property
    def under_way(self) -> int:
        """Shards that were submitted and not given back yet."""
        return self._sent() + len(self.suspects) + len(self._waiting)

    def submit(self, shard: Shard) -> None:
        """Give a shard to a worker."""
        if shard.deaths:
            self.suspects.append(shard)
        elif self.suspects:
            self._waiting.append(shard)
        else:
            self._send(shard)

    def next(self) -> tuple[Shard, list[Record] | WorkerDied]:
        """Wait for any shard: it, with its records, or that its worker died. Raises what the table raised."""
        while True:
            if not self._sent() and self.suspects:
                return self._alone(self.suspects.popleft())
            while self._waiting and not self.suspects:
                self._send(self._waiting.popleft())
            if (arrival := self._come()) is not None:
                return arrival

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the pool."""

    @abstractmethod
    def _sent(self) -> int:
        """Shards that workers have."""

    @abstractmethod
    def _send(self, shard: Shard) -> None:
        """Give it to any worker."""

    @abstractmethod
    def _come(self) -> tuple[Shard, list[Record] | WorkerDied] | None:
        """Wait for a shard that was sent; None when there are new suspects instead."""

    @abstractmethod
    def _alone(self, shard: Shard) -> tuple[Shard, list[Record] | WorkerDied]:
        """Do it while no worker has another."""


def described(error: BaseException) -> str:
    """An exception of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class LocalPool(WorkerPool):
    """Processes of this machine, each with its share of the cores.

    When a process dies, its pool is broken and does not say whose fault it was: the shards that were under way are
    then done one at a time, each in its own process, until all of them are through.

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
        """End the worker processes. After an interrupt or an error their current shards are lost."""
        if self._futures:
            for process in list((getattr(self._executor, "_processes", None) or {}).values()):
                process.terminate()
        # The executor's thread must end before the interpreter: at its end both write to a pipe that the thread closes.
        self._executor.shutdown(wait=True, cancel_futures=True)

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
        return pool(count, _begin, self._identity, self._table, max(1, usable_cores() // count))


def _begin(identity: str, table: Table, share: int, parent: int | None) -> None:
    """In a new process: its share of the cores, and the table. Ctrl-C is the parent's, and so is the pipe that tells of
    signals; every process ends with its parent."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if parent is not None:
        end_with_parent(parent)
    else:
        warnings.filterwarnings("ignore", "NV.*_CACHE_DIR|NUMBA_CACHE_DIR")  # the parent has warned of it
        threading.Thread(target=_end_with_parent, daemon=True).start()
    worker.threads = share
    worker.receive(identity, table)


def _end_with_parent() -> None:
    """A parent that was ended at once has not ended its processes: they would wait for shards indefinitely."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
