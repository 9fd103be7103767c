"""Checks of the arguments of public functions."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

from nvdla.errors import ArgumentTypeError, FormatError, described, memory_refused

if TYPE_CHECKING:
    import numpy as np

Decorated = TypeVar("Decorated", bound=Callable[..., object])
Instance = TypeVar("Instance")
Fits = Callable[[object], bool]
#: elements of a sequence that costs its maker no memory (a range): more are refused
MOST_ELEMENTS = 1 << 27


def by_annotations(function: Decorated) -> Decorated:
    """``function``, or the constructor of a class, which refuses arguments of other kinds than its annotations say.

    Raises ArgumentTypeError, and FormatError for whole numbers of more than 64 bits. Elements of lists, tuples, sets
    and dicts are looked at, iterators are not touched. What an annotation leaves open (Any, a protocol) is not looked
    at. Numbers of numpy are numbers; a list is accepted as a tuple.
    """
    if isinstance(function, type):
        function.__init__ = by_annotations(function.__init__)  # type: ignore[misc]
        return function
    order = list(inspect.signature(function).parameters.values())
    positional = [parameter.name for parameter in order if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    rules: dict[str, tuple[Fits, object]] = {}
    known = _keywords(function)

    @functools.wraps(function)
    def guarded(*args: object, **named: object) -> object:
        if named and known and not known.issuperset(named):
            refuse_unknown(_title(function), named, known)
        if not rules:  # on first use: what the annotations name may be imported later than the function is made
            hints = _hints(function)
            rules.update(
                (parameter.name, (_rule(hint), hint))
                for parameter in order
                for hint in [hints.get(parameter.name, object)]
            )
        for name, value in (*zip(positional, args), *named.items()):  # noqa: B905  too many: Python says it below
            if name in rules and not rules[name][0](value):
                _refuse(name, value, rules[name][1])
        return function(*args, **named)

    return cast(Decorated, guarded)


def known_keywords(function: Decorated) -> Decorated:
    """``function``, which refuses keywords that it lacks with the nearest name. Raises ArgumentTypeError."""
    known = _keywords(function)

    @functools.wraps(function)
    def guarded(*args: object, **named: object) -> object:
        refuse_unknown(_title(function), named, known)
        return function(*args, **named)

    return cast(Decorated, guarded)


def refuse_unknown(what: str, named: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that a function lacks, with the nearest name.

    Raises:
        ArgumentTypeError: A name is not among ``known``.
    """
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"must be one of {', '.join(sorted(known))}"
            raise ArgumentTypeError(f"{what}: unknown keyword {name!r}: {hint}")


def _keywords(function: Callable[..., object]) -> frozenset[str]:
    """Names of keywords; empty where any is allowed."""
    parameters = inspect.signature(function).parameters.values()
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return frozenset()
    names = (item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY))
    return frozenset(names) - {"self"}


def _title(function: Callable[..., object]) -> str:
    """Name of a function for messages; of a constructor that of its class."""
    return function.__qualname__.removesuffix(".__init__")


def _hints(function: Callable[..., object]) -> dict[str, object]:
    """The kinds of arguments by name."""
    names: dict[str, object] = {}
    while True:
        try:
            return typing.get_type_hints(function, localns=names)
        except NameError as error:  # imported for type checking alone, since importing it would close a circle
            name = str(error.name)
            names[name] = _Known(name, (), {})


class _Known(type):
    """A class of which only the name is known here."""

    def __instancecheck__(cls, value: object) -> bool:
        return any(base.__name__ == cls.__name__ for base in type(value).__mro__)


def _refuse(name: str, value: object, hint: object) -> None:
    if isinstance(value, numbers.Integral) and _rule(hint)(0):
        raise FormatError(f"{name}: must fit into 64 bits, got a number of {int(value).bit_length():,} bits")
    raise ArgumentTypeError(f"{name} must be {_words(hint)}, got {_short(value)}")


def _short(value: object) -> str:
    """A value for a message; of a container whose elements are of another kind, the first ones."""
    if isinstance(value, (list, tuple, set, frozenset)):
        held = ", ".join(described(item) for item in [*value][:3])
        return f"a {type(value).__name__} of {held or 'nothing'}{', ...' * (len(value) > 3)}"
    return described(value)


