"""A fault: where and what, and whether it stays. Its text form is what commands take and results name."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

from nvdla.argument_kinds import by_annotations
from nvdla.errors import ArgumentTypeError, FormatError
from nvdla.faults.effects import EFFECTS, Effect
from nvdla.faults.places import PLACES, DescriptorByte, Place

MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class Fault:
    """``where``: a place (:mod:`nvdla.faults.places`); ``what``: an :class:`Effect`, or its text such as "flip=5".

    ``permanent``: the cell is broken, whatever is written to it and whoever reads it. Otherwise the fault is there for
    one operation (of a multiplier: for one cycle where it names one; of memory: until somebody writes there).

        Fault(WeightByte("0/0", 17), "flip=6")
        Fault(Multiplier(kernel=3, channel=2), "set=0", permanent=True)

    Raises FormatError for a bit or value that the word does not have.
    """

    where: Place
    what: Effect
    permanent: bool = False

    def __init__(self, where: Place, what: Effect | str, permanent: bool = False) -> None:
        if not isinstance(where, tuple(PLACES.values())):
            raise ArgumentTypeError(f"where a fault strikes is {type(where).__name__}, must be a place of nvdla.faults")
        effect = _effect(what) if isinstance(what, str) else what
        if not isinstance(effect, Effect):
            raise ArgumentTypeError(f"what a fault does is {type(what).__name__}, must be an Effect or its text")
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "what", effect)
        object.__setattr__(self, "permanent", permanent)
        effect.check(where.bits, where.kind)

    def __str__(self) -> str:
        return " ".join([place_text(self.where), str(self.what), *(["permanent"] if self.permanent else [])])

    @property
    def operation(self) -> str:
        """The operation that it is tied to, empty where it is to none."""
        return "" if isinstance(self.where, DescriptorByte) else getattr(self.where, "operation", "")


def place_text(where: Place) -> str:
    """The words that name a place; fields that have their usual value are left out."""
    words = [where.kind]
    for each in fields(where):
        value = getattr(where, each.name)
        if value != each.default:
            words.append(f"{each.name}={value:#x}" if each.name == "address" else f"{each.name}={value}")
    return " ".join(words)


@by_annotations
def parse(text: str) -> Fault:
    """A fault of its text, such as ``weight operation=0/0 byte=17 flip=6``. Raises FormatError."""
    kind, *words = text.split() or [""]
    if kind not in PLACES:
        raise FormatError(f"fault {text[:80]!r}: the place {kind!r} is unknown; known are {', '.join(PLACES)}")
    permanent = "permanent" in words
    given = [word.partition("=") for word in words if word not in ("permanent", "transient")]
    known = {each.name: each for each in fields(PLACES[kind])}
    values: dict[str, int | str] = {}
    effects: list[str] = []
    for name, _, value in given:
        if name in known:
            values[name] = _number(value, name) if known[name].type == "int" else value
        else:
            effects.append(f"{name}={value}")
    missing = [name for name, each in known.items() if each.default is MISSING and name not in values]
    if missing:
        raise FormatError(f"fault {text[:80]!r}: {', '.join(missing)} is missing; {kind} takes {', '.join(known)}")
    if len(effects) != 1:
        raise FormatError(f"fault {text[:80]!r}: needs one of {', '.join(EFFECTS)}, and takes {', '.join(known)}")
    return Fault(PLACES[kind](**values), effects[0], permanent)


def _effect(text: str) -> Effect:
    kind, _, value = text.partition("=")
    return Effect(kind, _number(value, kind))


def _number(text: str, name: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise FormatError(f"{name}={text[:40]}: must be a whole number") from None
    if abs(value) > MAX_NUMBER:
        raise FormatError(f"{name}={text[:40]}: too large")
    return value
