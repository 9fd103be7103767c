"""Registries of modules, findings of checks, and enums whose unknown values stay readable."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import asdict, dataclass
from enum import Enum, IntEnum
from types import ModuleType

from nvdla.util.escaping import Document


def modules_of(package: str, ending: str = "") -> list[ModuleType]:
    """The modules of a package whose names end so, imported, in the order of their names."""
    folders = importlib.import_module(package).__path__
    names = [module.name for module in pkgutil.iter_modules(folders) if module.name.endswith(ending)]
    return [importlib.import_module(f"{package}.{name}") for name in sorted(names)]


class OpenEnum(IntEnum):
    """An IntEnum that accepts every integer; nameless ones print as ``UNKNOWN_<number>`` and still equal it."""

    @classmethod
    def _missing_(cls, value: object) -> OpenEnum | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[OpenEnum], tuple[int]]:
        # By number: Python 3.11.2 copies enumerations by name, and an unknown number has no name to look up.
        return type(self), (self._value_,)

    @property
    def known(self) -> bool:
        """True if the number has a name."""
        return self._value_ in type(self)._value2member_map_


class Severity(str, Enum):
    """Severity of a finding, from the worst to the mildest. Compares and prints as its value."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, text: str) -> str:
        return format(self.value, text)

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class AnyFinding:
    """One problem that a check found, in a program (:class:`nvdla.checks.lint.Finding`) or in a file's bytes."""

    severity: Severity

    def as_dict(self) -> Document:
        """Return all fields as plain data, for JSON."""
        return {**asdict(self), "severity": str(self.severity)}
