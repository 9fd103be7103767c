"""Tables of tasks, and their journals: records to resume from, locked by one process.

The lock (flock) belongs to the open file, and the operating system releases it when the process ends, however it ends.
A worker that begins as a copy of the process (fork) closes its copy of the file, so that a worker which outlives the
process does not keep the lock. Without such locks (Windows, some network file systems) none is taken.

The first line identifies the campaign. A line that was cut off (a full disk, a killed process) is dropped when the
campaign goes on, and its task done again. When everything is there, the file is written once more in the order of the
tasks, so that it does not depend on the order of execution. The process that has the journal open locks it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import heapq
import itertools
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TypeVar, cast
from weakref import WeakSet

from nvdla.errors import FormatError, NvdlaError, counted
from nvdla.util import rounding
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.files import require_file, whole_file

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

WAIT_SECONDS = 0.5
"""A process that was killed a moment ago may still hold the lock."""
_open: WeakSet[IO[bytes]] = WeakSet()


def locked(path: Path, mode: str) -> IO[bytes]:
    """Open a binary file and lock it. Raises FormatError where another process holds the lock, and OSError."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        stream = open(path, mode)  # noqa: SIM115 - open for the life of the journal
        try:
            if _lock(stream) and _is_at(stream, path):
                _open.add(stream)
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
        if time.monotonic() > end:
            raise FormatError(
                f"journal {path} is in use: must be open in one process at a time. Wait until the other run ends, or "
                "give this one another file."
            )
        time.sleep(WAIT_SECONDS / 10)


def _lock(stream: IO[bytes]) -> bool:
    """Take the lock; False where another process holds it."""
    if fcntl is not None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True


def _is_at(stream: IO[bytes], path: Path) -> bool:
    """Check that the file has not been replaced since it was opened: a complete run replaces its journal."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    return False


def _close_copies() -> None:
    """In a copy of the process (fork): let every journal's stream lead nowhere, with its buffer."""
    for stream in list(_open):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, stream.fileno(), inheritable=False)
            os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


Function = TypeVar("Function", bound=Callable[..., object])
Record = Document
"""Plain data, one per task: "key", and the columns of the table; "error" where the task could not be done."""


def takes_records(function: Function) -> Function:
    """``function`` of records, which may come from a file: a FormatError where one has not the fields that it needs."""

    @functools.wraps(function)
    def guarded(*args: object, **named: object) -> object:
        try:
            return function(*args, **named)
        except NvdlaError:
            raise
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"[:200]
            raise FormatError(f"records of another campaign, or damaged ones ({what})") from error

    return cast(Function, guarded)


@dataclass(frozen=True)
class Task:
    """One task of a campaign.

    ``key``: unique in the table, and the order of the results; ``payload``: input of the worker, small and picklable.
    """

    key: str
    payload: object


MAX_PARTS = 1 << 20


