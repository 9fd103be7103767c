"""Where the commands ``nvdla`` and ``nvdla-run`` begin: Ctrl-C is taken over before anything is imported."""

from __future__ import annotations

from nvdla.cli import interrupts


def main() -> int:
    """``nvdla``"""
    interrupts.install()
    from nvdla.cli.main import main as begin

    return begin()


def run_main() -> int:
    """``nvdla-run``"""
    interrupts.install()
    from nvdla.cli.main import run_main as begin

    return begin()
