"""``nvdla version``: version of the toolkit; with ``--verbose`` of its dependencies, too."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata

import nvdla
from nvdla.cli.output import add_format_options, print_document, print_pairs

HELP = "Print the version of the toolkit; with --verbose also its dependencies, threads and cached kernels."

PACKAGES = ("numpy", "numba", "llvmlite", "pillow", "pyyaml", "rich", "flatbuffers", "threadpoolctl")
OPTIONAL = ("onnx", "onnxruntime", "dask", "shtab", "iree-base-compiler", "apache-tvm")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--verbose", "-v", action="store_true", help="print details")
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    document = {"nvdla": nvdla.__version__, **(_details() if args.verbose else {})}
    if print_document(document, args):
        return 0
    if args.verbose:
        print_pairs(f"nvdla {nvdla.__version__}", {key: value for key, value in document.items() if key != "nvdla"})
    else:
        print(f"nvdla {nvdla.__version__}")
    return 0


def _details() -> dict[str, object]:
    """Versions are those of the installed packages, which are not imported."""
    from nvdla.kernels.fast.dot_tile import instructions
    from nvdla.kernels.jit.cache_folder import cache_folder, kept_kernels
    from nvdla.kernels.jit.processor import usable_cores
    from nvdla.kernels.jit.thread_pool import threading_description

    folder = cache_folder()
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("NVDLA_", "NUMBA_"))}
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "machine": platform.machine(),
        **{name: _version(name) or "missing" for name in PACKAGES},
        **{name: version for name in OPTIONAL if (version := _version(name))},
        "threads": usable_cores(),
        "threading": threading_description(),
        "int8 products": instructions(),
        "kernel cache": "none" if folder is None else str(folder),
        "compiled kernels": len(kept_kernels()),
        "installed in": os.path.dirname(nvdla.__file__),
        "environment": variables or None,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
