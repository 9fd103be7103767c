"""NVDLA toolkit: parse, verify, explain, edit, build and run NVDLA loadables bit-exactly.

A loadable is the file that an NVDLA accelerator runs. Read one, run it and look inside:

    import nvdla

    net = nvdla.load("samples/lenet.loadable")       # or a package of nvdla.compile (.nvpkg)
    net.run("samples/digit7.pgm")["prob"].argmax()    # bit-exact, on the emulator
    net.operations.to_pandas()                        # what the accelerator does
    net.cycles(by="layer", latency=60)                # how long it takes
    net.explain("conv2")                              # which resource is its limit, and what would help
    net.memory()                                      # where its tensors are
    net.lint(config="nv_large").rows                  # whether a configuration can run it
    net.compare("samples/lenet.onnx", "samples/digit7.pgm")  # the error of every layer against the model
    net.report("page.html", "samples/digit7.pgm")     # all of this as a page

Compile a model with nvdla.compile("net.onnx", calibration=images), which returns a nvdla.Compiled. nvdla.Runtime runs a
loadable many times, with callbacks; nvdla.replay runs a register trace. All errors are a nvdla.NvdlaError.
"""

TYPE_CHECKING = False  # as in typing: the package itself imports nothing
if TYPE_CHECKING:
    from nvdla.cli.network import LoadedNetwork, load
    from nvdla.compiler.frontend.compiler import Compiled, compile
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
    from nvdla.loadable import Loadable
    from nvdla.runtime import Runtime

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "BuildError",
    "Compiled",
    "ConfigError",
    "DescriptorError",
    "FormatError",
    "LinkError",
    "Loadable",
    "LoadableError",
    "LoadedNetwork",
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
    "Compiled": "nvdla.compiler.frontend.compiler",
    "load": "nvdla.cli.network",
    "LoadedNetwork": "nvdla.cli.network",
    "Loadable": "nvdla.loadable",
    "Runtime": "nvdla.runtime",
    "replay": "nvdla.emulator.trace",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'nvdla' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY.get(name, "nvdla.errors")), name)
