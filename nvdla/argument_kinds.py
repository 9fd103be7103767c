"""Arguments of the Python interface, held against the annotations of what takes them, before anything is done."""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar, cast

from nvdla.errors import ArgumentTypeError, FormatError, described

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Fits = Callable[[Any], bool]
#: elements of a sequence that costs its maker no memory (a range): more are refused
MOST_ELEMENTS = 1 << 27


def by_annotations(function: Decorated) -> Decorated:
    """``function``, or the constructor of a class, which refuses arguments of other kinds than its annotations say.

    Raises ArgumentTypeError, and FormatError for whole numbers of more than 64 bits. Elements of lists, tuples, sets
    and dicts are looked at, iterators are not touched. What an annotation leaves open (Any, a protocol) is not looked
    at. Numbers of numpy are numbers; a list is taken for a tuple.
    """
    if isinstance(function, type):
        function.__init__ = by_annotations(function.__init__)  # type: ignore[misc]
        return function
    order = list(inspect.signature(function).parameters.values())
    positional = [each.name for each in order if each.kind is each.POSITIONAL_OR_KEYWORD]
    rules: dict[str, tuple[Fits, Any]] = {}

    @functools.wraps(function)
    def guarded(*args: Any, **named: Any) -> Any:
        if not rules:  # on first use: what the annotations name may be imported later than the function is made
            hints = _hints(function)
            rules.update((each.name, (_rule(hint), hint)) for each in order for hint in [hints.get(each.name, Any)])
        for name, value in (*zip(positional, args), *named.items()):  # noqa: B905  too many: Python says it below
            if name in rules and not rules[name][0](value):
                _refuse(name, value, rules[name][1])
        return function(*args, **named)

    return cast(Decorated, guarded)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The kinds of arguments by name."""
    names: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(function, localns=names)
        except NameError as error:  # imported for type checking alone, since importing it would close a circle
            name = str(error.name)
            names[name] = _Known(name, (), {})


class _Known(type):
    """A class of which only the name is known here."""

    def __instancecheck__(cls, value: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(value).__mro__)


def _refuse(name: str, value: Any, hint: Any) -> None:
    if isinstance(value, numbers.Integral) and _rule(hint)(0):
        raise FormatError(f"{name} is a number of {int(value).bit_length():,} bits; at most 64 are taken")
    raise ArgumentTypeError(f"{name} must be {_words(hint)}, not {_short(value)}")


def _short(value: Any) -> str:
    """A value for a message; of a container whose elements are of another kind, the first ones."""
    if type(value) in (list, tuple, set, frozenset):
        held = ", ".join(described(each) for each in [*value][:3])
        return f"a {type(value).__name__} of {held or 'nothing'}{', ...' * (len(value) > 3)}"
    return described(value)


def _rule(hint: Any) -> Fits:
    """Whether a value is what an annotation says."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, TypeVar):
        return _rule(hint.__bound__ or Any)
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        rules = [_rule(each) for each in inner]
        return lambda value: any(rule(value) for rule in rules)
    if kind is Callable:
        return callable
    if kind is type:
        return lambda value: isinstance(value, type) and issubclass(value, inner[0])
    if kind is None:
        open_kind = not isinstance(hint, type) or getattr(hint, "_is_protocol", False)
        return (lambda value: True) if open_kind else lambda value: isinstance(value, hint)
    return _rule_of_many(kind, inner)


def _rule_of_many(kind: type, inner: tuple[Any, ...]) -> Fits:
    """Whether a value is a container of this kind, and its elements are what is said of them."""
    if issubclass(kind, Mapping):
        key, held = _rule(inner[0]), _rule(inner[-1])
        return lambda value: (
            isinstance(value, kind)
            and (type(value) is not dict or all(key(one) and held(each) for one, each in value.items()))
        )
    if kind is tuple and Ellipsis not in inner:
        rules = [_rule(each) for each in inner]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(rules)
            and all(rule(each) for rule, each in zip(rules, value, strict=True))
        )
    if not issubclass(kind, (Iterable, Sequence, Set)):
        return lambda value: isinstance(value, kind)
    element = _rule(inner[0])
    kinds = (list, tuple) if kind in (list, tuple) else (kind,)

    def fits(value: Any) -> bool:
        if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, kinds):
            return False
        if type(value) is range:
            return operator.length_hint(value) <= MOST_ELEMENTS and element(0)
        return type(value) not in (list, tuple, set, frozenset) or all(map(element, value))

    return fits


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and int(value).bit_length() <= 64


def _is_number(value: Any) -> bool:
    return _is_whole(value) if isinstance(value, numbers.Integral) else isinstance(value, numbers.Real)


_SIMPLE: dict[Any, Fits] = {
    Any: lambda value: True,
    type(None): lambda value: value is None,
    int: _is_whole,
    float: _is_number,
    bool: lambda value: isinstance(value, numbers.Integral) or type(value).__name__ in ("bool", "bool_"),
    bytes: lambda value: isinstance(value, (bytes, bytearray)),
    dict: lambda value: isinstance(value, dict),
}


def _words(hint: Any) -> str:
    """What an annotation says, for a message."""
    known = {type(None): "None", int: "a whole number", float: "a number", bool: "True or False", str: "a str"}
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        with_path = any(typing.get_origin(each) is os.PathLike for each in inner)
        skipped = (type(None), str) if with_path else (type(None),)
        return " or ".join(_words(each) for each in inner if each not in skipped)
    if kind is os.PathLike:
        return "a path"
    if kind is Callable:
        return "a function"
    if kind is not None:
        return f"a {kind.__name__.lower()} of {' and '.join(_bare(each) for each in inner)}"
    return known.get(hint, f"a {_bare(hint)}")


def _bare(hint: Any) -> str:
    return "..." if hint is Ellipsis else getattr(hint, "__name__", str(hint).rsplit(".", 1)[-1])
