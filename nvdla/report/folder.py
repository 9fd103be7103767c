"""The index of a folder of loadables: what is in each, in one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nvdla
from nvdla.analysis.memorymap.memory_map import MemoryMap
from nvdla.analysis.study import Study
from nvdla.errors import FormatError, NvdlaError
from nvdla.program.naming import names_for

ENDINGS = (".nvdla", ".loadable")
MAX_FILES = 500

Row = dict[str, Any]


def loadables_in(folder: Path) -> list[Path]:
    """The loadables in a folder and the folders in it, by name. Raises FormatError for none, or too many."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not found:
        raise FormatError(f"{folder}: no loadable is in this folder (files that end in {' or '.join(ENDINGS)})")
    if len(found) > MAX_FILES:
        raise FormatError(f"{folder}: {len(found)} loadables are more than an index holds: {MAX_FILES}")
    return found


def index_row(path: Path, folder: Path, page: str | None) -> Row:
    """One loadable; ``page``: where its own page is. What is wrong with a file stands in its row."""
    row: Row = {"name": path.relative_to(folder).as_posix(), "page": page, "bytes": path.stat().st_size, "error": None}
    try:
        study = Study.of(nvdla.load(path), layers=names_for(path).layers)
        row["configuration"] = study.config.name
        row["operations"] = len(study.operations)
        row["cycles"] = study.schedule.cycles
        row["macs"] = sum(each.macs for each in study.estimates.values())
        row["peak"] = sum(each["peak_live"] for each in MemoryMap.of(study).spaces())
    except NvdlaError as error:
        row |= {"error": str(error), "page": None}
    return row


def page_name(path: Path, folder: Path) -> str:
    """A file name for a loadable's page that nothing else in the folder has."""
    return path.relative_to(folder).as_posix().replace("/", "__") + ".html"