@by_annotations
@dataclass(frozen=True)
class CampaignPart:
    """Every ``count``-th task of a campaign, beginning with task ``number`` (from 1): one machine's share of it.

    Raises:
        FormatError: ``number`` is not 1 .. ``count``.
    """

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= MAX_PARTS:
            raise FormatError(f"shard {self}: must be K/N with 1 <= K <= N <= {MAX_PARTS}, such as 7/64")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks of this part.

        Args:
            tasks: All tasks of the campaign, in order.
        """
        return itertools.islice(tasks, self.number - 1, None, self.count)

    def size(self, total: int) -> int:
        """Return the number of tasks of this part.

        Args:
            total: Number of tasks of the campaign.
        """
        return len(range(self.number - 1, total, self.count))


WHOLE = CampaignPart()


class Table(ABC):
    """A campaign: its tasks, and the function that performs them.

    It is sent to every worker once, so it must be picklable; data that :meth:`open` loads need not be. ``shard``:
    number of tasks that a worker takes at once.
    """

    name: str
    shard: int = 64

    @abstractmethod
    def settings(self) -> Document:
        """Return the plain data that identify the campaign and determine its results: options, hashes of files."""

    @abstractmethod
    def tasks(self) -> Iterable[Task]:
        """Return all tasks in the order of the results; a generator is not read ahead of the workers."""

    def foreign(self, keys: Set[str]) -> set[str]:
        """Return the keys that belong to no task. Tasks are generated until all keys are found.

        Args:
            keys: Keys of records.
        """
        left = set(keys)
        if left:
            for task in self.tasks():
                left.discard(task.key)
                if not left:
                    break
        return left

    def prepare(self) -> None:
        """Load data that all workers share, before workers are forked from this process.

        It is not called if the workers are not forked. It must not start threads of other libraries.
        """
        return

    @abstractmethod
    def open(self) -> Callable[[Sequence[Task]], list[Record]]:
        """Load the data of a worker, once.

        Returns:
            Function that performs the tasks of a shard and returns one record per task, with the task's key. An error
            of a task belongs into its record ("error").
        """

    def identity(self) -> str:
        """Return the hash of the settings; results with another hash belong to another campaign."""
        text = json.dumps([self.name, self.settings()], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


FORMAT, VERSION = "nvdla-campaign", 1
SYNC_SECONDS = 2.0
COPIED = 1 << 20
#: records that are read together when journals are merged
MERGED = 4096
#: bytes of a line: a record of one sample or fault
MAX_LINE = 16 << 20
_encode = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":")).encode


@dataclass
class _Run:
    """Lines of the file, from byte ``start`` to ``end``, whose keys ascend from ``first`` to ``last``."""

    first: str
    last: str
    start: int
    end: int


@by_annotations
class Journal:
    """The records of a campaign in a file.

    ``done``: the keys that were in the file when it was opened; ``count``: the number of records now. Appended records
    are not kept in memory, only the positions of their shards.

    Args:
        table: The campaign.
        path: The file.
        resume: Continue an existing file. False: an existing file is an error, so that no results are lost.
        part: The tasks whose records the journal holds (default: all).

    Raises:
        FormatError: The file exists, is open as a journal in another process, or has foreign or duplicate records.
    """

    def __init__(
        self, path: str | os.PathLike[str], table: Table, resume: bool = False, part: CampaignPart | None = None
    ) -> None:
        self.path = Path(path)
        self.part = part or WHOLE
        self.done: set[str] = set()
        self.count = 0
        self._runs: list[_Run] = []
        self._end = 0
        self._full = False
        self._head = {"format": FORMAT, "version": VERSION, "campaign": table.name, "identity": table.identity()}
        if self.part != WHOLE:
            self._head["shard"] = str(self.part)
        self._settings = table.settings()
        self._synced = time.monotonic()
        require_file(self.path, "journal")
        try:
            self._stream = self._opened()
        except OSError as error:
            raise FormatError(f"journal {self.path} cannot be opened: {error.strerror or error}") from error
        try:
            self._refuse_foreign(table, resume)
        except BaseException:
            self._stream.close()
            raise

    def _opened(self) -> IO[bytes]:
        with contextlib.suppress(FileExistsError):
            return self._begin()
        return self._go_on()

    def _begin(self) -> IO[bytes]:
        stream = locked(self.path, "xb")
        try:
            self._write_head(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _write_head(self, stream: IO[bytes]) -> None:
        head = self._first_line()
        stream.write(head)
        stream.flush()
        self._end = len(head)

    def _first_line(self) -> bytes:
        return _line({**self._head, "settings": self._settings})

    def _go_on(self) -> IO[bytes]:
        """Check the identity of the results, drop a line that was cut off, note the finished tasks."""
        stream = locked(self.path, "r+b")
        try:
            self._read(stream)
            stream.truncate(self._end)
            stream.seek(self._end)
            if not self._end:
                self._write_head(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _read(self, stream: IO[bytes]) -> None:
        """Note the whole lines of a journal of this campaign. Of an empty file, or of one whose first line was cut off
        when this campaign began, there are none."""
        for number, line in enumerate(_lines(stream, self.path)):
            if not line.endswith(b"\n"):
                if number == 0 and not self._first_line().startswith(line):
                    self._check(None)
                return
            entry = _entry(line)
            if number == 0:
                self._check(entry)
                self._end = len(line)
                continue
            key = None if entry is None else entry.get("key")
            if not isinstance(key, str):
                raise FormatError(f"{self.path}:{number + 1}: not a record of a campaign; remove the line or the file")
            if key in self.done:
                raise FormatError(
                    f"{self.path}:{number + 1}: task {key[:80]!r} has a record already: must be one record per task. "
                    "Remove the line or the file."
                )
            self.done.add(key)
            self._note(key, len(line), joins=True)

    def _refuse_foreign(self, table: Table, resume: bool) -> None:
        """Raise FormatError for results that are not to be continued, or that no task of the table has."""
        if self.done and not resume:
            raise FormatError(
                f"{self.path} contains {counted(len(self.done), 'result')} of this campaign. Continue with --resume, "
                "or remove the file."
            )
        _refuse_keys(self.path, table.foreign(self.done))

    def _note(self, key: str, size: int, joins: bool) -> None:
        """A line more; ``joins``: it may go on with the latest run."""
        start, self._end = self._end, self._end + size
        self.count += 1
        if joins and self._runs and self._runs[-1].last < key:
            self._runs[-1].last, self._runs[-1].end = key, self._end
        else:
            self._runs.append(_Run(key, key, start, self._end))

    def _check(self, head: Record | None, merged: Path | None = None) -> None:
        """Raise FormatError for the first line of another campaign; ``merged``: a file of any part of it."""
        path = merged or self.path
        if not _is_head(head):
            raise FormatError(f"{path} is not a journal of a campaign. Give another file.")
        assert head is not None
        if head.get("identity") != self._head["identity"]:
            raise FormatError(
                f"{path} belongs to another run ({_difference(head, self._head, self._settings)}): give another "
                "file, or repeat the options of that run. Data must come in one order (no shuffle=True)"
            )
        ours = self._head.get("shard", str(WHOLE))
        if merged is None and head.get("shard", str(WHOLE)) != ours:
            raise FormatError(f"{path}: shard: must be {ours}, got {head.get('shard', WHOLE)}")

    def merge(self, paths: Iterable[str | os.PathLike[str]], table: Table) -> None:
        """Add the records of the journals of all parts of a campaign.

        Args:
            paths: The journals.
            table: The campaign.

        Raises:
            FormatError: A file is not a finished journal of this campaign, a task has two records, or tasks have none.
        """
        known: set[str] = set()
        counts: set[int] = set()
        files = [Path(path) for path in paths]
        for path in files:
            require_file(path, "journal")
            try:
                with locked(path, "rb") as stream:
                    counts.add(self._check_part(stream, path, known))
            except OSError as error:
                raise FormatError(f"journal {path} cannot be read: {error.strerror or error}") from error
        missing: list[int] = []
        for number, task in enumerate(table.tasks()):
            if task.key in known:
                known.remove(task.key)
            else:
                missing.append(number)
        _refuse_keys(self.path, known)
        if missing:
            count = counts.pop() if len(counts) == 1 else 1
            parts = ", ".join(
                str(CampaignPart(number + 1, count)) for number in sorted({index % count for index in missing})
            )
            raise FormatError(
                f"{counted(len(missing), 'task')} without a record: must be one per task. "
                f"Finish --shard {parts} with --resume, and merge again."
            )
        for path in files:
            records = read(path)
            while batch := list(itertools.islice(records, MERGED)):
                self.append(batch)

    def _check_part(self, stream: IO[bytes], path: Path, known: set[str]) -> int:
        """Add the keys of a file to those that are known; the number of parts that its campaign has."""
        lines = _lines(stream, path)
        head = _entry(next(lines, b""))
        self._check(head, path)
        for line in lines:
            record = _entry(line) if line.endswith(b"\n") else None
            key = None if record is None else record.get("key")
            if not isinstance(key, str):
                raise FormatError(f"{path}: not finished, or damaged. Run its shard again with --resume.")
            if key in known:
                raise FormatError(f"{path}: task {key[:80]!r} has a record already: must be one per task")
            known.add(key)
        text = str((head or {}).get("shard", WHOLE)).partition("/")[2]
        try:
            count = rounding.integer(text)
        except ValueError:
            return 1
        return count if 1 <= count <= MAX_PARTS else 1

    def known(self) -> set[str]:
        """Return the keys of all records so far."""
        return self.done if self.count == len(self.done) else {record["key"] for record in self.records()}

    def append(self, records: Sequence[Record]) -> None:
        """Add records, durably: they survive the end of this process.

        Args:
            records: Plain data with the keys of their tasks.

        Raises:
            FormatError: The disk is full, or a record is not plain data.
        """
        new = [record for record in records if record["key"] not in self.done]
        lines = [_line_of(record) for record in new]
        try:
            self._stream.write(b"".join(lines))
            self._stream.flush()
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._stream.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            self._full = True
            raise FormatError(
                f"journal {self.path} cannot be written: {error.strerror or error}; "
                f"{counted(self.count, 'result')} kept. Continue with --resume."
            ) from error
        for number, (record, line) in enumerate(zip(new, lines, strict=True)):
            self._note(record["key"], len(line), joins=number > 0)

    def records(self) -> Iterator[Record]:
        """Yield all records so far, in the order of their arrival."""
        if not self._stream.closed:
            self._stream.flush()
        with open(self.path, "rb") as stream:
            lines = _lines(stream, self.path)
            next(lines, None)
            for line in lines:
                entry = _entry(line) if line.endswith(b"\n") else None
                if entry is not None:
                    yield entry

    def finish(self) -> None:
        """Rewrite the file in the order of the keys, completely or not at all, unless it is in order."""
        try:
            if not self._stream.closed:
                self._stream.flush()
            runs = sorted(self._runs, key=lambda run: run.first)
            if all(before.end == after.start and before.last < after.first for before, after in pairwise(runs)):
                return
            if os.name == "nt":  # an open file cannot be replaced there
                self.close()
            with open(self.path, "rb") as source, whole_file(self.path) as target:
                target.write(source.readline())
                for together in _overlapping(runs):
                    target.writelines(_merged(source, together))
        finally:
            self.close()

    def close(self) -> None:
        """Close the file. Errors of a full disk were raised by :meth:`append`."""
        if not self._stream.closed:
            with contextlib.suppress(OSError) if self._full else contextlib.nullcontext():
                self._stream.close()


def read(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a finished or interrupted journal. Raises FormatError."""
    require_file(path, "journal")
    try:
        with open(path, "rb") as stream:
            lines = _lines(stream, path)
            if not _is_head(_entry(next(lines, b""))):
                raise FormatError(f"{os.fspath(path)} is not a journal of a campaign")
            for line in lines:
                entry = _entry(line)
                if entry is not None:
                    yield entry
    except OSError as error:
        raise FormatError(f"journal {os.fspath(path)} cannot be read: {error.strerror or error}") from error


