"""A Dask cluster as a pool: the table goes to every worker once, also to those that come later."""

from __future__ import annotations

from typing import Any

import nvdla
from nvdla.campaign import worker
from nvdla.campaign.pool import Pool, Shard, WorkerDied, described
from nvdla.campaign.table import Record, Table
from nvdla.errors import FormatError

CONNECT_SECONDS = 10


class ClusterPool(Pool):
    """The workers of the scheduler at ``address``. Raises FormatError where there is none, or of another version."""

    def __init__(self, table: Table, address: str) -> None:
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

    @property
    def under_way(self) -> int:
        """Shards that are being worked on."""
        return len(self._shards)

    def submit(self, shard: Shard) -> None:
        """Give a shard to a worker."""
        future = self._client.submit(worker.do, self._identity, shard.tasks, pure=False)
        self._shards[future.key] = shard
        self._completed.add(future)

    def next(self) -> tuple[Shard, list[Record] | WorkerDied]:
        """The next shard that is done, with its records, or why its worker died."""
        future = next(self._completed)
        shard = self._shards.pop(future.key, None)
        if shard is None or future.status in ("cancelled", "lost"):
            raise FormatError(
                f"the Dask scheduler at {self._address} is gone; results so far are kept, --resume goes on"
            )
        if future.status == "error":
            error = future.exception()
            if type(error).__name__ == "KilledWorker":
                return shard, WorkerDied()
            raise error
        return shard, future.result()

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
            raise FormatError(
                f"worker {name} of {self._address} has nvdla {found}, this is {nvdla.__version__}: install the same"
            )
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

    class SendTable(distributed.WorkerPlugin):
        name = f"nvdla-{identity}"

        def setup(self, worker: Any) -> None:
            from nvdla.campaign.worker import receive

            receive(identity, table)

    return SendTable()
