"""The last word: everything but the arithmetic is done."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.checks.lint.linter import Context, Said, rule


@rule(
    "error",
    "See the message; 'nvdla inspect --ops' and 'nvdla hexdump' show the descriptors.",
    headline="dry run that fails",
)
def the_dry_run_finishes(context: Context) -> Iterator[Said]:
    """The firmware and the engines accept every operation, the dependency graph reaches its end, and no convolution
    reads data or weights from a wrong place of the convolution buffer.

    This is a dry run: a complete run without the arithmetic. It is skipped after an error of another rule, because it
    stops at the first error.
    """
    from nvdla.emulator.execution.dry_run import dry_run

    problem, warnings = dry_run(context.loadable, context.abi, context.config, linked=context.linked)
    yield from warnings
    if problem is not None:
        yield problem
