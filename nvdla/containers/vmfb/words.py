"""Signatures, rodata and source locations of a module in words, as IREE's own tools show them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from nvdla.containers.vmfb.module import Location, Module, ModuleFunction, Signature

_TYPES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "!vm.ref<?>"}
_MAX_TEXT = 200
_MAX_DEPTH = 16


def call_in_words(signature: Signature) -> str | None:
    """``(i32, tuple<i64>...) -> (f32)``; None where no calling convention is recorded."""
    if not signature.convention.startswith("0"):
        return None
    return f"({_types(signature.arguments)}) -> ({_types(signature.results)})"


def _types(letters: str) -> str:
    """Letters as types; what stands between C and D comes any number of times."""
    words: list[str] = []
    spans: list[list[str]] = []
    for letter in letters:
        if letter == "C":
            spans.append([])
        elif letter == "D" and spans:
            inner = spans.pop()
            (spans[-1] if spans else words).append(f"tuple<{', '.join(inner)}>...")
        else:
            (spans[-1] if spans else words).append(_TYPES.get(letter, letter))
    return ", ".join(words + [word for span in spans for word in span])


def text_of(data: memoryview) -> str | None:
    """The content where it is text: printable ASCII, not longer than a line."""
    if not 0 < len(data) <= _MAX_TEXT:
        return None
    raw = bytes(data).removesuffix(b"\0")
    return raw.decode("ascii") if raw and all(32 <= byte < 127 for byte in raw) else None


def source_lines(module: Module, function: ModuleFunction) -> dict[int, str]:
    """Offset of an instruction -> where its source is, from the debug database (empty where it was stripped)."""
    for each in module.source_maps:
        if each.name == function.name and function.name:
            return {
                offset: " < ".join(islice(_places(module.locations, index), _MAX_DEPTH))
                for offset, index in each.locations
            }
    return {}


def _places(locations: list[Location], index: int, depth: int = 0) -> Iterator[str]:
    """``file:line:column``, innermost first; a location may refer to others, in a broken file to itself."""
    if not 0 <= index < len(locations) or depth >= _MAX_DEPTH:
        yield "?"
        return
    location = locations[index]
    if location.kind == "file":
        yield f"{location.text}:{location.line}:{location.column}"
    elif location.kind == "callsite":
        for child in location.children[:2]:
            yield from _places(locations, child, depth + 1)
    elif location.kind == "name":
        inner = next(_places(locations, location.children[0], depth + 1)) if location.children else "?"
        yield f'"{location.text}"' if inner == "?" else f'"{location.text}" ({inner})'
    elif location.kind == "fused":
        yield f"[{', '.join(next(_places(locations, child, depth + 1)) for child in location.children[:8])}]"
    else:
        yield "?"
