"""Registry of the fast paths: the rules that each one implements, its condition and its test.

A fast path is a module of this package with a :class:`FastPath` called ``FAST_PATH``. docs/numerics.md lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from nvdla.kernels import fast


@dataclass(frozen=True)
class FastPath:
    """A fast implementation of rules.

    ``function``: a function of this package ("conv_int8_dot.accumulate"); ``rules``: the functions of ``nvdla.kernels``
    that it equals, in order ("conv.exact_sums"); ``bound``: the condition of the equality, beyond which callers use the
    rules; ``test``: the file that compares them.
    """

    function: str
    rules: tuple[str, ...]
    bound: str
    test: str


def fast_paths() -> list[FastPath]:
    """Return all fast paths, in the order of their modules' names."""
    names = [module.name for module in pkgutil.iter_modules(fast.__path__) if not module.name.endswith("_code")]
    modules = [importlib.import_module(f"{fast.__name__}.{name}") for name in sorted(names)]
    return [module.FAST_PATH for module in modules if hasattr(module, "FAST_PATH")]
