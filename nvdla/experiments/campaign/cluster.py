"""A Dask cluster as a pool: the table goes to every worker once, also to those that come later.

Dask gives a task up after the death of several workers that had it, even if it was only queued after the one that
killed them. So a shard that was given up is split, and a task that was given up is tried once more alone,
before it is blamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import nvdla
from nvdla.errors import FormatError
from nvdla.experiments.campaign import worker
from nvdla.experiments.campaign.journal import Record, Table
from nvdla.experiments.campaign.pool import TRIES, Shard, Tls, WorkerDied, WorkerPool, described
from nvdla.util.escaping import Document

CONNECT_SECONDS = 10
READY_SECONDS = 120
"""Limit for the first worker to join, and for the workers to take the table. Batch systems start workers slowly."""
SILENT_SECONDS = 60
"""A scheduler from which nothing has come for so long is asked whether it is still there."""

Answer = TypeVar("Answer")


class ClusterPool(WorkerPool):
    """The workers of the scheduler at ``address``. Raises FormatError where there is none, or of another version.
    ``tls``: files for tls:// addresses; without them Dask's own configuration applies."""

    def __init__(self, table: Table, address: str, tls: Tls | None = None) -> None:
        super().__init__()
        distributed = _distributed()
        self._address = address
        self._security = tls.security(distributed) if tls else distributed.Security()
        self._identity = table.identity()
        self._shards: dict[object, Shard] = {}
        try:
            _check_address(distributed, address)
            self._ask()  # the client itself waits indefinitely for a scheduler that accepts and says nothing
            self._client = _within(
                2 * CONNECT_SECONDS,
                lambda: distributed.Client(
                    address, timeout=CONNECT_SECONDS, security=self._security, set_as_default=False
                ),
            )
        except Exception as error:  # a dozen kinds, by protocol and by peer
            raise FormatError(
                f"no Dask scheduler answers at {address[:80]!r} ({described(error)}); start one "
                "with 'dask scheduler', which prints its address"
            ) from error
        self._completed = distributed.as_completed(loop=self._client.loop)
        try:
            self.size = self._ready(distributed, table)
        except BaseException:
            self._client.close(timeout=2)
            raise

    def _ask(self) -> None:
        """Let the scheduler answer. Raises TimeoutError and anything that Dask raises."""
        import distributed

        async def identity() -> None:
            arguments = self._security.get_connection_args("client")
            async with distributed.rpc(self._address, timeout=CONNECT_SECONDS, connection_args=arguments) as scheduler:
                await scheduler.identity()

        def limited() -> None:
            asyncio.run(asyncio.wait_for(identity(), CONNECT_SECONDS))

        _within(2 * CONNECT_SECONDS, limited)

    def _sent(self) -> int:
        return len(self._shards)

    def _send(self, shard: Shard) -> None:
        with self._lost_is_said():
            future = self._client.submit(worker.do, self._identity, shard.tasks, pure=False)
            self._shards[future.key] = shard
            self._completed.add(future)

    def _come(self) -> tuple[Shard, list[Record] | WorkerDied]:
        with self._lost_is_said():
            self._wait()
            future = next(self._completed)
            shard = self._shards.pop(future.key)
            error = self._answer(future.exception) if future.status != "finished" else None
            records = self._answer(future.result) if error is None else []
        if error is None:
            return shard, records
        if type(error).__name__ == "KilledWorker":
            return shard, WorkerDied(TRIES if len(shard.tasks) > 1 else 1)
        raise error

    def _wait(self) -> None:
        """Wait for a shard. Raises TimeoutError where the scheduler is there no more, but its connection is."""
        asked = time.monotonic()
        while not self._completed.has_ready():
            with self._completed.thread_condition:
                self._completed.thread_condition.wait(0.1)
            if time.monotonic() - asked > SILENT_SECONDS:
                self._ask()
                asked = time.monotonic()

    def _answer(self, call: Callable[..., Answer]) -> Answer:
        """Return the result of a method of a finished future. Raises TimeoutError if the scheduler does not answer."""
        while True:
            try:
                return call(timeout=SILENT_SECONDS)
            except (TimeoutError, asyncio.TimeoutError):
                self._ask()

    @contextlib.contextmanager
    def _lost_is_said(self) -> Iterator[None]:
        """Report any failure of Dask in the middle of a run as a lost connection."""
        try:
            yield
        except (Exception, CancelledError) as error:
            raise FormatError(
                f"the Dask scheduler at {self._address} is gone ({described(error)}); results so far are kept. "
                "Continue with --resume."
            ) from error

    def _alone(self, shard: Shard) -> tuple[Shard, list[Record] | WorkerDied]:
        self._send(shard)
        shard, outcome = self._come()
        return shard, WorkerDied(TRIES) if isinstance(outcome, WorkerDied) else outcome

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close(timeout=2)

    def _ready(self, distributed: object, table: Table) -> int:
        """Send the table, and check that the workers have this version; how many there are. A worker that dies
        meanwhile may be replaced."""

        def take() -> Document:
            self._client.wait_for_workers(1, timeout=READY_SECONDS)
            versions: Document = self._client.run(_version)
            self._client.register_plugin(_plugin(distributed, self._identity, table))
            return versions

        for left in reversed(range(TRIES)):
            try:
                versions = _within(2 * READY_SECONDS, take)
                break
            except Exception as error:
                if not left or isinstance(error, TimeoutError):
                    raise FormatError(
                        f"the Dask cluster at {self._address} cannot be used: {described(error)}"
                    ) from error
                time.sleep(1)
        other = {name: version for name, version in versions.items() if version != nvdla.__version__}
        if other:
            name, version = next(iter(other.items()))
            raise FormatError(
                f"worker {name} of {self._address} has {worker.other_version(str(version)[:40], nvdla.__version__)}"
            )
        return max(1, sum(self._client.nthreads().values()))


def _distributed() -> ModuleType:
    try:
        import distributed
    except ImportError:
        raise FormatError("--scheduler needs Dask: pip install 'nvdla[distributed]'") from None
    return distributed


def _check_address(distributed: ModuleType, address: str) -> None:
    """Raise ValueError for an address without a known scheme or a port: a client of it cannot be closed."""
    scheme, location = distributed.comm.parse_address(address)
    distributed.comm.registry.get_backend(scheme)
    if scheme in ("tcp", "tls", "ws", "wss"):
        distributed.comm.addressing.parse_host_port(location)


def _within(seconds: float, function: Callable[[], Answer]) -> Answer:
    """Return or raise the outcome of ``function``; raise TimeoutError after ``seconds``, without ending its thread."""
    outcome: list[Answer] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="nvdla-cluster")
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]


def _version() -> str:
    return nvdla.__version__


def _plugin(distributed: Any, identity: str, table: Table) -> object:
    """A worker plugin: it runs on every worker, also on those that are started later."""

    version = nvdla.__version__

    class SendTable(distributed.WorkerPlugin):
        name = f"nvdla-{identity}"

        def setup(self, worker: object) -> None:
            from nvdla.experiments.campaign.worker import receive

            receive(identity, table, version)

    return SendTable()
