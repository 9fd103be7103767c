"""What a campaign computes: tasks, and the function that a worker does them with."""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from nvdla.errors import FormatError, NvdlaError

Function = TypeVar("Function", bound=Callable[..., Any])
Record = dict[str, Any]
"""Plain data, one a task: "key", and whatever the table says of it; "error" where the task could not be done."""


def takes_records(function: Function) -> Function:
    """``function`` of records, which may come from a file: a FormatError where one has not the fields that it needs."""

    @functools.wraps(function)
    def guarded(*args: Any, **named: Any) -> Any:
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
    """``key``: unique in the table, and the order of the results; ``payload``: what the worker needs, small and
    picklable."""

    key: str
    payload: Any


class Table(ABC):
    """A campaign. It is sent to every worker once, so it must be picklable; :meth:`open` may be as large as it likes.

    ``shard``: how many tasks a worker takes at a time.
    """

    name: str
    shard: int = 64

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain data that decides the results: hashes of files, options. Two runs with equal settings are the same."""

    @abstractmethod
    def tasks(self) -> Iterable[Task]:
        """All tasks, in the order of the results. May be a generator: no more is held than is under way."""

    def prepare(self) -> None:
        """In this process, before workers begin as copies of it: load once what all of them need. Where workers are
        processes of another kind nobody calls it. It must start no threads of other libraries."""
        return

    @abstractmethod
    def open(self) -> Callable[[Sequence[Task]], list[Record]]:
        """In a worker, once: whatever must be loaded; the function that does the tasks of a shard.

        It returns a record a task, with its key. What is wrong with one task belongs into its record ("error").
        """

    def identity(self) -> str:
        """Hash of the settings: results of another identity are of another campaign."""
        text = json.dumps([self.name, self.settings()], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
