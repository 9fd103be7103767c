"""Enums that keep numbers without a name: what a file says is never lost, and printing never fails."""

from __future__ import annotations

from enum import IntEnum


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

    @property
    def known(self) -> bool:
        """Whether the number has a name."""
        return self._value_ in type(self)._value2member_map_