def _rule(hint: object) -> Fits:
    """Return True if a value matches an annotation."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, TypeVar):
        return _rule(hint.__bound__ or object)
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        rules = [_rule(hint) for hint in inner]
        return lambda value: any(rule(value) for rule in rules)
    if kind is Callable:
        return callable
    if kind is type:
        return lambda value: isinstance(value, type) and issubclass(value, inner[0])
    if kind is None:
        if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
            return lambda value: True
        return lambda value: isinstance(value, hint)
    return _rule_of_many(kind, inner)


_kept_rule = functools.cache(_rule)


def _rule_of_many(kind: type, inner: tuple[object, ...]) -> Fits:
    """Return True if a value is a container of this kind and its elements match."""
    if issubclass(kind, Mapping):
        key, held = _rule(inner[0]), _rule(inner[-1])
        return lambda value: (
            isinstance(value, kind)
            and (type(value) is not dict or all(key(item_key) and held(item) for item_key, item in value.items()))
        )
    if kind is tuple and Ellipsis not in inner:
        rules = [_rule(hint) for hint in inner]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(rules)
            and all(rule(item) for rule, item in zip(rules, value, strict=True))
        )
    if not issubclass(kind, (Iterable, Sequence, Set)):
        return lambda value: isinstance(value, kind)
    element = _rule(inner[0])
    kinds = (list, tuple) if kind in (list, tuple) else (kind,)

    def fits(value: object) -> bool:
        if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, kinds):
            return False
        if type(value) is range:
            return operator.length_hint(value) <= MOST_ELEMENTS and element(0)
        return type(value) not in (list, tuple, set, frozenset) or all(map(element, value))

    return fits


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and int(value).bit_length() <= 64


def _is_number(value: object) -> bool:
    return _is_whole(value) if isinstance(value, numbers.Integral) else isinstance(value, numbers.Real)


_SIMPLE: dict[object, Fits] = {
    Any: lambda value: True,
    type(None): lambda value: value is None,
    int: _is_whole,
    float: _is_number,
    bool: lambda value: isinstance(value, numbers.Integral) or type(value).__name__ in ("bool", "bool_"),
    bytes: lambda value: isinstance(value, (bytes, bytearray)),
    dict: lambda value: isinstance(value, dict),
}


def _words(hint: object) -> str:
    """Describe an annotation for a message."""
    known: dict[object, str] = {
        type(None): "None",
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "a str",
    }
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        with_path = any(typing.get_origin(alternative) is os.PathLike for alternative in inner)
        skipped = (type(None), str) if with_path else (type(None),)
        return " or ".join(_words(alternative) for alternative in inner if alternative not in skipped)
    if kind is os.PathLike:
        return "a path"
    if kind is Callable:
        return "a function"
    if kind is not None and inner == (object,):
        return f"a {kind.__name__.lower()}"
    if kind is not None:
        held = [_bare(kind_of_item) for kind_of_item in inner if kind_of_item is not Ellipsis]
        return f"a {kind.__name__.lower()} of {' and '.join(held)}"
    return known.get(hint, f"a {_bare(hint)}")


def _bare(hint: object) -> str:
    return getattr(hint, "__name__", str(hint).rsplit(".", 1)[-1])


def whole_number(value: object, name: str, least: int) -> int:
    """``value`` as an int of at least ``least``. Raises ArgumentTypeError (no whole number), FormatError (too low)."""
    if not isinstance(value, SupportsIndex):
        raise ArgumentTypeError(f"{name} must be a whole number, got {described(value)}")
    number = operator.index(value)
    if number < least:
        raise FormatError(f"{name}: must be at least {least}, got {str(number)[:40]}")
    return number


def checked(value: Any, kind: object, name: str) -> Any:
    """Return ``value``, which matches the annotation ``kind``, as :func:`by_annotations` checks it.

    Raises:
        ArgumentTypeError: ``value`` is of another type; ``name`` is the argument's name in the message.
    """
    if not _kept_rule(kind)(value):
        _refuse(name, value, kind)
    return value


def strides_by_name(value: object) -> dict[str, tuple[int, ...]]:
    """Strides of bound tensors: (element, line, surface ...) in bytes. Raises ArgumentTypeError, FormatError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"strides must be a mapping of tensor names to strides, got {described(value)}")
    strides = {}
    for name, lengths in value.items():
        what = f"strides of {described(name) if not isinstance(name, str) else name}"
        if isinstance(lengths, (str, bytes, Mapping)) or not isinstance(lengths, Iterable):
            raise ArgumentTypeError(
                f"{what} must be whole numbers (element, line, surface) in bytes, got {described(lengths)}"
            )
        strides[checked(name, str, "a tensor's name in strides")] = tuple(
            whole_number(number, what, 0) for number in lengths
        )
        if not 3 <= len(strides[name]) <= 8:
            raise FormatError(
                f"{what}: must be three numbers in bytes (element, line, surface), got {len(strides[name])}"
            )
    return strides


