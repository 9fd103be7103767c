"""Arguments of the commands that look at a loadable without running it, and the study they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import nvdla
from nvdla.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from nvdla.analysis.study import Study

DEFAULT_CLOCK = 1000.0


def add_study_options(parser: argparse.ArgumentParser, timing: bool = True) -> None:
    """The loadable, ``--config``, ``--abi``, ``--layers``; with ``timing`` what the cycle model needs."""
    parser.add_argument("loadable", help="the loadable")
    parser.add_argument("--config", default="auto", help="hardware configuration (default: decided from the file)")
    parser.add_argument("--abi", choices=("auto", "old", "new"), default="auto", help="descriptor ABI (default: auto)")
    parser.add_argument("--layers", metavar="FILE.yaml", help="layer names (default: LOADABLE.layers.json)")
    if not timing:
        return
    group = parser.add_argument_group("the memory behind NVDLA, and the firmware")
    group.add_argument("--latency", type=int, default=100, metavar="CYCLES", help="memory latency (default: 100)")
    group.add_argument(
        "--bandwidth", type=float, metavar="BYTES", help="bytes a cycle and direction (default: the bus's width)"
    )
    group.add_argument("--shared", action="store_true", help="reads and writes share the bandwidth")
    group.add_argument("--clock", type=float, default=DEFAULT_CLOCK, metavar="MHZ", help="clock (default: 1000 MHz)")
    group.add_argument(
        "--software",
        type=int,
        default=0,
        metavar="CYCLES",
        help="from an interrupt to the firmware's answer (default: 0)",
    )
    group.add_argument(
        "--csb-cycles",
        type=float,
        default=2.1,
        metavar="CYCLES",
        help="of a register write; a read takes nine times as long (default: 2.1, the RTL's own bus)",
    )
    group.add_argument(
        "--cpu-cycles",
        type=float,
        default=100.0,
        metavar="CYCLES",
        help="of NVDLA's clock for an element of a CPU operation (default: 100, an assumption)",
    )


def study_of(args: argparse.Namespace) -> Study:
    """The study that the arguments ask for. Raises NvdlaError."""
    from nvdla.analysis.cycles.constants import CSB_READ, CSB_WRITE, MAX_SOFTWARE, Memory, Software
    from nvdla.analysis.study import Study
    from nvdla.program.naming import names_for

    timing = hasattr(args, "latency")
    if timing and not 1e-6 <= args.clock <= 1e6:
        raise FormatError(f"--clock {args.clock} MHz: must be 0.000001 .. 1000000")
    software = None
    if timing:
        for name in ("software", "csb_cycles", "cpu_cycles"):
            if not 0 <= (value := getattr(args, name)) <= MAX_SOFTWARE:
                option = name.replace("_", "-")
                raise FormatError(f"--{option} {value}: must be 0 .. {MAX_SOFTWARE} cycles")
        scale = args.csb_cycles / CSB_WRITE
        software = Software(args.software, args.csb_cycles, CSB_READ * scale, args.cpu_cycles)
    loadable = nvdla.load(args.loadable)
    if args.config != "auto":
        _require_that_it_runs(loadable, args)
    return Study.of(
        loadable,
        args.config,
        args.abi,
        Memory(args.latency, args.bandwidth, args.shared) if timing else Memory(),
        names_for(args.loadable, args.layers).layers,
        software,
    )


def _require_that_it_runs(loadable: nvdla.Loadable, args: argparse.Namespace) -> None:
    """Figures for a configuration that refuses the file would be of nothing. Raises ConfigError."""
    from nvdla.lint.linter import refusal

    reason = refusal(loadable, args.config, args.abi)
    if reason is not None:
        raise ConfigError(
            f"{args.loadable} cannot run on {args.config}: {reason}; see 'nvdla lint {args.loadable} --config "
            f"{args.config}'"
        )