def _lines(stream: IO[bytes], path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a journal. Raises FormatError for one that is longer than any record."""
    while line := stream.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise FormatError(f"{os.fspath(path)}: a line of more than {MAX_LINE} bytes is not a record of a campaign")
        yield line


def _refuse_keys(path: Path, foreign: Set[str]) -> None:
    if foreign:
        raise FormatError(
            f"{path}: {counted(len(foreign), 'record')} of tasks that this campaign does not have, such as "
            f"{min(foreign)[:80]!r}. Remove their lines or the file."
        )


def _line(entry: Record) -> bytes:
    return _encode(entry).encode() + b"\n"


def _line_of(record: Record) -> bytes:
    try:
        return _line(record)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            f"record of task {str(record['key'])[:80]!r}: {type(error).__name__}: {error}: must be plain data (texts, "
            "finite numbers, lists, mappings)"
        ) from error


def _overlapping(runs: Sequence[_Run]) -> Iterator[list[_Run]]:
    """Runs in the order of their first keys, those together that must be merged."""
    together: list[_Run] = []
    last = ""
    for run in runs:
        if together and run.first > last:
            yield together
            together = []
        together.append(run)
        last = max(last, run.last) if len(together) > 1 else run.last
    if together:
        yield together


def _merged(source: IO[bytes], runs: Sequence[_Run]) -> Iterable[bytes]:
    """The lines of runs in the order of their keys; a run alone in large pieces."""
    if len(runs) > 1:
        yield from (line for _, line in heapq.merge(*(_keyed(source, run) for run in runs)))
        return
    source.seek(runs[0].start)
    for at in range(runs[0].start, runs[0].end, COPIED):
        yield source.read(min(COPIED, runs[0].end - at))


def _keyed(source: IO[bytes], run: _Run) -> Iterator[tuple[str, bytes]]:
    position = run.start
    while position < run.end:
        source.seek(position)
        line = source.readline()
        position += len(line)
        yield json.loads(line)["key"], line


def _entry(line: bytes) -> Record | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_head(entry: Record | None) -> bool:
    """Check that an entry is the first line of a journal of this version."""
    return (
        entry is not None
        and entry.get("format") == FORMAT
        and entry.get("version") == VERSION
        and isinstance(entry.get("identity"), str)
        and isinstance(entry.get("settings"), dict)
    )


def _difference(theirs: Document, ours: Document, settings: Document) -> str:
    """The first thing in which two campaigns differ, in words."""
    if theirs.get("campaign") != ours["campaign"]:
        return f"a campaign of {theirs.get('campaign')!r}, not of {ours['campaign']!r}"
    other = theirs["settings"]
    plain = json.loads(json.dumps(settings, default=str))
    for name in sorted({*other, *plain}):
        if other.get(name) != plain.get(name):
            was, now = (str(values.get(name))[:60] for values in (other, plain))
            digests = all(re.fullmatch("[0-9a-f]{16,}|None", text) for text in (was, now))
            return f"other {name}" if digests else f"{name} was {was!r}, is {now!r}"
    return "other settings"
