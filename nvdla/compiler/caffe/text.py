"""Protobuf text of Caffe networks, and the fields that it may contain (messages.json).

Source: Caffe's src/caffe/proto/caffe.proto. A field is written as its type and default: ``"uint=1"``, ``"float=0.75"``,
``"bool=true"``, ``"MAX|AVE=MAX"`` (an enumeration), ``"string"``; a star makes it repeated: ``"uint*"``. The name of a
message is a message. ``"any"`` is a field without effect when a network only runs: fillers, learning rates, engines,
sources of training data.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from typing import Any, NoReturn

from nvdla.errors import FormatError
from nvdla.util.escaping import Document


@dataclass(frozen=True)
class MessageField:
    """``kind``: int, uint, float, bool, string, enum, message or any. ``numbers``: of an enumeration's names."""

    kind: str
    default: object = None
    repeated: bool = False
    numbers: Mapping[str, int] | None = None
    schema: Schema | None = None

    @property
    def inner(self) -> Schema:
        """The fields of a field that is a message."""
        assert self.schema is not None, "only a message has fields"
        return self.schema


@dataclass(frozen=True)
class Schema:
    """A message: its fields by name. ``open_suffix``: other fields with this ending are taken note of, not refused."""

    name: str
    fields: Mapping[str, MessageField]
    open_suffix: str = ""


def message(name: str, open_suffix: str = "", /, **fields: str | Schema | list[Schema] | Mapping[str, int]) -> Schema:
    """A schema from the short forms of its fields."""
    return Schema(name, {field: _field(form) for field, form in fields.items()}, open_suffix)


def _field(form: Any) -> MessageField:
    if isinstance(form, Schema):
        return MessageField("message", schema=form)
    if isinstance(form, list):
        return MessageField("message", schema=form[0], repeated=True)
    if isinstance(form, Mapping):
        return MessageField("enum", numbers=form)
    kind, _, default = form.partition("=")
    repeated, kind = kind.endswith("*"), kind.removesuffix("*")
    if "|" in kind:
        numbers = {name: number for number, name in enumerate(kind.split("|"))}
        return MessageField("enum", default or None, repeated, numbers)
    convert: dict[str, Callable[[str], object]] = {
        "int": int,
        "uint": int,
        "float": float,
        "bool": lambda text: text == "true",
        "string": str,
    }
    return MessageField(kind, convert[kind](default) if default else None, repeated)


_TABLES = json.loads(resources.files("nvdla.compiler.caffe").joinpath("messages.json").read_text(encoding="utf-8"))
#: numbers of the layer types of the old form ``layers { type: CONVOLUTION }``, and their names in the new one
OLD_TYPES: dict[str, tuple[int, str]] = {name: (number, new) for name, (number, new) in _TABLES["old_types"].items()}


def _schemas() -> dict[str, Schema]:
    """The messages of messages.json by name. A field whose form is the name of an earlier message contains it."""
    schemas: dict[str, Schema] = {}
    for name, forms in _TABLES["messages"].items():
        is_layer = name.endswith("LayerParameter")
        fields: dict[str, Any] = {}
        for field, form in (forms | _TABLES["parameters"] if is_layer else forms).items():
            fields[field] = [schemas[form[:-1]]] if form[:-1] in schemas else schemas.get(form, form)
            if form == "old_types":
                fields[field] = {kind: number for kind, (number, _) in OLD_TYPES.items()}
        schemas[name] = message(name, "_param" if is_layer else "", **fields)
    return schemas


NET = _schemas()["NetParameter"]

