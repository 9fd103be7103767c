"""``nvdla serve``: the emulator for remote callers."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from pathlib import Path

from nvdla.cli import serve_registers
from nvdla.cli.arguments import add_strict_option
from nvdla.cli.numbers import real, whole
from nvdla.cli.output import framed
from nvdla.cli.working import at_rest
from nvdla.errors import FormatError

COMMAND = "serve"
HELP = """Serve the emulator: loadables to TVM RPC clients, or the register model to drivers and test benches.

  nvdla serve --tvm-rpc --port 9090

  >>> remote = tvm.rpc.connect("127.0.0.1", 9090)
  >>> network = remote.get_function("nvdla.load")(bytearray(open("lenet.nvdla", "rb").read()))
  >>> network["run"](image, scores)

  nvdla serve --registers --config nv_small --socket /tmp/nvdla.sock --dram /dev/shm/dram --dram-size 64

Listens on the loopback interface unless --host says otherwise: there is no password, so whoever reaches the port may
use it. Ends with Ctrl-C."""

_MIB = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--tvm-rpc", action="store_true", help="speak TVM's RPC protocol")
    serve_registers.configure(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=9090, help="port, 0 for any free one (default: 9090)")
    parser.add_argument("--key", help="callers must give this key (not a secret)")
    parser.add_argument("--models", metavar="FOLDER", help="loadables that callers may open by name")
    parser.add_argument("--max-message", type=int, default=256, metavar="MIB", help="largest message (default: 256)")
    parser.add_argument(
        "--memory",
        type=int,
        default=1024,
        metavar="MIB",
        help="all that is kept for one caller: tensors, uploads, networks, inputs, outputs (default: 1024)",
    )
    parser.add_argument(
        "--budget",
        type=real(1, 1e18),
        default=1e12,
        metavar="N",
        help="multiplications, and elements of the other engines, that a run may take (default: 1e12)",
    )
    parser.add_argument("--connections", type=int, default=16, metavar="N", help="callers at a time (default: 16)")
    parser.add_argument(
        "--timeout",
        type=real(1e-3, 1e8),
        default=3600,
        metavar="SECONDS",
        help="end a connection that is idle this long (default: 3600)",
    )
    parser.add_argument("--threads", type=whole(1), metavar="N", help="cores that a run may use (default: all)")
    add_strict_option(parser)
    parser.add_argument("--json", action="store_true", help="print the address as JSON")
    parser.add_argument("--verbose", action="store_true", help="log connections to standard error")


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted; exit code 0 then."""
    if args.registers:
        return serve_registers.run(args)
    from nvdla.containers.tvm.rpc_functions import Service
    from nvdla.containers.tvm.rpc_server import CallerLimits, RpcServer
    from nvdla.limits import Limits

    if not args.tvm_rpc:
        raise FormatError("say what to serve: --tvm-rpc or --registers")
    models = Path(args.models) if args.models else None
    if models is not None and not models.is_dir():
        raise FormatError(f"--models {models}: not a folder")
    for name in ("max_message", "memory", "budget", "connections", "timeout"):
        if not getattr(args, name) > 0:
            raise FormatError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be more than 0")
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, stream=sys.stderr)
    limits = CallerLimits(args.connections, args.max_message * _MIB, idle=args.timeout)
    bounds = Limits(multiplications=int(args.budget), elements=int(args.budget))
    service = Service(models, args.memory * _MIB, limits.message, args.threads, bounds, args.strict)
    server = RpcServer(service.session, args.host, args.port, args.key, limits)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _announce(server.address, args.json)
        at_rest()
        server.serve()
    except KeyboardInterrupt:
        server.stop()
    finally:
        service.close()
    return 0


def _announce(address: tuple[str, int], as_json: bool) -> None:
    """Flushed at once, so that a program that started the server can read the port."""
    host, port = address
    if as_json:
        print(json.dumps(framed({"protocol": "tvm-rpc", "host": host, "port": port}, "serve")), flush=True)
    else:
        print(f"serving TVM RPC on {host} port {port}; Ctrl-C ends", flush=True)
