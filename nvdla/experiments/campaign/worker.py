"""In a worker: tables are opened once and kept, shards are done."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import nvdla
from nvdla.errors import FormatError
from nvdla.experiments.campaign.journal import Record, Table, Task

threads = 1
"""Number of threads that the kernels of this worker may use."""

_opened: dict[str, Callable[[Sequence[Task]], list[Record]]] = {}
_sent: dict[str, Table] = {}
_versions: dict[str, str] = {}


def receive(identity: str, table: Table, version: str | None = None) -> None:
    """Take a table; it is opened when its first shard comes. ``version``: of who sends it, where it may differ."""
    _sent[identity] = table
    _versions[identity] = version or nvdla.__version__


def other_version(theirs: str, ours: str) -> str:
    """Return the message for a worker with another version."""
    return f"nvdla {theirs}, the campaign was started with {ours}: install the same"


def do(identity: str, tasks: Sequence[Task]) -> list[Record]:
    """The records of a shard. Raises FormatError in a worker with another version than the campaign's."""
    if _versions[identity] != nvdla.__version__:
        versions = other_version(nvdla.__version__, _versions[identity])
        raise FormatError(f"a worker on {socket.gethostname()} has {versions}")
    if identity not in _opened:
        _opened[identity] = _sent[identity].open()
    return _opened[identity](tasks)
