"""The one exception family of the toolkit.

Every error caused by a file, a setting or an argument derives from :class:`NvdlaError`. A message names the
thing (table, entry, field, byte offset), its value, the limit, and what to do about it, on one line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator


def counted(number: int, what: str) -> str:
    """A number of things in words: "1 bank", "2 banks"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def sentence(text: object) -> str:
    """A message as a sentence, after which another one can follow: with a period, unless it ends with a mark."""
    text = str(text)
    return text if text.endswith((".", "?", "!")) else f"{text}."


def shape_text(shape: Iterable[int]) -> str:
    """A shape as every output has it: "1x3x224x224"."""
    return "x".join(map(str, shape)) or "scalar"


def printable(text: str) -> str:
    """``text`` on one line: line breaks and all else that would steer a terminal are shown as Python writes them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """A value that was looked for, as Python writes it; Python refuses to write numbers of thousands of digits."""
    return described(value) if isinstance(value, int) and value.bit_length() >= 200 else repr(value)


def described(value: object) -> str:
    """A value for a message: its type, and the value itself if it is short."""
    if value is None or isinstance(value, (bool, float, str, bytes)):
        return f"{type(value).__name__} {value!r}"[:80] if value is not None else "None"
    if isinstance(value, int):
        return f"int {value}" if value.bit_length() < 200 else "a large int"
    return f"a value of type {type(value).__name__}"


#: Characters of a message: a name of a file or an argument that is longer is cut in the middle.
LONGEST = 2000


def on_one_line(text: str) -> str:
    """A message: one printable line of at most LONGEST characters."""
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 400]} ... {text[-300:]}"


class NvdlaError(Exception):
    """Base of every error that bad input can cause.

    The message is one line of at most LONGEST characters. Escape codes and line breaks in file names and file contents
    are shown escaped (:func:`printable`).

    Attributes:
        place: The file and line, the operation or the field that has the problem and with which the message begins;
            empty if the message begins with none.
        options: Names of the options whose values cause the problem, as in ``nvdla.toml``; empty if they are unknown.
        input: Name of the network's input whose file or value has the problem; empty if it is none in particular.
    """

    place: str = ""
    input: str = ""
    options: tuple[str, ...] = ()

    def __init__(self, message: object = "") -> None:
        super().__init__(on_one_line(str(message)))

    def at(self, place: str) -> NvdlaError:
        """Return this error with a place before its message, or itself if it has a place already.

        Args:
            place: The file and line, the operation or the field that has the problem.
        """
        if self.place:
            return self
        placed = type(self)(f"{place}: {self}")
        placed.place, placed.options, placed.input = place, self.options, self.input
        return placed

    def about(self, *options: str) -> NvdlaError:
        """Return this error with the names of the options that cause it."""
        self.options = options
        return self


class LoadableError(NvdlaError):
    """The FlatBuffer container is broken, or its tables refer to something that does not exist or fit."""


class LinkError(NvdlaError):
    """Memory cannot be laid out, bound or reached: region, address, size, alignment."""


class DescriptorError(NvdlaError):
    """A firmware descriptor (network, operation, surface, LUT, CPU task) cannot be decoded or is illegal."""


class UnknownOperationError(DescriptorError):
    """No operation or layer has the name that was asked for."""


class ConfigError(NvdlaError):
    """The chosen hardware configuration does not exist, or lacks what the operation needs."""

    options = ("config",)


class ScheduleError(NvdlaError):
    """The dependency graph cannot make progress, or a hardware operation deadlocks.

    Attributes:
        operations: Labels (TASK/OPERATION) of the operations at work; empty if they are unknown.
    """

    operations: tuple[str, ...] = ()


class TraceError(NvdlaError):
    """A hardware register trace is malformed, or asks for something the hardware does not have."""


class FormatError(NvdlaError):
    """A tensor, image, label or container file other than a loadable is malformed or of the wrong kind."""


class BuildError(NvdlaError):
    """A network cannot become a loadable: a shape, scale or layer that the hardware cannot do, or bad arguments.

    Args:
        message: the problem.
        layer: the layer that has it, with which the message begins; empty if it is none in particular.
    """

    def __init__(self, message: object = "", layer: str = "") -> None:
        super().__init__(f"layer {layer}: {message}" if layer else message)
        self.layer = layer


@contextlib.contextmanager
def in_layer(name: str) -> Iterator[None]:
    """Name the layer in every BuildError of the block that names none."""
    try:
        yield
    except BuildError as error:
        if error.layer:
            raise
        raise BuildError(error, layer=name) from None


@contextlib.contextmanager
def in_file(name: str) -> Iterator[None]:
    """Begin every error of the block with the file, unless it does already."""
    try:
        yield
    except NvdlaError as error:
        if error.place.startswith(name):
            raise
        named = type(error)(f"{name}: {error}")
        vars(named).update(vars(error), place=f"{name}: {error.place}" if error.place else name)
        raise named from error


@contextlib.contextmanager
def in_input(name: str) -> Iterator[None]:
    """Name the network's input in every error of the block."""
    try:
        yield
    except NvdlaError as error:
        error.input = name
        raise


class ArgumentTypeError(NvdlaError, TypeError):
    """An argument of the Python interface is of the wrong type; also a TypeError."""


class OutOfMemoryError(NvdlaError, MemoryError):
    """The system gave no more memory, below the limits that were set; a MemoryError too."""


def memory_refused(what: str, error: MemoryError) -> OutOfMemoryError:
    """A MemoryError with the work that caused it."""
    if isinstance(error, OutOfMemoryError):
        return error
    asked = f" ({error})" if str(error) else ""
    return OutOfMemoryError(f"{what}: out of memory{asked}; free some, or set a lower memory_limit")
