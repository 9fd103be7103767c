"""``nvdla serve --registers``: the register model and its memory behind a socket."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.numbers import whole
from nvdla.cli.output import framed
from nvdla.cli.working import at_rest, working
from nvdla.errors import FormatError, printable

if TYPE_CHECKING:
    from nvdla.csb.server import MemoryPlan

_MIB = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    group = parser.add_argument_group("the register server (docs/register-server.md)")
    group.add_argument("--registers", action="store_true", help="serve the register model")
    group.add_argument(
        "--config", default="nv_small", metavar="NAME", help="hardware configuration (default: nv_small)"
    )
    group.add_argument("--socket", metavar="WHERE", help="path of a Unix socket, or 127.0.0.1:PORT")
    group.add_argument("--dram", metavar="FILE", help="file that becomes the DRAM, for the client to map")
    group.add_argument(
        "--dram-base",
        type=whole(base=0),
        default=0xC0000000,
        metavar="ADDRESS",
        help="where the DRAM begins (default: 0xc0000000)",
    )
    group.add_argument("--dram-size", type=int, default=256, metavar="MIB", help="its size (default: 256 MiB)")
    group.add_argument("--cvsram", metavar="FILE", help="file that becomes the CVSRAM")
    group.add_argument(
        "--cvsram-base",
        type=whole(base=0),
        default=0x50000000,
        metavar="ADDRESS",
        help="where the CVSRAM begins (default: 0x50000000)",
    )
    group.add_argument("--cvsram-size", type=int, default=0, metavar="MIB", help="its size (default: 0, none)")


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted; exit code 0 then."""
    from nvdla.csb.server import RegisterServer, listen
    from nvdla.hardware.configuration import configuration
    from nvdla.warm_up import warm_up_engines

    if not args.socket:
        raise FormatError("--registers needs --socket PATH (or 127.0.0.1:PORT)")
    server = RegisterServer(configuration(args.config), _memories(args), args.threads)
    listener = listen(args.socket)
    address = listener.getsockname()
    where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with working(f"loading the kernels of {args.config}, a minute where they are not compiled yet"):
            for _ in warm_up_engines(args.config, args.threads):
                pass
        _announce(args, where)
        at_rest()
        server.serve(listener)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
        if isinstance(address, str):
            Path(address).unlink(missing_ok=True)
    return 0


def _announce(args: argparse.Namespace, where: str) -> None:
    """Flushed at once, so that a program that started the server can go on."""
    if args.json:
        document = {"protocol": "registers", "address": where, "config": args.config}
        print(json.dumps(framed(document, "serve")), flush=True)
    else:
        print(printable(f"registers of {args.config} at {where}; Ctrl-C ends"), flush=True)


def _memories(args: argparse.Namespace) -> list[MemoryPlan]:
    from nvdla.csb.server import MemoryPlan
    from nvdla.memory.address_space import Space

    plans = []
    for space in Space:
        size = getattr(args, f"{space.value}_size")
        if not 0 <= size <= 1 << 20:
            raise FormatError(f"--{space.value}-size {size}: must be 0 .. {1 << 20} MiB")
        if size:
            file = getattr(args, space.value)
            base = getattr(args, f"{space.value}_base")
            plans.append(MemoryPlan(space, base, size * _MIB, Path(file) if file else None))
    return plans
