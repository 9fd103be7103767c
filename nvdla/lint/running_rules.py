"""The last word: everything but the arithmetic is done."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.lint.context import Context
from nvdla.lint.registry import Said, rule


@rule(
    "error",
    "See the message; 'nvdla inspect --ops' and 'nvdla hexdump' show the descriptors.",
    headline="run that does not end well",
)
def it_runs_to_its_end(context: Context) -> Iterator[Said]:
    """The firmware takes every operation, the engines take what it writes to their registers, and the dependency graph
    comes to its end; no convolution reads data or weights from the wrong place of the convolution buffer.

    This is a dry run, all of a run but the arithmetic. It is left out when another rule has found an error, because it
    stops at the first.
    """
    from nvdla.lint.dry_run import dry_run

    problem, warnings = dry_run(context.loadable, context.abi, context.config)
    yield from warnings
    if problem is not None:
        yield problem
