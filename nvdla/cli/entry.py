"""Entry points of ``nvdla`` and ``nvdla-run``: Ctrl-C is handled before any other import."""

from nvdla.cli.ctrl_c import install, say


def main() -> int:
    """``nvdla``"""
    install()
    try:
        from nvdla.cli.main import main as begin

        return begin()
    except KeyboardInterrupt:  # where the command was about to begin or to end
        return say("nvdla")


def run_main() -> int:
    """``nvdla-run``"""
    install()
    try:
        from nvdla.cli.main import run_main as begin

        return begin()
    except KeyboardInterrupt:
        return say("nvdla-run")
