"""What each fast form stands for: the rule, the bound that makes both equal, the test that holds them together.

A fast form is a module of this package with a :class:`FastForm` called ``FORM``. docs/numerics.md lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from nvdla.kernels import fast


@dataclass(frozen=True)
class FastForm:
    """``form``: a function of this package ("conv_int8_dot.accumulate"); ``rules``: those of ``nvdla.kernels`` that it
    equals, one after the other ("conv.exact_sums"). ``bound``: when it does; beyond it callers take the rules.
    ``test``: the file that compares them."""

    form: str
    rules: tuple[str, ...]
    bound: str
    test: str


def forms() -> list[FastForm]:
    """All fast forms, by the names of their modules."""
    names = [module.name for module in pkgutil.iter_modules(fast.__path__) if not module.name.endswith("_code")]
    modules = [importlib.import_module(f"{fast.__name__}.{name}") for name in sorted(names)]
    return [module.FORM for module in modules if hasattr(module, "FORM")]
