"""Arguments of the Python interface, checked where they come in: the right kind, or one sentence that says which."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nvdla.errors import ArgumentTypeError, FormatError, described, memory_refused


def whole_number(value: Any, name: str, least: int) -> int:
    """``value`` as an int of at least ``least``. Raises ArgumentTypeError (no whole number), FormatError (too low)."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name} must be a whole number, not {described(value)}") from None
    if number < least:
        raise FormatError(f"{name} is {str(number)[:40]}; it must be at least {least}")
    return number


def word(value: Any, name: str) -> str:
    """``value``, which is a str. Raises ArgumentTypeError."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} must be a name, a str, not {described(value)}")
    return value


def instance(value: Any, kind: type, name: str) -> Any:
    """``value``, which is a ``kind``. Raises ArgumentTypeError."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} must be a {kind.__name__}, not {described(value)}")
    return value


def strides_by_name(value: Any) -> dict[str, tuple[int, ...]]:
    """Strides of bound tensors: (element, line, surface ...) in bytes. Raises ArgumentTypeError, FormatError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"strides must be a mapping of tensor names to strides, not {described(value)}")
    found = {}
    for name, each in value.items():
        what = f"strides of {described(name) if not isinstance(name, str) else name}"
        if isinstance(each, (str, bytes, Mapping)) or not isinstance(each, Iterable):
            raise ArgumentTypeError(
                f"{what} must be whole numbers (element, line, surface) in bytes, not {described(each)}"
            )
        found[word(name, "a tensor's name in strides")] = tuple(whole_number(one, what, 0) for one in each)
        if not 3 <= len(found[name]) <= 8:
            raise FormatError(f"{what} are {len(found[name])} numbers; give (element, line, surface) in bytes")
    return found


def numbers_by_name(value: Any, what: str) -> dict[str, float]:
    """Positive numbers by name; None is none of them. Raises ArgumentTypeError, FormatError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{what} must be a mapping of tensor names to numbers, not {described(value)}")
    found = {}
    for name, each in value.items():
        try:
            found[word(name, f"a tensor's name in {what}")] = number = float(each)
        except (TypeError, ValueError, OverflowError):
            raise ArgumentTypeError(f"{what} of {name} must be a number, not {described(each)}") from None
        if not 0 < number < float("inf"):
            raise FormatError(f"{what} of {name} is {number:g}; it must be a positive number: the value of one unit")
    return found


def raw_bytes(value: Any, what: str) -> bytes | bytearray | memoryview:
    """The bytes of a buffer in its own order, without a copy where it is contiguous. Raises ArgumentTypeError."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        raise ArgumentTypeError(f"{what} must be bytes or an array, not {described(value)}") from None
    if view.format == "O" or "O" in view.format.replace("Zd", ""):
        raise ArgumentTypeError(f"{what} is an array of Python objects; bytes or an array of numbers are taken")
    if view.c_contiguous:
        return view.cast("B") if view.nbytes else memoryview(b"")
    return view.tobytes()


def as_array(value: Any, what: str) -> Any:
    """``value`` as a numpy array. Raises ArgumentTypeError for lists of unequal length and what refuses to be one."""
    import numpy as np

    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentTypeError(f"{what} must be an array, bytes or a file, not {described(value)}: {error}") from None


def images_of_batch(images: Any) -> list[Any]:
    """The images of a batch, whatever holds them. Raises ArgumentTypeError for what is no iterable of images."""
    if isinstance(images, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(images, Iterable):
        what = "run_many takes an iterable of images (lists of raw surfaces)"
        raise ArgumentTypeError(f"{what}, not {described(images)}")
    return list(images)


def surfaces_of_image(surfaces: Any, names: list[str], way: str = "input") -> list[Any]:
    """The raw inputs (or outputs: ``way``) of an image, one for each of ``names``. Raises ArgumentTypeError, and
    FormatError for their count."""
    if not isinstance(surfaces, (list, tuple)):
        what = f"raw {way}s are a list with the bytes of each {way} in bind order"
        raise ArgumentTypeError(f"{what}, not {described(surfaces)}")
    if len(surfaces) != len(names):
        known = ", ".join(names) or "none"
        raise FormatError(f"the network has {len(names)} {way}s ({known}), {len(surfaces)} were given")
    return list(surfaces)


def callback(value: Any, name: str) -> None:
    """Raises ArgumentTypeError for what is neither a function nor None."""
    if value is not None and not callable(value):
        raise ArgumentTypeError(f"{name} must be a function, not {described(value)}")


def says_when_memory_ends(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose MemoryError is an OutOfMemoryError."""

    @functools.wraps(function)
    def guarded(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except MemoryError as error:
            raise memory_refused("the run", error) from None

    return guarded
