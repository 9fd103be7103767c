"""A Dask cluster as a pool: the table goes to every worker once, also to those that come later.

Dask gives a task up after the death of several workers that had it, also where it only waited behind the one that
killed them. So a shard that was given up is split, and a task that was given up is tried once more with nothing beside
it before it is blamed.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from collections.abc import Iterator
from typing import Any

import nvdla
from nvdla.campaign import worker
from nvdla.campaign.pool import TRIES, Shard, WorkerDied, WorkerPool, described
from nvdla.campaign.table import Record, Table
from nvdla.errors import FormatError

CONNECT_SECONDS = 10


class ClusterPool(WorkerPool):
    """The workers of the scheduler at ``address``. Raises FormatError where there is none, or of another version."""

    def __init__(self, table: Table, address: str) -> None:
        super().__init__()
        distributed = _distributed()
        self._address = address
        self._identity = table.identity()
        self._shards: dict[Any, Shard] = {}
        try:
            self._client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except Exception as error:  # a dozen kinds, by protocol and by what is there instead
            raise FormatError(
                f"no Dask scheduler answers at {address} ({described(error)}); 'dask scheduler' starts one, its first "
                "lines say the address"
            ) from error
        self._completed = distributed.as_completed(loop=self._client.loop)
        try:
            self.size = self._ready(distributed, table)
        except BaseException:
            self._client.close()
            raise

    def _sent(self) -> int:
        return len(self._shards)

    def _send(self, shard: Shard) -> None:
        with self._lost_is_said():
            future = self._client.submit(worker.do, self._identity, shard.tasks, pure=False)
            self._shards[future.key] = shard
            self._completed.add(future)

    def _come(self) -> tuple[Shard, list[Record] | WorkerDied]:
        with self._lost_is_said():
            future = next(self._completed)
            shard = self._shards.pop(future.key)
            error = future.exception() if future.status != "finished" else None
            records = future.result() if error is None else []
        if error is None:
            return shard, records
        if type(error).__name__ == "KilledWorker":
            return shard, WorkerDied(TRIES if len(shard.tasks) > 1 else 1)
        raise error

    @contextlib.contextmanager
    def _lost_is_said(self) -> Iterator[None]:
        """Whatever of Dask's own fails in the middle of a run, the connection is lost."""
        try:
            yield
        except (Exception, CancelledError) as error:
            raise FormatError(
                f"the Dask scheduler at {self._address} is gone ({described(error)}); results so far are kept, "
                "--resume goes on"
            ) from error

    def _alone(self, shard: Shard) -> tuple[Shard, list[Record] | WorkerDied]:
        self._send(shard)
        shard, outcome = self._come()
        return shard, WorkerDied(TRIES) if isinstance(outcome, WorkerDied) else outcome

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close(timeout=2)

    def _ready(self, distributed: Any, table: Table) -> int:
        """Send the table, and check that the workers have this version; how many there are."""
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
            versions = self._client.run(_version)
            self._client.register_plugin(_plugin(distributed, self._identity, table))
        except Exception as error:
            raise FormatError(f"the Dask cluster at {self._address} cannot be used: {described(error)}") from error
        other = {name: found for name, found in versions.items() if found != nvdla.__version__}
        if other:
            name, found = next(iter(other.items()))
            raise FormatError(f"worker {name} of {self._address} has {worker.other_version(found, nvdla.__version__)}")
        return sum(self._client.nthreads().values())


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise FormatError("--scheduler needs Dask: pip install 'nvdla[distributed]'") from None
    return distributed


def _version() -> str:
    return nvdla.__version__


def _plugin(distributed: Any, identity: str, table: Table) -> Any:
    """A worker plugin: it runs on every worker, also on those that are started later."""

    version = nvdla.__version__

    class SendTable(distributed.WorkerPlugin):
        name = f"nvdla-{identity}"

        def setup(self, worker: Any) -> None:
            from nvdla.campaign.worker import receive

            receive(identity, table, version)

    return SendTable()
