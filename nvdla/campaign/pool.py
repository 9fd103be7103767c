"""A pool takes shards and gives their records: what the local one and the cluster's have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

from nvdla.campaign.table import Record, Task

TRIES = 3
"""How many workers a task may take with it."""


@dataclass
class Shard:
    """Tasks that go to a worker together, and how many workers died of them."""

    tasks: list[Task]
    deaths: int = field(default=0)


class WorkerDied(Exception):
    """The worker that had the shard is gone; ``deaths``: how many of the shard's tries that counts for."""

    def __init__(self, deaths: int = 1) -> None:
        self.deaths = deaths


class WorkerPool(ABC):
    """Takes shards, gives their records in the order in which they come.

    When workers die it is not known whose fault it was. The shards that may have done it, ``suspects``, are done one at
    a time, with nothing beside them; those that come meanwhile wait until all of them are through.
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
            if (found := self._come()) is not None:
                return found

    @abstractmethod
    def close(self) -> None:
        """Give back what the pool holds."""

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
