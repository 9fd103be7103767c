"""Command ``nvdla serve``: loadables over TVM RPC, registers over a socket."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nvdla.cli.arguments import (
    add_base_option,
    add_config_option,
    add_cvsram_size_option,
    add_port_option,
    add_strict_option,
    add_threads_option,
    byte_count,
)
from nvdla.cli.output import announce, real, tell_proof
from nvdla.cli.working import at_rest, ending_signals, working
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import FormatError, NvdlaError

if TYPE_CHECKING:
    from nvdla.registers.server import MemoryPlan

_MIB = 1 << 20
#: seconds that an operation at work has for ending once a signal has come; less than those of a command
GRACE = 0.3


def configure_registers(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    group = parser.add_argument_group("the register server (docs/registers.md)")
    group.add_argument("--registers", action="store_true", help="serve the register model")
    add_config_option(group, "nv_small")
    group.add_argument("--socket", metavar="ADDRESS", help="path of a Unix socket, or 127.0.0.1:PORT")
    group.add_argument(
        "--dram",
        metavar="FILE",
        help="DRAM as a file that the client maps; an existing file must be empty or of the DRAM size",
    )
    add_base_option(group, "dram", 0xC0000000)
    group.add_argument(
        "--dram-size", type=byte_count, default=256 * _MIB, metavar="BYTES", help="size of DRAM (default: 256MiB)"
    )
    group.add_argument("--cvsram", metavar="FILE", help="CVSRAM as a file, as --dram")
    add_base_option(group, "cvsram", 0x50000000)
    add_cvsram_size_option(group)


def run_registers(args: argparse.Namespace) -> int:
    """Serves until interrupted; exit code 0 then."""
    from nvdla.registers.server import RegisterServer, listen

    if not args.socket:
        raise FormatError("--registers needs --socket PATH (or 127.0.0.1:PORT)")
    config = configuration(args.config)
    tell_proof(args, config)
    server = RegisterServer(config, _memories(args), args.threads)
    listener = listen(args.socket)
    address = listener.getsockname()
    where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"

    def serve() -> None:
        with working(f"loading the kernels of {args.config} (the first time this takes 10 to 30 s)"):
            load_kernels(args.config, args.threads)
        document = {"protocol": "registers", "address": where, "config": args.config}
        announce(document, [f"registers of {args.config} at {where}; Ctrl-C ends"], args)
        at_rest()
        server.serve(listener)

    try:
        ended = _until_signal(serve, server.stop)
    finally:
        listener.close()
        if isinstance(address, str):
            Path(address).unlink(missing_ok=True)
    if not ended:  # in the middle of an operation: nothing else can end that
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(0)
    return 0


def load_kernels(config: str, threads: int | None = None) -> None:
    """Compile, or load, what the register programs of networks and of the self-test kit need.

    Tests that ``config`` cannot run, for example with a small convolution buffer, are left out.

    Args:
        config: Name or file of the configuration.
        threads: Number of threads; all cores if None.
    """
    from nvdla.compiler.warm_up import warm_up_engines
    from nvdla.registers.self_test import self_tests

    for _ in warm_up_engines(config, threads):
        pass
    with contextlib.suppress(NvdlaError):
        self_tests(configuration(config))


def _until_signal(work: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Do ``work`` in a thread until it ends or a signal comes, then ``stop``; return whether the work has ended.

    The main thread only waits, so it hears signals at once, however long an operation of the hardware takes.
    """
    failed: list[BaseException] = []
    done = threading.Event()  # a signal within Thread.join makes Python 3.11 believe that the thread has ended

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=guarded, name="nvdla-registers", daemon=True)
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, signal.default_int_handler) for number in ending_signals()}
    try:
        thread.start()
        while not done.wait(1.0):
            pass
    except KeyboardInterrupt:
        stop()
        done.wait(GRACE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise failed[0]
    return done.is_set()


def _memories(args: argparse.Namespace) -> list[MemoryPlan]:
    from nvdla.emulator.memory.address_space import Space
    from nvdla.registers.server import MemoryPlan

    plans = []
    for space in Space:
        size = getattr(args, f"{space.value}_size")
        if size > 1 << 40:
            raise FormatError(f"--{space.value}-size {size}: must be 0 .. {1 << 40} bytes")
        if size:
            file = getattr(args, space.value)
            base = getattr(args, f"{space.value}_base")
            plans.append(MemoryPlan(space, base, size, Path(file) if file else None))
    return plans


HELP = """Serve the emulator: loadables to TVM RPC clients, or the register model to drivers and test benches.

  nvdla serve --tvm-rpc --port 9090

  >>> remote = tvm.rpc.connect("127.0.0.1", 9090)
  >>> data = bytearray(open("lenet.nvdla", "rb").read())
  >>> network = remote.get_function("nvdla.load")(data)
  >>> network["run"](image, scores)

  nvdla serve --registers --config nv_small --socket /tmp/nvdla.sock --dram /dev/shm/dram --dram-size 64MiB

The server listens on the loopback interface unless --host names another one. The server has no password:
everyone with access to the port can use it. Stop it with Ctrl-C."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--tvm-rpc", action="store_true", help="serve the TVM RPC protocol")
    configure_registers(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add_port_option(parser, 9090)
    parser.add_argument("--key", help="key that clients must send (not a secret)")
    parser.add_argument("--models", metavar="DIR", help="directory of loadables that clients may open by name")
    parser.add_argument(
        "--max-message", type=int, default=256, metavar="MIB", help="largest message in MiB (default: 256)"
    )
    parser.add_argument(
        "--memory-limit",
        type=byte_count,
        default=1 << 30,
        metavar="BYTES",
        help="memory limit per client, for example 512MiB (default: 1GiB)",
    )
    parser.add_argument(
        "--budget",
        type=real(1, 1e18),
        default=1e12,
        metavar="N",
        help="work limit per run: multiplications, or elements of other engines (default: 1e12)",
    )
    parser.add_argument(
        "--connections", type=int, default=16, metavar="N", help="maximum number of clients (default: 16)"
    )
    parser.add_argument(
        "--timeout",
        type=real(1e-3, 1e8),
        default=3600,
        metavar="SECONDS",
        help="close connections after this idle time in seconds (default: 3600)",
    )
    add_threads_option(parser)
    add_strict_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (stable keys) instead of tables")
    parser.add_argument("--verbose", "-v", action="store_true", help="print details")


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted; exit code 0 then."""
    if args.registers:
        return run_registers(args)
    from nvdla.interop.containers.tvm.rpc_functions import Service
    from nvdla.interop.containers.tvm.rpc_session import CallerLimits, RpcServer
    from nvdla.limits import Limits

    if not args.tvm_rpc:
        raise FormatError("nothing to serve: give --tvm-rpc or --registers")
    models = Path(args.models) if args.models else None
    if models is not None and not models.is_dir():
        raise FormatError(f"--models {models}: must be a directory")
    for name in ("max_message", "memory_limit", "budget", "connections", "timeout"):
        if not getattr(args, name) > 0:
            raise FormatError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be more than 0")
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, stream=sys.stderr)
    limits = CallerLimits(args.connections, args.max_message * _MIB, idle=args.timeout)
    bounds = Limits(multiplications=int(args.budget), elements=int(args.budget))
    service = Service(models, args.memory_limit, limits.message, args.threads, bounds, args.strict)
    server = RpcServer(service.session, args.host, args.port, args.key, limits)
    if threading.current_thread() is threading.main_thread():
        for number in ending_signals():
            signal.signal(number, signal.default_int_handler)
    try:
        _announce(server.address, args)
        at_rest()
        server.serve()
    except KeyboardInterrupt:
        server.stop()
    finally:
        service.close()
    return 0


def _announce(address: tuple[str, int], args: argparse.Namespace) -> None:
    host, port = address
    document = {"protocol": "tvm-rpc", "host": host, "port": port}
    announce(document, [f"serving TVM RPC on {host} port {port}; Ctrl-C ends"], args)
