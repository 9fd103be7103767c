"""Tables of tasks for the tests of campaigns: workers import them by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdla.experiments.campaign import Record, Table, Task


@dataclass
class Squares(Table):
    """The squares of 0 .. count - 1. ``poison``: kills its worker; ``fails``: raises; ``slow``: seconds a shard;
    ``pids``: a file for the number of the process of every shard."""

    count: int
    poison: int = -1
    fails: int = -1
    slow: float = 0.0
    shard: int = 8
    pids: str = ""
    name = "squares"

    def settings(self) -> dict[str, Any]:
        return {"count": self.count}

    def tasks(self) -> Iterable[Task]:
        return (Task(f"{number:06}", number) for number in range(self.count))

    def open(self) -> Callable[[Sequence[Task]], list[Record]]:
        return self._do

    def _do(self, tasks: Sequence[Task]) -> list[Record]:
        time.sleep(self.slow)
        if self.pids:
            with open(self.pids, "a") as stream:
                stream.write(f"{os.getpid()}\n")
        if any(task.payload == self.fails for task in tasks):
            raise ValueError("the table itself is wrong")
        if any(task.payload == self.poison for task in tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"key": task.key, "square": task.payload**2} for task in tasks]


@dataclass
class DeadlyOnce(Squares):
    """Kills the first worker that it comes to, while it comes. ``mark``: the file that says that it has."""

    mark: str = ""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.mark and not os.path.exists(self.mark):
            Path(self.mark).write_text("dead")
            os.kill(os.getpid(), signal.SIGKILL)


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
