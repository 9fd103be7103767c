"""YAML of users, read with bounded work: the plain part of the language, nothing that refers or expands.

Mappings, sequences, scalars (``null``, ``true``, ``false``, whole numbers, real numbers, text), as the core schema of
YAML 1.2 has them. The language has neither merge keys nor dates, no tags but those of the scalars, and at most
:data:`MAX_ALIASES` aliases, which share what they name and never copy it. Everything is counted while it is parsed,
before it is built.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Protocol

from nvdla.errors import FormatError
from nvdla.util.files import read_file

#: bytes of a YAML file: what the parser (PyYAML's, written in Python where libyaml is missing) reads in about a second
MAX_FILE = 1 << 17
#: scalars, sequences and mappings together
MAX_NODES = 1 << 14
#: ``*name``
MAX_ALIASES = 64
MAX_DEPTH = 32
MAX_DIGITS = 400

_INTEGER = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_REAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = {"inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_KINDS: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}


def read_yaml(path: str | os.PathLike[str], what: str = "YAML file", limit: int = MAX_FILE) -> object:
    """The document of a YAML file of at most ``limit`` bytes. Raises FormatError that names file, line and limit."""
    return parse_yaml(read_file(path, limit, what), os.fspath(path))


def parse_yaml(data: bytes | str, name: str) -> object:
    """The one document in ``data``: None, bool, int, float, str, lists and dictionaries with scalar keys.

    Raises FormatError, in time and memory linear in the data, for everything but plain YAML.
    """
    import yaml

    loader = getattr(yaml, "CLoader", yaml.Loader)  # only its events are taken: nothing is resolved or constructed
    try:
        return _Builder(name).document(yaml.parse(data, Loader=loader))
    except yaml.MarkedYAMLError as error:
        # libyaml of PyYAML 6.0.4 reads ahead and stops at 1000 levels, before the events of the first ones.
        if error.problem_mark is not None and "maximum nesting depth" in (error.problem or ""):
            line = error.problem_mark.line + 1
            raise FormatError(
                f"{name}, line {line}: collections: must be nested at most {MAX_DEPTH} levels deep"
            ) from None
        raise FormatError(f"{name}: must be YAML: {' '.join(str(error).split())[:300]}") from None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        raise FormatError(f"{name}: must be YAML: {' '.join(str(error).split())[:300]}") from None


class _Mark(Protocol):
    line: int


class _Event(Protocol):
    """An event of the parser: the members of all kinds together."""

    anchor: str | None
    tag: str | None
    value: str
    style: str | None
    start_mark: _Mark


class _Builder:
    """Values from parser events, with an explicit stack."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes = 0
        self._aliases = 0
        self._anchors: dict[str, object] = {}

    def document(self, events: Iterator[_Event]) -> object:
        """The value of the only document; None where there is none."""
        import yaml

        result, documents = None, 0
        stack: list[tuple[list[object] | _Mapping, _Event]] = []  # open collections, with the event that began each
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "file: must contain one document, got a second one")
            elif isinstance(event, yaml.CollectionStartEvent):
                self._count(event)
                if len(stack) >= MAX_DEPTH:
                    self._refuse(event, f"collections: must be nested at most {MAX_DEPTH} levels deep")
                self._tag_of_collection(event)
                stack.append((_Mapping() if isinstance(event, yaml.MappingStartEvent) else [], event))
            elif isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent, yaml.CollectionEndEvent)):
                value = self._value(event, stack)
                if stack:
                    self._put(stack[-1][0], value, event)
                else:
                    result = value
        return result

    def _value(self, event: _Event, stack: list[tuple[list[object] | _Mapping, _Event]]) -> object:
        """Return the value of a scalar, an alias or the end of a collection."""
        import yaml

        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if isinstance(event, yaml.ScalarEvent):
            self._count(event)
            value = self._scalar(event)
        else:
            collection, event = stack.pop()
            value = collection.done if isinstance(collection, _Mapping) else collection
        if event.anchor:
            self._anchors[event.anchor] = value  # only now that it is whole: nothing contains itself
        return value

    def _put(self, target: list[object] | _Mapping, value: object, event: _Event) -> None:
        if isinstance(target, list):
            target.append(value)
        elif target.has_key:
            target.put(value)
        else:
            if isinstance(value, (list, dict)):
                self._refuse(event, "a key must be a scalar")
            if value == "<<" and not getattr(event, "style", "'"):
                self._refuse(event, "merge keys (<<): must be written out")
            if value in target.done:
                self._refuse(event, f"key {str(value)[:80]!r}: must be unique, got a second one")
            target.begin(value)

    def _alias(self, event: _Event) -> object:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            self._refuse(event, f"aliases (*name): must be at most {MAX_ALIASES}. Write the values out.")
        if str(event.anchor) not in self._anchors:
            self._refuse(event, f"alias *{str(event.anchor)[:80]}: must name an anchor that is complete above it")
        return self._anchors[str(event.anchor)]

    def _count(self, event: _Event) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._refuse(event, f"nodes (scalars, sequences and mappings): must be at most {MAX_NODES}")

    def _tag_of_collection(self, event: _Event) -> None:
        import yaml

        kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
        if event.tag not in (None, "!") and _TAGS.get(event.tag or "") != kind:
            self._refuse(event, f"tag: must be omitted, got {str(event.tag)[:80]!r}")

    def _scalar(self, event: _Event) -> object:
        tag, text = event.tag, event.value
        if tag is None:
            return self._plain(event, text) if event.style in (None, "") else text
        kind = "str" if tag == "!" else _TAGS.get(tag)
        if kind is None or kind in ("map", "seq"):
            self._refuse(event, f"tag: must be one of !!str, !!int, !!float, !!bool, !!null, got {tag[:80]!r}")
        assert kind is not None  # _refuse raises
        if kind == "str":
            return text
        value = self._plain(event, text)
        if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
            self._refuse(event, f"value: must be !!{kind}, got {text[:80]!r}")
        return float(value) if kind == "float" and isinstance(value, (int, float)) else value

    def _plain(self, event: _Event, text: str) -> object:
        """The core schema: what an unquoted word means."""
        if text in _WORDS:
            return _WORDS[text]
        if len(text) > MAX_DIGITS:
            if _INTEGER.match(text) or _REAL.match(text):
                self._refuse(event, f"number: must have at most {MAX_DIGITS} characters, got {len(text)}")
            return text
        if _INTEGER.match(text):
            return int(text, 0 if text[:2] in ("0x", "0o") else 10)
        if _REAL.match(text):
            return float(text)
        sign, _, word = text.partition(".")
        return _SPECIAL.get(sign + word.lower(), text) if sign in ("", "+", "-") and len(text) <= 5 else text

    def _refuse(self, event: _Event, problem: str) -> None:
        raise FormatError(f"{self._name}, line {event.start_mark.line + 1}: {problem}")


class _Mapping:
    """A mapping that is being read: a key may wait for its value."""

    def __init__(self) -> None:
        self.done: dict[object, object] = {}
        self.has_key = False
        self._key: object = None

    def begin(self, key: object) -> None:
        self._key, self.has_key = key, True

    def put(self, value: object) -> None:
        self.done[self._key], self.has_key = value, False
