"""Campaigns of squares in processes of their own, to be killed."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

from nvdla.experiments.campaign import Journal, Workers, run
from nvdla.experiments.campaign.journal import read
from support.campaign_tables import Squares, count_lines
from support.cluster import started

CLIENT = """
import sys
from support.campaign_tables import Squares
from nvdla.experiments.campaign import Journal, Workers, run
if __name__ == "__main__":
    table = Squares(int(sys.argv[3]), slow=0.02, shard=4)
    run(table, Journal(sys.argv[1], table, True), Workers(2, sys.argv[2] or None))
"""


def finished(path: Path, table: Squares, workers: Workers | None = None, resume: bool = False) -> bytes:
    """The whole journal of a campaign."""
    run(table, Journal(path, table, resume), workers or Workers(2))
    return path.read_bytes()


def squares(path: Path) -> dict[int, int]:
    """What a journal says of each number."""
    return {int(each["key"]): each["square"] for each in read(path) if "square" in each}


def client(
    folder: Path, path: Path, scheduler: str = "", tasks: int = 400, **options: object
) -> subprocess.Popen[bytes]:
    """A process that does squares, 400 in a second, or goes on with them."""
    script = folder / "client.py"
    script.write_text(CLIENT)
    return started([str(script), str(path), scheduler, str(tasks)], **options)


def killed_at_random(folder: Path, path: Path, kills: int, scheduler: str = "") -> None:
    """Start the client and kill it with -9 again and again; at the end let it finish."""
    chance = random.Random(5)
    for _ in range(kills):
        process = client(folder, path, scheduler)
        before = count_lines(path)
        end = time.monotonic() + 30
        while process.poll() is None and count_lines(path) <= before + chance.randrange(40) and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
        process.wait()
    process = client(folder, path, scheduler)
    assert process.wait(120) == 0


def workers_of(process: int) -> list[int]:
    """The processes that it has started."""
    try:
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