def numbers_by_name(value: object, what: str) -> dict[str, float]:
    """Positive numbers by name; None is none of them. Raises ArgumentTypeError, FormatError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{what} must be a mapping of tensor names to numbers, got {described(value)}")
    by_name = {}
    for name, text in value.items():
        try:
            by_name[checked(name, str, f"a tensor's name in {what}")] = number = float(text)
        except (TypeError, ValueError, OverflowError):
            raise ArgumentTypeError(f"{what} of {name} must be a number, got {described(text)}") from None
        if not 0 < number < float("inf"):
            raise FormatError(f"{what} of {name}: must be a positive number (the value of one unit), got {number:g}")
    return by_name


def raw_bytes(value: object, what: str) -> bytes | bytearray | memoryview:
    """The bytes of a buffer in its own order, without a copy where it is contiguous. Raises ArgumentTypeError."""
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise ArgumentTypeError(f"{what} must be bytes or an array, got {described(value)}") from None
    if view.format == "O" or "O" in view.format.replace("Zd", ""):
        raise ArgumentTypeError(f"{what} must be bytes or an array of numbers, got an array of Python objects")
    if view.c_contiguous:
        return view.cast("B") if view.nbytes else memoryview(b"")
    return view.tobytes()


def as_array(value: object, what: str) -> np.ndarray:
    """``value`` as a numpy array. Raises ArgumentTypeError for lists of unequal length and what refuses to be one."""
    import numpy as np

    if hasattr(value, "detach"):  # a tensor of PyTorch, which may need gradients or be on a GPU
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentTypeError(f"{what} must be an array, bytes or a file, got {described(value)}: {error}") from None


def images_of_batch(images: object) -> list[object]:
    """Return the images of a batch from any iterable. Raises ArgumentTypeError for other arguments."""
    if isinstance(images, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(images, Iterable):
        what = "images: must be an iterable of images (lists of raw surfaces)"
        raise ArgumentTypeError(f"{what}, got {described(images)}")
    return list(images)


def surfaces_of_image(surfaces: object, names: list[str], way: str = "input") -> list[Any]:
    """The raw inputs (or outputs: ``way``) of an image, one for each of ``names``. Raises ArgumentTypeError, and
    FormatError for their count."""
    if not isinstance(surfaces, (list, tuple)):
        what = f"raw {way}s: must be a list with the bytes of each {way} in bind order"
        raise ArgumentTypeError(f"{what}, got {described(surfaces)}")
    if len(surfaces) != len(names):
        known = ", ".join(names) or "none"
        raise FormatError(f"{way}s: must be {len(names)} ({known}), got {len(surfaces)}")
    return list(surfaces)


def says_when_memory_ends(function: Decorated) -> Decorated:
    """``function``, whose MemoryError is an OutOfMemoryError, and which suggests a name for an unknown keyword."""
    known = _keywords(function)

    @functools.wraps(function)
    def guarded(*args: object, **named: object) -> object:
        if named and known and not known.issuperset(named):
            refuse_unknown(_title(function), named, known)
        try:
            return function(*args, **named)
        except MemoryError as error:
            raise memory_refused("the run", error) from None

    return cast(Decorated, guarded)
