"""Fuzz targets: every registered container format, opened, listed, verified, disassembled, converted."""

from __future__ import annotations

from collections.abc import Callable

from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.tensors.npz import MAX_RATIO
from nvdla.tensors.parameters import MATERIALISE_LIMIT, Parameter

MAX_ROWS = 1 << 20


def _extracted(container: registry.Container) -> None:
    """All that extraction writes, without a disk: in proportion to the file."""
    taken = 0
    for name, content in container._chosen(None):
        registry.safe_relative_path(name)
        taken += content.length if isinstance(content, Parameter) else len(content)
    if taken > (registry.MAX_SHARING + MAX_RATIO) * len(container.source.data) + MATERIALISE_LIMIT:
        raise RuntimeError(f"{len(container.source.data)} bytes would become {taken}")


def target(name: str) -> Callable[[bytes], None]:
    """``one_input`` of a format: whatever the bytes are, everything works or raises FormatError."""
    handler = registry.format_named(name)

    def one_input(data: bytes) -> None:
        source = registry.Source.of(data)
        try:
            container = handler.open(source)
        except FormatError:
            return
        container.info()
        if len(container.rows()) > MAX_ROWS:
            raise RuntimeError("more rows than bytes")
        for strict in (False, True):
            container.verify(strict)
        for work in (container.parameters, lambda: _extracted(container), container.disassemble):
            try:
                work()
            except FormatError:
                continue
        try:
            converted = container.convert(handler)
        except FormatError:
            return
        handler.open(registry.Source.of(converted))

    return one_input
