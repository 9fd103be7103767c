"""A pool takes shards and gives their records: what the local one and the cluster's have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from nvdla.campaign.table import Record, Task


@dataclass
class Shard:
    """Tasks that go to a worker together, and how many workers died of them."""

    tasks: list[Task]
    deaths: int = field(default=0)


class WorkerDied(Exception):
    """The worker that had the shard is gone."""


class Pool(ABC):
    """Takes shards, gives their records in the order in which they come."""

    size: int

    @property
    @abstractmethod
    def under_way(self) -> int:
        """Shards that were submitted and not given back yet."""

    @abstractmethod
    def submit(self, shard: Shard) -> None:
        """Give a shard to a worker."""

    @abstractmethod
    def next(self) -> tuple[Shard, list[Record] | WorkerDied]:
        """Wait for any shard. Raises what the table raised."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the pool holds."""


def described(error: BaseException) -> str:
    """An exception of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
