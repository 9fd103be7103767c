"""Fuzz target: IREE parameter archives."""

from __future__ import annotations

from nvdla.errors import FormatError
from nvdla.interop.containers import irpa
from nvdla.interop.containers.registry import Severity, Source, format_named


def one_input(data: bytes) -> None:
    """Opens, verifies, lists, edits and rewrites, or raises FormatError: anything else is a fault."""
    form = format_named("irpa")
    findings = form.verify(Source.of(data), strict=True)
    try:
        container = form.open(Source.of(data))
    except FormatError:
        if not any(finding.severity is Severity.ERROR for finding in findings):
            raise RuntimeError("an archive that cannot be opened has no finding") from None
        return
    container.rows()
    container.parameters()
    try:
        again = form.open(Source.of(container.convert(form)))
        if [(e.name, e.length, e.pattern, e.path) for e in container.archive] != [
            (e.name, e.length, e.pattern, e.path) for e in again.archive
        ]:
            raise RuntimeError("an archive changed when it was rewritten")
    except FormatError:
        pass  # odd patterns are read but not written
    buffer = bytearray(data)
    names = [entry.name for entry in container.archive][:2]
    try:
        irpa.erase(buffer, names, scrub=True)
        irpa.append(bytes(data), [irpa.EntrySpec("new", data=b"x")])
    except FormatError:
        return
    left = [entry.name for entry in irpa.read(bytes(buffer), keep_going=True)]
    if set(left) & set(names):
        raise RuntimeError("an erased entry is still there")
