"""In a worker: tables are opened once and kept, shards are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nvdla.campaign.table import Record, Table, Task

threads = 1
"""How many threads the kernels of this worker may use."""

_opened: dict[str, Callable[[Sequence[Task]], list[Record]]] = {}
_sent: dict[str, Table] = {}


def receive(identity: str, table: Table) -> None:
    """Take a table; it is opened when its first shard comes."""
    _sent[identity] = table


def do(identity: str, tasks: Sequence[Task]) -> list[Record]:
    """The records of a shard."""
    if identity not in _opened:
        _opened[identity] = _sent[identity].open()
    return _opened[identity](tasks)
