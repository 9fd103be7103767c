"""NVDLA toolkit: parse, verify, explain, edit, build and run NVDLA loadables bit-exactly."""

TYPE_CHECKING = False  # as in typing: the package itself imports nothing
if TYPE_CHECKING:
    from nvdla.compiler.frontend.compiler import compile
    from nvdla.emulator.trace.languages import replay
    from nvdla.errors import (
        ArgumentTypeError,
        BuildError,
        ConfigError,
        DescriptorError,
        FormatError,
        LinkError,
        LoadableError,
        NvdlaError,
        OutOfMemoryError,
        ScheduleError,
        TraceError,
    )
    from nvdla.loadable import Loadable, load
    from nvdla.runtime import Runtime

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "BuildError",
    "ConfigError",
    "DescriptorError",
    "FormatError",
    "LinkError",
    "Loadable",
    "LoadableError",
    "NvdlaError",
    "OutOfMemoryError",
    "Runtime",
    "ScheduleError",
    "TraceError",
    "compile",
    "load",
    "replay",
]

# The others are errors. Resolved on first use: reading a file does not import the engines (numba), and a command has
# taken over Ctrl-C before much is imported (nvdla.cli.ctrl_c).
_LAZY = {
    "compile": "nvdla.compiler.frontend.compiler",
    "load": "nvdla.loadable",
    "Loadable": "nvdla.loadable",
    "Runtime": "nvdla.runtime",
    "replay": "nvdla.emulator.trace",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'nvdla' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY.get(name, "nvdla.errors")), name)
