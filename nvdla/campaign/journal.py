"""The journal of a campaign: one line of JSON a record, appended as results come, complete or repairable at any time.

The first line says which campaign it is. A line that was cut off (a full disk, a killed process) is dropped when the
campaign goes on, and its task done again. When everything is there, the file is written once more in the order of the
tasks, so that it does not depend on who did what when.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from nvdla.argument_kinds import by_annotations
from nvdla.campaign.table import Record, Table
from nvdla.errors import FormatError
from nvdla.files import require_file, whole_file

FORMAT, VERSION = "nvdla-campaign", 1
SYNC_SECONDS = 2.0
COPIED = 1 << 20
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
    """The records of ``table`` in the file ``path``. ``resume``: go on with what is there; without it a file that is
    there already is refused, so that nothing is lost. Raises FormatError.

    ``done``: the keys that were there when it was opened; ``count``: how many records it has now. Of records that are
    appended it keeps where each shard lies, so that a million of them take no memory."""

    def __init__(self, path: str | os.PathLike[str], table: Table, resume: bool = False) -> None:
        self.path = Path(path)
        self.done: set[str] = set()
        self.count = 0
        self._runs: list[_Run] = []
        self._end = 0
        self._full = False
        self._head = {"format": FORMAT, "version": VERSION, "campaign": table.name, "identity": table.identity()}
        self._settings = table.settings()
        self._synced = time.monotonic()
        require_file(self.path, "journal")
        try:
            self._stream = self._go_on() if self.path.exists() else self._begin()
        except OSError as error:
            raise FormatError(f"journal {self.path} cannot be opened: {error.strerror or error}") from error
        if self.done and not resume:
            self._stream.close()
            raise FormatError(
                f"{self.path} holds {len(self.done)} results of this campaign already: --resume goes on with them, or "
                "remove the file"
            )

    def _begin(self) -> IO[bytes]:
        stream = open(self.path, "xb")  # noqa: SIM115 - open for the life of the journal
        head = _line({**self._head, "settings": self._settings})
        stream.write(head)
        stream.flush()
        self._end = len(head)
        return stream

    def _go_on(self) -> IO[bytes]:
        """Check whose results they are, drop a line that was cut off, note what is done."""
        with open(self.path, "rb") as written:
            for number, line in enumerate(_lines(written, self.path)):
                if not line.endswith(b"\n"):
                    break
                entry = _entry(line)
                if number == 0:
                    self._check(entry)
                elif entry is None or "key" not in entry:
                    raise FormatError(
                        f"{self.path}:{number + 1}: not a record of a campaign; remove the line or the file"
                    )
                else:
                    self.done.add(entry["key"])
                    self._note(entry["key"], len(line), joins=True)
                    continue
                self._end = len(line)
        if self._end == 0:
            self._check(None)
        stream = open(self.path, "r+b")  # noqa: SIM115
        stream.truncate(self._end)
        stream.seek(self._end)
        return stream

    def _note(self, key: str, size: int, joins: bool) -> None:
        """A line more; ``joins``: it may go on with the latest run."""
        start, self._end = self._end, self._end + size
        self.count += 1
        if joins and self._runs and self._runs[-1].last < key:
            self._runs[-1].last, self._runs[-1].end = key, self._end
        else:
            self._runs.append(_Run(key, key, start, self._end))

    def _check(self, head: Record | None) -> None:
        if head is None or head.get("format") != FORMAT:
            raise FormatError(f"{self.path} is no journal of a campaign; give another file")
        if head.get("identity") != self._head["identity"]:
            raise FormatError(
                f"{self.path} belongs to another run ({_difference(head, self._head, self._settings)}): give another "
                "file, or the settings of that run"
            )

    def known(self) -> set[str]:
        """The keys of all records so far."""
        return self.done if self.count == len(self.done) else {each["key"] for each in self.records()}

    def append(self, records: Sequence[Record]) -> None:
        """Add records; they are there, whatever happens to this process. Raises FormatError for a full disk."""
        new = [each for each in records if each["key"] not in self.done]
        lines = [_line(each) for each in new]
        try:
            self._stream.write(b"".join(lines))
            self._stream.flush()
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._stream.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            self._full = True
            raise FormatError(
                f"journal {self.path} cannot be written: {error.strerror or error}; {self.count} results are kept, "
                "--resume goes on"
            ) from error
        for number, (record, line) in enumerate(zip(new, lines, strict=True)):
            self._note(record["key"], len(line), joins=number > 0)

    def records(self) -> Iterator[Record]:
        """All records so far, as they came."""
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
        """Write the file anew in the order of the keys, whole or not at all, where it is not in that order."""
        self.close()
        runs = sorted(self._runs, key=lambda run: run.first)
        if all(before.end == after.start and before.last < after.first for before, after in pairwise(runs)):
            return
        with open(self.path, "rb") as source, whole_file(self.path) as target:
            target.write(source.readline())
            for together in _overlapping(runs):
                target.writelines(_merged(source, together))

    def close(self) -> None:
        """Close the file. What a full disk did not take was said when it was appended."""
        if not self._stream.closed:
            with contextlib.suppress(OSError) if self._full else contextlib.nullcontext():
                self._stream.close()


def read(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a finished or interrupted journal. Raises FormatError."""
    require_file(path, "journal")
    try:
        with open(path, "rb") as stream:
            lines = _lines(stream, path)
            head = _entry(next(lines, b""))
            if head is None or head.get("format") != FORMAT:
                raise FormatError(f"{os.fspath(path)} is no journal of a campaign")
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
            raise FormatError(f"{os.fspath(path)}: a line of more than {MAX_LINE} bytes is no record of a campaign")
        yield line


def _line(entry: Record) -> bytes:
    return _encode(entry).encode() + b"\n"


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


def _difference(theirs: dict[str, Any], ours: dict[str, Any], settings: dict[str, Any]) -> str:
    """The first thing in which two campaigns differ, in words."""
    if theirs.get("campaign") != ours["campaign"]:
        return f"a campaign of {theirs.get('campaign')!r}, not of {ours['campaign']!r}"
    other = theirs.get("settings") or {}
    plain = json.loads(json.dumps(settings, default=str))
    for name in sorted({*other, *plain}):
        if other.get(name) != plain.get(name):
            return f"{name} was {str(other.get(name))[:60]!r}, is {str(plain.get(name))[:60]!r}"
    return "other settings"
