"""``nvdla cache``: the compiled kernels that are kept for later processes."""

from __future__ import annotations

import argparse
import contextlib
import sys

from nvdla.cli.output import add_format_options, print_document, print_pairs, say
from nvdla.errors import ConfigError, counted
from nvdla.kernels.jit.cache_folder import cache_folder, cache_folders, kept_kernels, system_folder, use_system_folder

HELP = """Show ('info'), fill ('warm-up') or clear ('clear') the cache of compiled kernels.

Kernels are compiled on first use and cached. 'warm-up' compiles the kernels of common networks in half a minute, for
example while building a container image. Cached kernels are checked against their sources and recompiled after a
change, so you never need 'clear' for correct results. With --system, root compiles them once for all users and for
read-only containers."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "action", nargs="?", choices=("info", "warm-up", "clear"), default="info", help="action (default: info)"
    )
    parser.add_argument(
        "--system",
        action="store_true",
        help="warm-up: write to the directory that all users load kernels from (needs its permissions)",
    )
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if args.system:
        _choose_system(args.action)
    if args.action == "warm-up":
        _warm_up()
    folder, files = cache_folder(), kept_kernels()
    document = {
        "action": args.action,
        "folder": None if folder is None else str(folder),
        "system_folder": next((str(path) for path in cache_folders() if path == system_folder()), None),
        "kernels": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }
    if args.action == "clear":
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # another process clears it, too
                path.unlink()
    if print_document(document, args):
        return 0
    if folder is None:
        say("compiled kernels are not cached: no directory is writable by you alone. Set NVDLA_CACHE_DIR to one")
    elif args.action == "clear":
        say(f"{folder}: {counted(document['kernels'], 'compiled kernel')} ({document['bytes']:,} bytes) removed")
    else:
        print_pairs("compiled kernels", {key: value for key, value in document.items() if key != "action"})
    return 0


def _choose_system(action: str) -> None:
    """Write kernels to the system's directory. Raises ConfigError where that is not possible."""
    if action != "warm-up":
        raise ConfigError(f"--system: must be used with warm-up, got {action}")
    reason = use_system_folder()
    if reason:
        raise ConfigError(
            f"--system: the directory of all users must be writable by you alone: {reason}. Run it as root."
        )


def _warm_up() -> None:
    """Compile the usual kernels, with a line for each part on standard error."""
    from nvdla.compiler.warm_up import warm_up

    for part, kept in warm_up():
        say(f"{part}: {counted(kept, 'compiled kernel')} kept", sys.stderr)
