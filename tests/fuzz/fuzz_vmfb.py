"""Fuzz target: IREE modules."""

from __future__ import annotations

import contextlib
import zlib

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Severity, Source, format_named
from nvdla.interop.containers.vmfb.interpreter import MachineLimits, VirtualMachine

_LIMITS = MachineLimits(instructions=2000, depth=16, memory=1 << 20)


def one_input(data: bytes) -> None:
    """Opens, verifies, disassembles, re-wraps and runs, or raises FormatError: anything else is a fault."""
    form = format_named("vmfb")
    try:
        container = form.open(Source.of(data))
    except FormatError:
        return
    container.rows()
    is_sound = not any(f.severity is Severity.ERROR for f in container.verify(strict=True))
    try:
        container.disassemble()
    except FormatError:
        if is_sound:
            raise RuntimeError("a module passes verification but cannot be disassembled") from None
    if container.convert(form) != data:
        raise RuntimeError("a module did not come back byte for byte")
    wrapping = ("zip", "prefixed")[zlib.crc32(data) % 2]
    with contextlib.suppress(FormatError):
        other = form.open(Source.of(container.convert(form, {"wrapping": wrapping}))).module
        before = container.module
        if bytes(other.bytecode) != bytes(before.bytecode) or len(other.rodata) != len(before.rodata):
            raise RuntimeError("a module is another one in another wrapping")
    _run(container.module)


def _run(module) -> None:
    for export in module.exports[:8]:
        letters = module.functions[export.ordinal].signature.arguments
        arguments = [None if letter == "r" else 3.5 if letter in "fF" else 3 for letter in letters]
        try:
            VirtualMachine(module, limits=_LIMITS).call(export.name, arguments)
        except FormatError:
            continue