MAX_DEPTH = 32
MAX_NUMBER = 64  # characters
MAX_COMPARED = 1000  # words that a hint is chosen from

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>[0-9.][\w.]*(?:(?<=[eE])[+-]\w*)?)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[-{}<>\[\]:;,])""",
    re.VERBOSE | re.ASCII,
)
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+\Z|0[0-7]*\Z|[1-9][0-9]*\Z")
_REAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?\Z")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_RANGES = {"int": (-(1 << 63), (1 << 63) - 1), "uint": (0, (1 << 32) - 1)}
_TRUE, _FALSE = ("true", "True", "t", "1"), ("false", "False", "f", "0")
_CLOSING = {"{": "}", "<": ">"}


class TextMessage:
    """One message as read. ``message["field"]``: its value, its default, or a list where it may be repeated.

    ``line``: where it began. ``open``: accepted fields that are not in the schema, with their lines.
    """

    def __init__(self, schema: Schema, line: int = 0) -> None:
        self.schema, self.line = schema, line
        self.open: dict[str, int] = {}
        self._values: Document = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        field = self.schema.fields[name]
        if name in self._values:
            return self._values[name]
        if field.repeated:
            return []
        return TextMessage(field.inner, self.line) if field.kind == "message" else field.default

    def put(self, name: str, value: object) -> None:
        """Set a field, or append to one that is repeated."""
        if self.schema.fields[name].repeated:
            self._values.setdefault(name, []).append(value)
        else:
            self._values[name] = value


def parse(text: str, schema: Schema, name: str) -> TextMessage:
    """The message that a text holds. Raises FormatError that names file, line and field."""
    return _Parser(text, name).whole(schema)


class _Parser:
    """Recursive descent over tokens; each token is looked at once."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._line, self._counted = 1, 0
        self._tokens = self._scan()
        self._kind, self._word, self._at = next(self._tokens)

    def whole(self, schema: Schema) -> TextMessage:
        return self._fields(TextMessage(schema, 1), "", 0)

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        place, text = 0, self._text
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                self._at = place
                self._fail(f"must be a field, a value or a comment, got {text[place]!r}")
            if token.lastgroup is not None and token.lastgroup != "space":
                yield token.lastgroup, token[0], place
            place = token.end()
        while True:
            yield "end", "", len(text)

    def _fail(self, why: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise FormatError(f"{self._name}: line {line}: {one_line(why)}")

    def _next(self) -> str:
        word = self._word
        self._kind, self._word, self._at = next(self._tokens)
        return word

    def _here(self) -> int:
        """The line of the current token; lines are counted on from the last call."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _fields(self, into: TextMessage, closing: str, depth: int) -> TextMessage:
        if depth > MAX_DEPTH:
            self._fail(f"nested messages: must be at most {MAX_DEPTH} levels deep")
        while self._word != closing or self._kind not in ("mark", "end"):
            if self._kind != "name":
                what = "the end of the file" if self._kind == "end" else repr(self._word)
                end = repr(closing) if closing else "the end"
                self._fail(f"must be a field of {into.schema.name} or {end}, got {what}")
            self._field(into, depth)
        if closing:
            self._next()
        return into

    def _field(self, into: TextMessage, depth: int) -> None:
        name, field = self._word, into.schema.fields.get(self._word)
        if field is None:
            if not (into.schema.open_suffix and name.endswith(into.schema.open_suffix)):
                self._fail(
                    f"{into.schema.name}: field: must be in the schema, got {name}{near(name, into.schema.fields)}"
                )
            into.open[name] = self._here()
            field = MessageField("any", repeated=True)
        elif name in into and not field.repeated and field.kind != "any":
            self._fail(f"{name}: must be given once, got a second one")
        self._next()
        colon = self._word == ":" and self._kind == "mark"
        if colon:
            self._next()
        for value in self._values(name, field, colon, depth):
            if field.kind != "any":
                into.put(name, value)
        if self._kind == "mark" and self._word in ",;":
            self._next()

    def _values(self, name: str, field: MessageField, colon: bool, depth: int) -> Iterator[object]:
        """One value, or those of a list in brackets."""
        if not (self._kind == "mark" and self._word == "["):
            yield self._value(name, field, colon, depth)
            return
        if not field.repeated and field.kind != "any":
            self._fail(f"{name}: must be one value, got a list")
        self._next()
        while self._word != "]" or self._kind != "mark":
            yield self._value(name, field, colon, depth)
            if self._word == "," and self._kind == "mark":
                self._next()
            elif self._word != "]":
                self._fail(f"list of {name}: must continue with ',' or ']', got {self._word!r}")
        self._next()

    def _value(self, name: str, field: MessageField, colon: bool, depth: int) -> Any:
        opens = self._kind == "mark" and self._word in _CLOSING
        if field.kind == "any":
            return self._skip(depth) if opens else self._scalar(name, colon)
        if field.kind == "message":
            if not opens:
                self._fail(f"{name}: must be a message in '{{', got {self._word!r}")
            line = self._here()
            return self._fields(TextMessage(field.inner, line), _CLOSING[self._next()], depth + 1)
        if opens:
            self._fail(f"{name}: must be {field.kind}, got a message")
        at = self._at
        sign, kind, word = self._scalar(name, colon)
        after, self._at = self._at, at  # what is wrong with the value is said of its line
        value = self._typed(name, field, sign, kind, word)
        self._at = after
        return value

    def _skip(self, depth: int) -> None:
        """A message whose content does not matter; brackets must match."""
        waiting = [_CLOSING[self._next()]]
        while waiting:
            if depth + len(waiting) > MAX_DEPTH:
                self._fail(f"nested messages: must be at most {MAX_DEPTH} levels deep")
            if self._kind == "end":
                self._fail(f"end of the file: must follow {waiting[-1]!r} (cut off?)")
            kind, word = self._kind, self._next()
            if kind != "mark":
                continue
            if word in _CLOSING:
                waiting.append(_CLOSING[word])
            elif word in "}>" and word != waiting.pop():
                self._fail(f"{word!r}: must close an open bracket")

    def _scalar(self, name: str, colon: bool) -> tuple[str, str, str]:
        """Sign, kind of token and word; strings that follow each other are one."""
        if not colon:
            self._fail(f"{name}: must continue with ':', got {self._word!r}")
        sign = "-" if self._kind == "mark" and self._word == "-" else ""
        if sign:
            self._next()
        kind = self._kind
        if kind not in ("name", "number", "string") or (sign and kind == "string"):
            what = "the end of the file" if kind == "end" else repr(self._word)
            self._fail(f"{name}: must have a value, got {what}")
        if kind != "string":
            return sign, kind, self._next()
        pieces = []
        while self._kind == "string":
            pieces.append(_ESCAPE.sub(_unescaped, self._next()[1:-1]))
        return sign, kind, "".join(pieces)

    def _typed(self, name: str, field: MessageField, sign: str, kind: str, word: str) -> Any:
        shown = f"{sign}{word}"[:MAX_NUMBER]
        if field.kind == "string":
            if kind != "string":
                self._fail(f"{name}: must be a string in quotes, got {shown}")
            return word
        if field.kind == "bool":
            if sign or kind == "string" or word not in _TRUE + _FALSE:
                self._fail(f"{name}: must be true or false, got {shown}")
            return word in _TRUE
        if field.kind == "enum":
            return self._enumerated(name, field, kind, shown)
        if kind != "number" or len(word) > MAX_NUMBER:
            self._fail(f"{name}: must be a number, got {shown}")
        return self._integer(name, field, shown) if field.kind in _RANGES else self._real(name, shown)

    def _enumerated(self, name: str, field: MessageField, kind: str, shown: str) -> str:
        """The name; a number stands for one, too."""
        known = field.numbers or {}
        if kind == "name" and shown in known:
            return shown
        for word, number in known.items():
            if kind == "number" and shown == str(number):
                return word
        return self._fail(f"{name}: must be one of {', '.join(known)}, got {shown}{near(shown, known)}")

    def _integer(self, name: str, field: MessageField, shown: str) -> int:
        digits = shown.removeprefix("-")
        if not _INTEGER.match(digits):
            self._fail(f"{name}: must be an integer, got {shown}")
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        value = int(digits, base) * (-1 if shown[0] == "-" else 1)
        low, high = _RANGES[field.kind]
        if not low <= value <= high:
            self._fail(f"{name}: must be {low} to {high}, got {shown}")
        return value

    def _real(self, name: str, shown: str) -> float:
        digits = shown.removeprefix("-")
        if _INTEGER.match(digits) and digits[:2] in ("0x", "0X"):
            return float(int(shown, 16))
        value = float(shown.rstrip("fF")) if _REAL.match(digits) else math.nan
        if not math.isfinite(value):
            self._fail(f"{name}: must be a finite number, got {shown}")
        return value


def one_line(text: str) -> str:
    """Text from a file for a message: without line ends and what else would steer a terminal."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def near(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that was perhaps meant."""
    matches = difflib.get_close_matches(word[:MAX_NUMBER], islice(known, MAX_COMPARED), n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return _ESCAPES.get(code, code)
